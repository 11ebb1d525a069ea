// Reductions of terms, element by element in the order of the terms, to several destinations.

#include "kernels/cuda/combine.cuh"

namespace tessera::cuda {

__device__ inline i64 PlaceOf(const TermsParameters& p, int operand, i64 flat) {
  i64 offset = 0;
#pragma unroll 1
  for (int d = p.nest.rank - 1; d > 0; --d) {
    const i64 quotient = Quotient(flat, p.nest.factors[d], p.nest.shifts[d]);
    offset += (flat - quotient * p.nest.extents[d]) * p.nest.strides[operand][d];
    flat = quotient;
  }
  return offset + flat * p.nest.strides[operand][0];
}

template <typename T>
__device__ inline T DividedBy(T value, i64 count) {
  if constexpr (kIsComplex<T>) {
    const auto divisor = static_cast<typename T::Part>(count);
    return {value.real / divisor, value.imag / divisor};
  } else if constexpr (kIsFloat<T>) {
    return value / static_cast<T>(count);
  } else {
    return value;
  }
}

// Terms alone are reduced bit by bit, too. Bools and integers have bits.
template <typename T>
__device__ inline T CombineTerms(int op, T a, T b) {
  if constexpr (kIsSame<T, Bool>) {
    if (op == kCodeBand) return Combine(kCodeProduct, a, b);
    if (op == kCodeBxor) return {static_cast<u8>((a.byte != 0) != (b.byte != 0))};
  } else if constexpr (!kIsFloat<T> && !kIsHalf<T> && !kIsComplex<T>) {
    if (op == kCodeBand) return static_cast<T>(a & b);
    if (op == kCodeBor) return static_cast<T>(a | b);
    if (op == kCodeBxor) return static_cast<T>(a ^ b);
  }
  return Combine(op, a, b);
}

template <typename T>
__device__ inline void ReduceTerms(const TermsParameters& p) {
  using A = typename AccumulatorOf<T>::Type;
  A* accumulator = static_cast<A*>(p.accumulator);
  const bool reads = (p.accumulator_use & kReadAccumulator) != 0, writes = (p.accumulator_use & kWriteAccumulator) != 0;
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const auto term = [&](int t) { return Convert<A>(static_cast<const T*>(p.places[t])[PlaceOf(p, t, i)]); };
    A value = reads ? accumulator[i] : term(0);
#pragma unroll 1
    for (int t = reads ? 0 : 1; t < p.terms; ++t) value = CombineTerms(p.op, value, term(t));
    if (writes) {
      accumulator[i] = value;
      continue;
    }
    if (p.op == kCodeAvg) value = DividedBy(value, p.term_count);
    const T result = Convert<T>(value);
#pragma unroll 1
    for (int d = 0; d < p.destinations; ++d) {
      StoreAs(p.destination_dtype, p.places[kMaxLaunchTerms + d], PlaceOf(p, kMaxLaunchTerms + d, i), result);
    }
  }
}

#define TESSERA_TERMS(name, T) \
  extern "C" __global__ void reduce_terms_##name(const __grid_constant__ TermsParameters p) { ReduceTerms<T>(p); }
TESSERA_TERMS(bool, Bool)
TESSERA_TERMS(i8, i8)
TESSERA_TERMS(i16, i16)
TESSERA_TERMS(i32, i32)
TESSERA_TERMS(i64, i64)
TESSERA_TERMS(u8, u8)
TESSERA_TERMS(u16, u16)
TESSERA_TERMS(u32, u32)
TESSERA_TERMS(u64, u64)
TESSERA_TERMS(f16, F16)
TESSERA_TERMS(bf16, BF16)
TESSERA_TERMS(f32, float)
TESSERA_TERMS(f64, double)
TESSERA_TERMS(c64, C64)
TESSERA_TERMS(c128, C128)

}  // namespace tessera::cuda
