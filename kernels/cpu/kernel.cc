#include "kernels/kernel.h"

#include <new>
#include <variant>

#include <cblas.h>

#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operands.h"

namespace tessera {
namespace {

// One row per LocalOp: an op without a kernel doesn't compile.
struct Dispatch {
  const KernelCall& call;
  absl::Status operator()(const MapOp& op) const { return cpu::RunMap(op, call); }
  absl::Status operator()(const ReduceLocalOp& op) const { return cpu::RunReduce(op, call); }
  absl::Status operator()(const ArgReduceOp& op) const { return cpu::RunArgReduce(op, call); }
  absl::Status operator()(const PickOp& op) const { return cpu::RunPick(op, call); }
  absl::Status operator()(const MatmulOp& op) const { return cpu::RunMatmul(op, call); }
  absl::Status operator()(const FillOp& op) const { return cpu::RunFill(op, call); }
  absl::Status operator()(const ArangeOp& op) const { return cpu::RunArange(op, call); }
  absl::Status operator()(const EyeOp& op) const { return cpu::RunEye(op, call); }
  absl::Status operator()(const RandOp& op) const { return cpu::RunRand(op, call); }
  absl::Status operator()(const PlaceOp& op) const { return cpu::RunPlace(op, call); }
  absl::Status operator()(const ScanOp& op) const { return cpu::RunScan(op, call); }
  absl::Status operator()(const MergeOp& op) const { return cpu::RunMerge(op, call); }
  absl::Status operator()(const SortOp& op) const { return cpu::RunSort(op, call); }
  absl::Status operator()(const SearchSortedOp& op) const { return cpu::RunSearchSorted(op, call); }
  absl::Status operator()(const FilterOp& op) const { return cpu::RunFilter(op, call); }
  absl::Status operator()(const GatherOp& op) const { return cpu::RunGather(op, call); }
  absl::Status operator()(const CheckRangeOp& op) const { return cpu::RunCheckRange(op, call); }
  absl::Status operator()(const ScatterOp& op) const { return cpu::RunScatter(op, call); }
  absl::Status operator()(const AttentionOp& op) const { return cpu::RunAttention(op, call); }
  absl::Status operator()(const AttentionLogarithmsOp& op) const { return cpu::RunAttentionLogarithms(op, call); }
  absl::Status operator()(const GroupedMatmulOp& op) const { return cpu::RunGroupedMatmul(op, call); }
  absl::Status operator()(const AttentionGradientsOp& op) const { return cpu::RunAttentionGradients(op, call); }
  absl::Status operator()(const LinalgOp& op) const { return cpu::RunLinalg(op, call); }
  absl::Status operator()(const FourierOp& op) const { return cpu::RunFourier(op, call); }
  absl::Status operator()(const ConvOp& op) const { return cpu::RunConv(op, call); }
  absl::Status operator()(const ConvGradientOp& op) const { return cpu::RunConvGradient(op, call); }
  absl::Status operator()(const PoolOp& op) const { return cpu::RunPool(op, call); }
};

}  // namespace

void SetKernelThreads(int threads) {
  openblas_set_num_threads(1);  // its own cuts go by the number of threads, and so would the bits
  cpu::SetThreads(threads);
}

absl::Status RunKernel(const KernelCall& call) {
  if (absl::Status s = CheckOperands(call); !s.ok()) return s;
  try {
    return std::visit(Dispatch{call}, *call.op);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("kernel: no host memory for a packed operand");
  }
}

}  // namespace tessera
