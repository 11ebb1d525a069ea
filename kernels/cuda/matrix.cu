// Kernels around the calls of a library that computes functions of matrices: they copy parts of its results, and find
// whether there is an answer.

#include "kernels/cuda/matrix_parameters.h"
#include "kernels/cuda/nest.cuh"

namespace tessera::cuda {

template <typename T>
__device__ inline void MatrixPartOf(const MatrixPartParameters& p) {
  const i64 of_matrix = p.rows.value * p.columns.value, size = p.batch.size * of_matrix;
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.columns), column = i - line * p.columns.value;
    const i64 matrix = Quotient(line, p.rows), row = line - matrix * p.rows.value;
    const Offsets<2> at = OffsetsAt(p.batch, matrix);
    T value = T(0);
    if (p.part == kMatrixIdentity) {
      value = row == column ? T(1) : T(0);
    } else if (p.part == kMatrixLower ? column <= row : column >= row) {
      value = static_cast<const T*>(p.source)[at.of[0] + row * p.source_row + column * p.source_column];
    }
    static_cast<T*>(p.destination)[at.of[1] + row * p.destination_row + column * p.destination_column] = value;
  }
}
extern "C" __global__ void matrix_part_f32(const __grid_constant__ MatrixPartParameters p) { MatrixPartOf<float>(p); }
extern "C" __global__ void matrix_part_f64(const __grid_constant__ MatrixPartParameters p) { MatrixPartOf<double>(p); }

// The first code stays.
extern "C" __global__ void matrix_info(const __grid_constant__ MatrixCheckParameters p) {
  for (i64 i = ThreadNumber(); i < p.size; i += ThreadCount()) {
    if (p.info[i] != 0) atomicCAS(p.fault, u64(0), p.code);
  }
}

template <typename T>
__device__ inline bool IsFinite(T value) {
  return value - value == T(0);
}
template <typename T>
__device__ inline bool IsNonzero(T value) {
  return !(value == T(0));
}
#define TESSERA_MATRIX_CHECK(name, Is, T)                                                     \
  extern "C" __global__ void matrix_##name(const __grid_constant__ MatrixCheckParameters p) { \
    for (i64 i = ThreadNumber(); i < p.size; i += ThreadCount()) {                            \
      if (!Is(static_cast<const T*>(p.elements)[i])) atomicCAS(p.fault, u64(0), p.code);      \
    }                                                                                         \
  }
TESSERA_MATRIX_CHECK(finite_f32, IsFinite, float)
TESSERA_MATRIX_CHECK(finite_f64, IsFinite, double)
TESSERA_MATRIX_CHECK(nonzero_f32, IsNonzero, float)
TESSERA_MATRIX_CHECK(nonzero_f64, IsNonzero, double)

}  // namespace tessera::cuda
