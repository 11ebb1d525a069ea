#pragma once

// A kernel against Interpret's naive meaning of the same LocalOp, on arrays of any layout. They have the op in common;
// neither shares code with the other.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {

// Random, with the dtype's awkward numbers among them.
StridedArray Numbers(DType dtype, const Shape& extents, Layout layout, uint32_t seed);
// Whole numbers, so that sums and products are exact in every order.
StridedArray Small(DType dtype, const Shape& extents, Layout layout, uint32_t seed);

struct Results {
  absl::Status kernel, interpreted;
};
// Runs both on `inputs`, into `output`, and expects that they agree: the same values where tolerance is 0. The box
// begins at box_start in each dim of the output.
Results ExpectAgreement(const LocalOp& op, const std::vector<const StridedArray*>& inputs, StridedArray& output,
                        const std::vector<Scalar>& scalars = {}, int64_t box_start = 0, const Box& input_box = {},
                        double tolerance = 0);

// The op of two elements that a reduction is made of.
ScalarOp PairwiseOp(ReduceOp op, DType dtype);
// Elements in the dtype that is accumulated in, by the tree that reductions have: blocks of 128, in which 16 lanes take
// every sixteenth element and are then folded in halves; blocks pairwise, by the largest power of 2 below their number.
ScalarValue OfTree(ScalarOp op, DType dtype, const ScalarValue* elements, size_t count);

// The op that the text says; a failure of the test where there is none.
LocalOp Parsed(const std::string& text);

}  // namespace tessera::testing
