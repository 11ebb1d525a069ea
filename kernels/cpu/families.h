#pragma once

// The kernel families of the CPU, one file each. RunKernel (kernels/kernel.h) takes the one that the
// LocalOp names; every family handles every implemented dtype that its op allows and answers
// Unimplemented, with the dtype, for another.

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cpu/element_types.h"
#include "kernels/cpu/stores.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

absl::Status RunMap(const MapOp& op, const KernelCall& call);
absl::Status RunReduce(const ReduceLocalOp& op, const KernelCall& call);
absl::Status RunArgReduce(const ArgReduceOp& op, const KernelCall& call);
absl::Status RunPick(const PickOp& op, const KernelCall& call);
absl::Status RunMatmul(const MatmulOp& op, const KernelCall& call);
absl::Status RunFill(const FillOp& op, const KernelCall& call);
absl::Status RunArange(const ArangeOp& op, const KernelCall& call);
absl::Status RunEye(const EyeOp& op, const KernelCall& call);
absl::Status RunRand(const RandOp& op, const KernelCall& call);
absl::Status RunPlace(const PlaceOp& op, const KernelCall& call);
absl::Status RunScan(const ScanOp& op, const KernelCall& call);
absl::Status RunMerge(const MergeOp& op, const KernelCall& call);
absl::Status RunSort(const SortOp& op, const KernelCall& call);
absl::Status RunSearchSorted(const SearchSortedOp& op, const KernelCall& call);
absl::Status RunFilter(const FilterOp& op, const KernelCall& call);
absl::Status RunGather(const GatherOp& op, const KernelCall& call);
absl::Status RunScatter(const ScatterOp& op, const KernelCall& call);
absl::Status RunCheckRange(const CheckRangeOp& op, const KernelCall& call);
absl::Status RunAttention(const AttentionOp& op, const KernelCall& call);
absl::Status RunAttentionLogarithms(const AttentionLogarithmsOp& op, const KernelCall& call);
absl::Status RunAttentionGradients(const AttentionGradientsOp& op, const KernelCall& call);
absl::Status RunGroupedMatmul(const GroupedMatmulOp& op, const KernelCall& call);
absl::Status RunLinalg(const LinalgOp& op, const KernelCall& call);
absl::Status RunFourier(const FourierOp& op, const KernelCall& call);
absl::Status RunConv(const ConvOp& op, const KernelCall& call);
absl::Status RunConvGradient(const ConvGradientOp& op, const KernelCall& call);
absl::Status RunPool(const PoolOp& op, const KernelCall& call);

class FetchAhead;

// A kernel that can make its output in pieces, which joined kernels (kernels/joined_kernels.h) take turns at.
class PieceRunner {
 public:
  virtual ~PieceRunner() = default;
  // Elements [start, start + count) of the output, in row-major order.
  virtual absl::Status Run(int64_t start, int64_t count) = 0;
};
// The call and its op, and what is ahead (fetch_ahead.h), outlive the runner. A thread has one at a time for each
// number below kMaxJoinedKernels. Errors are those of RunMap and RunReduce, and Unimplemented where the output can't be
// made in pieces.
absl::StatusOr<std::unique_ptr<PieceRunner>> MakeMapRunner(const MapOp& op, const KernelCall& call, size_t number,
                                                           Stores stores, FetchAhead* ahead);
absl::StatusOr<std::unique_ptr<PieceRunner>> MakeReduceRunner(const ReduceLocalOp& op, const KernelCall& call,
                                                              size_t number);

// A map that only casts to a wider dtype what lies in its output's own memory (kernels/kernel.h says where), and its
// kernel.
bool IsWideningInPlace(const MapOp& op, const KernelCall& call);
void WidenInPlace(const KernelCall& call);

// CopyStrided (kernels/kernel.h) to several places, one of which may be the source's own: a dense source is read once
// for all of them, in bands that stay in the cache.
void CopyToEach(absl::Span<const int64_t> extents, int64_t element_bytes, const ReduceTerm& source,
                absl::Span<const ReduceDestination> destinations);

// The extents that the inputs have together, of rank `rank`: where some have one element others may have more.
absl::StatusOr<Shape> ExtentsTogether(const char* kernel, absl::Span<const KernelInput> inputs, size_t rank);

// The result of a reduction of no element. Complex numbers have no extremes.
template <typename T>
T Identity(ReduceOp op, DType dtype) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return T{0};
    case ReduceOp::kProduct: return T{1};
    case ReduceOp::kMin:
      if (dtype == DType::kBool) return T{1};
      if constexpr (Limits::has_infinity) return Limits::infinity();
      return Limits::max();
    case ReduceOp::kMax:
      if (dtype == DType::kBool) return T{0};
      if constexpr (Limits::has_infinity) return -Limits::infinity();
      return Limits::lowest();
    case ReduceOp::kBand:
      if (dtype == DType::kBool) return T{1};
      if constexpr (std::is_integral_v<T>) return static_cast<T>(~T{0});
      return T{0};
    case ReduceOp::kBor:
    case ReduceOp::kBxor: return T{0};
  }
  return T{0};
}

// The scalar as one element of `dtype`, in the first SizeBytes(dtype) bytes.
struct ElementBits {
  alignas(kMaxElementBytes) std::byte bytes[kMaxElementBytes];
};
ElementBits ToElement(const Scalar& scalar, DType dtype);

inline absl::Status NoKernelFor(const char* kernel, DType dtype) {
  return absl::UnimplementedError(std::string(kernel) + ": no CPU kernel for " + std::string(ToText(dtype)));
}

// Calls f(T{}) with the C++ type of an implemented dtype (bool is uint8_t, told by its dtype alone); Unimplemented for
// others.
template <typename F>
absl::Status VisitDType(const char* kernel, DType dtype, F&& f) {
  const bool is_known = VisitElement(dtype, [&](auto element) {
    if constexpr (std::is_same_v<decltype(element), BoolElement>) {
      f(uint8_t{});
    } else {
      f(element);
    }
    return true;
  });
  return is_known ? absl::OkStatus() : NoKernelFor(kernel, dtype);
}

// The same for a dtype that is accumulated in itself.
template <typename F>
absl::Status VisitAccumulated(const char* kernel, DType dtype, F&& f) {
  if (AccumulatedIn(dtype) != dtype) return NoKernelFor(kernel, dtype);
  return VisitDType(kernel, dtype, [&](auto element) {
    if constexpr (!kIsHalf<decltype(element)>) f(element);
  });
}

}  // namespace tessera::cpu
