#pragma once

// SharedLine: work laid out on a line, of which each of several givers has a part of equal length. Pure
// arithmetic; everybody who knows the work finds the same givers.
//
//   two givers, boxes of 3, 2 and 3 elements: the line is 8 long; giver 0 has [0:4), giver 1 [4:8), and the
//   second box is cut after its first element.
//
// A box is cut in row-major order, at a multiple of GrainOf, so that large boxes are cut into few.

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "schemas/types/shape.h"

namespace tessera {

class SharedLine {
 public:
  SharedLine() = default;
  // Equal parts of `length`, as many as there are givers (one at least); the last may be short.
  SharedLine(std::vector<int64_t> givers, int64_t length);
  // Parts for givers that have `loads` already: the busiest is as little busy as can be.
  SharedLine(std::vector<int64_t> givers, absl::Span<const int64_t> loads, int64_t length);

  // Calls `visit(giver, low, high)` in order for the parts of elements [low, high) of a box of this shape,
  // which begin at `start` on the line.
  void Visit(int64_t start, absl::Span<const int64_t> shape, int64_t low, int64_t high,
             absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const;
  const std::vector<int64_t>& givers() const { return givers_; }
  // Whether boxes may be cut elsewhere than the parts end: at whole rows.
  bool MayRound() const;
  int64_t PartOf(size_t giver) const { return ends_[giver] - (giver == 0 ? 0 : ends_[giver - 1]); }

 private:
  std::vector<int64_t> givers_;
  std::vector<int64_t> ends_;  // of each giver's part
  int64_t share_ = 1;          // the longest part
};

// The largest row of the shape (all of its last dims) that is at most 1/64 of `share` elements; 1 if none is.
int64_t GrainOf(absl::Span<const int64_t> shape, int64_t share);

// Calls `visit(offset, extents)` for boxes that together are the elements [low, high) of the shape in
// row-major order; the fewest of them, in that order.
void VisitRange(absl::Span<const int64_t> shape, int64_t low, int64_t high,
                absl::FunctionRef<void(const Shape&, const Shape&)> visit);

}  // namespace tessera
