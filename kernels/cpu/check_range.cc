// check_range: a copy of numbers, each of which is in a range.

#include <string>
#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/check_range.h"

namespace tessera::cpu {
namespace {

template <typename T>
Scalar ScalarOf(T number) {
  if constexpr (std::is_integral_v<T>)
    return Scalar::Int(number);
  else
    return Scalar::Float(static_cast<double>(number));
}
template <typename T>
T NumberOf(const Scalar& scalar) {
  if constexpr (std::is_integral_v<T>)
    return scalar.AsInt();
  else
    return static_cast<T>(scalar.AsDouble());
}

template <typename T>
absl::Status CheckRange(const CheckRangeOp& op, const KernelCall& call, const LoopNest& nest, const T* from, T* to) {
  const T low = NumberOf<T>(call.scalars[0]), high = NumberOf<T>(call.scalars[1]);
  const T other = call.scalars.size() > 2 ? NumberOf<T>(call.scalars[2]) : low;
  const int64_t n = nest.extents.back(), step = nest.strides[0].back(), to_step = nest.strides[1].back();
  for (int64_t at = 0; at < nest.size; at += n) {
    const T* row = from + PlaceOf(nest, 0, at).offset;
    T* written = to + PlaceOf(nest, 1, at).offset;
    bool is_in = true;
    for (int64_t i = 0; i < n; ++i) {
      const T number = row[i * step];
      is_in &= ((number >= low) & (number <= high)) | (number == other);
      written[i * to_step] = number;
    }
    if (is_in) continue;
    for (int64_t i = 0; i < n; ++i) {
      const T number = row[i * step];
      const bool stands = (number >= low && number <= high) || number == other;
      if (!stands) return NumberOutOfRange(op, ScalarOf(number), call.scalars);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunCheckRange(const CheckRangeOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& input = call.inputs[0];
  if (input.extents != call.output_extents || input.dtype != call.output_dtype) {
    return absl::InvalidArgumentError("check_range: the output differs from the input");
  }
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const Strides strides = input.is_zero ? Strides(input.extents.size(), 0) : input.strides;
  const LoopNest nest = Coalesce(call.output_extents, {strides, call.output_strides});
  const void* data = input.is_zero ? &kZeroElement : input.data;
  const auto run = [&]<typename T>(T) {
    return CheckRange<T>(op, call, nest, static_cast<const T*>(data), static_cast<T*>(call.output));
  };
  switch (call.output_dtype) {
    case DType::kI64: return run(int64_t{});
    case DType::kF32: return run(float{});
    case DType::kF64: return run(double{});
    default: return NoKernelFor("check_range", call.output_dtype);
  }
}

}  // namespace tessera::cpu
