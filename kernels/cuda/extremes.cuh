#pragma once

// Results of argmin and argmax: numbers in the whole tensor, and the values.

#include "kernels/cuda/nest.cuh"

namespace tessera::cuda {

__device__ inline i64 InWhole(const NumbersInWhole& whole, i64 number) {
  if (whole.dims == 0) return number;
  i64 result = whole.first;
#pragma unroll 1
  for (int d = whole.dims - 1; d >= 0; --d) {
    const i64 quotient = Quotient(number, whole.extents[d]);
    result += (number - quotient * whole.extents[d].value) * whole.strides[d].value;
    number = quotient;
  }
  return result;
}

__device__ inline void CopyElement(int bytes, const void* from, i64 from_at, void* to, i64 to_at) {
  switch (bytes) {
    case 1: static_cast<u8*>(to)[to_at] = static_cast<const u8*>(from)[from_at]; break;
    case 2: static_cast<u16*>(to)[to_at] = static_cast<const u16*>(from)[from_at]; break;
    case 4: static_cast<u32*>(to)[to_at] = static_cast<const u32*>(from)[from_at]; break;
    default: static_cast<u64*>(to)[to_at] = static_cast<const u64*>(from)[from_at]; break;
  }
}

// The first extreme of an output by its number, below 0 where there is none, and its place in the input.
__device__ inline void StoreFirst(const ArgReduceParameters& p, const Offsets<4>& kept, i64 number, i64 place) {
  const bool is_counted = p.numbers == nullptr && number >= 0;
  p.output[kept.of[2]] = is_counted ? InWhole(p.whole, number) : number;
  const u64 zero = 0;
  if (p.values != nullptr && number >= 0) {
    CopyElement(p.element_bytes, p.input, place, p.values, kept.of[3]);
  } else if (p.values != nullptr) {
    CopyElement(p.element_bytes, &zero, 0, p.values, kept.of[3]);
  }
}

}  // namespace tessera::cuda
