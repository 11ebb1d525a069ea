// The rows that a mask keeps of each shard (filter.h).

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/filter.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

FilterOperands PlaceFilter(const TensorSpec& x, const TensorSpec& mask, int dim) {
  FilterOperands wanted{NothingPending(x, dim), mask};
  if (HaveSameArrangement(mask.mesh, x.mesh) && ShardingMeshDims(wanted.x, dim).empty()) {
    for (size_t i = 0; i < x.placements.size(); ++i) {
      if (!wanted.x.placements[i].is_replicate() || !mask.placements[i].is_shard()) continue;
      wanted.x.placements[i] = mask.placements[i].OnDim(dim);
    }
    DropIdleSizes(wanted.x);
  }
  wanted.mask.mesh = wanted.x.mesh;
  wanted.mask.placements.clear();
  for (const Placement& placement : wanted.x.placements) {
    wanted.mask.placements.push_back(placement.is_shard(dim) ? placement.OnDim(0) : Placement::Replicate());
  }
  DropIdleSizes(wanted.mask);
  return wanted;
}

std::vector<int64_t> ShardLengths(const TensorSpec& spec, int dim) {
  std::vector<int64_t> lengths;
  for (const Interval& shard : DimIntervals(spec, dim)) lengths.push_back(shard.size());
  return lengths;
}

namespace {

absl::Status CheckMask(const ResolveInput& input, const TensorSpec& mask) {
  if (mask.dtype != DType::kBool) return OperandDTypeError(input, "a mask must be bool");
  return mask.rank() == 1 ? absl::OkStatus() : OperandError(input, "a mask must be a vector");
}

absl::Status CheckLengths(const ResolveInput& input, absl::Span<const int64_t> lengths, const TensorSpec& x, int dim) {
  const std::vector<int64_t> greatest = ShardLengths(x, dim);
  bool fits = lengths.size() == greatest.size();
  for (size_t i = 0; fits && i < lengths.size(); ++i) fits = 0 <= lengths[i] && lengths[i] <= greatest[i];
  if (fits) return absl::OkStatus();
  return OperandError(input, StrCat("lengths are ", ToText(lengths), " of shards of ", ToText(greatest)));
}

}  // namespace

absl::StatusOr<OpResolution> ResolveFilter(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const int dim, DimOf(input));
  const bool has_rows = input.tensors.size() == 2;
  const TensorSpec &x = *input.tensors[0], &mask = *input.tensors.back();
  TESSERA_RETURN_IF_ERROR(CheckMask(input, mask));
  if (mask.shape[0] != x.shape[static_cast<size_t>(dim)] && mask.shape[0] != 0) {
    return OperandError(input, StrCat("the mask has another extent than dim ", dim));
  }
  const FilterOperands wanted = PlaceFilter(x, mask, dim);
  const std::vector<int64_t>& lengths = input.call.attributes.Get(attribute::lengths);
  TESSERA_RETURN_IF_ERROR(CheckLengths(input, lengths, wanted.x, dim));
  TensorSpec output = wanted.x;
  if (!has_rows) output.dtype = DType::kI64;
  output.shape[static_cast<size_t>(dim)] = 0;
  for (const int64_t length : lengths) output.shape[static_cast<size_t>(dim)] += length;
  const std::vector<int> cutting = ShardingMeshDims(wanted.x, dim);
  for (const int mesh_dim : cutting) {
    const bool is_last = mesh_dim == cutting.back();
    output.placements[static_cast<size_t>(mesh_dim)] = is_last ? Placement::Shard(dim, lengths) : Placement::Shard(dim);
  }
  DropIdleSizes(output);
  OpResolution resolution;
  resolution.operands.push_back(BringTo(x, wanted.x.mesh, wanted.x.placements));
  if (has_rows) resolution.operands.push_back(BringTo(mask, wanted.mask.mesh, wanted.mask.placements));
  resolution.flops = static_cast<double>(NumElements(x.shape));
  resolution.local = FilterOp{has_rows ? FilterResult::kRows : FilterResult::kPlaces, dim};
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

// The planner gathers what the shards count. Nothing is read of x, which says where they lie.
absl::StatusOr<OpResolution> ResolveShardCounts(const ResolveInput& input) {
  const TensorSpec &mask = *input.tensors[0], &x = *input.tensors.back();
  TESSERA_RETURN_IF_ERROR(CheckMask(input, mask));
  int dim = 0;
  if (input.tensors.size() == 2) {
    const std::vector<int64_t>& dims = input.call.attributes.Get(attribute::dims);
    if (dims.size() != 1 || dims[0] < 0 || dims[0] >= x.rank()) return OperandError(input, "needs one axis of x");
    dim = static_cast<int>(dims[0]);
  }
  const TensorSpec own = PlaceFilter(x, mask, dim).mask;
  TensorSpec output = own;
  output.dtype = DType::kI64;
  output.shape = {static_cast<int64_t>(DimIntervals(own, 0).size())};
  output.placements.assign(own.placements.size(), Placement::Replicate());
  OpResolution resolution;
  resolution.operands.push_back(BringTo(mask, own.mesh, own.placements));
  if (input.tensors.size() == 2) resolution.operands.push_back({x, false, {}});
  resolution.flops = static_cast<double>(NumElements(mask.shape));
  resolution.local = ReduceLocalOp{ReduceOp::kSum, {0}};
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
