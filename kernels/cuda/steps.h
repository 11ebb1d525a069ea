#pragma once

// The tools of all families' launches: loop nests of operands, parameters as bytes, grids, places of elements. Private
// to kernels/cuda.
//
//   MakeNest<2>({4, 5, 6}, {{30, 6, 1}, {30, 6, 1}})  has one dim of extent 120, strides 1 and 1

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

using Steps = std::vector<Step>;

inline constexpr uint32_t kThreads = 256;
// Blocks of a kernel that goes over its elements in strides: enough to fill any device.
inline constexpr int64_t kMaxBlocks = int64_t{1} << 16;

// Extents of 1 dropped, and neighbours merged where every operand walks them as one; the order stays.
struct Loops {
  Shape extents;
  std::vector<Strides> strides;  // by operand
  int64_t size = 1;
};
Loops MergedLoops(absl::Span<const int64_t> extents, std::vector<Strides> strides);

// But for the strides.
template <int kOperands>
Nest<kOperands> NestOfExtents(const Loops& loops) {
  Nest<kOperands> nest;
  nest.size = loops.size;
  nest.rank = static_cast<int>(loops.extents.size());
  for (size_t d = 0; d < loops.extents.size(); ++d) {
    const Divisor divisor = DivisorOf(loops.extents[d]);
    nest.extents[d] = loops.extents[d];
    nest.factors[d] = divisor.factor;
    nest.shifts[d] = static_cast<unsigned char>(divisor.shift);
  }
  return nest;
}
template <int kOperands>
Nest<kOperands> ToNest(const Loops& loops) {
  Nest<kOperands> nest = NestOfExtents<kOperands>(loops);
  for (size_t o = 0; o < kOperands; ++o) {
    std::copy(loops.strides[o].begin(), loops.strides[o].end(), nest.strides[o]);
  }
  return nest;
}
template <int kOperands>
Nest<kOperands> MakeNest(absl::Span<const int64_t> extents, std::vector<Strides> strides) {
  return ToNest<kOperands>(MergedLoops(extents, std::move(strides)));
}

template <typename P>
Launch MakeLaunch(std::string entry, const P& parameters, std::array<uint32_t, 3> grid,
                  std::array<uint32_t, 3> block = {kThreads, 1, 1}) {
  Launch launch;
  launch.entry = std::move(entry);
  launch.grid = grid;
  launch.block = block;
  launch.parameters.resize(sizeof(P));
  P bytes = parameters;
  __builtin_clear_padding(&bytes);  // equal calls have equal bytes
  std::memcpy(launch.parameters.data(), static_cast<const void*>(&bytes), sizeof(P));
  return launch;
}
// A grid for so many threads, each of which goes on in strides.
inline std::array<uint32_t, 3> GridOf(int64_t threads, uint32_t block = kThreads) {
  const int64_t blocks = (threads + block - 1) / block;
  return {static_cast<uint32_t>(std::min(std::max<int64_t>(blocks, 1), kMaxBlocks)), 1, 1};
}

inline uint64_t AddressOf(const void* pointer) { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(pointer)); }
// The scalar as one element of the dtype.
Element ToElement(const Scalar& scalar, DType dtype);
// The result of a reduction of no element.
Element IdentityOf(ReduceOp op, DType dtype);
// "f32".
inline std::string NameOf(DType dtype) { return std::string(ToText(dtype)); }

// Bytes [first, last) that the elements of an operand lie in; empty of none.
std::pair<uint64_t, uint64_t> RangeOf(const void* data, absl::Span<const int64_t> extents,
                                      absl::Span<const int64_t> strides, int64_t element_bytes);
// An input's strides, 0 where it is zeros, and its data.
Strides StridesOf(const KernelInput& input);
const void* DataOf(const KernelInput& input, const Workspace& workspace);

// The op and the dtype of the kernel that reduces elements of a dtype, which is one that sums are in (AccumulatedIn):
// narrow integers are i64; of bools a sum is a maximum, a product a minimum.
ReduceOp ReducedBy(ReduceOp op, DType dtype);
DType ReducedIn(DType dtype);
// Extremes of complex numbers, and bits of what has none.
bool IsUndefinedReduce(ReduceOp op, DType dtype);
inline absl::Status NoKernelFor(const char* kernel, DType dtype) {
  return absl::UnimplementedError(std::string(kernel) + ": no CUDA kernel for " + NameOf(dtype));
}

// Pieces of a workspace, each aligned to 256.
class Pieces {
 public:
  explicit Pieces(const Workspace& workspace) : workspace_(workspace) {}
  absl::StatusOr<void*> Take(int64_t bytes);
  static int64_t Rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  const Workspace& workspace_;
  int64_t taken_ = 0;
};

// By family: what LaunchKernel, WorkspaceBytes and Implements call.
absl::StatusOr<Steps> LaunchMap(const MapOp& op, const KernelCall& call, const Workspace& workspace);
int64_t MapWorkspaceBytes(const KernelCall& call);
absl::StatusOr<Steps> LaunchReduce(const ReduceLocalOp& op, const KernelCall& call, const Workspace& workspace);
int64_t ReduceWorkspaceBytes(const ReduceLocalOp& op, const KernelCall& call, int64_t device_items);
absl::StatusOr<Steps> LaunchFill(const KernelCall& call);
absl::StatusOr<Steps> LaunchArange(const KernelCall& call);
absl::StatusOr<Steps> LaunchEye(const KernelCall& call);
absl::StatusOr<Steps> LaunchRand(const RandOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchPlace(const PlaceOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchArgReduce(const ArgReduceOp& op, const KernelCall& call, const Workspace& workspace);
int64_t ArgReduceWorkspaceBytes(const ArgReduceOp& op, const KernelCall& call, int64_t device_items);
// Where a shard's box lies in a whole of these extents.
NumbersInWhole WholeOf(absl::Span<const int64_t> dims, const Shape& whole, const Box& box);
absl::StatusOr<Steps> LaunchPick(const PickOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchScan(const ScanOp& op, const KernelCall& call, const Workspace& workspace);
int64_t ScanWorkspaceBytes(const ScanOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchSort(const SortOp& op, const KernelCall& call, const Workspace& workspace);
int64_t SortWorkspaceBytes(const SortOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchMerge(const MergeOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchSearchSorted(const SearchSortedOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchGather(const GatherOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchScatter(const ScatterOp& op, const KernelCall& call, const Workspace& workspace);
int64_t ScatterWorkspaceBytes(const ScatterOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchCheckRange(const CheckRangeOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchMatmul(const MatmulOp& op, const KernelCall& call, const Workspace& workspace);
int64_t MatmulWorkspaceBytes(const MatmulOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchAttention(const AttentionOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchAttentionLogarithms(const AttentionLogarithmsOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchAttentionGradients(const AttentionGradientsOp& op, const KernelCall& call,
                                               const Workspace& workspace);
int64_t AttentionGradientsWorkspaceBytes(const AttentionGradientsOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchConv(const ConvOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchConvGradient(const ConvGradientOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchPool(const PoolOp& op, const KernelCall& call, const Workspace& workspace);
absl::StatusOr<Steps> LaunchFourier(const FourierOp& op, const KernelCall& call, const Workspace& workspace);
int64_t FourierWorkspaceBytes(const FourierOp& op, const KernelCall& call);
absl::StatusOr<Steps> LaunchLinalg(const LinalgOp& op, const KernelCall& call, const Workspace& workspace);
int64_t LinalgWorkspaceBytes(const LinalgOp& op, const KernelCall& call);
absl::Status LinalgFaultOf(const LinalgOp& op, int64_t fault_word);
// Copies that can't fail.
void AddCopy(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
             absl::Span<const int64_t> source_strides, void* destination, absl::Span<const int64_t> destination_strides,
             Steps* steps);

}  // namespace tessera::cuda
