// argmin and argmax: by kernels of a dtype where rows are dense or columns lie side by side (arg_reduce.cu), else by
// one for everything (order.cu).

#include <bit>

#include "kernels/cuda/extreme_parameters.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {

NumbersInWhole WholeOf(absl::Span<const int64_t> dims, const Shape& whole, const Box& box) {
  NumbersInWhole numbers;
  const Strides strides = RowMajorStrides(whole);
  numbers.dims = static_cast<int>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const Interval own = box[static_cast<size_t>(dims[i])];
    numbers.extents[i] = DivisorOf(own.size());
    numbers.starts[i] = own.start;
    numbers.strides[i] = DivisorOf(strides[i]);
    numbers.first += own.start * strides[i];
  }
  return numbers;
}

namespace {

bool IsReduced(absl::Span<const int64_t> dims, size_t d) {
  return std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
}

bool IsComplex(const KernelCall& call) { return Kind(call.inputs[0].dtype) == DTypeKind::kComplex; }

struct ArgCall {
  Shape kept_extents, reduced_extents;
  std::vector<Strides> kept = std::vector<Strides>(4), reduced = std::vector<Strides>(2);
  int64_t outputs = 1, count = 1;
};
// Operands of both: the input, the numbers; of `kept` also the output and the values.
ArgCall Analyse(const ArgReduceOp& op, const KernelCall& call) {
  const KernelInput& input = call.inputs[0];
  const size_t rank = input.extents.size();
  std::vector<Strides> all(4, Strides(rank, 0));
  all[0] = StridesOf(input);
  if (call.inputs.size() == 2) all[1] = StridesOf(call.inputs[1]);
  all[2] = call.output_strides;
  if (!call.more_outputs.empty()) all[3] = call.more_outputs[0].strides;
  ArgCall r;
  for (size_t d = 0; d < rank; ++d) {
    const bool is_reduced = IsReduced(op.dims, d);
    (is_reduced ? r.reduced_extents : r.kept_extents).push_back(input.extents[d]);
    for (size_t o = 0; o < (is_reduced ? 2U : 4U); ++o) (is_reduced ? r.reduced : r.kept)[o].push_back(all[o][d]);
  }
  r.outputs = NumElements(r.kept_extents);
  r.count = NumElements(r.reduced_extents);
  return r;
}

bool HasKernels(DType dtype) {
  return Kind(dtype) == DTypeKind::kFloat || dtype == DType::kI32 || dtype == DType::kI64;
}

// How the kernels of a dtype go over the elements; no threads where they don't.
struct ArgWalk {
  std::string kernel;
  int64_t chunk_elements = 0, chunks = 1;
  int group_levels = 0;
  int64_t threads = 0;
};
constexpr int64_t kLeastChunk = 2048, kMostChunk = int64_t{1} << 30;

ArgWalk WalkOf(const ArgCall& r, const KernelCall& call, int64_t device_items) {
  ArgWalk walk;
  const KernelInput& input = call.inputs[0];
  const Loops reduced = MergedLoops(r.reduced_extents, r.reduced);
  const int64_t stride = reduced.strides[0].back();
  const bool is_one_loop = reduced.extents.size() == 1 && call.inputs.size() == 1 && !input.is_zero && r.count > 0;
  const bool is_row = stride == 1 && r.count >= 32, is_column = r.outputs >= 32;
  if (!HasKernels(input.dtype) || !is_one_loop || (!is_row && !is_column)) return walk;
  if (is_row) {
    // A thread has some 16 elements of a short row.
    const int levels = std::bit_width(static_cast<uint64_t>((r.count + 15) / 16 - 1));
    walk.group_levels = std::min(levels, 5);
  }
  const int64_t item_threads = int64_t{1} << walk.group_levels;
  const int64_t wanted = std::max<int64_t>(1, (is_row ? device_items : 16 * device_items) / r.outputs);
  const int64_t least = is_row ? kLeastChunk : 64;
  // Whole vectors of every dtype.
  walk.chunk_elements = std::clamp(((r.count + wanted - 1) / wanted + 15) / 16 * 16, least, kMostChunk);
  walk.chunks = (r.count + walk.chunk_elements - 1) / walk.chunk_elements;
  walk.threads = r.outputs * walk.chunks * item_threads;
  walk.kernel = (is_row ? "argreduce_rows_" : "argreduce_columns_") + NameOf(input.dtype);
  return walk;
}

int64_t PartialBytes(const ArgCall& r, const ArgWalk& walk) {
  return walk.chunks <= 1 ? 0 : Pieces::Rounded(r.outputs * walk.chunks * static_cast<int64_t>(sizeof(ArgPartial)));
}

bool IsAligned(const ArgCall& r, const KernelInput& input) {
  const int64_t bytes = SizeBytes(input.dtype);
  const Strides strides = MergedLoops(r.kept_extents, r.kept).strides[0];
  return AddressOf(input.data) % 16 == 0 &&
         std::all_of(strides.begin(), strides.end(), [bytes](int64_t stride) { return stride * bytes % 16 == 0; });
}

absl::StatusOr<Steps> LaunchWalk(const ArgCall& r, const ArgWalk& walk, const KernelCall& call,
                                 const ArgReduceParameters& all, const Workspace& workspace) {
  ArgChunkParameters p;
  p.all = all;
  p.chunks = DivisorOf(walk.chunks);
  p.outputs = DivisorOf(r.outputs);
  p.chunk_elements = walk.chunk_elements;
  p.group_levels = walk.group_levels;
  p.is_aligned = IsAligned(r, call.inputs[0]) ? 1 : 0;
  Pieces pieces(workspace);
  if (const int64_t bytes = PartialBytes(r, walk); bytes > 0) {
    TESSERA_ASSIGN_OR_RETURN(void* partials, pieces.Take(bytes));
    p.partials = static_cast<ArgPartial*>(partials);
  }
  Steps steps = {MakeLaunch(walk.kernel, p, GridOf(walk.threads))};
  constexpr uint32_t kChunkThreads = 512;
  const bool is_by_block = walk.chunks > 32;
  const uint32_t threads = is_by_block ? kChunkThreads : kThreads;
  if (walk.chunks > 1) {
    steps.push_back(MakeLaunch("argreduce_chunks", p, GridOf(r.outputs * (is_by_block ? kChunkThreads : 32), threads),
                               {threads, 1, 1}));
  }
  return steps;
}

}  // namespace

int64_t ArgReduceWorkspaceBytes(const ArgReduceOp& op, const KernelCall& call, int64_t device_items) {
  if (IsComplex(call)) return 0;
  const ArgCall r = Analyse(op, call);
  return r.outputs == 0 ? 0 : PartialBytes(r, WalkOf(r, call, device_items));
}

absl::StatusOr<Steps> LaunchArgReduce(const ArgReduceOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput& input = call.inputs[0];
  if (IsComplex(call)) return NoKernelFor("argmin, argmax", input.dtype);
  const ArgCall r = Analyse(op, call);
  if (r.outputs == 0) return Steps();
  if (r.count == 0 && op.whole.empty()) {
    return absl::InvalidArgumentError("argmin, argmax: of an empty dim");
  }
  ArgReduceParameters p;
  p.input = DataOf(input, workspace);
  if (call.inputs.size() == 2) p.numbers = static_cast<const long long*>(DataOf(call.inputs[1], workspace));
  p.output = static_cast<long long*>(call.output);
  if (!call.more_outputs.empty()) p.values = call.more_outputs[0].data;
  p.dtype = static_cast<int>(input.dtype);
  p.element_bytes = static_cast<int>(SizeBytes(input.dtype));
  p.is_maximum = op.extreme == Extreme::kMax ? 1 : 0;
  if (!op.whole.empty()) p.whole = WholeOf(op.dims, op.whole, call.input_box);
  p.kept = MakeNest<4>(r.kept_extents, r.kept);
  p.reduced = MakeNest<2>(r.reduced_extents, r.reduced);
  const ArgWalk walk = WalkOf(r, call, workspace.device_items);
  if (walk.threads > 0) return LaunchWalk(r, walk, call, p, workspace);
  constexpr uint32_t kArgThreads = 128;
  return Steps{MakeLaunch("argreduce", p, {static_cast<uint32_t>(std::min<int64_t>(p.kept.size, kMaxBlocks)), 1, 1},
                          {kArgThreads, 1, 1})};
}

}  // namespace tessera::cuda
