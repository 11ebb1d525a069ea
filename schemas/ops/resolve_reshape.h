#pragma once

// reshape that moves nothing. Private to schemas/ops.
//
// Both shapes are cut into groups of neighbouring dims with equal products, as small as possible:
// [6,4,5] -> [24,5] has the groups [6,4]:[24] and [5]:[5]; [24] -> [2,12] has [24]:[2,12]. A sharded
// dim survives when it leads its group and every shard has the same elements before and after.

#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/ops/resolve_internal.h"

namespace tessera {

absl::StatusOr<TensorSpec> ReshapeSpec(const ResolveInput& input);

// `output` is ReshapeSpec's. FailedPrecondition where strides can't express it.
absl::StatusOr<ViewLayout> ReshapeLayout(const TensorSpec& operand, absl::Span<const int64_t> operand_strides,
                                         const TensorSpec& output);

}  // namespace tessera
