#include "schemas/types/shape.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {

absl::Status ValidateShape(std::string_view what, absl::Span<const int64_t> shape, int64_t element_bytes) {
  if (shape.size() > static_cast<size_t>(kMaxRank)) {
    return absl::InvalidArgumentError(
        StrCat(what, ": rank ", shape.size(), " is over the limit of ", kMaxRank, " (max_rank)"));
  }
  int64_t bytes = element_bytes;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(StrCat(what, ": negative extent ", extent, " in shape ", ToText(shape)));
    }
    // Zero extents are skipped, so that strides of an empty shape can't overflow either.
    if (extent != 0 && __builtin_mul_overflow(bytes, extent, &bytes)) {
      return absl::InvalidArgumentError(StrCat(what, ": shape ", ToText(shape), " has more than 2^63-1 bytes"));
    }
  }
  return absl::OkStatus();
}

int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

Strides RowMajorStrides(absl::Span<const int64_t> shape) {
  Strides strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

Shape BoxShape(const Box& box) {
  Shape shape(box.size());
  for (size_t i = 0; i < box.size(); ++i) shape[i] = box[i].size();
  return shape;
}

int64_t NumElements(const Box& box) {
  int64_t product = 1;
  for (const Interval& interval : box) product *= interval.size();
  return product;
}

bool IsEmpty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Interval& i) { return i.empty(); });
}

Interval Intersect(Interval a, Interval b) {
  const int64_t start = std::max(a.start, b.start);
  return {start, std::max(start, std::min(a.stop, b.stop))};
}

Box Intersect(const Box& a, const Box& b) {
  Box result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = Intersect(a[i], b[i]);
  return result;
}

Box WholeBox(absl::Span<const int64_t> shape) {
  Box box(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) box[i] = {0, shape[i]};
  return box;
}

absl::StatusOr<Shape> BroadcastShapes(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  const absl::Span<const int64_t> longer = a.size() >= b.size() ? a : b;
  const absl::Span<const int64_t> shorter = a.size() >= b.size() ? b : a;
  Shape result(longer.begin(), longer.end());
  const size_t missing = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& extent = result[missing + i];
    if (extent == shorter[i] || shorter[i] == 1) continue;
    if (extent != 1) {
      return absl::InvalidArgumentError(StrCat("broadcast: ", ToText(a), " and ", ToText(b)));
    }
    extent = shorter[i];
  }
  return result;
}

absl::StatusOr<int> NormalizeDim(std::string_view op, int64_t dim, int rank) {
  if (dim >= -rank && dim < rank) return static_cast<int>(dim < 0 ? dim + rank : dim);
  return IndexOutOfRangeError(StrCat(op, ": dim ", dim, " is out of range for rank ", rank));
}

std::string ToText(absl::Span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ","), "]"); }

std::string ToText(const Box& box) {
  return StrCat(
      "[", absl::StrJoin(box, ",", [](std::string* out, const Interval& i) { StrAppend(out, i.start, ":", i.stop); }),
      "]");
}

absl::StatusOr<Shape> ParseShape(Scanner& scanner) {
  TESSERA_RETURN_IF_ERROR(scanner.Take("["));
  Shape shape;
  if (scanner.TryTake("]")) return shape;
  do {
    if (shape.size() == static_cast<size_t>(kMaxRank)) {
      return scanner.Error(StrCat("at most ", kMaxRank, " extents"));
    }
    TESSERA_ASSIGN_OR_RETURN(const int64_t extent, scanner.TakeInteger());
    if (extent < 0) return scanner.Error("an extent that is not negative before here");
    shape.push_back(extent);
  } while (scanner.TryTake(","));
  TESSERA_RETURN_IF_ERROR(scanner.Take("]"));
  return shape;
}

absl::StatusOr<Shape> ParseShape(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(Shape shape, ParseShape(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  TESSERA_RETURN_IF_ERROR(ValidateShape("shape", shape, 1));
  return shape;
}

}  // namespace tessera
