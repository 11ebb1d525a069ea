// Products of matrices of any strides by tiles in shared memory: for products that cuBLASLt doesn't have, and where it
// isn't there. Each element is summed in the order of its inner dim.

#include "kernels/cuda/combine.cuh"

namespace tessera::cuda {

constexpr int kTile = 16;

template <typename L, typename R, typename T>
__device__ inline void Matmul(const MatmulParameters& p) {
  using A = typename AccumulatorOf<T>::Type;
  __shared__ A left[kTile][kTile + 1];
  __shared__ A right[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  for (i64 b = blockIdx.z; b < p.batch; b += gridDim.z) {
    const L* from_left = static_cast<const L*>(p.left) + b * p.left_batch;
    const R* from_right = static_cast<const R*>(p.right) + b * p.right_batch;
    T* output = static_cast<T*>(p.output) + b * p.output_batch;
    for (i64 tile = blockIdx.y; tile * kTile < p.rows; tile += gridDim.y) {
      const i64 row = tile * kTile + y, column = static_cast<i64>(blockIdx.x) * kTile + x;
      A sum = {};
      for (i64 k = 0; k < p.inner; k += kTile) {
        A a = {}, c = {};
        if (row < p.rows && k + x < p.inner) {
          a = Convert<A>(from_left[row * p.left_row + (k + x) * p.left_inner]);
        }
        if (column < p.columns && k + y < p.inner) {
          c = Convert<A>(from_right[(k + y) * p.right_inner + column * p.right_column]);
        }
        left[y][x] = a;
        right[y][x] = c;
        __syncthreads();
        const int count = p.inner - k < kTile ? static_cast<int>(p.inner - k) : kTile;
        for (int j = 0; j < count; ++j) {
          const A product = Combine(kCodeProduct, left[y][j], right[j][x]);
          sum = k + j == 0 ? product : Combine(kCodeSum, sum, product);
        }
        __syncthreads();
      }
      if (row >= p.rows || column >= p.columns) continue;
      T* place = output + row * p.output_row + column * p.output_column;
      if (p.adds != 0) sum = Combine(kCodeSum, Convert<A>(*place), sum);
      *place = Convert<T>(sum);
    }
  }
}

#define TESSERA_MATMUL(name, T) \
  extern "C" __global__ void matmul_##name(const __grid_constant__ MatmulParameters p) { Matmul<T, T, T>(p); }
TESSERA_MATMUL(bool, Bool)
TESSERA_MATMUL(8, u8)
TESSERA_MATMUL(16, u16)
TESSERA_MATMUL(32, u32)
TESSERA_MATMUL(64, u64)
TESSERA_MATMUL(f16, F16)
TESSERA_MATMUL(bf16, BF16)
TESSERA_MATMUL(f32, float)
TESSERA_MATMUL(f64, double)
TESSERA_MATMUL(c64, C64)
TESSERA_MATMUL(c128, C128)
#define TESSERA_FLOAT8_MATMUL(name, L, R) \
  extern "C" __global__ void matmul_##name(const __grid_constant__ MatmulParameters p) { Matmul<L, R, float>(p); }
TESSERA_FLOAT8_MATMUL(f8e4m3_f8e4m3, F8E4M3, F8E4M3)
TESSERA_FLOAT8_MATMUL(f8e4m3_f8e5m2, F8E4M3, F8E5M2)
TESSERA_FLOAT8_MATMUL(f8e5m2_f8e4m3, F8E5M2, F8E4M3)
TESSERA_FLOAT8_MATMUL(f8e5m2_f8e5m2, F8E5M2, F8E5M2)

}  // namespace tessera::cuda
