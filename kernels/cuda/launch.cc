#include "kernels/cuda/launch.h"

#include <bit>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"
#include "schemas/ops/check_range.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/errors.h"

namespace tessera::cuda {
namespace {

// One row per LocalOp: a new one doesn't compile before it is here.
struct LaunchVisitor {
  const KernelCall& call;
  const Workspace& workspace;
  absl::StatusOr<Steps> operator()(const MapOp& op) const { return LaunchMap(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ReduceLocalOp& op) const { return LaunchReduce(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ArgReduceOp& op) const { return LaunchArgReduce(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const PickOp& op) const { return LaunchPick(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const MatmulOp& op) const { return LaunchMatmul(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const FillOp&) const { return LaunchFill(call); }
  absl::StatusOr<Steps> operator()(const ArangeOp&) const { return LaunchArange(call); }
  absl::StatusOr<Steps> operator()(const EyeOp&) const { return LaunchEye(call); }
  absl::StatusOr<Steps> operator()(const RandOp& op) const { return LaunchRand(op, call); }
  absl::StatusOr<Steps> operator()(const PlaceOp& op) const { return LaunchPlace(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ScanOp& op) const { return LaunchScan(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const SortOp& op) const { return LaunchSort(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const MergeOp& op) const { return LaunchMerge(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const SearchSortedOp& op) const { return LaunchSearchSorted(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const GatherOp& op) const { return LaunchGather(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const FilterOp& op) const { return HasGpuKernel(op, call.output_dtype); }
  absl::StatusOr<Steps> operator()(const CheckRangeOp& op) const { return LaunchCheckRange(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ScatterOp& op) const { return LaunchScatter(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const AttentionOp& op) const { return LaunchAttention(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const AttentionLogarithmsOp& op) const {
    return LaunchAttentionLogarithms(op, call);
  }
  absl::StatusOr<Steps> operator()(const AttentionGradientsOp& op) const {
    return LaunchAttentionGradients(op, call, workspace);
  }
  absl::StatusOr<Steps> operator()(const GroupedMatmulOp& op) const { return HasGpuKernel(op, call.output_dtype); }
  absl::StatusOr<Steps> operator()(const LinalgOp& op) const { return LaunchLinalg(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const FourierOp& op) const { return LaunchFourier(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ConvOp& op) const { return LaunchConv(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const ConvGradientOp& op) const { return LaunchConvGradient(op, call, workspace); }
  absl::StatusOr<Steps> operator()(const PoolOp& op) const { return LaunchPool(op, call, workspace); }
};

}  // namespace

absl::StatusOr<std::vector<Step>> LaunchKernel(const KernelCall& call, const Workspace& workspace) {
  if (absl::Status s = CheckOperands(call); !s.ok()) return s;
  return std::visit(LaunchVisitor{call, workspace}, *call.op);
}

int64_t WorkspaceBytes(const KernelCall& call, int64_t device_items) {
  if (!CheckOperands(call).ok()) return 0;
  if (std::holds_alternative<MapOp>(*call.op)) return MapWorkspaceBytes(call);
  if (const auto* reduce = std::get_if<ReduceLocalOp>(call.op))
    return ReduceWorkspaceBytes(*reduce, call, device_items);
  if (const auto* arg = std::get_if<ArgReduceOp>(call.op)) return ArgReduceWorkspaceBytes(*arg, call, device_items);
  if (const auto* scan = std::get_if<ScanOp>(call.op)) return ScanWorkspaceBytes(*scan, call);
  if (const auto* sort = std::get_if<SortOp>(call.op)) return SortWorkspaceBytes(*sort, call);
  if (const auto* matmul = std::get_if<MatmulOp>(call.op)) return MatmulWorkspaceBytes(*matmul, call);
  if (const auto* attention = std::get_if<AttentionGradientsOp>(call.op)) {
    return AttentionGradientsWorkspaceBytes(*attention, call);
  }
  if (const auto* scatter = std::get_if<ScatterOp>(call.op)) return ScatterWorkspaceBytes(*scatter, call);
  if (const auto* linalg = std::get_if<LinalgOp>(call.op)) return LinalgWorkspaceBytes(*linalg, call);
  if (const auto* fourier = std::get_if<FourierOp>(call.op)) return FourierWorkspaceBytes(*fourier, call);
  return 0;
}

// The word has the number, of floats the bits of a double; the lowest integer stands for 0, where 0 may not stand.
static absl::Status NumberFaultOf(const CheckRangeOp& op, const KernelCall& call, int64_t fault_word) {
  const bool is_lowest = fault_word == std::numeric_limits<int64_t>::min();
  Scalar number = call.output_dtype == DType::kI64 ? Scalar::Int(fault_word)
                                                   : Scalar::Float(std::bit_cast<double>(is_lowest ? 0 : fault_word));
  if (is_lowest && !IsInRange(Scalar::Int(0), call.scalars)) number = Scalar::Int(0);
  return NumberOutOfRange(op, number, call.scalars);
}

absl::Status Implements(const LocalOp& op, absl::Span<const DType> inputs, DType output) {
  const bool takes_float8 = std::holds_alternative<MapOp>(op) || std::holds_alternative<FillOp>(op) ||
                            std::holds_alternative<PlaceOp>(op) || std::holds_alternative<GatherOp>(op) ||
                            std::holds_alternative<MatmulOp>(op);
  for (const DType dtype : inputs) {
    if (IsFloat8(dtype) && !takes_float8) return NoKernelFor("kernel", dtype);
  }
  if (IsFloat8(output) && !takes_float8) return NoKernelFor("kernel", output);
  return HasGpuKernel(op, output);
}

bool MayFault(const LocalOp& op) {
  return std::holds_alternative<GatherOp>(op) || std::holds_alternative<ScatterOp>(op) ||
         std::holds_alternative<CheckRangeOp>(op) || std::holds_alternative<LinalgOp>(op);
}

absl::Status FaultOf(const KernelCall& call, int64_t fault_word) {
  if (fault_word == 0) return absl::OkStatus();
  if (const auto* check = std::get_if<CheckRangeOp>(call.op)) return NumberFaultOf(*check, call, fault_word);
  if (const auto* linalg = std::get_if<LinalgOp>(call.op)) return LinalgFaultOf(*linalg, fault_word);
  const char* kernel = "gather";
  int64_t dim = 0, extent = 0;
  if (const auto* gather = std::get_if<GatherOp>(call.op)) {
    dim = gather->dim;
    extent = gather->whole.has_value() ? *gather->whole : call.inputs[0].extents[static_cast<size_t>(dim)];
  } else if (const auto* scatter = std::get_if<ScatterOp>(call.op)) {
    kernel = "scatter";
    dim = scatter->dim;
    extent = scatter->whole.value_or(call.output_extents[static_cast<size_t>(dim)]);
  } else {
    return absl::InternalError(absl::StrCat(ToText(*call.op), ": left ", fault_word, " in its fault word"));
  }
  // Index 0 is bad where there is no element alone.
  const bool is_zero = extent == 0 && fault_word == std::numeric_limits<int64_t>::min();
  return IndexOutOfRangeError(absl::StrCat(kernel, ": index ", is_zero ? 0 : fault_word, " is out of range for dim ",
                                           dim, " of extent ", extent));
}

}  // namespace tessera::cuda
