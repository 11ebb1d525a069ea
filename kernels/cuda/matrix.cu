// Kernels around the calls of a library that computes functions of matrices: they copy parts of its results, and find
// whether there is an answer.

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/matrix_parameters.h"
#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/pivot_parameters.h"

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

// Pivots as elements that count from 0.
template <typename T>
__device__ inline void MatrixPivots(const MatrixPivotParameters& p) {
  const i64 size = p.batch.size * p.count.value;
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 matrix = Quotient(i, p.count), number = i - matrix * p.count.value;
    static_cast<T*>(p.destination)[OffsetsAt(p.batch, matrix).of[0] + number * p.step] =
        static_cast<T>(p.pivots[i] - 1);
  }
}
extern "C" __global__ void matrix_pivots_f32(const __grid_constant__ MatrixPivotParameters p) {
  MatrixPivots<float>(p);
}
extern "C" __global__ void matrix_pivots_f64(const __grid_constant__ MatrixPivotParameters p) {
  MatrixPivots<double>(p);
}

// The sign of a determinant and the logarithm of its size; 0 and -inf where U has a 0. A block a matrix: a thread adds
// up every 256th element, and these sums are folded in halves.
enum DeterminantFlags : int { kIsNegative = 1, kHasZero = 2 };
constexpr int kDeterminantThreads = 256;
template <typename T>
__device__ inline void MatrixSlogdet(const MatrixPivotParameters& p) {
  __shared__ T logarithms[kDeterminantThreads];
  __shared__ int flags[kDeterminantThreads];
  const int thread = static_cast<int>(threadIdx.x);
  for (i64 matrix = blockIdx.x; matrix < p.batch.size; matrix += gridDim.x) {
    T sum = 0;
    int own = 0;
#pragma unroll 1
    for (i64 i = thread; i < p.count.value; i += kDeterminantThreads) {
      const T pivot = static_cast<const T*>(p.diagonal)[matrix * p.matrix_distance + i * p.diagonal_step];
      own ^= static_cast<int>(p.pivots[matrix * p.count.value + i] != i + 1) ^ static_cast<int>(pivot < T(0));
      if (pivot == T(0)) own |= kHasZero;
      sum += Log(pivot < T(0) ? -pivot : pivot);
    }
    logarithms[thread] = sum;
    flags[thread] = own;
    __syncthreads();
    for (int distance = kDeterminantThreads / 2; distance > 0; distance /= 2) {
      if (thread < distance) {
        logarithms[thread] += logarithms[thread + distance];
        const int other = flags[thread + distance];
        flags[thread] = (flags[thread] ^ (other & kIsNegative)) | (other & kHasZero);
      }
      __syncthreads();
    }
    if (thread == 0) {
      T* const to = static_cast<T*>(p.destination) + OffsetsAt(p.batch, matrix).of[0];
      const bool has_zero = (flags[0] & kHasZero) != 0;
      to[0] = has_zero ? T(0) : (flags[0] & kIsNegative) != 0 ? T(-1) : T(1);
      to[p.step] = has_zero ? -Infinity<T>() : logarithms[0];
    }
    __syncthreads();
  }
}
extern "C" __global__ void matrix_slogdet_f32(const __grid_constant__ MatrixPivotParameters p) {
  MatrixSlogdet<float>(p);
}
extern "C" __global__ void matrix_slogdet_f64(const __grid_constant__ MatrixPivotParameters p) {
  MatrixSlogdet<double>(p);
}

}  // namespace tessera::cuda
