// Reductions over dims of one input, by the fixed tree, one kernel for each type that is accumulated in. Narrow
// integers are in 64 bits: bits that are cut from them in the end would have been cut before.

#include "kernels/cuda/tree.cuh"

namespace tessera::cuda {

// The one input, whose dtype is In, and whose reduced elements are equally far apart.
template <typename T, typename In>
struct DenseSource {
  static constexpr int kUnrolled = 8;
  i64 base = 0, stride = 0;

  __device__ inline i64 MoveTo(const ReduceParameters& p, i64 output) {
    const Offsets<2> at = OffsetsAt(p.kept, output);
    base = at.of[0];
    stride = p.reduced.strides[0][0];
    return at.of[1];
  }
  __device__ inline T Load(const ReduceParameters& p, i64 i) const {
    return Convert<T>(static_cast<const In*>(p.input)[base + i * stride]);
  }
};
// The one input of any dtype and strides.
template <typename T>
struct AnySource : DenseSource<T, T> {
  static constexpr int kUnrolled = 1;
  __device__ inline T Load(const ReduceParameters& p, i64 i) const {
    const int dtype = kIsSame<T, i64> ? p.dtype : kCodeOf<T>;
    return LoadAs<T>(p.input_dtype, dtype, p.input, this->base + OffsetsAt(p.reduced, i).of[0]);
  }
};

template <typename T>
__device__ inline void Rows(const ReduceParameters& p) {
  if (p.input_dtype == kCodeOf<T> && p.dtype == kCodeOf<T> && p.reduced.rank == 1) {
    ReduceRows<T>(p, DenseSource<T, T>{});
  } else {
    ReduceRows<T>(p, AnySource<T>{});
  }
}

#define TESSERA_REDUCE(name, T)                                                                             \
  extern "C" __global__ void reduce_rows_##name(const __grid_constant__ ReduceParameters p) { Rows<T>(p); } \
  extern "C" __global__ void reduce_columns_##name(const __grid_constant__ ReduceParameters p) {            \
    ReduceColumns<T>(p, DenseSource<T, T>{});                                                               \
  }                                                                                                         \
  extern "C" __global__ void reduce_tree_##name(const __grid_constant__ TreeParameters p) { CombineChunks<T>(p); }
TESSERA_REDUCE(i64, i64)
TESSERA_REDUCE(u64, u64)
TESSERA_REDUCE(f32, float)
TESSERA_REDUCE(f64, double)
TESSERA_REDUCE(c64, C64)
TESSERA_REDUCE(c128, C128)

extern "C" __global__ void reduce_columns_f32_of_f16(const __grid_constant__ ReduceParameters p) {
  ReduceColumns<float>(p, DenseSource<float, F16>{});
}
extern "C" __global__ void reduce_columns_f32_of_bf16(const __grid_constant__ ReduceParameters p) {
  ReduceColumns<float>(p, DenseSource<float, BF16>{});
}

}  // namespace tessera::cuda
