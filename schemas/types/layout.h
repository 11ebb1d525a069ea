#pragma once

// Layout: which box of a tensor lies at which position. One function computes it, everything else
// asks it.
//
// Shard(d) splits as torch.chunk does: ceil(n/k) per coordinate, trailing shards short or empty; an
// empty shard starts at the dim's size. Several mesh dims that shard one tensor dim apply left to
// right, each splitting what the one before left:
//
// Shard(d, sizes) cuts as the sizes say (placement.h).
//
//   ChunkInterval({0, 9}, 2, 0) == {0, 5};  9 rows on 2x2 [S(0),S(0)] are 3,2,2,2
//   LocalBox(f32[1797,64] @ mesh(4) [S(0)], {3}) == [1350:1797, 0:64]

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "schemas/types/shape.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// The part of `whole` at `coordinate` of `count`. 0 <= coordinate < count.
Interval ChunkInterval(Interval whole, int64_t count, int64_t coordinate);

// Whether the mesh dim shards by explicit sizes that fit: one for each piece, none negative, that add up to the extent.
// Sizes that don't fit say nothing: an op that changes an extent or an earlier mesh dim's placement leaves
// torch.chunk's cuts.
bool HasFittingSizes(const TensorSpec& spec, size_t mesh_dim);

// Mesh dims whose placement is Shard(tensor_dim), left to right.
std::vector<int> ShardingMeshDims(const TensorSpec& spec, int tensor_dim);

// The intervals that `tensor_dim` is cut into, by shard index: the row-major number of the
// coordinates on ShardingMeshDims (so one interval, the whole, when nothing shards it). Some may be
// empty. They are disjoint, in increasing order (an empty one lies where its neighbours meet), and
// cover the dim.
std::vector<Interval> DimIntervals(const TensorSpec& spec, int tensor_dim);

// The shard index of `position` along `tensor_dim` (an index into DimIntervals).
int64_t ShardIndex(const TensorSpec& spec, int tensor_dim, absl::Span<const int64_t> position);

// The box of the tensor that the position holds (for Partial dims: holds a term of). A dim in which
// the shard is empty is {n, n} with n the dim's size.
Box LocalBox(const TensorSpec& spec, absl::Span<const int64_t> position);

// Elements of the largest shard: what a symmetric buffer must hold.
int64_t MaxShardElements(const TensorSpec& spec);
// The extents of the largest shard, per dim; every shard fits in them.
Shape MaxShardShape(const TensorSpec& spec);

// `"auto"` placement: under 1 MiB all Replicate; else each mesh dim in order takes the tensor dim
// with the largest remaining extent (ties lowest), Replicate if that is smaller than the mesh dim.
Placements AutoPlacements(DType dtype, absl::Span<const int64_t> shape, const Mesh& mesh);

}  // namespace tessera
