// Reductions over dims by the fixed tree (tree.cuh).

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/map_source.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {

ReduceOp ReducedBy(ReduceOp op, DType dtype) {
  if (dtype != DType::kBool) return op;
  return op == ReduceOp::kMin || op == ReduceOp::kProduct ? ReduceOp::kMin : ReduceOp::kMax;
}

DType ReducedIn(DType dtype) {
  const DTypeKind kind = Kind(dtype);
  if (kind == DTypeKind::kFloat || kind == DTypeKind::kComplex || dtype == DType::kU64) return dtype;
  return DType::kI64;
}

namespace {

constexpr uint32_t kRowThreads = 128;
constexpr int64_t kTreeRows = kReduceBlock / kReduceLanes;  // elements of a lane in a block

// The last two by loads of 16 bytes (vector_tree.cuh).
enum class Walk : uint8_t { kRows, kColumns, kVectorRows, kVectorColumns };

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
  int group_levels = 0;      // by vectors along rows
  int64_t vector_count = 1;  // elements of a load by vectors
  int64_t octets = 1;        // by vectors of columns
};

absl::StatusOr<ReduceCall> Analyse(const ReduceLocalOp& op, const KernelCall& call) {
  if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is not a local reduction");
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  if (IsUndefinedReduce(op.op, call.output_dtype)) return NoKernelFor("reduce", call.output_dtype);
  const size_t rank = call.output_extents.size();
  Shape extents(rank, 1);
  for (const KernelInput& input : call.inputs) {
    if (input.extents.size() > rank || IsFloat8(input.dtype)) {
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
    TESSERA_ASSIGN_OR_RETURN(Strides broadcast, BroadcastStrides("reduce", input, extents));
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
  r.vector_count =
      op.map.has_value() ? VectorCountOf(*op.map, MapResult::kReduced, kTreeRows) : 16 / SizeBytes(r.value_dtype);
  r.dtype = AccumulatedIn(call.output_dtype);
  r.kernel_dtype = ReducedIn(r.dtype);
  r.op = ReducedBy(op.op, r.dtype);
  r.outputs = NumElements(r.kept_extents);
  r.count = NumElements(r.reduced_extents);
  return r;
}

int FloorLog2(int64_t number) { return std::bit_width(static_cast<uint64_t>(number)) - 1; }
int CeilLog2(int64_t number) { return std::bit_width(static_cast<uint64_t>(number - 1)); }

// "f32_of_bf16" of what is accumulated in f32; empty where there is no kernel by vectors. Any or all of bools has one
// along rows alone, and integers.
std::string VectorTypes(const ReduceCall& r, Walk walk) {
  const bool is_float = AccumulatedIn(r.value_dtype) == r.kernel_dtype && r.dtype == r.kernel_dtype &&
                        Kind(r.kernel_dtype) == DTypeKind::kFloat;
  const bool is_integer = walk == Walk::kVectorRows && r.op != ReduceOp::kProduct &&
                          ((r.value_dtype == DType::kI64 && r.dtype == DType::kI64) ||
                           (r.value_dtype == DType::kI32 && (r.dtype == DType::kI32 || r.dtype == DType::kI64)));
  if (!is_float && !is_integer) return "";
  return NameOf(r.kernel_dtype) + (r.value_dtype == r.kernel_dtype ? "" : "_of_" + NameOf(r.value_dtype));
}
bool IsOfTruths(const ReduceCall& r) { return r.dtype == DType::kBool && r.value_dtype == DType::kBool; }

std::string VectorEntry(const ReduceCall& r, Walk walk) {
  if (IsOfTruths(r)) return walk == Walk::kVectorColumns ? "" : r.op == ReduceOp::kMin ? "all" : "any";
  const std::string types = VectorTypes(r, walk);
  if (types.empty()) return "";
  switch (r.op) {
    case ReduceOp::kSum: return "sum_" + types;
    case ReduceOp::kProduct: return "prod_" + types;
    case ReduceOp::kMax: return "max_" + types;
    case ReduceOp::kMin: return "min_" + types;
    default: return "";
  }
}

// The inputs that are loaded by vectors, a bit each, where all others have one number for a whole vector; 0 where there
// is none, or an input lies otherwise. Addresses are left out of it where they are null.
uint64_t InVectors(const ReduceCall& r, Walk walk, const KernelCall& call, absl::Span<const uint64_t> addresses) {
  const Loops reduced = MergedLoops(r.reduced_extents, r.reduced), kept = MergedLoops(r.kept_extents, r.kept);
  const bool is_along_rows = walk == Walk::kVectorRows;
  if (reduced.extents.size() != 1 ||
      (is_along_rows ? r.count < kReduceLanes : kept.extents.back() % r.vector_count != 0)) {
    return 0;
  }
  uint64_t in_vectors = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    Strides others = kept.strides[i];
    const int64_t step = is_along_rows ? reduced.strides[i][0] : others.back();
    if (!is_along_rows) others.back() = reduced.strides[i][0];
    if (step == 0 && call.inputs.size() > 1) continue;
    if (step != 1 || !VectorsDivide(addresses[i], others, call.inputs[i].dtype, r.vector_count)) return 0;
    in_vectors |= uint64_t{1} << i;
  }
  return in_vectors;
}

int64_t BlocksOf(const ReduceCall& r) { return (r.count + kReduceBlock - 1) / kReduceBlock; }

void CutTo(int levels, ReduceCall* r) {
  r->chunk_levels = levels;
  r->chunks = (BlocksOf(*r) + (int64_t{1} << levels) - 1) >> levels;
}

// Between the levels, so that there are as many items as are wanted, and one where one is.
void CutVectors(int64_t wanted, int least, int most, ReduceCall* r) {
  const int64_t blocks = BlocksOf(*r);
  const bool is_one = wanted <= 1 && CeilLog2(blocks) <= most;
  CutTo(is_one ? most : std::clamp(FloorLog2(std::max<int64_t>(1, blocks / std::max<int64_t>(wanted, 1))), least, most),
        r);
}

// Blocks that a warp has at once: a load of 16 bytes has so many of a block's 16 lanes.
int WarpLevels(const ReduceCall& r) { return 5 - FloorLog2(kReduceLanes / r.vector_count); }

// How the work is cut: the tree is the same.
void CutAsScalars(int64_t device_items, ReduceCall* r) {
  const Loops reduced = MergedLoops(r->reduced_extents, r->reduced);
  bool is_dense_row = reduced.extents.back() >= kReduceLanes;
  for (const Strides& strides : reduced.strides) is_dense_row = is_dense_row && strides.back() <= 1;
  // The columns' kernel reads the dtype that it accumulates in, or halves.
  const bool is_direct = (r->value_dtype == r->kernel_dtype && r->dtype == r->kernel_dtype) ||
                         (r->kernel_dtype == DType::kF32 && AccumulatedIn(r->value_dtype) == DType::kF32);
  const bool is_column = !is_dense_row && r->outputs >= 8 && reduced.extents.size() == 1 && is_direct;
  r->walk = is_column ? Walk::kColumns : Walk::kRows;
  // An item of columns is a thread, of rows half a warp.
  if (is_column) device_items *= kReduceLanes;
  CutVectors(device_items / std::max<int64_t>(r->outputs, 1), 0, kChunkLevels, r);
}

void Cut(Walk walk, int64_t device_items, ReduceCall* r) {
  r->walk = walk;
  if (walk == Walk::kVectorRows) {
    r->group_levels = std::min(WarpLevels(*r), CeilLog2(BlocksOf(*r)));
    CutVectors(device_items / r->outputs, r->group_levels, r->group_levels + kVectorLevels, r);
  } else if (walk == Walk::kVectorColumns) {
    const int64_t columns = 8 * r->vector_count;
    r->octets = (r->outputs + columns - 1) / columns;
    CutVectors(device_items / r->octets, 0, kColumnLevels, r);
  } else {
    CutAsScalars(device_items, r);
  }
}

// By vectors where there is a kernel, or a program may be one, and all inputs lie so.
struct VectorWalk {
  Walk walk = Walk::kRows;
  uint64_t in_vectors = 0;
};
VectorWalk WalkOf(const ReduceCall& r, const KernelCall& call, bool has_map, absl::Span<const uint64_t> addresses) {
  const bool has_zeros = call.inputs.size() == 1 && call.inputs[0].is_zero;
  if (has_zeros || (has_map && (r.vector_count == 1 || Kind(r.kernel_dtype) == DTypeKind::kComplex))) return {};
  for (const Walk walk : {Walk::kVectorRows, Walk::kVectorColumns}) {
    if (!has_map && VectorEntry(r, walk).empty()) continue;
    if (const uint64_t in_vectors = InVectors(r, walk, call, addresses); in_vectors != 0) return {walk, in_vectors};
  }
  return {};
}
// As far as strides say.
Walk WalkOf(const ReduceCall& r, const KernelCall& call, bool has_map) {
  return WalkOf(r, call, has_map, std::vector<uint64_t>(call.inputs.size())).walk;
}

int64_t PartialBytes(const ReduceCall& r) {
  return r.chunks <= 1 ? 0 : Pieces::Rounded(r.outputs * r.chunks * SizeBytes(r.kernel_dtype));
}

std::string EntryOf(const ReduceCall& r) {
  if (r.walk == Walk::kVectorRows) return "reduce_rows_v_" + VectorEntry(r, r.walk);
  if (r.walk == Walk::kVectorColumns) return "reduce_columns_v_" + VectorEntry(r, r.walk);
  if (r.walk == Walk::kRows) return "reduce_rows_" + NameOf(r.kernel_dtype);
  const bool is_half = r.value_dtype != r.kernel_dtype;
  return "reduce_columns_" + NameOf(r.kernel_dtype) + (is_half ? "_of_" + NameOf(r.value_dtype) : "");
}

std::string_view KernelOf(Walk walk) {
  switch (walk) {
    case Walk::kRows: return "ReduceRows";
    case Walk::kColumns: return "ReduceColumns";
    case Walk::kVectorRows: return "ReduceRowsByVector";
    case Walk::kVectorColumns: return "ReduceColumnsByVector";
  }
  return "";
}

struct ItemThreads {
  int64_t all = 0;
  uint32_t block = kThreads;
};
ItemThreads ItemThreadsOf(const ReduceCall& r) {
  const int64_t items = r.outputs * r.chunks;
  switch (r.walk) {
    case Walk::kColumns: return {items, kThreads};
    case Walk::kVectorRows: return {items << (5 - WarpLevels(r) + r.group_levels), kVectorThreads};
    case Walk::kVectorColumns: return {r.octets * r.chunks * 32, kVectorThreads};
    default: return {items * kReduceLanes, kRowThreads};
  }
}

Launch TreeOf(const ReduceCall& r, const KernelCall& call, void* partials) {
  TreeParameters p;
  p.op = static_cast<int>(r.op);
  p.output_dtype = static_cast<int>(call.output_dtype);
  p.chunks = r.chunks;
  p.partials = partials;
  p.output = call.output;
  p.kept = MakeNest<1>(r.kept_extents, {r.kept.back()});
  constexpr int kBlockLevels = 10;  // of threads
  p.group_levels = std::min(CeilLog2((r.chunks + kTreeRun - 1) / kTreeRun), kBlockLevels);
  const uint32_t threads = p.group_levels > 5 ? uint32_t{1} << p.group_levels : kThreads;
  return MakeLaunch("reduce_tree_" + NameOf(r.kernel_dtype), p, GridOf(r.outputs << p.group_levels, threads),
                    {threads, 1, 1});
}

}  // namespace

int64_t ReduceWorkspaceBytes(const ReduceLocalOp& op, const KernelCall& call, int64_t device_items) {
  auto r = Analyse(op, call);
  if (!r.ok() || r->count == 0 || r->outputs == 0) return 0;
  Cut(Walk::kRows, device_items, &*r);
  const int64_t scalars = PartialBytes(*r);
  const Walk walk = WalkOf(*r, call, op.map.has_value());
  if (walk == Walk::kRows) return scalars;
  Cut(walk, device_items, &*r);
  return std::max(scalars, PartialBytes(*r));
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
  std::vector<uint64_t> addresses;
  for (const KernelInput& input : call.inputs) addresses.push_back(AddressOf(input.data));
  const VectorWalk by_vectors = WalkOf(r, call, op.map.has_value(), addresses);
  Cut(by_vectors.walk, workspace.device_items, &r);
  Pieces pieces(workspace);
  void* partials = nullptr;
  if (const int64_t bytes = PartialBytes(r); bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(partials, pieces.Take(bytes));
  }
  const ItemThreads items = ItemThreadsOf(r);
  const uint32_t threads = items.block;
  const auto grid = GridOf(items.all, threads);
  Steps steps;
  if (op.map.has_value()) {
    const bool is_by_vectors = by_vectors.in_vectors != 0;
    const ReduceProgramCall fused = {.op = r.op,
                                     .dtype = r.dtype,
                                     .kernel_dtype = r.kernel_dtype,
                                     .kernel = KernelOf(r.walk),
                                     .vector_count = static_cast<int>(is_by_vectors ? r.vector_count : 1),
                                     .in_vectors = by_vectors.in_vectors,
                                     .chunk_levels = r.chunk_levels,
                                     .group_levels = r.group_levels,
                                     .octets = r.octets,
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
    p.group_levels = r.group_levels;
    p.octets = DivisorOf(r.octets);
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
