// Attention by tiles of 16 queries and 16 keys in shared memory, so that no matrix of scores is in memory: Dao, Fu,
// Ermon, Rudra, Re, "FlashAttention", 2022. The running maximum and sum are those of kernels/cpu/attention.cc.

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/math.cuh"

namespace tessera::cuda {

constexpr int kTile = 16;

// The best or the sum of a row of the tile, which is half a warp.
template <typename A>
__device__ inline A RowMaximum(A value) {
#pragma unroll
  for (int distance = kTile / 2; distance > 0; distance /= 2) {
    const A other = __shfl_xor_sync(~0U, value, distance);
    value = other > value ? other : value;
  }
  return value;
}
template <typename A>
__device__ inline A RowSum(A value) {
#pragma unroll
  for (int distance = kTile / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
  return value;
}

// A thread's key is x, its query y; its columns of the output are x, x + 16, ...
template <typename T>
__device__ inline void Attention(const AttentionParameters& p) {
  using A = typename AccumulatorOf<T>::Type;
  __shared__ A queries[kTile][kTile + 1], keys[kTile][kTile + 1], weights[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const A kNone = -Infinity<A>();
  for (i64 b = blockIdx.y; b < p.batch.size; b += gridDim.y) {
    const Offsets<5> at = OffsetsAt(p.batch, b);
    const T* query = static_cast<const T*>(p.queries) + at.of[0];
    const T* key = static_cast<const T*>(p.keys) + at.of[1];
    const T* value = static_cast<const T*>(p.values) + at.of[2];
    const i64 row = static_cast<i64>(blockIdx.x) * kTile + y;
    A sums[kAttentionColumns / kTile] = {};
    A largest = kNone, total = 0;
    for (i64 first = 0; first < p.key_count; first += kTile) {
      A score = 0;
      for (i64 feature = 0; feature < p.features; feature += kTile) {
        const bool is_inside = feature + x < p.features;
        A q = 0, k = 0;
        if (is_inside && row < p.rows) q = Convert<A>(query[row * p.query_row + (feature + x) * p.query_column]);
        if (is_inside && first + y < p.key_count) {
          k = Convert<A>(key[(first + y) * p.key_row + (feature + x) * p.key_column]);
        }
        queries[y][x] = q;
        keys[y][x] = k;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kTile; ++j) score += queries[y][j] * keys[x][j];
        __syncthreads();
      }
      const i64 number = first + x;
      const bool is_seen = row < p.rows && number < p.key_count && (p.is_causal == 0 || number <= p.first_row + row);
      score *= static_cast<A>(p.scale);
      const i64 mask = at.of[3] + row * p.mask_row + number * p.mask_column;
      if (is_seen && p.mask_kind == kMaskAdded) score += static_cast<const A*>(p.mask)[mask];
      if (!is_seen || (p.mask_kind == kMaskBool && static_cast<const u8*>(p.mask)[mask] == 0)) score = kNone;

      const A best = RowMaximum(score), now = best > largest ? best : largest;
      // Where all scores so far are -inf nothing is subtracted: inf - inf would be NaN.
      const A shift = now == kNone ? A(0) : now;
      const A weight = Exp(score - shift), scale = now == kNone ? A(1) : Exp(largest - shift);
      total = total * scale + RowSum(weight);
      largest = now;
      weights[y][x] = weight;
      __syncthreads();
      const int count = p.key_count - first < kTile ? static_cast<int>(p.key_count - first) : kTile;
#pragma unroll
      for (int c = 0; c < kAttentionColumns / kTile; ++c) {
        const i64 column = c * kTile + x;
        if (column >= p.columns) continue;
        A sum = sums[c] * scale;
#pragma unroll 1
        for (int j = 0; j < count; ++j) {
          sum += weights[y][j] * Convert<A>(value[(first + j) * p.value_row + column * p.value_column]);
        }
        sums[c] = sum;
      }
      __syncthreads();
    }
    if (p.gives_logarithms != 0) {
      A* const logarithms = static_cast<A*>(p.output) + at.of[4];
      if (x == 0 && row < p.rows) logarithms[row * p.output_row] = total == A(0) ? kNone : largest + Log(total);
      continue;
    }
    T* output = static_cast<T*>(p.output) + at.of[4];
#pragma unroll
    for (int c = 0; c < kAttentionColumns / kTile; ++c) {
      const i64 column = c * kTile + x;
      if (column >= p.columns || row >= p.rows) continue;
      output[row * p.output_row + column * p.output_column] = Convert<T>(sums[c] / total);
    }
  }
}

#define TESSERA_ATTENTION(name, T) \
  extern "C" __global__ void attention_##name(const __grid_constant__ AttentionParameters p) { Attention<T>(p); }
TESSERA_ATTENTION(f16, F16)
TESSERA_ATTENTION(bf16, BF16)
TESSERA_ATTENTION(f32, float)
TESSERA_ATTENTION(f64, double)

}  // namespace tessera::cuda
