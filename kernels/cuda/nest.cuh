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

// Of the element with this number in row-major order. Divisions of 32 bits where the numbers allow it. The loops are not
// unrolled: it is written into every load.
template <int kOperands>
__device__ inline Offsets<kOperands> OffsetsAt(const Nest<kOperands>& nest, i64 flat) {
  Offsets<kOperands> offsets = {};
  if (nest.size <= 0x7FFFFFFF) {
    u32 rest = static_cast<u32>(flat);
#pragma unroll 1
    for (int d = nest.rank - 1; d >= 0; --d) {
      const u32 extent = static_cast<u32>(nest.extents[d]);
      const u32 quotient = d == 0 ? 0 : rest / extent;
      const i64 index = rest - quotient * extent;
#pragma unroll
      for (int o = 0; o < kOperands; ++o) offsets.of[o] += index * nest.strides[o][d];
      rest = quotient;
    }
    return offsets;
  }
#pragma unroll 1
  for (int d = nest.rank - 1; d >= 0; --d) {
    const i64 quotient = d == 0 ? 0 : flat / nest.extents[d];
    const i64 index = flat - quotient * nest.extents[d];
#pragma unroll
    for (int o = 0; o < kOperands; ++o) offsets.of[o] += index * nest.strides[o][d];
    flat = quotient;
  }
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
