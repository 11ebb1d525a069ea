#include "tests/property/planner/random_redistribute.h"

#include <algorithm>
#include <numeric>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr int64_t kMaxWorkers = 16;
constexpr int64_t kMaxElements = 1200;  // times up to 16 replicas
constexpr int64_t kMaxExtent = 40;
constexpr int kMaxDims = 4;

std::vector<int64_t> DrawMeshShape(RandomDraws& draws, int64_t most) {
  std::vector<int64_t> shape;
  const int64_t dims = draws.Between(1, kMaxDims);
  for (int64_t j = 0; j < dims; ++j) {
    shape.push_back(draws.OneIn(8) ? 1 : draws.Between(1, std::min<int64_t>(most, draws.OneIn(2) ? 4 : 16)));
    most /= shape.back();
  }
  draws.Shuffle(shape);
  return shape;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int32_t> DrawWorkers(RandomDraws& draws, int64_t count) {
  std::vector<int32_t> workers(static_cast<size_t>(draws.OneIn(2) ? count : kMaxWorkers));
  std::iota(workers.begin(), workers.end(), draws.OneIn(4) ? 8 : 0);
  if (draws.OneIn(2)) draws.Shuffle(workers);
  workers.resize(static_cast<size_t>(count));
  return workers;
}

// The same workers with the dims in another order, as mesh["tp","dp"] has them.
Mesh DrawReordered(RandomDraws& draws, const Mesh& mesh) {
  std::vector<size_t> order(static_cast<size_t>(mesh.ndim()));
  std::iota(order.begin(), order.end(), size_t{0});
  draws.Shuffle(order);
  std::vector<int64_t> shape;
  for (const size_t j : order) shape.push_back(mesh.shape()[j]);
  const Mesh numbered = MakeMesh(shape);
  std::vector<int32_t> workers;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const Position position = numbered.PositionAt(flat);
    Position original(position.size());
    for (size_t j = 0; j < order.size(); ++j) original[order[j]] = position[j];
    workers.push_back(mesh.WorkerAt(original).value);
  }
  return MakeMesh(shape, workers);
}

Mesh DrawOtherMesh(RandomDraws& draws, const Mesh& mesh) {
  if (!draws.OneIn(2)) return mesh;
  if (draws.OneIn(3)) return DrawReordered(draws, mesh);
  const std::vector<int64_t> shape = DrawMeshShape(draws, kMaxWorkers);
  return MakeMesh(shape, DrawWorkers(draws, Product(shape)));
}

Shape DrawShape(RandomDraws& draws) {
  std::vector<int64_t> shape(static_cast<size_t>(draws.Between(0, kMaxDims)));
  int64_t left = kMaxElements;
  for (int64_t& extent : shape) {
    extent = draws.OneIn(25) ? 0 : draws.Between(1, std::min(kMaxExtent, left));
    left = std::max<int64_t>(1, left / std::max<int64_t>(1, extent));
  }
  draws.Shuffle(shape);
  return Shape(shape.begin(), shape.end());
}

DType DrawDType(RandomDraws& draws) {
  constexpr DType kDTypes[] = {DType::kF64, DType::kF32, DType::kI64, DType::kI32};
  return kDTypes[draws.Below(4)];
}

bool IsFloat(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

Placements DrawPlacements(RandomDraws& draws, const Mesh& mesh, int rank, std::optional<ReduceOp> pending) {
  Placements placements(static_cast<size_t>(mesh.ndim()));
  for (Placement& placement : placements) {
    const int64_t kind = draws.Below(rank > 0 ? 10 : 4);
    if (kind >= 4) placement = Placement::Shard(static_cast<int>(draws.Below(rank)));
    if (pending.has_value() && kind < 3) placement = Placement::Partial(*pending);
  }
  return placements;
}

// Dims in any order, some walked backwards, some with gaps.
Strides DrawStrides(RandomDraws& draws, const Shape& extents) {
  std::vector<size_t> order(extents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  draws.Shuffle(order);
  Strides strides(extents.size());
  int64_t stride = draws.OneIn(3) ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = draws.OneIn(3) ? -stride : stride;
    stride *= std::max<int64_t>(1, extents[order[i]]) + draws.Below(2);
  }
  return strides;
}

void DrawSlice(RandomDraws& draws, RandomRedistribute& drawn) {
  for (int64_t& extent : drawn.destination.shape) {
    const int64_t size = extent == 0 ? 0 : draws.Between(0, extent);
    const int64_t reach = size <= 1 ? 1 : (extent - 1) / (size - 1);
    const int64_t step = size <= 1 ? 1 : draws.Between(1, reach);
    const int64_t span = size == 0 ? 0 : (size - 1) * step;
    const int64_t first = size == 0 ? 0 : draws.Between(0, extent - 1 - span);
    const bool backwards = size > 1 && draws.OneIn(3);
    drawn.start.push_back(backwards ? first + span : first);
    drawn.step.push_back(backwards ? -step : step);
    extent = size;
  }
}

}  // namespace

RandomRedistribute DrawRedistribute(uint64_t seed) {
  RandomDraws draws(seed);
  const std::vector<int64_t> mesh_shape = DrawMeshShape(draws, kMaxWorkers);
  const Mesh mesh = MakeMesh(mesh_shape, DrawWorkers(draws, Product(mesh_shape)));
  const Mesh other = DrawOtherMesh(draws, mesh);
  const Shape shape = DrawShape(draws);
  const std::vector<int64_t> extents(shape.begin(), shape.end());
  const int rank = static_cast<int>(shape.size());
  const DType dtype = DrawDType(draws);
  std::optional<ReduceOp> pending;
  if (!draws.OneIn(3)) {
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kAvg};
    pending = kOps[draws.Below(IsFloat(dtype) ? 5 : 4)];
  }
  const TensorSpec source = MakeSpec(dtype, extents, mesh, DrawPlacements(draws, mesh, rank, pending));
  Placements to = DrawPlacements(draws, other, rank, std::nullopt);
  RandomRedistribute drawn;
  if (HaveSameArrangement(mesh, other)) {
    for (size_t j = 0; j < to.size(); ++j) {
      if (source.placements[j].is_partial() && draws.OneIn(4)) to[j] = source.placements[j];
    }
  }
  drawn.destination = MakeSpec(dtype, extents, other, to);
  drawn.source.spec = source;
  if (draws.OneIn(4)) drawn.source.strides = DrawStrides(draws, MaxShardShape(source));
  if (rank > 0 && draws.OneIn(6)) {
    DrawSlice(draws, drawn);
  } else if (draws.OneIn(8) && !drawn.destination.has_partial() && source.partial_op() != ReduceOp::kAvg) {
    drawn.dtype = DrawDType(draws);
    drawn.destination.dtype = *drawn.dtype;
  }
  return drawn;
}

std::string ToText(const RandomRedistribute& drawn) {
  std::string text = StrCat(ToText(drawn.source.spec), " -> ", ToText(drawn.destination));
  for (const int64_t stride : drawn.source.strides) StrAppend(&text, " stride ", stride);
  for (size_t d = 0; d < drawn.start.size(); ++d) StrAppend(&text, " [", drawn.start[d], "::", drawn.step[d], "]");
  return text;
}

}  // namespace tessera
