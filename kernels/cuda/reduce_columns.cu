// Reductions of columns by loads of 16 bytes, one kernel for each op, type that is accumulated in and type in memory.

#include "kernels/cuda/vector_reduce.cuh"

namespace tessera::cuda {

#define TESSERA_REDUCE_COLUMNS(op, kOp, name, T, In)                               \
  extern "C" __global__ void __launch_bounds__(kVectorThreads, 2)                  \
      reduce_columns_v_##op##_##name(const __grid_constant__ ReduceParameters p) { \
    ReduceColumnsByVector<kOp>(p, VectorsOfColumns<T, In>{});                      \
  }
#define TESSERA_REDUCE_COLUMNS_OF(name, T, In)            \
  TESSERA_REDUCE_COLUMNS(sum, kCodeSum, name, T, In)      \
  TESSERA_REDUCE_COLUMNS(prod, kCodeProduct, name, T, In) \
  TESSERA_REDUCE_COLUMNS(max, kCodeMax, name, T, In)      \
  TESSERA_REDUCE_COLUMNS(min, kCodeMin, name, T, In)
TESSERA_REDUCE_COLUMNS_OF(f32, float, float)
TESSERA_REDUCE_COLUMNS_OF(f64, double, double)
TESSERA_REDUCE_COLUMNS_OF(f32_of_f16, float, F16)
TESSERA_REDUCE_COLUMNS_OF(f32_of_bf16, float, BF16)

}  // namespace tessera::cuda
