#pragma once

// reshape: every position holds the same elements, by their row-major numbers, of the tensor before and after. Shards
// that can't stay so are gathered before, on their mesh dims alone. Private to schemas/ops.
//
//   f32[8,6] @ mesh(2) [S(0)] -> f32[48] @ mesh(2) [S(0)]          elements 0 to 23, 24 to 47
//   f32[2,6] @ mesh(2,3) [S(0), S(1)] -> f32[12] [S(0), S(0)]      a row each, then two of a row
//   f32[9,4] @ mesh(4) [S(0)] -> f32[36] [S(0;12,12,12,0)]         three rows are twelve elements
//   f32[5,1] @ mesh(1) [S(1)] -> f32[5] [R]                        a mesh dim of size 1 cuts nothing
//
// The law that lets mesh dims be placed one after the other: what a position holds with the first mesh dims
// alone is the union of what its positions hold with all of them. So both sides agree on every leading
// part of the mesh, or they don't agree at all; and where two dims of the output agree with one
// before, neither of them has more than one index left to cut, so that the first one is as good.

#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/ops/resolve_internal.h"

namespace tessera {

struct ReshapedSpecs {
  TensorSpec operand;  // as it has to lie: its own spec where nothing moves
  TensorSpec output;
};
absl::StatusOr<ReshapedSpecs> ReshapeSpecs(const ResolveInput& input);

// `operand` and `output` are ReshapeSpecs'. FailedPrecondition where strides can't express it.
absl::StatusOr<ViewLayout> ReshapeLayout(const TensorSpec& operand, absl::Span<const int64_t> operand_strides,
                                         const TensorSpec& output);

}  // namespace tessera
