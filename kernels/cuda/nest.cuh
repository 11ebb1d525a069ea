#pragma once

// Where a thread's elements lie: the device's side of parameters.h.

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

__device__ inline i64 ThreadNumber() { return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline i64 ThreadCount() { return static_cast<i64>(gridDim.x) * blockDim.x; }

template <int kOperands>
struct Offsets {
  i64 of[kOperands];
};

__device__ inline i64 Quotient(i64 number, u64 factor, int shift) {
  return static_cast<i64>(__umul64hi(static_cast<u64>(number) << 1, factor) >> shift);
}
__device__ inline i64 Quotient(i64 number, const Divisor& divisor) {
  return Quotient(number, divisor.factor, divisor.shift);
}

// Offsets of the element with this number in row-major order. The loop is not unrolled: it is written into every load.
template <int kOperands>
__device__ inline Offsets<kOperands> OffsetsAt(const Nest<kOperands>& nest, i64 flat) {
  Offsets<kOperands> offsets = {};
#pragma unroll 1
  for (int d = nest.rank - 1; d > 0; --d) {
    const i64 quotient = Quotient(flat, nest.factors[d], nest.shifts[d]);
    const i64 index = flat - quotient * nest.extents[d];
#pragma unroll
    for (int o = 0; o < kOperands; ++o) offsets.of[o] += index * nest.strides[o][d];
    flat = quotient;
  }
#pragma unroll
  for (int o = 0; o < kOperands; ++o) offsets.of[o] += flat * nest.strides[o][0];
  return offsets;
}

// Elements of which only the bits count.
template <int kBytes>
struct Bits;
template <>
struct Bits<1> {
  using Type = u8;
};
template <>
struct Bits<2> {
  using Type = u16;
};
template <>
struct Bits<4> {
  using Type = u32;
};
template <>
struct Bits<8> {
  using Type = u64;
};
template <>
struct Bits<16> {
  using Type = ulonglong2;
};
template <int kBytes>
using BitsOf = typename Bits<kBytes>::Type;

}  // namespace tessera::cuda
