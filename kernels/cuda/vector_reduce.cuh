#pragma once

// One input that lies as reductions by vectors want it (vector_tree.cuh): rows that are dense, or columns side by side,
// from addresses that 16 divides.

#include "kernels/cuda/vector_tree.cuh"

namespace tessera::cuda {

template <typename A, typename In>
struct VectorsOfRow {
  using T = A;
  static constexpr int kCount = kVectorBytes / sizeof(In);
  i64 base = 0;

  __device__ inline i64 MoveTo(const ReduceParameters& p, i64 output) {
    const Offsets<2> at = OffsetsAt(p.kept, output);
    base = at.of[0];
    return at.of[1];
  }
  __device__ inline void Load(const ReduceParameters& p, i64 i, T (&to)[kCount]) const {
    In elements[kCount];
    LoadVector(p.input, base + i, elements);
#pragma unroll
    for (int k = 0; k < kCount; ++k) to[k] = Convert<T>(elements[k]);
  }
  __device__ inline T LoadOne(const ReduceParameters& p, i64 i) const {
    return Convert<T>(static_cast<const In*>(p.input)[base + i]);
  }
};
template <typename A, typename In>
struct VectorsOfColumns : VectorsOfRow<A, In> {
  __device__ inline void Load(const ReduceParameters& p, i64 i, A (&to)[VectorsOfRow<A, In>::kCount]) const {
    VectorsOfRow<A, In>::Load(p, i * p.reduced.strides[0][0], to);
  }
};

}  // namespace tessera::cuda
