// Copies of strided elements, of which only the bits count.

#include "kernels/cuda/nest.cuh"

namespace tessera::cuda {

template <int kBytes>
__device__ inline void Copy(const CopyParameters& p) {
  using T = BitsOf<kBytes>;
  const T* source = static_cast<const T*>(p.source);
  T* destination = static_cast<T*>(p.destination);
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    destination[at.of[1]] = source[at.of[0]];
  }
}

// By tiles of 32 x 32 through shared memory, so that both sides are walked densely. A column more keeps the lanes of a
// warp in different banks.
template <int kBytes>
__device__ inline void Transpose(const TransposeParameters& p) {
  using T = BitsOf<kBytes>;
  constexpr int kTile = 32, kRows = 8;  // of a block's threads
  __shared__ T tile[kTile][kTile + 1];
  const Offsets<2> batch = OffsetsAt(p.batch, blockIdx.z);
  const T* source = static_cast<const T*>(p.source) + batch.of[0];
  T* destination = static_cast<T*>(p.destination) + batch.of[1];
  for (i64 tile_row = blockIdx.y; tile_row * kTile < p.rows; tile_row += gridDim.y) {
    const i64 column = static_cast<i64>(blockIdx.x) * kTile + threadIdx.x;
#pragma unroll
    for (int first = 0; first < kTile; first += kRows) {
      const int j = first + threadIdx.y;
      const i64 row = tile_row * kTile + j;
      if (column < p.columns && row < p.rows) tile[j][threadIdx.x] = source[row * p.source_row + column];
    }
    __syncthreads();
    const i64 row = tile_row * kTile + threadIdx.x;
#pragma unroll
    for (int first = 0; first < kTile; first += kRows) {
      const int j = first + threadIdx.y;
      const i64 to = static_cast<i64>(blockIdx.x) * kTile + j;
      if (to < p.columns && row < p.rows) destination[to * p.destination_column + row] = tile[threadIdx.x][j];
    }
    __syncthreads();
  }
}

#define TESSERA_COPY(kBytes)                                                                              \
  extern "C" __global__ void copy_##kBytes(const __grid_constant__ CopyParameters p) { Copy<kBytes>(p); } \
  extern "C" __global__ void transpose_##kBytes(const __grid_constant__ TransposeParameters p) { Transpose<kBytes>(p); }
TESSERA_COPY(1)
TESSERA_COPY(2)
TESSERA_COPY(4)
TESSERA_COPY(8)
TESSERA_COPY(16)

}  // namespace tessera::cuda
