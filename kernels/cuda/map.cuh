#pragma once

// The elements of a map's inputs, kCount of them side by side in one loop. An input whose elements lie side by side
// there, from an address that their bytes divide, has its bit in p.in_vectors, and its elements come by loads of up to
// 16 bytes. Any other input, one number for a whole row for example, is read element by element.
//
//   add of f32[1000, 12] and f32[12]: a thread has 4 elements, and loads each operand once.
//   add of f32[1000, 12] and f32[1000, 1]: the second operand is read 4 times from the same place.

#include "kernels/cuda/vector.cuh"

namespace tessera::cuda {

template <typename T, typename P>
__device__ inline T LoadElement(const P& p, int operand, i64 at) {
  return static_cast<const T*>(p.inputs[operand])[at];
}
// An operand's step from an element to the next one in that loop.
template <typename P>
__device__ inline i64 StepOf(const P& p, int operand) {
  return p.nest.strides[operand][p.nest.rank - 1];
}
template <typename P, typename T, int kCount>
__device__ inline void LoadElements(const P& p, int operand, i64 at, T (&to)[kCount]) {
  if ((p.in_vectors >> operand & 1) != 0) {
    LoadVector(p.inputs[operand], at, to);
  } else {
    const i64 step = StepOf(p, operand);
#pragma unroll
    for (int k = 0; k < kCount; ++k) to[k] = LoadElement<T>(p, operand, at + k * step);
  }
}

}  // namespace tessera::cuda
