// Copies of strided elements, of which only the bits count.

#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/transpose_tile.h"

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

// The columns of a tile by words of it: rows[i] has kInWord columns of row i, and columns[j] gets column j of all rows.
template <int kInWord, int kRows>
__device__ inline void TurnWords(const u32 (&rows)[kRows], u32 (&columns)[kInWord][kRows / kInWord]) {
  if constexpr (kInWord == 1) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) columns[0][i] = rows[i];
  } else if constexpr (kInWord == 2) {
#pragma unroll
    for (int i = 0; i < kRows; i += 2) {
      columns[0][i / 2] = __byte_perm(rows[i], rows[i + 1], 0x5410);
      columns[1][i / 2] = __byte_perm(rows[i], rows[i + 1], 0x7632);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kRows; i += 4) {
      const u32 low = __byte_perm(rows[i], rows[i + 1], 0x5140), high = __byte_perm(rows[i], rows[i + 1], 0x7362);
      const u32 next_low = __byte_perm(rows[i + 2], rows[i + 3], 0x5140);
      const u32 next_high = __byte_perm(rows[i + 2], rows[i + 3], 0x7362);
      columns[0][i / 4] = __byte_perm(low, next_low, 0x5410);
      columns[1][i / 4] = __byte_perm(low, next_low, 0x7632);
      columns[2][i / 4] = __byte_perm(high, next_high, 0x5410);
      columns[3][i / 4] = __byte_perm(high, next_high, 0x7632);
    }
  }
}

// By loads and stores of 16 bytes, four of each a thread, where rows of both sides are multiples of 16 bytes that begin
// at addresses which 16 divides. A tile of 16 KiB lies in shared memory as in the source. A thread takes a word of 4
// bytes of as many rows as 16 bytes have elements, and has 16 bytes of each of the word's columns then.
//
// Pieces of 16 bytes change places within their row. So the words that a warp takes at once, of 8 groups of rows and
// the 4 words of a piece, are in 32 banks; so are the 8 pieces that a quarter of it puts there.
template <int kBytes>
__device__ inline void TransposeVectors(const TransposeParameters& p) {
  using T = BitsOf<kBytes>;
  constexpr int kVector = 16 / kBytes, kInWord = 4 / kBytes;
  constexpr int kRows = TransposeTile<kBytes>::kRows, kColumns = TransposeTile<kBytes>::kColumns;
  constexpr int kPieces = kColumns / kVector, kOwn = kRows * kPieces / kTransposeThreads;
  constexpr int kGroups = kRows / kVector / 8, kItems = kRows / kVector * kColumns / kInWord;
  __shared__ uint4 tile[kRows][kPieces];
  const auto place = [](int group, int piece) { return piece ^ (group & 7); };
  const Offsets<2> batch = OffsetsAt(p.batch, blockIdx.z);
  const i64 first_column = static_cast<i64>(blockIdx.x) * kColumns;
  const T* source = static_cast<const T*>(p.source) + batch.of[0] + first_column;
  T* destination = static_cast<T*>(p.destination) + batch.of[1] + first_column * p.destination_column;
  const i64 columns = p.columns - first_column;
  for (i64 first_row = static_cast<i64>(blockIdx.y) * kRows; first_row < p.rows;
       first_row += static_cast<i64>(gridDim.y) * kRows) {
    uint4 own[kOwn];
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int n = o * kTransposeThreads + threadIdx.x, column = n % kPieces * kVector;
      const i64 row = first_row + n / kPieces;
      own[o] = {};
      if (row < p.rows && column < columns) {
        own[o] = *reinterpret_cast<const uint4*>(source + row * p.source_row + column);
      }
    }
#pragma unroll
    for (int o = 0; o < kOwn; ++o) {
      const int n = o * kTransposeThreads + threadIdx.x, row = n / kPieces;
      tile[row][place(row / kVector, n % kPieces)] = own[o];
    }
    __syncthreads();
#pragma unroll
    for (int o = 0; o < kItems / kTransposeThreads; ++o) {
      const int n = o * kTransposeThreads + threadIdx.x, warp = n / 32;
      const int group = n % 8 + warp % kGroups * 8, piece = warp / kGroups, word = n / 8 % 4;
      u32 words[kVector], turned[kInWord][4];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        words[i] = reinterpret_cast<const u32*>(&tile[group * kVector + i][place(group, piece)])[word];
      }
      TurnWords(words, turned);
      const i64 row = first_row + group * kVector;
#pragma unroll
      for (int j = 0; j < kInWord; ++j) {
        const int column = piece * kVector + word * kInWord + j;
        if (column < columns && row < p.rows) {
          *reinterpret_cast<uint4*>(destination + column * p.destination_column + row) = {turned[j][0], turned[j][1],
                                                                                          turned[j][2], turned[j][3]};
        }
      }
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

#define TESSERA_TRANSPOSE_VECTORS(kBytes)                                   \
  extern "C" __global__ void __launch_bounds__(kTransposeThreads)           \
      transpose_v_##kBytes(const __grid_constant__ TransposeParameters p) { \
    TransposeVectors<kBytes>(p);                                            \
  }
TESSERA_TRANSPOSE_VECTORS(1)
TESSERA_TRANSPOSE_VECTORS(2)
TESSERA_TRANSPOSE_VECTORS(4)

}  // namespace tessera::cuda
