#pragma once

// LivingMesh: where a tensor goes on when workers of its mesh are lost, and copies of all its shards live on. It is a
// mesh of living workers on which the same placements say the same of the same bytes: nothing moves.
//
//   R        on mesh(3), worker 1 lost:              mesh(2; workers=0,2)
//   [R, S(0)] on mesh(dp:3,tp:2), worker 2 lost:      mesh(dp:2,tp:2; workers=0,1,4,5)
//   [S(0)]    on mesh(3), worker 1 lost:              none: its rows had one copy
//
// Coordinator and clients ask the same function with the same lost workers, and so agree without a message.

#include <functional>
#include <optional>

#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// The mesh itself where none of its workers is lost; nullopt where a shard, or a term of a sum, has no living holder.
// Else coordinates of one replicated mesh dim are left out, of the dim that keeps the most workers (of several the
// first). Where each coordinate of each replicated dim has lost workers, all of these dims get the extent 1, and each
// shard its first living holder.
std::optional<Mesh> LivingMesh(const Mesh& mesh, absl::Span<const Placement> placements,
                               const std::function<bool(WorkerIndex)>& is_lost);
// The same for a tensor. Where that is nullopt, lost workers whose shards are empty count as living: the tensor is
// whole without them.
std::optional<Mesh> LivingMesh(const TensorSpec& spec, const std::function<bool(WorkerIndex)>& is_lost);

}  // namespace tessera
