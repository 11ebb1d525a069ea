// merge: a part of what sorted runs are together. A block of the output takes from each run the elements whose ranks in
// the whole fall into the block; where they begin and end is found by binary search, so blocks are independent, and are
// divided among the compute threads.
//
// Law: the rank of element i of run r is i + the elements of runs before r that are not above it + those of runs behind
// r that are below it. Ranks within a run grow with i, so the elements of a run with ranks below n are its first ones,
// and of all runs together they are n.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sort_keys.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kElementsPerBlock = 1 << 15;  // with its copies in the second-level cache

// A vector in memory, and its sorted runs.
template <typename T, Zeros kZeros>
class Runs {
 public:
  using Key = KeyOf<T>;

  Runs(const MergeOp& op, const T* data, int64_t stride, int64_t extent)
      : data_(data), stride_(stride), flip_(FlipOf<T>(op.order)), starts_(op.runs.begin(), op.runs.end()) {
    starts_.push_back(extent);
  }

  size_t count() const { return starts_.size() - 1; }
  int64_t start(size_t run) const { return starts_[run]; }
  Key at(int64_t place) const { return static_cast<Key>(ToKey<kZeros>(data_[place * stride_]) ^ flip_); }

  // Calls `write(i, key)` for the elements from `first` on.
  template <typename Write>
  void ForEachKey(int64_t first, int64_t last, const Write& write) const {
    WithStride(stride_, [&](auto stride) {
      for (int64_t i = 0; i < last - first; ++i) {
        write(i, static_cast<Key>(ToKey<kZeros>(data_[(first + i) * stride]) ^ flip_));
      }
    });
  }

  // By run: where its elements with ranks of `rank` and more begin.
  std::vector<int64_t> SplitAt(int64_t rank) const {
    std::vector<int64_t> splits;
    for (size_t run = 0; run < count(); ++run) {
      int64_t low = starts_[run], high = starts_[run + 1];
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (RankOf(run, middle) < rank) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      splits.push_back(low);
    }
    return splits;
  }

 private:
  int64_t RankOf(size_t run, int64_t place) const {
    const Key key = at(place);
    int64_t rank = place - starts_[run];
    for (size_t other = 0; other < count(); ++other) {
      if (other != run) rank += CountBelow(other, key, other < run);
    }
    return rank;
  }

  // Elements of the run that are below the key, or equal to it where `with_equal`.
  int64_t CountBelow(size_t run, Key key, bool with_equal) const {
    int64_t low = starts_[run], high = starts_[run + 1];
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Key other = at(middle);
      if (other < key || (with_equal && other == key)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - starts_[run];
  }

  const T* data_;
  int64_t stride_;
  Key flip_;
  std::vector<int64_t> starts_;  // and the end
};

template <typename Key>
struct PlacedKey {
  Key key;
  int64_t place;
};
template <typename Key>
Key KeyIn(const Key& key) {
  return key;
}
template <typename Key>
Key KeyIn(const PlacedKey<Key>& placed) {
  return placed.key;
}

// Without a branch that depends on the elements. Of equal ones the first's come first. From both ends at once: each
// end's next element waits for the one before it alone, so the two go on beside each other.
template <typename Item>
void MergeTwo(const Item* first, const Item* first_end, const Item* second, const Item* second_end, Item* to) {
  Item* to_end = to + (first_end - first) + (second_end - second);
  // Of as many elements neither end takes more than there are of either.
  for (ptrdiff_t steps = 0; (steps = std::min(first_end - first, second_end - second) / 2) > 0;) {
    for (; steps > 0; --steps) {
      const Item low_of_first = *first, low_of_second = *second;
      const bool takes_second = KeyIn(low_of_second) < KeyIn(low_of_first);
      *to++ = takes_second ? low_of_second : low_of_first;
      second += takes_second ? 1 : 0;
      first += takes_second ? 0 : 1;
      const Item high_of_first = first_end[-1], high_of_second = second_end[-1];
      const bool takes_first = KeyIn(high_of_second) < KeyIn(high_of_first);
      *--to_end = takes_first ? high_of_first : high_of_second;
      first_end -= takes_first ? 1 : 0;
      second_end -= takes_first ? 0 : 1;
    }
  }
  while (first != first_end && second != second_end) {
    const bool takes_second = KeyIn(*second) < KeyIn(*first);
    *to++ = takes_second ? *second : *first;
    second += takes_second ? 1 : 0;
    first += takes_second ? 0 : 1;
  }
  to = std::copy(first, first_end, to);
  std::copy(second, second_end, to);
}

// Neighbours are merged until one run is left: in `items`. `ends` are the runs' ends in it.
template <typename Item>
void MergeAll(std::vector<Item>& items, std::vector<size_t> ends) {
  std::vector<Item> merged(items.size());
  while (ends.size() > 1) {
    std::vector<size_t> merged_ends;
    size_t start = 0;
    for (size_t r = 0; r < ends.size(); r += 2) {
      const size_t middle = ends[r], end = r + 1 < ends.size() ? ends[r + 1] : middle;
      MergeTwo(items.data() + start, items.data() + middle, items.data() + middle, items.data() + end,
               merged.data() + start);
      merged_ends.push_back(end);
      start = end;
    }
    items.swap(merged);
    ends = std::move(merged_ends);
  }
}

// The elements of ranks [first, last), in their order. `fill(run, first, last, items)` makes a run's items.
template <typename Item, typename Runs, typename Fill>
std::vector<Item> MergeRanks(const Runs& runs, int64_t first, int64_t last, const Fill& fill) {
  const std::vector<int64_t> begins = runs.SplitAt(first), ends = runs.SplitAt(last);
  std::vector<Item> items(static_cast<size_t>(last - first));
  std::vector<size_t> ends_in_items;
  size_t filled = 0;
  for (size_t run = 0; run < begins.size(); ++run) {
    if (begins[run] == ends[run]) continue;
    fill(run, begins[run], ends[run], items.data() + filled);
    filled += static_cast<size_t>(ends[run] - begins[run]);
    ends_in_items.push_back(filled);
  }
  MergeAll(items, std::move(ends_in_items));
  return items;
}

struct MergeLayout {
  int64_t extent = 0;  // of all runs
  int64_t input_stride = 0, place_stride = 0, output_stride = 0;
  Interval ranks;
};

template <typename Body>
void RunBlocksOfRanks(Interval ranks, const Body& body) {
  RunBlocks((ranks.size() + kElementsPerBlock - 1) / kElementsPerBlock, [&](int64_t block) {
    const int64_t first = ranks.start + block * kElementsPerBlock;
    body(first, std::min(ranks.stop, first + kElementsPerBlock), first - ranks.start);
  });
}

template <typename T>
void MergeValues(const MergeOp& op, const MergeLayout& l, const T* input, T* output) {
  using Key = KeyOf<T>;
  const Runs<T, Zeros::kDistinct> runs(op, input, l.input_stride, l.extent);
  const Key flip = FlipOf<T>(op.order);
  RunBlocksOfRanks(l.ranks, [&](int64_t first, int64_t last, int64_t at) {
    const std::vector<Key> keys =
        MergeRanks<Key>(runs, first, last, [&](size_t, int64_t begin, int64_t end, Key* items) {
          runs.ForEachKey(begin, end, [&](int64_t i, Key key) { items[i] = key; });
        });
    WithStride(l.output_stride, [&](auto stride) {
      T* const to = output + at * stride;
      for (int64_t i = 0; i < last - first; ++i) {
        to[i * stride] = FromKey<T>(static_cast<Key>(keys[static_cast<size_t>(i)] ^ flip));
      }
    });
  });
}

template <typename T>
void MergePlaces(const MergeOp& op, const MergeLayout& l, const T* input, const int64_t* places, int64_t* output) {
  using Item = PlacedKey<KeyOf<T>>;
  const Runs<T, Zeros::kEqual> runs(op, input, l.input_stride, l.extent);
  RunBlocksOfRanks(l.ranks, [&](int64_t first, int64_t last, int64_t at) {
    const std::vector<Item> merged =
        MergeRanks<Item>(runs, first, last, [&](size_t run, int64_t begin, int64_t end, Item* items) {
          runs.ForEachKey(begin, end, [&](int64_t i, KeyOf<T> key) {
            items[i] = {key, runs.start(run) + places[(begin + i) * l.place_stride]};
          });
        });
    for (size_t i = 0; i < merged.size(); ++i) {
      output[(at + static_cast<int64_t>(i)) * l.output_stride] = merged[i].place;
    }
  });
}

}  // namespace

absl::Status RunMerge(const MergeOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& input = call.inputs[0];
  const bool is_places = op.result == SortResult::kPlaces;
  const DType result = is_places ? DType::kI64 : input.dtype;
  const bool fits = input.extents.size() == 1 && call.output_extents.size() == 1 && call.output_box.size() == 1 &&
                    call.output_box[0].size() == call.output_extents[0] && call.output_box[0].start >= 0 &&
                    call.output_box[0].stop <= input.extents[0] && op.runs.back() <= input.extents[0] &&
                    call.output_dtype == result &&
                    (!is_places || (call.inputs[1].extents == input.extents && call.inputs[1].dtype == DType::kI64));
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merge: of ", std::string(ToText(input.dtype)), ToText(input.extents), " to ",
        std::string(ToText(call.output_dtype)), ToText(call.output_extents), " at ", ToText(call.output_box)));
  }
  static const uint64_t kZero = 0;
  const auto stride_of = [](const KernelInput& in) { return in.is_zero ? int64_t{0} : in.strides[0]; };
  const auto data_of = [](const KernelInput& in) { return in.is_zero ? static_cast<const void*>(&kZero) : in.data; };
  MergeLayout l{.extent = input.extents[0],
                .input_stride = stride_of(input),
                .output_stride = call.output_strides[0],
                .ranks = call.output_box[0]};
  if (l.ranks.empty()) return absl::OkStatus();
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T>) {
      return false;
    } else {
      const T* from = static_cast<const T*>(data_of(input));
      if (is_places) {
        l.place_stride = stride_of(call.inputs[1]);
        MergePlaces(op, l, from, static_cast<const int64_t*>(data_of(call.inputs[1])),
                    static_cast<int64_t*>(call.output));
      } else {
        MergeValues(op, l, from, static_cast<T*>(call.output));
      }
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("merge", input.dtype);
}

}  // namespace tessera::cpu
