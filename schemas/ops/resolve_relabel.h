#pragma once

// relabel: the bytes that every worker holds, read as its part of another tensor. Nothing moves and nothing is
// computed. Private to schemas/ops.
//
//   f32[8,4] @ mesh(2) [S(0)] -> f32[4,4] @ mesh(2) [P(sum)]    the shards are the terms of their sum
//   f32[4,4] @ mesh(2) [P(sum)] -> f32[8,4] @ mesh(2) [S(0)]    the terms, one below the other
//   f32[4,6] @ mesh(2) [R] -> f32[8,6] @ mesh(2) [S(0)]         the copies, one below the other
//   f32[8,4] @ mesh(2) [S(0)] -> f32[2,4,4] @ mesh(2) [S(0)]    each shard with one dim more
//
// The law: at every position both parts have the same elements in row-major order. Dims of a part may be merged and cut
// where they are alike at all positions; a dim that differs between positions stays as it is, but for dims of extent 1
// beside it. Copies [R] are copies by the caller's word: whether the bytes are equal is not looked at.

#include "absl/status/statusor.h"
#include "schemas/ops/resolve_internal.h"

namespace tessera {

// InvalidArgument that names the first position whose parts differ.
absl::StatusOr<TensorSpec> RelabelSpec(const ResolveInput& input);

}  // namespace tessera
