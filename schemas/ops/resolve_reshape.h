#pragma once

// reshape that moves nothing: every position holds the same elements, by their row-major numbers, of the
// tensor before and after. Private to schemas/ops.
//
//   f32[8,6] @ mesh(2) [S(0)] -> f32[48] @ mesh(2) [S(0)]          elements 0 to 23, 24 to 47
//   f32[2,6] @ mesh(2,3) [S(0), S(1)] -> f32[12] [S(0), S(0)]      a row each, then two of a row
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

// InvalidArgument where an element would have to leave its worker. The message then names a
// redistribution after which the same reshape is allowed.
absl::StatusOr<TensorSpec> ReshapeSpec(const ResolveInput& input);

// `output` is ReshapeSpec's. FailedPrecondition where strides can't express it.
absl::StatusOr<ViewLayout> ReshapeLayout(const TensorSpec& operand, absl::Span<const int64_t> operand_strides,
                                         const TensorSpec& output);

}  // namespace tessera
