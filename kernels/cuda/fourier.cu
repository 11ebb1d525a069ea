// Copies before and after the library's Fourier transforms, of operands that it can't take as they lie: numbers of
// another dtype, lines that are cut or continued with zeros, spectra of real signals (the library writes over these),
// and scales.

#include "kernels/cuda/fourier_parameters.h"
#include "kernels/cuda/nest.cuh"

namespace tessera::cuda {

template <typename T>
__device__ inline T Scaled(T value, double scale) {
  if constexpr (kIsComplex<T>) {
    return {Scaled(value.real, scale), Scaled(value.imag, scale)};
  } else {
    return static_cast<T>(static_cast<double>(value) * scale);
  }
}

template <typename From, typename To>
__device__ inline void FourierTake(const FourierParameters& p) {
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    const i64 quotient = Quotient(i, p.inner);
    const i64 place = p.is_dim_last != 0 ? i - quotient * p.inner.value : quotient;
    To value = {};
    if (place < p.extent) value = Scaled(Convert<To>(static_cast<const From*>(p.source)[at.of[0]]), p.scale);
    if constexpr (kIsComplex<To>) {
      if (p.has_half_spectrum != 0 && (place == 0 || place == p.middle)) value.imag = 0;
    }
    static_cast<To*>(p.destination)[at.of[1]] = value;
  }
}
#define TESSERA_FOURIER_TAKE(name, From, To)                                                    \
  extern "C" __global__ void fourier_take_##name(const __grid_constant__ FourierParameters p) { \
    FourierTake<From, To>(p);                                                                   \
  }
TESSERA_FOURIER_TAKE(f16_f32, F16, float)
TESSERA_FOURIER_TAKE(bf16_f32, BF16, float)
TESSERA_FOURIER_TAKE(f32_f32, float, float)
TESSERA_FOURIER_TAKE(f64_f64, double, double)
TESSERA_FOURIER_TAKE(f16_c64, F16, C64)
TESSERA_FOURIER_TAKE(bf16_c64, BF16, C64)
TESSERA_FOURIER_TAKE(f32_c64, float, C64)
TESSERA_FOURIER_TAKE(c64_c64, C64, C64)
TESSERA_FOURIER_TAKE(f64_c128, double, C128)
TESSERA_FOURIER_TAKE(c128_c128, C128, C128)

template <typename T>
__device__ inline void FourierGive(const FourierParameters& p) {
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    static_cast<T*>(p.destination)[at.of[1]] = Scaled(static_cast<const T*>(p.source)[at.of[0]], p.scale);
  }
}
#define TESSERA_FOURIER_GIVE(name, T) \
  extern "C" __global__ void fourier_give_##name(const __grid_constant__ FourierParameters p) { FourierGive<T>(p); }
TESSERA_FOURIER_GIVE(f32, float)
TESSERA_FOURIER_GIVE(f64, double)
TESSERA_FOURIER_GIVE(c64, C64)
TESSERA_FOURIER_GIVE(c128, C128)

}  // namespace tessera::cuda
