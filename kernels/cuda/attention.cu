// Attention by tiles of 64 queries and 64 keys, so that no matrix of scores is in memory: Dao, Fu, Ermon, Rudra, Re,
// "FlashAttention", 2022. The running maximum and sum are those of kernels/cpu/attention.cc.
//
// A block has 16 x 16 threads. A thread has 4 x 4 of a tile's scores, those of queries y, y + 16, ... with keys x,
// x + 16, ..., and columns x, x + 16, ... of the same queries' output. Each number that it reads of shared memory is a
// factor of four products or more.
//
// Law: a row's bits are a function of its query, of the keys that it sees, and of the number of features: not of where
// the tile begins.

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/math.cuh"

namespace tessera::cuda {

constexpr int kSide = 16, kOwn = 4;  // threads; queries and keys of each
constexpr int kTile = kSide * kOwn;

// How many features of a tile's queries and keys, and how many of its rows of values, are in shared memory at a time.
template <typename A, int kColumns>
struct Slices {
  static constexpr int kFeatures = 16, kKeys = 16;
};
template <int kColumns>
struct Slices<double, kColumns> {
  static constexpr int kFeatures = 8, kKeys = kColumns > kAttentionNarrow ? 4 : 16;
};

// The best or the sum of a row of the tile, which is half a warp.
template <typename A>
__device__ inline A RowMaximum(A value) {
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2) {
    const A other = __shfl_xor_sync(~0U, value, distance);
    value = other > value ? other : value;
  }
  return value;
}
template <typename A>
__device__ inline A RowSum(A value) {
#pragma unroll
  for (int distance = kSide / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
  return value;
}

// One batch's rows from `first_row` on.
template <typename T, int kColumns>
struct Tile {
  using A = typename AccumulatorOf<T>::Type;
  using Slice = Slices<A, kColumns>;
  static constexpr int kFeatures = Slice::kFeatures, kKeys = Slice::kKeys, kChunks = kColumns / kSide;
  static constexpr int kOperands = 2 * kTile * (kFeatures + 1), kValues = kKeys * kColumns;
  // The slices share memory.
  struct Shared {
    A weights[kTile][kTile + 1];
    A slice[kOperands > kValues ? kOperands : kValues];
  };

  const AttentionParameters& p;
  const Offsets<5> at;
  const i64 first_row;
  Shared& shared;
  const int x, y;
  A sums[kOwn][kChunks], largest[kOwn], total[kOwn];

  __device__ i64 Row(int i) const { return first_row + y + i * kSide; }
  // Keys that the row sees are those before.
  __device__ i64 EndOf(i64 row) const {
    return p.is_causal != 0 && p.first_row + row < p.key_count ? p.first_row + row + 1 : p.key_count;
  }

  // The products of the tile's queries with keys from `first` on.
  __device__ void Multiply(i64 first, A (&scores)[kOwn][kOwn]) {
    const T* const query = static_cast<const T*>(p.queries) + at.of[0];
    const T* const key = static_cast<const T*>(p.keys) + at.of[1];
    A(*const queries)[kFeatures + 1] = reinterpret_cast<A(*)[kFeatures + 1]>(shared.slice);
    A(*const keys)[kFeatures + 1] = queries + kTile;
    for (i64 feature = 0; feature < p.features; feature += kFeatures) {
#pragma unroll 1
      for (int e = y * kSide + x; e < kTile * kFeatures; e += kSide * kSide) {
        const int line = e / kFeatures, column = e % kFeatures;
        const i64 f = feature + column, row = first_row + line, number = first + line;
        A q = 0, k = 0;
        if (f < p.features && row < p.rows) q = Convert<A>(query[row * p.query_row + f * p.query_column]);
        if (f < p.features && number < p.key_count) k = Convert<A>(key[number * p.key_row + f * p.key_column]);
        queries[line][column] = q;
        keys[line][column] = k;
      }
      __syncthreads();
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
        A q[kOwn], k[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          q[i] = queries[y + i * kSide][f];
          k[i] = keys[x + i * kSide][f];
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
#pragma unroll
          for (int j = 0; j < kOwn; ++j) scores[i][j] = Fused(q[i], k[j], scores[i][j]);
        }
      }
      __syncthreads();
    }
  }

  // The scores become weights, which go to shared memory; what was added up of a row so far is scaled to them.
  __device__ void Weigh(i64 first, A (&scores)[kOwn][kOwn]) {
    const A kNone = -Infinity<A>();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const i64 row = Row(i), end = EndOf(row);
      A best = kNone;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const i64 number = first + x + j * kSide;
        const bool is_seen = row < p.rows && number < end;
        A score = scores[i][j] * static_cast<A>(p.scale);
        const i64 mask = at.of[3] + row * p.mask_row + number * p.mask_column;
        if (is_seen && p.mask_kind == kMaskAdded) score += static_cast<const A*>(p.mask)[mask];
        if (!is_seen || (p.mask_kind == kMaskBool && static_cast<const u8*>(p.mask)[mask] == 0)) score = kNone;
        scores[i][j] = score;
        best = score > best ? score : best;
      }
      best = RowMaximum(best);
      const A now = best > largest[i] ? best : largest[i];
      // Where all scores so far are -inf nothing is subtracted: inf - inf would be NaN.
      const A shift = now == kNone ? A(0) : now;
      A sum = 0;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const A weight = Exp(scores[i][j] - shift);
        shared.weights[y + i * kSide][x + j * kSide] = weight;
        sum += weight;
      }
      const A scale = now == kNone ? A(1) : Exp(largest[i] - shift);
      total[i] = total[i] * scale + RowSum(sum);
      largest[i] = now;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) sums[i][c] *= scale;
    }
  }

  // Adds the values of `keys` keys from `first` on, by their weights. A row that doesn't see a key takes nothing of it.
  __device__ void Add(i64 first, i64 keys) {
    const T* const value = static_cast<const T*>(p.values) + at.of[2];
    A(*const values)[kColumns] = reinterpret_cast<A(*)[kColumns]>(shared.slice);
    for (int slice = 0; slice < keys; slice += kKeys) {
      __syncthreads();
      const i64 number = first + slice + y;
      if (y < kKeys) {
#pragma unroll 1
        for (int chunk = 0; chunk < p.columns; chunk += kSide) {
          const int column = chunk + x;
          const bool is_there = number < p.key_count && column < p.columns;
          A v = 0;
          if (is_there) v = Convert<A>(value[number * p.value_row + column * p.value_column]);
          values[y][column] = v;
        }
      }
      __syncthreads();
      int seen[kOwn];  // keys of the slice, by row
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const i64 left = EndOf(Row(i)) - first - slice;
        seen[i] = left < kKeys ? static_cast<int>(left) : kKeys;
      }
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          if (k >= seen[i]) continue;
          const A weight = shared.weights[y + i * kSide][slice + k];
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            if (c * kSide < p.columns) sums[i][c] = Fused(weight, values[k][c * kSide + x], sums[i][c]);
          }
        }
      }
    }
    __syncthreads();
  }

  __device__ void Store() const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const i64 row = Row(i);
      if (row >= p.rows) continue;
      if constexpr (kColumns == kAttentionNarrow) {
        if (p.gives_logarithms != 0) {
          A* const logarithms = static_cast<A*>(p.output) + at.of[4];
          if (x == 0) logarithms[row * p.output_row] = total[i] == A(0) ? -Infinity<A>() : largest[i] + Log(total[i]);
          continue;
        }
      }
      T* const output = static_cast<T*>(p.output) + at.of[4] + row * p.output_row;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const i64 column = c * kSide + x;
        if (column < p.columns) output[column * p.output_column] = Convert<T>(sums[i][c] / total[i]);
      }
    }
  }

  __device__ void Run() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      largest[i] = -Infinity<A>();
      total[i] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) sums[i][c] = 0;
    }
    // The tile's last row sees the most.
    const i64 end = EndOf(first_row + kTile - 1);
    for (i64 first = 0; first < end; first += kTile) {
      A scores[kOwn][kOwn] = {};
      Multiply(first, scores);
      Weigh(first, scores);
      Add(first, end - first < kTile ? end - first : kTile);
    }
    Store();
  }
};

template <typename T, int kColumns>
__device__ inline void Attention(const AttentionParameters& p) {
  __shared__ typename Tile<T, kColumns>::Shared shared;
  for (i64 b = blockIdx.y; b < p.batch.size; b += gridDim.y) {
    Tile<T, kColumns> tile{p,      OffsetsAt(p.batch, b),         static_cast<i64>(blockIdx.x) * kTile,
                           shared, static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.y)};
    tile.Run();
  }
}

#define TESSERA_ATTENTION(name, T)                                                                  \
  extern "C" __global__ void attention_##name(const __grid_constant__ AttentionParameters p) {      \
    Attention<T, kAttentionNarrow>(p);                                                              \
  }                                                                                                 \
  extern "C" __global__ void attention_wide_##name(const __grid_constant__ AttentionParameters p) { \
    Attention<T, kAttentionColumns>(p);                                                             \
  }
TESSERA_ATTENTION(f16, F16)
TESSERA_ATTENTION(bf16, BF16)
TESSERA_ATTENTION(f32, float)
TESSERA_ATTENTION(f64, double)

}  // namespace tessera::cuda
