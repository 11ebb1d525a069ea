#pragma once

// RowDots: many short sums of products, as einsum("ij,ij->i") of a narrow array has. BLAS takes a hundred times as long
// to begin a sum of eight products as to add it up.
//
//   c[i] = sum over k of a[i, k] b[i, k]
//
// Law: the bits depend on the number of products alone. For floats lane l of 8 adds up products l, l+8, ... in order,
// lanes 0..3 take lanes 4..7, and so on; integers wrap.

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/sum_of_products.h"

namespace tessera::cpu {

inline constexpr int64_t kMaxRowDotProducts = 256;  // docs/limits.md: max_row_dot_products
inline constexpr int64_t kDotLanes = 8;

template <typename T>
T RowDot(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t count) {
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::common_type_t<T, unsigned>;  // a product of two narrow ones could leave int
    T sum = 0;
    for (int64_t k = 0; k < count; ++k) sum = static_cast<T>(sum + static_cast<Wide>(a[k * a_step]) * b[k * b_step]);
    return sum;
  } else {
    typedef T Lanes __attribute__((vector_size(kDotLanes * sizeof(T))));
    Lanes sums = {};
    int64_t k = 0;
    if (a_step == 1 && b_step == 1) {
      for (; k + kDotLanes <= count; k += kDotLanes) {
        Lanes left, right;
        std::memcpy(&left, a + k, sizeof(left));
        std::memcpy(&right, b + k, sizeof(right));
        sums += left * right;
      }
    }
    std::array<T, kDotLanes> lanes;
    std::memcpy(lanes.data(), &sums, sizeof(sums));
    for (; k < count; ++k) lanes[static_cast<size_t>(k % kDotLanes)] += a[k * a_step] * b[k * b_step];
    for (size_t half = kDotLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
  }
}

// Runs a contraction whose letters are `batch` and `inner` alone; false, and nothing is done, where a sum is long or of
// several inner dims.
template <typename T>
bool TakeRowDots(const DimGroup& batch, const DimGroup& inner, const KernelCall& call) {
  if (batch.empty() || inner.size() != 1 || inner[0].extent > kMaxRowDotProducts) return false;
  static constexpr T kZero{0};
  const T* const left = call.inputs[0].is_zero ? &kZero : static_cast<const T*>(call.inputs[0].data);
  const T* const right = call.inputs[1].is_zero ? &kZero : static_cast<const T*>(call.inputs[1].data);
  T* const output = static_cast<T*>(call.output);
  const ContractDim& rows = batch.back();
  Walk(absl::MakeConstSpan(batch).first(batch.size() - 1), {0, 0, 0}, [&](const std::array<int64_t, 3>& at) {
    for (int64_t i = 0; i < rows.extent; ++i) {
      T& to = output[at[2] + i * rows.strides[2]];
      const T sum = RowDot(left + at[0] + i * rows.strides[0], inner[0].strides[0], right + at[1] + i * rows.strides[1],
                           inner[0].strides[1], inner[0].extent);
      to = call.store == KernelStore::kAdd ? static_cast<T>(to + sum) : sum;
    }
  });
  return true;
}

}  // namespace tessera::cpu
