#include "server/plan/movement/shared_line.h"

#include <algorithm>
#include <utility>

#include "schemas/types/divide.h"

namespace tessera {
namespace {

constexpr int64_t kGrainsPerShare = 64;

class RangeVisitor {
 public:
  RangeVisitor(absl::Span<const int64_t> shape, absl::FunctionRef<void(const Shape&, const Shape&)> visit)
      : shape_(shape), visit_(visit), offset_(shape.size(), 0), extents_(shape.begin(), shape.end()) {}

  // Elements [low, high) of the dims from `dim` on; the dims before are set.
  void Visit(size_t dim, int64_t low, int64_t high) {
    if (low >= high) return;
    if (dim == shape_.size()) return visit_(offset_, extents_);
    int64_t row = 1;
    for (size_t d = dim + 1; d < shape_.size(); ++d) row *= shape_[d];
    int64_t first = low / row;
    const int64_t last = high / row;  // the first row that is not whole
    if (first == last) return Row(dim, first, low - first * row, high - first * row);
    if (low % row != 0) {
      Row(dim, first, low % row, row);
      ++first;
    }
    if (first < last) {
      offset_[dim] = first;
      extents_[dim] = last - first;
      for (size_t d = dim + 1; d < shape_.size(); ++d) {
        offset_[d] = 0;
        extents_[d] = shape_[d];
      }
      visit_(offset_, extents_);
    }
    Row(dim, last, 0, high % row);
  }

 private:
  void Row(size_t dim, int64_t index, int64_t low, int64_t high) {
    offset_[dim] = index;
    extents_[dim] = 1;
    Visit(dim + 1, low, high);
  }

  absl::Span<const int64_t> shape_;
  absl::FunctionRef<void(const Shape&, const Shape&)> visit_;
  Shape offset_;
  Shape extents_;
};

}  // namespace

SharedLine::SharedLine(std::vector<int64_t> givers, int64_t length)
    : givers_(std::move(givers)), share_(CeilDivide(length, static_cast<int64_t>(givers_.size()))) {
  ends_.reserve(givers_.size());
  for (size_t i = 1; i <= givers_.size(); ++i) ends_.push_back(std::min(length, static_cast<int64_t>(i) * share_));
}

SharedLine::SharedLine(std::vector<int64_t> givers, absl::Span<const int64_t> loads, int64_t length)
    : givers_(std::move(givers)) {
  // The lowest level up to which the givers' loads can be filled with `length`.
  const auto room_below = [&](int64_t level) {
    int64_t room = 0;
    for (const int64_t load : loads) room += std::min(length, std::max<int64_t>(0, level - load));
    return room;
  };
  int64_t low = *std::min_element(loads.begin(), loads.end());
  int64_t high = low + length;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (room_below(middle) >= length) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  int64_t end = 0;
  for (const int64_t load : loads) {
    const int64_t part = std::min(length - end, std::max<int64_t>(0, low - load));
    end += part;
    ends_.push_back(end);
    share_ = std::max(share_, part);
  }
}

void SharedLine::Visit(int64_t start, absl::Span<const int64_t> shape, int64_t low, int64_t high,
                       absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const {
  const int64_t grain = GrainOf(shape, share_);
  size_t i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), start) - ends_.begin());
  for (int64_t at = low; at < high; ++i) {
    int64_t cut = high;
    if (i + 1 < ends_.size() && ends_[i] - start < high - low) {
      const int64_t end = low + ends_[i] - start;
      cut = std::clamp((end + grain / 2) / grain * grain, at, high);
    }
    if (cut > at) visit(givers_[std::min(i, givers_.size() - 1)], at, cut);
    at = cut;
  }
}

bool SharedLine::MayRound() const { return givers_.size() > 1 && share_ >= 2 * kGrainsPerShare; }

int64_t GrainOf(absl::Span<const int64_t> shape, int64_t share) {
  const int64_t most = std::max<int64_t>(1, share / kGrainsPerShare);
  int64_t grain = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > most / grain) break;
    grain *= shape[d];
  }
  return grain;
}

void VisitRange(absl::Span<const int64_t> shape, int64_t low, int64_t high,
                absl::FunctionRef<void(const Shape&, const Shape&)> visit) {
  RangeVisitor(shape, visit).Visit(0, low, high);
}

}  // namespace tessera
