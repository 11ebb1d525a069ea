#pragma once

// The kernel families of the CPU, one file each. RunKernel (kernels/kernel.h) takes the one that the
// LocalOp names; every family handles every implemented dtype that its op allows and answers
// Unimplemented, with the dtype, for another.

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/kernel.h"
#include "schemas/types/half.h"

namespace tessera::cpu {

absl::Status RunMap(const MapOp& op, const KernelCall& call);
absl::Status RunReduce(const ReduceLocalOp& op, const KernelCall& call);
absl::Status RunArgReduce(const ArgReduceOp& op, const KernelCall& call);
absl::Status RunMatmul(const MatmulOp& op, const KernelCall& call);
absl::Status RunFill(const FillOp& op, const KernelCall& call);
absl::Status RunArange(const ArangeOp& op, const KernelCall& call);
absl::Status RunEye(const EyeOp& op, const KernelCall& call);
absl::Status RunRand(const RandOp& op, const KernelCall& call);

// The scalar as one element of `dtype`, in the first SizeBytes(dtype) bytes.
struct ElementBits {
  alignas(8) std::byte bytes[8];
};
ElementBits ToElement(const Scalar& scalar, DType dtype);

// Calls f(T{}) with the C++ type of a dtype that is accumulated in itself (bool is uint8_t tagged as BoolElement by
// its dtype alone); Unimplemented for others.
template <typename F>
absl::Status VisitAccumulated(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool: f(uint8_t{}); return absl::OkStatus();
    case DType::kI8: f(int8_t{}); return absl::OkStatus();
    case DType::kI16: f(int16_t{}); return absl::OkStatus();
    case DType::kI32: f(int32_t{}); return absl::OkStatus();
    case DType::kI64: f(int64_t{}); return absl::OkStatus();
    case DType::kU8: f(uint8_t{}); return absl::OkStatus();
    case DType::kU16: f(uint16_t{}); return absl::OkStatus();
    case DType::kU32: f(uint32_t{}); return absl::OkStatus();
    case DType::kU64: f(uint64_t{}); return absl::OkStatus();
    case DType::kF32: f(float{}); return absl::OkStatus();
    case DType::kF64: f(double{}); return absl::OkStatus();
    default: break;
  }
  return absl::UnimplementedError(std::string(kernel) + ": no CPU kernel for " + std::string(ToText(dtype)));
}

// The same for every implemented dtype.
template <typename F>
absl::Status VisitDType(const char* kernel, DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16: f(F16{}); return absl::OkStatus();
    case DType::kBF16: f(BF16{}); return absl::OkStatus();
    default: return VisitAccumulated(kernel, dtype, f);
  }
}

}  // namespace tessera::cpu
