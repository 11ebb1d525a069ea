#pragma once

// Shape, Box and Strides: index arithmetic of dense arrays. Extents, offsets and strides are i64;
// whatever can overflow says so instead of wrapping.
//
//   Shape shape{1797, 64};  NumElements(shape) == 115008;  ToText(shape) == "[1797,64]"
//   Box box{{0, 450}, {0, 64}};  ToText(box) == "[0:450,0:64]"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tessera {

class Scanner;

inline constexpr int kMaxRank = 16;  // docs/limits.md: max_rank

using Shape = absl::InlinedVector<int64_t, 6>;
// In elements, may be negative or 0. One per dim.
using Strides = absl::InlinedVector<int64_t, 6>;

// Half-open index range [start, stop) with start <= stop.
struct Interval {
  int64_t start = 0;
  int64_t stop = 0;

  int64_t size() const { return stop - start; }
  bool empty() const { return stop <= start; }
  bool operator==(const Interval&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Interval& i) {
    return H::combine(std::move(h), i.start, i.stop);
  }
};

// One interval per tensor dim. Empty when any interval is. Rank 0: one element.
using Box = absl::InlinedVector<Interval, 6>;

// InvalidArgument: rank over kMaxRank, a negative extent, or more than 2^63-1 elements or bytes
// (with `element_bytes` each); the message carries the shape. `what` opens the message.
absl::Status ValidateShape(std::string_view what, absl::Span<const int64_t> shape, int64_t element_bytes);
// The product; 1 for rank 0. The shape is valid.
int64_t NumElements(absl::Span<const int64_t> shape);
// Row-major strides, in elements. An empty shape gives strides too.
Strides RowMajorStrides(absl::Span<const int64_t> shape);

Shape BoxShape(const Box& box);
int64_t NumElements(const Box& box);
bool IsEmpty(const Box& box);
Interval Intersect(Interval a, Interval b);  // an empty result is {x, x}
Box Intersect(const Box& a, const Box& b);   // equal ranks
// The box of the whole shape.
Box WholeBox(absl::Span<const int64_t> shape);

// NumPy's rule for two shapes; InvalidArgument `broadcast: [2,3] and [4]`.
absl::StatusOr<Shape> BroadcastShapes(absl::Span<const int64_t> a, absl::Span<const int64_t> b);
// Maps a possibly negative dim to [0, rank); InvalidArgument `sum: dim 3 is out of range for rank 2`.
absl::StatusOr<int> NormalizeDim(std::string_view op, int64_t dim, int rank);

std::string ToText(absl::Span<const int64_t> shape);  // "[8192,1024]"
std::string ToText(const Box& box);
absl::StatusOr<Shape> ParseShape(std::string_view text);
// Takes one from a longer text; the extents are not negative, their product is not checked.
absl::StatusOr<Shape> ParseShape(Scanner& scanner);

}  // namespace tessera
