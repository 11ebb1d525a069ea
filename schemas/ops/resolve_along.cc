// Ops along one dim that every worker has whole: scans and sorts; and ops that read or write a dim at indices. A mesh
// dim that shards the dim shards another one instead, or the dim is gathered; the other dims keep their shards.

#include <algorithm>
#include <optional>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/check_range.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<int> DimOf(const ResolveInput& input) {
  const std::vector<int64_t>& dims = input.call.attributes.Get(attribute::dims);
  const int rank = input.tensors[0]->rank();
  if (dims.size() != 1) return OperandError(input, StrCat("needs one axis, got ", ToText(absl::MakeConstSpan(dims))));
  if (dims[0] >= 0 && dims[0] < rank) return static_cast<int>(dims[0]);
  return IndexOutOfRangeError(
      StrCat(input.row.name, ": axis ", dims[0], " is out of range for rank ", rank, ": ", DescribeOperands(input)));
}

TensorSpec NothingPending(const TensorSpec& own, int dim) {
  TensorSpec spec = own;
  for (int i = 0; i < own.mesh.ndim(); ++i) {
    if (!own.placements[static_cast<size_t>(i)].is_partial()) continue;
    const TensorSpec whole_here = WithPlacement(spec, i, Placement::Replicate());
    Placement chosen = ShardOrReplicate(whole_here, i, dim);
    if (chosen.is_replicate()) chosen = ShardOrReplicate(whole_here, i, -1);
    spec.placements[static_cast<size_t>(i)] = chosen;
  }
  return spec;
}

namespace {

bool IsPending(const TensorSpec& spec) {
  return std::any_of(spec.placements.begin(), spec.placements.end(),
                     [](const Placement& placement) { return placement.is_partial(); });
}

// Nothing pending, and the dim whole.
TensorSpec WholeAlong(const TensorSpec& own, int dim) {
  TensorSpec spec = own;
  for (int i = 0; i < own.mesh.ndim(); ++i) {
    const Placement placement = own.placements[static_cast<size_t>(i)];
    if (placement.is_partial() || placement.is_shard(dim)) {
      spec.placements[static_cast<size_t>(i)] = ShardOrReplicate(spec, i, dim);
    }
  }
  return spec;
}

// Whether its shards are sorted by themselves and merged: those of a vector, which has no other dim to go to.
bool IsMerged(const TensorSpec& x) {
  int64_t shards = 1;
  for (int i = 0; i < x.mesh.ndim(); ++i) {
    if (x.placements[static_cast<size_t>(i)].is_shard()) shards *= x.mesh.shape()[static_cast<size_t>(i)];
  }
  return x.rank() == 1 && shards <= static_cast<int64_t>(kMaxMergedRuns);
}

LocalOp LocalAlong(OpId op, int dim, const Attributes& attributes) {
  const SortOrder order = attributes.Get(attribute::descending) ? SortOrder::kDescending : SortOrder::kAscending;
  const int64_t* const first = attributes.Get(attribute::k);
  switch (op) {
    case OpId::kCumulativeSum: return ScanOp{ReduceOp::kSum, dim};
    case OpId::kCumulativeProd: return ScanOp{ReduceOp::kProduct, dim};
    case OpId::kCumulativeMax: return ScanOp{ReduceOp::kMax, dim};
    case OpId::kCumulativeMin: return ScanOp{ReduceOp::kMin, dim};
    case OpId::kArgSort: return SortOp{SortResult::kPlaces, dim, order};
    case OpId::kArgSortFirst: return SortOp{SortResult::kPlaces, dim, order, *first};
    default: return SortOp{SortResult::kValues, dim, order};
  }
}

absl::Status CheckIndices(const ResolveInput& input) {
  if (input.tensors[1]->dtype == DType::kI64) return absl::OkStatus();
  return OperandDTypeError(input, "indices must be i64");
}

// Each operand as it is wanted, and one output.
OpResolution Make(const ResolveInput& input, absl::Span<const TensorSpec> wanted, LocalOp local, TensorSpec output) {
  OpResolution resolution;
  for (size_t i = 0; i < wanted.size(); ++i) {
    resolution.operands.push_back(BringTo(*input.tensors[i], wanted[i].mesh, wanted[i].placements));
  }
  resolution.flops = static_cast<double>(NumElements(output.shape));
  resolution.local = std::move(local);
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

// How a tensor that is broadcast to `like`'s shape lies beside it: cut where it has the extent, whole elsewhere and
// along `dim`.
TensorSpec Beside(const TensorSpec& own, const TensorSpec& like) {
  TensorSpec spec = own;
  spec.mesh = like.mesh;
  spec.placements = like.placements;
  const int missing = like.rank() - own.rank();
  for (Placement& placement : spec.placements) {
    if (!placement.is_shard()) continue;
    const int dim = placement.dim() - missing;
    const bool has =
        dim >= 0 && own.shape[static_cast<size_t>(dim)] == like.shape[static_cast<size_t>(placement.dim())];
    placement = has ? placement.OnDim(dim) : Placement::Replicate();
  }
  return spec;
}

// A vector of indices is of the dim alone: it lies whole. Others are broadcast.
TensorSpec IndicesBeside(const TensorSpec& indices, const TensorSpec& moved, int dim) {
  if (indices.rank() != 1 || moved.rank() == 1) return Beside(indices, moved);
  TensorSpec spec = indices;
  spec.mesh = moved.mesh;
  spec.placements.assign(static_cast<size_t>(moved.mesh.ndim()), Placement::Replicate());
  for (size_t i = 0; i < moved.placements.size(); ++i) {
    if (moved.placements[i].is_shard(dim)) spec.placements[i] = moved.placements[i].OnDim(0);
  }
  return spec;
}

// The shape of what is taken: x's, along the dim as many as there are indices.
absl::StatusOr<Shape> TakenShape(const ResolveInput& input, const TensorSpec& x, const TensorSpec& indices, int dim) {
  Shape shape = x.shape;
  if (indices.rank() == 1) {
    shape[static_cast<size_t>(dim)] = indices.shape[0];
    return shape;
  }
  if (indices.rank() != x.rank()) return OperandError(input, "indices are a vector, or have as many dims as x");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d == static_cast<size_t>(dim)) {
      shape[d] = indices.shape[d];
    } else if (indices.shape[d] != shape[d] && indices.shape[d] != 1) {
      return OperandError(input, "indices don't broadcast to x in another dim than the axis");
    }
  }
  return shape;
}

// Where the whole dim is not more than a worker's share of the result, bringing it takes no more than its rows one by
// one do, each as often as it is wanted.
bool IsLessThanTaken(const TensorSpec& x, const TensorSpec& output, int dim) {
  TensorSpec whole = x;
  for (Placement& placement : whole.placements) {
    if (placement.is_shard(dim)) placement = Placement::Replicate();
  }
  return MaxShardElements(whole) <= MaxShardElements(output);
}

// A result that is cut where the dim is: as the indices are, else evenly. Each worker takes what its indices want from
// the workers that have it.
absl::StatusOr<OpResolution> TakeFromShards(const ResolveInput& input, const TensorSpec& x, int dim, Shape taken) {
  const TensorSpec& indices = *input.tensors[1];
  TensorSpec output = x;
  output.shape = std::move(taken);
  const int along = indices.rank() == 1 ? 0 : dim;
  const bool is_beside = HaveSameArrangement(indices.mesh, x.mesh);
  for (size_t i = 0; i < x.placements.size(); ++i) {
    const bool is_cut = x.placements[i].is_shard(dim);
    if (!is_cut && !x.placements[i].is_replicate()) continue;
    if (is_beside && indices.placements[i].is_shard(along)) {
      output.placements[i] = indices.placements[i].OnDim(dim);
    } else if (is_cut) {
      output.placements[i] = Placement::Shard(dim);
    }
  }
  DropIdleSizes(output);
  TensorSpec given = x;
  GatherOp gather{dim};
  if (IsLessThanTaken(x, output, dim)) {
    for (Placement& placement : given.placements) {
      if (placement.is_shard(dim)) placement = Placement::Replicate();
    }
  } else {
    gather.from = GatherFrom::kApart;
  }
  return Make(input, {given, IndicesBeside(indices, output, dim)}, gather, output);
}

absl::StatusOr<OpResolution> ResolveTake(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const int dim, DimOf(input));
  TESSERA_RETURN_IF_ERROR(CheckIndices(input));
  const TensorSpec& indices = *input.tensors[1];
  const TensorSpec own = NothingPending(*input.tensors[0], dim);
  TESSERA_ASSIGN_OR_RETURN(const Shape taken, TakenShape(input, own, indices, dim));
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, taken, SizeBytes(own.dtype)));
  if (!ShardingMeshDims(own, dim).empty()) return TakeFromShards(input, own, dim, taken);
  const TensorSpec x = WholeAlong(own, dim);
  TensorSpec output = x;
  output.shape = taken;
  // Indices that are cut where x is whole stay so: each worker takes its own.
  const int along = indices.rank() == 1 ? 0 : dim;
  for (size_t i = 0; i < output.placements.size() && HaveSameArrangement(indices.mesh, x.mesh); ++i) {
    const bool is_free = x.placements[i].is_replicate() && indices.placements[i].is_shard(along);
    if (is_free) output.placements[i] = indices.placements[i].OnDim(dim);
  }
  return Make(input, {x, IndicesBeside(indices, output, dim)}, GatherOp{dim}, output);
}

// As what the modes leave pending: a sum, a maximum or a minimum of what each worker's updates make of x.
std::optional<ReduceOp> PendingOf(ScatterMode mode, DType dtype) {
  switch (mode) {
    case ScatterMode::kSet: return std::nullopt;
    case ScatterMode::kAdd: return dtype == DType::kBool ? std::nullopt : std::optional(ReduceOp::kSum);
    case ScatterMode::kMax: return ReduceOp::kMax;
    case ScatterMode::kMin: return ReduceOp::kMin;
  }
  return std::nullopt;
}

// Where there is less to write than there is, shards of the dim stay where they are: each worker writes what of the
// updates goes to its own.
std::optional<OpResolution> ScatterIntoShards(const ResolveInput& input, ScatterMode mode, int dim) {
  const TensorSpec &x = *input.tensors[0], &indices = *input.tensors[1], &given = *input.tensors[2];
  if (IsPending(x) || ShardingMeshDims(x, dim).empty()) return std::nullopt;
  const int64_t brought =
      NumElements(given.shape) * SizeBytes(given.dtype) + NumElements(indices.shape) * SizeBytes(indices.dtype);
  if (brought >= NumElements(x.shape) * SizeBytes(x.dtype)) return std::nullopt;
  TensorSpec updates = given;
  updates.mesh = x.mesh;
  updates.placements = x.placements;
  for (Placement& placement : updates.placements) {
    if (placement.is_shard(dim)) placement = Placement::Replicate();
  }
  return Make(input, {x, IndicesBeside(indices, updates, dim), updates},
              ScatterOp{mode, dim, x.shape[static_cast<size_t>(dim)]}, x);
}

// Placements are decided mesh dim by mesh dim. Where x is whole and the updates are cut in another dim, x is cut so,
// for nothing. Updates that are cut along the dim, or pending alike, stay where they are where there are more of them
// than elements of x: each worker writes its own, over x, which counts once in a sum, and the result is pending. Else
// the updates lie as x does.
OpResolution PlaceScatter(const ResolveInput& input, ScatterMode mode, int dim) {
  if (std::optional<OpResolution> there = ScatterIntoShards(input, mode, dim)) return *std::move(there);
  const TensorSpec& base = *input.tensors[0];
  const TensorSpec& given = *input.tensors[2];
  TensorSpec x = WholeAlong(base, dim), output = x, updates = given;
  updates.mesh = x.mesh;
  updates.placements = x.placements;
  const std::optional<ReduceOp> pending = PendingOf(mode, x.dtype);
  const bool is_beside = HaveSameArrangement(given.mesh, x.mesh);
  const bool has_more = NumElements(given.shape) > NumElements(x.shape);
  std::vector<int> counted_once;
  for (int i = 0; is_beside && i < x.mesh.ndim(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const Placement& own = given.placements[at];
    const bool is_whole = x.placements[at].is_replicate();
    if (is_whole && own.is_shard() && !own.is_shard(dim) && ShardingMeshDims(x, own.dim()).empty()) {
      x.placements[at] = updates.placements[at] = output.placements[at] = own;
      continue;
    }
    const std::optional<Placement> terms =
        pending.has_value() ? std::optional(Placement::Partial(*pending)) : std::nullopt;
    if (!has_more || !terms.has_value() || (!own.is_shard(dim) && !(own == *terms))) continue;
    if (base.placements[at] == *terms) {
      x.placements[at] = *terms;
    } else if (!is_whole) {
      continue;
    } else if (*pending == ReduceOp::kSum) {
      counted_once.push_back(i);
    }
    updates.placements[at] = own;
    output.placements[at] = *terms;
  }
  // Indices are cut where updates are; beside terms they are whole.
  TensorSpec cut = updates;
  for (Placement& placement : cut.placements) {
    if (placement.is_partial()) placement = Placement::Replicate();
  }
  OpResolution resolution =
      Make(input, {x, IndicesBeside(*input.tensors[1], cut, dim), updates}, ScatterOp{mode, dim}, output);
  resolution.operands[0].counted_once = std::move(counted_once);
  return resolution;
}

absl::StatusOr<OpResolution> ResolveScatter(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const int dim, DimOf(input));
  TESSERA_RETURN_IF_ERROR(CheckIndices(input));
  const TensorSpec &x = *input.tensors[0], &updates = *input.tensors[2];
  if (updates.dtype != x.dtype) return OperandDTypeError(input, "updates must have the dtype of x");
  TESSERA_ASSIGN_OR_RETURN(const Shape moved, TakenShape(input, x, *input.tensors[1], dim));
  if (updates.shape != moved) {
    return OperandError(input, StrCat("updates are ", ToText(absl::MakeConstSpan(moved)), " beside these indices"));
  }
  const std::string& mode = input.call.attributes.Get(attribute::mode);
  static constexpr std::string_view kModes[] = {"set", "add", "max", "min"};
  const auto* const known =
      std::find(std::begin(kModes), std::end(kModes), mode.empty() ? "set" : std::string_view(mode));
  if (known == std::end(kModes)) return OperandError(input, StrCat("mode is ", mode, ", not set, add, max or min"));
  if (Kind(x.dtype) == DTypeKind::kComplex && (mode == "max" || mode == "min")) return NeedsRealDType(input);
  return PlaceScatter(input, static_cast<ScatterMode>(known - std::begin(kModes)), dim);
}

// Where an element belongs in a sorted vector is the sum of where it belongs in the vector's shards: before so many
// elements of each. That is less to move where the vector is long beside the values and their places.
bool CountsByShard(const TensorSpec& sorted, const TensorSpec& values) {
  if (!HaveSameArrangement(sorted.mesh, values.mesh)) return false;
  if (IsPending(sorted) || ShardingMeshDims(sorted, 0).empty()) return false;
  const int64_t of_value = SizeBytes(values.dtype) + SizeBytes(DType::kI64);
  return NumElements(values.shape) * of_value < NumElements(sorted.shape) * SizeBytes(sorted.dtype);
}

absl::StatusOr<OpResolution> ResolveSearch(const ResolveInput& input) {
  const TensorSpec& row = *input.tensors[0];
  const TensorSpec& values = *input.tensors[1];
  if (row.rank() != 1) return OperandError(input, "x1 must be a vector");
  if (row.dtype != values.dtype) return OperandDTypeError(input, "dtypes differ");
  if (Kind(row.dtype) == DTypeKind::kComplex) return NeedsRealDType(input);
  const std::string& side = input.call.attributes.Get(attribute::side);
  if (!side.empty() && side != "left" && side != "right")
    return OperandError(input, StrCat("side is ", side, ", not left or right"));
  TensorSpec output = values;
  for (int i = 0; i < output.mesh.ndim(); ++i) {
    Placement& placement = output.placements[static_cast<size_t>(i)];
    if (placement.is_partial()) placement = ShardOrReplicate(WithPlacement(output, i, Placement::Replicate()), i, -1);
  }
  TensorSpec sorted = row;
  sorted.mesh = output.mesh;
  sorted.placements.assign(static_cast<size_t>(output.mesh.ndim()), Placement::Replicate());
  TensorSpec wanted = output;
  if (CountsByShard(row, values)) {
    for (size_t i = 0; i < row.placements.size(); ++i) {
      if (!row.placements[i].is_shard()) continue;
      sorted.placements[i] = row.placements[i];
      wanted.placements[i] = Placement::Replicate();
      output.placements[i] = Placement::Partial(ReduceOp::kSum);
    }
  }
  return Make(input, {sorted, wanted}, SearchSortedOp{side == "right" ? SearchSide::kRight : SearchSide::kLeft},
              WithDType(output, DType::kI64));
}

}  // namespace

absl::StatusOr<OpResolution> ResolveAlong(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const int dim, DimOf(input));
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  const bool sorts = input.call.op == OpId::kSort || input.call.op == OpId::kArgSort;
  const TensorSpec own = NothingPending(*input.tensors[0], dim);
  const bool selects = input.call.op == OpId::kArgSortFirst;
  const TensorSpec x = selects || (sorts && !IsMerged(own)) ? WholeAlong(own, dim) : own;
  TensorSpec output = x;
  output.dtype = dtypes.result;
  if (selects) {
    const int64_t* const first = input.call.attributes.Get(attribute::k);
    int64_t& extent = output.shape[static_cast<size_t>(dim)];
    if (first == nullptr || *first < 0 || *first > extent) {
      return OperandError(input, StrCat("k is ", first == nullptr ? "not given" : StrCat(*first), "; the axis has ",
                                        extent, " elements"));
    }
    extent = *first;
  }
  const bool sums = input.call.op == OpId::kCumulativeSum || input.call.op == OpId::kCumulativeProd;
  if (const DType* wanted = input.call.attributes.Get(attribute::dtype); wanted != nullptr) {
    if (!sums || *wanted == DType::kBool) {
      return OperandDTypeError(input, StrCat("dtype= can't be ", ToText(*wanted), " here"));
    }
    TESSERA_RETURN_IF_ERROR(CheckMayCast(input, x.dtype, *wanted));
    output.dtype = *wanted;
  }
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, output.shape, SizeBytes(output.dtype)));
  OpResolution resolution = Make(input, {x}, LocalAlong(input.call.op, dim, input.call.attributes), output);
  resolution.flops = static_cast<double>(NumElements(x.shape));
  return resolution;
}

static absl::StatusOr<OpResolution> ResolveCheckRange(const ResolveInput& input) {
  const TensorSpec& x = *input.tensors[0];
  if (!IsChecked(x.dtype)) return OperandDTypeError(input, "needs i64, f32 or f64");
  if (input.call.scalars.size() < 2) return OperandError(input, "needs low and high");
  CheckRangeOp op;
  if (!input.call.attributes.Get(attribute::mode).empty()) op.what = input.call.attributes.Get(attribute::mode);
  TESSERA_RETURN_IF_ERROR(ValidateLocalOp(op, 1, static_cast<int>(input.call.scalars.size())));
  const TensorSpec whole = NothingPending(x, -1);
  OpResolution resolution = Make(input, {whole}, std::move(op), whole);
  resolution.scalars = input.call.scalars;
  return resolution;
}

absl::StatusOr<OpResolution> ResolveIndexed(const ResolveInput& input) {
  if (input.call.op == OpId::kCheckRange) return ResolveCheckRange(input);
  switch (input.call.op) {
    case OpId::kFilter: return ResolveFilter(input);
    case OpId::kShardCounts: return ResolveShardCounts(input);
    case OpId::kScatter: return ResolveScatter(input);
    case OpId::kSearchSorted: return ResolveSearch(input);
    default: return ResolveTake(input);
  }
}

}  // namespace tessera
