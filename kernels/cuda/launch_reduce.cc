// Reductions: of terms to several places, and over dims by the fixed tree (tree.cuh).

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/map_source.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr uint32_t kRowThreads = 128;

bool IsUndefined(ReduceOp op, DType dtype) {
  const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (IsBitwise(op)) return Kind(dtype) == DTypeKind::kComplex || Kind(dtype) == DTypeKind::kFloat;
  return is_extreme && Kind(dtype) == DTypeKind::kComplex;
}

}  // namespace

int64_t ReduceTermsWorkspaceBytes(DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                                  absl::Span<const ReduceDestination> destinations) {
  const bool is_one = terms.size() <= kMaxLaunchTerms && destinations.size() <= kMaxLaunchDestinations;
  return is_one ? 0 : Pieces::Rounded(NumElements(extents) * SizeBytes(AccumulatedIn(dtype)));
}

absl::StatusOr<Steps> LaunchReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                                        absl::Span<const ReduceTerm> terms, int64_t term_count, DType destination_dtype,
                                        absl::Span<const ReduceDestination> destinations, const Workspace& workspace) {
  if (!IsImplemented(dtype) || !IsImplemented(destination_dtype) || IsUndefined(op, dtype)) {
    return NoKernelFor("reduce of terms", dtype);
  }
  if (NumElements(extents) == 0 || terms.empty()) return Steps();
  std::vector<Strides> strides;
  for (const ReduceTerm& term : terms) strides.push_back(term.strides);
  for (const ReduceDestination& destination : destinations) strides.push_back(destination.strides);
  const Loops loops = MergedLoops(extents, std::move(strides));
  const size_t count = terms.size();
  Pieces pieces(workspace);
  void* accumulator = nullptr;
  if (const int64_t bytes = ReduceTermsWorkspaceBytes(dtype, extents, terms, destinations); bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(accumulator, pieces.Take(bytes));
  }
  Steps steps;
  const auto add = [&](size_t first, size_t last, size_t first_destination, size_t last_destination, int use) {
    TermsParameters p;
    p.op = static_cast<int>(op);
    p.destination_dtype = static_cast<int>(destination_dtype);
    p.terms = static_cast<int>(last - first);
    p.destinations = static_cast<int>(last_destination - first_destination);
    p.accumulator_use = use;
    p.accumulator = accumulator;
    p.term_count = term_count;
    p.nest = NestOfExtents<kMaxLaunchTerms + kMaxLaunchDestinations>(loops);
    const auto put = [&](size_t place, const void* data, size_t operand) {
      p.places[place] = const_cast<void*>(data);
      std::copy(loops.strides[operand].begin(), loops.strides[operand].end(), p.nest.strides[place]);
    };
    for (size_t t = first; t < last; ++t) put(t - first, terms[t].data, t);
    for (size_t d = first_destination; d < last_destination; ++d) {
      put(kMaxLaunchTerms + d - first_destination, destinations[d].data, count + d);
    }
    steps.push_back(MakeLaunch("reduce_terms_" + NameOf(dtype), p, GridOf(p.nest.size)));
  };
  if (accumulator == nullptr) {
    add(0, count, 0, destinations.size(), kNoAccumulator);
    return steps;
  }
  for (size_t first = 0; first < count; first += kMaxLaunchTerms) {
    add(first, std::min<size_t>(first + kMaxLaunchTerms, count), 0, 0,
        kWriteAccumulator + (first > 0 ? kReadAccumulator : 0));
  }
  for (size_t d = 0; d < destinations.size(); d += kMaxLaunchDestinations) {
    add(0, 0, d, std::min<size_t>(d + kMaxLaunchDestinations, destinations.size()), kReadAccumulator);
  }
  return steps;
}

// ---- over dims

namespace {

enum class Walk : uint8_t { kRows, kColumns };

struct ReduceCall {
  Shape kept_extents, reduced_extents;
  std::vector<Strides> kept, reduced;  // the inputs, and in `kept` the output
  DType value_dtype = DType::kF32;     // of what is reduced
  DType dtype = DType::kF32;           // in which everything is accumulated
  DType kernel_dtype = DType::kF32;    // of the kernel, where narrow integers are i64
  ReduceOp op = ReduceOp::kSum;        // as the kernel does it
  int64_t outputs = 1, count = 1;
  Walk walk = Walk::kRows;
  int64_t chunks = 1;
  int chunk_levels = 0;
};

// Of bools a sum is a maximum, a product a minimum.
ReduceOp KernelOp(ReduceOp op, DType dtype) {
  if (dtype != DType::kBool) return op;
  return op == ReduceOp::kMin || op == ReduceOp::kProduct ? ReduceOp::kMin : ReduceOp::kMax;
}
DType KernelDType(DType dtype) {
  const DTypeKind kind = Kind(dtype);
  if (kind == DTypeKind::kFloat || kind == DTypeKind::kComplex || dtype == DType::kU64) return dtype;
  return DType::kI64;
}

absl::StatusOr<ReduceCall> Analyse(const ReduceLocalOp& op, const KernelCall& call) {
  if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is not a local reduction");
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  if (IsUndefined(op.op, call.output_dtype)) return NoKernelFor("reduce", call.output_dtype);
  const size_t rank = call.output_extents.size();
  Shape extents(rank, 1);
  for (const KernelInput& input : call.inputs) {
    if (input.extents.size() > rank || !IsImplemented(input.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("reduce: input rank ", input.extents.size(), ", output rank ",
                                                     rank, ", dtype ", NameOf(input.dtype)));
    }
    const size_t missing = rank - input.extents.size();
    for (size_t d = missing; d < rank; ++d) {
      if (input.extents[d - missing] != 1) extents[d] = input.extents[d - missing];
    }
  }
  ReduceCall r;
  const size_t inputs = call.inputs.size();
  r.kept.resize(inputs + 1);
  r.reduced.resize(inputs);
  std::vector<Strides> strides;
  for (const KernelInput& input : call.inputs) {
    TESSERA_ASSIGN_OR_RETURN(Strides broadcast, BroadcastStridesOf("reduce", input, extents));
    strides.push_back(std::move(broadcast));
  }
  for (size_t d = 0; d < rank; ++d) {
    const bool is_reduced = std::find(op.dims.begin(), op.dims.end(), static_cast<int64_t>(d)) != op.dims.end();
    if (!is_reduced && call.output_extents[d] != extents[d]) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduce: extent ", extents[d], " of dim ", d, " becomes ", call.output_extents[d]));
    }
    (is_reduced ? r.reduced_extents : r.kept_extents).push_back(extents[d]);
    if (!is_reduced) r.kept[inputs].push_back(call.output_strides[d]);
    for (size_t i = 0; i < inputs; ++i) (is_reduced ? r.reduced : r.kept)[i].push_back(strides[i][d]);
  }
  if (!op.dims.empty() && op.dims.back() >= static_cast<int64_t>(rank)) {
    return absl::InvalidArgumentError(absl::StrCat("reduce: dim ", op.dims.back(), " is out of range for rank ", rank));
  }
  r.value_dtype = op.map.has_value() ? op.map->dtype() : call.inputs[0].dtype;
  r.dtype = AccumulatedIn(call.output_dtype);
  r.kernel_dtype = KernelDType(r.dtype);
  r.op = KernelOp(op.op, r.dtype);
  r.outputs = NumElements(r.kept_extents);
  r.count = NumElements(r.reduced_extents);
  return r;
}

// How the work is cut: the tree is the same.
void Cut(int64_t device_items, ReduceCall* r) {
  const Loops reduced = MergedLoops(r->reduced_extents, r->reduced);
  bool is_dense_row = reduced.extents.back() >= kReduceLanes;
  for (const Strides& strides : reduced.strides) is_dense_row = is_dense_row && strides.back() <= 1;
  // The columns' kernel reads the dtype that it accumulates in, or halves.
  const bool is_direct = (r->value_dtype == r->kernel_dtype && r->dtype == r->kernel_dtype) ||
                         (r->kernel_dtype == DType::kF32 && AccumulatedIn(r->value_dtype) == DType::kF32);
  const bool is_column = !is_dense_row && r->outputs >= 8 && reduced.extents.size() == 1 && is_direct;
  r->walk = is_column ? Walk::kColumns : Walk::kRows;
  const int64_t blocks = (r->count + kReduceBlock - 1) / kReduceBlock;
  const int64_t wanted = std::max<int64_t>(1, device_items / std::max<int64_t>(r->outputs, 1));
  const auto apiece = static_cast<uint64_t>(std::max<int64_t>(1, blocks / wanted));
  r->chunk_levels = std::min<int>(kChunkLevels, static_cast<int>(std::bit_width(apiece)) - 1);
  // As many as there are, where one item has them all.
  if (std::bit_ceil(static_cast<uint64_t>(blocks)) <= uint64_t{1} << kChunkLevels && wanted == 1) {
    r->chunk_levels = kChunkLevels;
  }
  r->chunks = (blocks + (int64_t{1} << r->chunk_levels) - 1) >> r->chunk_levels;
}

int64_t PartialBytes(const ReduceCall& r) {
  return r.chunks <= 1 ? 0 : Pieces::Rounded(r.outputs * r.chunks * SizeBytes(r.kernel_dtype));
}

std::string EntryOf(const ReduceCall& r) {
  if (r.walk == Walk::kRows) return "reduce_rows_" + NameOf(r.kernel_dtype);
  const bool is_half = r.value_dtype != r.kernel_dtype;
  return "reduce_columns_" + NameOf(r.kernel_dtype) + (is_half ? "_of_" + NameOf(r.value_dtype) : "");
}

Launch TreeOf(const ReduceCall& r, const KernelCall& call, void* partials) {
  TreeParameters p;
  p.op = static_cast<int>(r.op);
  p.output_dtype = static_cast<int>(call.output_dtype);
  p.chunks = r.chunks;
  p.partials = partials;
  p.output = call.output;
  p.kept = MakeNest<1>(r.kept_extents, {r.kept.back()});
  const auto blocks = static_cast<uint32_t>(std::min(r.outputs, kMaxBlocks));
  return MakeLaunch("reduce_tree_" + NameOf(r.kernel_dtype), p, {blocks, 1, 1});
}

}  // namespace

int64_t ReduceWorkspaceBytes(const ReduceLocalOp& op, const KernelCall& call, int64_t device_items) {
  auto r = Analyse(op, call);
  if (!r.ok() || r->count == 0 || r->outputs == 0) return 0;
  Cut(device_items, &*r);
  return PartialBytes(*r);
}

absl::StatusOr<Steps> LaunchReduce(const ReduceLocalOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_ASSIGN_OR_RETURN(ReduceCall r, Analyse(op, call));
  if (r.outputs == 0) return Steps();
  if (r.count == 0) {
    FillParameters p;
    p.element = IdentityOf(op.op, call.output_dtype);
    p.destination = call.output;
    p.nest = MakeNest<1>(call.output_extents, {call.output_strides});
    return Steps{MakeLaunch(absl::StrCat("fill_", SizeBytes(call.output_dtype)), p, GridOf(p.nest.size))};
  }
  Cut(workspace.device_items, &r);
  Pieces pieces(workspace);
  void* partials = nullptr;
  if (const int64_t bytes = PartialBytes(r); bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(partials, pieces.Take(bytes));
  }
  const uint32_t threads = r.walk == Walk::kRows ? kRowThreads : kThreads;
  const auto grid = GridOf(r.outputs * r.chunks * (r.walk == Walk::kRows ? kReduceLanes : 1), threads);
  Steps steps;
  if (op.map.has_value()) {
    const ReduceProgramCall fused = {.op = r.op,
                                     .dtype = r.dtype,
                                     .kernel_dtype = r.kernel_dtype,
                                     .is_by_row = r.walk == Walk::kRows,
                                     .chunk_levels = r.chunk_levels,
                                     .count = r.count,
                                     .chunks = r.chunks,
                                     .outputs = r.outputs,
                                     .partials = partials,
                                     .kept = MergedLoops(r.kept_extents, r.kept),
                                     .reduced = MergedLoops(r.reduced_extents, r.reduced)};
    TESSERA_ASSIGN_OR_RETURN(Launch launch, LaunchReduceProgram(*op.map, call, fused, workspace));
    launch.grid = grid;
    launch.block = {threads, 1, 1};
    steps.push_back(std::move(launch));
  } else {
    ReduceParameters p;
    p.op = static_cast<int>(r.op);
    p.input_dtype = static_cast<int>(r.value_dtype);
    p.output_dtype = static_cast<int>(call.output_dtype);
    p.dtype = static_cast<int>(r.dtype);
    p.chunk_levels = r.chunk_levels;
    p.count = r.count;
    p.chunks = DivisorOf(r.chunks);
    p.outputs = DivisorOf(r.outputs);
    p.input = DataOf(call.inputs[0], workspace);
    p.output = call.output;
    p.partials = partials;
    p.kept = MakeNest<2>(r.kept_extents, r.kept);
    p.reduced = MakeNest<1>(r.reduced_extents, r.reduced);
    steps.push_back(MakeLaunch(EntryOf(r), p, grid, {threads, 1, 1}));
  }
  if (r.chunks > 1) steps.push_back(TreeOf(r, call, partials));
  return steps;
}

}  // namespace tessera::cuda
