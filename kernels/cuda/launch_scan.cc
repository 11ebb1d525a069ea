// Scans: lines in tiles (scan.cu), or a thread a line for dtypes that have no kernel of their own (index.cu).

#include <bit>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/scan_parameters.h"
#include "kernels/cuda/steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// "i64_of_i32": what is accumulated in and what lies in memory; empty where there is no kernel.
std::string TypesOf(ReduceOp op, DType input, DType dtype) {
  const bool is_float = Kind(dtype) == DTypeKind::kFloat && AccumulatedIn(input) == dtype;
  const bool is_integer = (dtype == DType::kI64 && (input == DType::kI64 || input == DType::kI32)) ||
                          (dtype == DType::kI32 && input == DType::kI32);
  const bool is_count = dtype == DType::kI64 && input == DType::kBool && op == ReduceOp::kSum;
  if (!is_float && !is_integer && !is_count) return "";
  const DType kernel = is_float ? dtype : DType::kI64;
  return NameOf(kernel) + (input == kernel ? "" : "_of_" + NameOf(input));
}

// How lines are cut: a function of extents and dtypes, as bits are.
struct ScanWalk {
  std::string kernel;
  int warps = 1;
  int64_t lines = 1, tiles = 1, groups = 0;  // tiles and groups of a line
  int64_t slot_words = 1;                    // of a tile's total and its flag
};

ScanWalk WalkOf(const ScanOp& op, const KernelCall& call) {
  ScanWalk walk;
  const DType input = call.inputs[0].dtype, dtype = AccumulatedIn(call.output_dtype);
  const std::string types = TypesOf(op.op, input, dtype);
  const int64_t count = call.inputs[0].extents[static_cast<size_t>(op.dim)];
  // The value before a line is in the dtype that is accumulated in, as the kernel reads it.
  const bool reads_before = Kind(dtype) == DTypeKind::kFloat || dtype == DType::kI64;
  if (types.empty() || !reads_before || call.inputs[0].is_zero) return walk;
  const int64_t bytes = dtype == DType::kF32 ? 4 : 8, vector = input == DType::kBool ? 8 : 16 / SizeBytes(input);
  const int64_t of_warp = 32 * vector * (kScanThreadBytes / (vector * bytes));
  const int64_t warps = (count + of_warp - 1) / of_warp, most = bytes == 4 ? kScanWarps : kScanWideWarps;
  walk.warps =
      static_cast<int>(std::min<int64_t>(most, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(warps)))));
  walk.tiles = (count + walk.warps * of_warp - 1) / (walk.warps * of_warp);
  walk.groups = walk.tiles / kScanGroup;
  walk.lines = NumElements(call.inputs[0].extents) / count;
  walk.slot_words = bytes / 4;
  walk.kernel = (walk.warps == 1 ? "scan_lines_" : "scan_tiles_") + types;
  // Tickets have 32 bits.
  if (walk.tiles > 1 && walk.lines * walk.tiles > int64_t{1} << 31) walk.kernel.clear();
  return walk;
}

// The ticket, slots of tiles, slots of groups.
int64_t StateBytes(const ScanWalk& walk) {
  if (walk.kernel.empty() || walk.tiles == 1) return 0;
  return 16 + walk.lines * (walk.tiles + walk.groups) * walk.slot_words * 8;
}

// Whether lines of so many bytes an element, `stride` apart in them, begin at addresses that 16 divides.
bool LiesInVectors(const void* data, int64_t stride, int64_t bytes, const ScanParameters& p, int operand) {
  bool is_aligned = stride == 1 && AddressOf(data) % 16 == 0;
  for (int d = 0; d < p.lines.rank; ++d) {
    is_aligned = is_aligned && (p.lines.extents[d] == 1 || p.lines.strides[operand][d] * bytes % 16 == 0);
  }
  return is_aligned;
}

absl::StatusOr<Steps> LaunchTiles(const ScanWalk& walk, const KernelCall& call, const ScanParameters& all,
                                  const Workspace& workspace) {
  const DType input = call.inputs[0].dtype, output = call.output_dtype, dtype = AccumulatedIn(output);
  ScanTileParameters p;
  p.all = all;
  p.line_count = DivisorOf(walk.lines);
  p.tiles_of_line = walk.tiles;
  p.groups_of_line = walk.groups;
  p.warps = walk.warps;
  p.is_input_vectors = LiesInVectors(all.input, all.input_stride, SizeBytes(input), all, 0) ? 1 : 0;
  const DType kernel_dtype = Kind(dtype) == DTypeKind::kFloat ? dtype : DType::kI64;
  if (LiesInVectors(all.output, all.output_stride, SizeBytes(output), all, 1)) {
    p.output_vectors = output == kernel_dtype ? kVectorsAccumulated : output == input ? kVectorsOfInput : kNoVectors;
  }
  Steps steps;
  if (const int64_t bytes = StateBytes(walk); bytes > 0) {
    Pieces pieces(workspace);
    TESSERA_ASSIGN_OR_RETURN(void* state, pieces.Take(bytes));
    p.ticket = static_cast<unsigned*>(state);
    p.tiles = static_cast<unsigned long long*>(state) + 2;
    p.groups = p.tiles + walk.lines * walk.tiles * walk.slot_words;
    steps.push_back(Fill{AddressOf(state), bytes, 0});
  }
  const uint32_t threads = walk.warps == 1 ? kThreads : static_cast<uint32_t>(walk.warps) * 32;
  const int64_t warps = walk.lines * walk.tiles * walk.warps;
  steps.push_back(MakeLaunch(walk.kernel, p, GridOf(warps * 32, threads), {threads, 1, 1}));
  return steps;
}

}  // namespace

int64_t ScanWorkspaceBytes(const ScanOp& op, const KernelCall& call) {
  const auto dim = static_cast<size_t>(op.dim);
  if (call.inputs.empty() || dim >= call.inputs[0].extents.size() || NumElements(call.inputs[0].extents) == 0) return 0;
  return Pieces::Rounded(StateBytes(WalkOf(op, call)));
}

absl::StatusOr<Steps> LaunchScan(const ScanOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  if (input.extents != call.output_extents || dim >= rank || call.output_dtype == DType::kBool) {
    return absl::InvalidArgumentError(absl::StrCat("scan: along dim ", op.dim, " of ", ToText(input.extents), " to ",
                                                   NameOf(call.output_dtype), ToText(call.output_extents)));
  }
  const bool is_seeded = call.inputs.size() == 2;
  Shape lines = input.extents;
  if (NumElements(lines) == 0) return Steps();
  lines[dim] = 1;
  const DType dtype = AccumulatedIn(call.output_dtype);
  if (is_seeded && (call.inputs[1].extents != lines || call.inputs[1].dtype != dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scan: begins with ", ToText(call.inputs[1].extents), " of ", ToText(input.extents)));
  }
  const bool has_order = op.op == ReduceOp::kMin || op.op == ReduceOp::kMax;
  if (Kind(dtype) == DTypeKind::kComplex && has_order) return NoKernelFor("scan", dtype);
  const Strides strides = StridesOf(input);
  ScanParameters p;
  p.identity = IdentityOf(op.op, dtype);
  p.count = input.extents[dim];
  p.input_stride = strides[dim];
  p.output_stride = call.output_strides[dim];
  const auto* from = static_cast<const std::byte*>(DataOf(input, workspace));
  auto* to = static_cast<std::byte*>(call.output);
  if (op.direction == ScanDirection::kReverse) {
    from += (p.count - 1) * p.input_stride * SizeBytes(input.dtype);
    to += (p.count - 1) * p.output_stride * SizeBytes(call.output_dtype);
    p.input_stride = -p.input_stride;
    p.output_stride = -p.output_stride;
  }
  p.input = from;
  p.output = to;
  if (is_seeded) p.before = DataOf(call.inputs[1], workspace);
  p.op = static_cast<int>(op.op);
  p.input_dtype = static_cast<int>(input.dtype);
  p.dtype = static_cast<int>(dtype);
  p.output_dtype = static_cast<int>(call.output_dtype);
  p.is_exclusive = op.span == ScanSpan::kExclusive ? 1 : 0;
  p.lines =
      MakeNest<3>(lines, {strides, call.output_strides, is_seeded ? StridesOf(call.inputs[1]) : Strides(rank, 0)});
  const ScanWalk walk = WalkOf(op, call);
  if (walk.kernel.empty()) return Steps{MakeLaunch("scan", p, GridOf(p.lines.size))};
  return LaunchTiles(walk, call, p, workspace);
}

}  // namespace tessera::cuda
