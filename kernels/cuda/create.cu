// Creation: an element depends on its global index alone.

#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/wide.cuh"

namespace tessera::cuda {

template <int kBytes>
__device__ inline void FillWith(const FillParameters& p) {
  using T = BitsOf<kBytes>;
  const T element = *reinterpret_cast<const T*>(&p.element);
  T* destination = static_cast<T*>(p.destination);
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) destination[OffsetsAt(p.nest, i).of[0]] = element;
}

template <int kBytes>
__device__ inline void Eye(const EyeParameters& p) {
  using T = BitsOf<kBytes>;
  const T one = *reinterpret_cast<const T*>(&p.one), zero = {};
  T* destination = static_cast<T*>(p.destination);
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < p.rows * p.columns.value; i += ThreadCount()) {
    const i64 row = Quotient(i, p.columns), column = i - row * p.columns.value;
    // Without leaving 64 bits: the distance of two indexes is compared.
    const bool is_one = p.first_column + column - (p.first_row + row) == p.diagonal;
    destination[row * p.row_stride + column * p.column_stride] = is_one ? one : zero;
  }
}

#define TESSERA_CREATE(kBytes)                                                                                \
  extern "C" __global__ void fill_##kBytes(const __grid_constant__ FillParameters p) { FillWith<kBytes>(p); } \
  extern "C" __global__ void eye_##kBytes(const __grid_constant__ EyeParameters p) { Eye<kBytes>(p); }
TESSERA_CREATE(1)
TESSERA_CREATE(2)
TESSERA_CREATE(4)
TESSERA_CREATE(8)
TESSERA_CREATE(16)

// In f64 for floats, wrapping for integers.
extern "C" __global__ void arange(const __grid_constant__ ArangeParameters p) {
  __builtin_assume(!IsComplexCode(p.dtype));
  for (i64 i = ThreadNumber(); i < p.count; i += ThreadCount()) {
    Wide w;
    if (IsFloatCode(p.dtype)) {
      w.real = p.start + p.step * static_cast<double>(p.first + i);
    } else {
      w.i = static_cast<i64>(static_cast<u64>(p.integer_start) +
                             static_cast<u64>(p.integer_step) * static_cast<u64>(p.first + i));
    }
    StoreWide(p.dtype, p.destination, i * p.stride, w);
  }
}

extern "C" __global__ void rand_uniform(const __grid_constant__ RandParameters p) {
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    const Words words = ElementWords(p.seed, p.stream, static_cast<u64>(p.first + at.of[1]));
    switch (p.dtype) {
      case kF16Code: static_cast<F16*>(p.destination)[at.of[0]] = FromWords<F16>(words); break;
      case kBF16Code: static_cast<BF16*>(p.destination)[at.of[0]] = FromWords<BF16>(words); break;
      case kF32Code: static_cast<float*>(p.destination)[at.of[0]] = FromWords<float>(words); break;
      default: static_cast<double*>(p.destination)[at.of[0]] = FromWords<double>(words); break;
    }
  }
}

}  // namespace tessera::cuda
