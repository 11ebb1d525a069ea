#pragma once

// Operands of attention and of its gradients: batches of matrices of any strides, and their rows as the dtype that is
// accumulated in.
//
//   key = MatricesOf(call.inputs[1], batch);  RowsOf<float>(key, key.At(index), 64, 64, features, scratch)
//     -> keys 64 to 127 of one batch as dense rows of floats: where they lie, if they do so, else a copy

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/kernel.h"

namespace tessera::cpu {

template <typename T>
inline constexpr DType kOwnDType = std::is_same_v<T, float> ? DType::kF32 : DType::kF64;

// An operand: where each batch begins, and its last two dims.
struct Matrices {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Strides batch;  // 0 where it is broadcast
  int64_t row_stride = 0, column_stride = 0;

  const std::byte* At(absl::Span<const int64_t> index) const {
    int64_t offset = 0;
    for (size_t d = 0; d < batch.size(); ++d) offset += index[d] * batch[d];
    return data + offset * SizeBytes(dtype);
  }
};

inline Matrices MatricesOf(const KernelInput& input, const Shape& batch) {
  Matrices m;
  m.data = static_cast<const std::byte*>(input.data);
  m.dtype = input.dtype;
  const size_t rank = input.extents.size();
  m.batch.assign(batch.size(), 0);
  for (size_t d = 0; d + 2 < rank; ++d) {
    const size_t to = batch.size() - (rank - 2) + d;
    m.batch[to] = input.extents[d] == 1 ? 0 : input.strides[d];
  }
  const auto stride_of = [&](size_t from_end) {
    return rank < from_end || input.extents[rank - from_end] == 1 ? int64_t{0} : input.strides[rank - from_end];
  };
  m.row_stride = stride_of(2);
  m.column_stride = stride_of(1);
  return m;
}

// Rows of T, dense along the columns: where they lie, if they do so, else a copy.
template <typename T>
struct Rows {
  const T* data = nullptr;
  int64_t stride = 0;
};

// To dense memory in row-major order.
template <typename T>
void CopyAsOwn(const Shape& extents, DType dtype, const std::byte* from, const Strides& strides, T* to) {
  const int64_t bytes = SizeBytes(dtype);
  if (dtype == kOwnDType<T>) return CopyStrided(extents, bytes, from, strides, to, RowMajorStrides(extents));
  std::vector<std::byte> brought(static_cast<size_t>(NumElements(extents) * bytes));
  CopyStrided(extents, bytes, from, strides, brought.data(), RowMajorStrides(extents));
  CastBlock(dtype, kOwnDType<T>, brought.data(), NumElements(extents), to);
}

template <typename T>
Rows<T> RowsOf(const Matrices& m, const std::byte* base, int64_t first, int64_t count, int64_t columns,
               std::vector<T>& scratch) {
  const std::byte* from = base + first * m.row_stride * SizeBytes(m.dtype);
  const bool is_dense = (m.column_stride == 1 || columns == 1) && m.row_stride >= columns;
  if (m.dtype == kOwnDType<T> && is_dense) return {reinterpret_cast<const T*>(from), m.row_stride};
  scratch.resize(static_cast<size_t>(count * columns));
  CopyAsOwn<T>({count, columns}, m.dtype, from, {m.row_stride, m.column_stride}, scratch.data());
  return {scratch.data(), columns};
}

}  // namespace tessera::cpu
