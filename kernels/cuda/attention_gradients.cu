// Between the products of an attention's gradients: a block goes over the scores of one query, those of the last query
// after those of the first.

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/gradient_parameters.h"
#include "kernels/cuda/math.cuh"

namespace tessera::cuda {

constexpr int kGradientThreads = 256;

// The sum, or the largest, of the threads' values, for each of them.
template <typename A, typename Join>
__device__ inline A Joined(A* values, A own, Join join) {
  const int x = threadIdx.x;
  values[x] = own;
  __syncthreads();
  for (int distance = kGradientThreads / 2; distance > 0; distance /= 2) {
    if (x < distance) values[x] = join(values[x], values[x + distance]);
    __syncthreads();
  }
  const A all = values[0];
  __syncthreads();
  return all;
}

template <typename A>
__device__ inline A ScoreOf(const AttentionGradientsParameters& p, A product, i64 batch, i64 row, i64 key) {
  A score = product * static_cast<A>(p.scale);
  if (p.is_causal != 0 && key > row) return -Infinity<A>();
  const i64 mask = batch * p.mask_batch + row * p.mask_row + key * p.mask_column;
  if (p.mask_kind == kMaskAdded) score += static_cast<const A*>(p.mask)[mask];
  if (p.mask_kind == kMaskBool && static_cast<const u8*>(p.mask)[mask] == 0) score = -Infinity<A>();
  return score;
}

template <typename A>
__device__ inline void AttentionGradients(const AttentionGradientsParameters& p) {
  __shared__ A shared[kGradientThreads];
  const auto larger = [](A a, A b) { return b > a ? b : a; };
  const auto sum = [](A a, A b) { return a + b; };
  for (i64 line = blockIdx.x; line < p.batches * p.rows; line += gridDim.x) {
    const i64 batch = line / p.rows, row = p.first_row + line % p.rows;
    A* const weights = static_cast<A*>(p.weights) + line * p.keys;
    A* const slopes = static_cast<A*>(p.slopes) + line * p.keys;
    A largest = -Infinity<A>();
#pragma unroll 1
    for (i64 key = threadIdx.x; key < p.keys; key += kGradientThreads) {
      const A score = ScoreOf(p, weights[key], batch, row, key);
      weights[key] = score;
      largest = larger(largest, score);
    }
    largest = Joined(shared, largest, larger);
    // Where all scores are -inf nothing is subtracted: inf - inf would be NaN.
    const A shift = largest == -Infinity<A>() ? A(0) : largest;
    A total = 0;
#pragma unroll 1
    for (i64 key = threadIdx.x; key < p.keys; key += kGradientThreads) {
      const A weight = Exp(weights[key] - shift);
      weights[key] = weight;
      total += weight;
    }
    total = Joined(shared, total, sum);
    A of_row = 0;
#pragma unroll 1
    for (i64 key = threadIdx.x; key < p.keys; key += kGradientThreads) {
      const A weight = weights[key] / total;
      weights[key] = weight;
      // A key without a weight counts nowhere.
      if (weight != A(0)) of_row += weight * slopes[key];
    }
    of_row = Joined(shared, of_row, sum);
#pragma unroll 1
    for (i64 key = threadIdx.x; key < p.keys; key += kGradientThreads) {
      const A weight = weights[key];
      slopes[key] = weight == A(0) ? A(0) : weight * (slopes[key] - of_row) * static_cast<A>(p.scale);
    }
  }
}

#define TESSERA_ATTENTION_GRADIENTS(name, A)                                                                      \
  extern "C" __global__ void attention_gradients_##name(const __grid_constant__ AttentionGradientsParameters p) { \
    AttentionGradients<A>(p);                                                                                     \
  }
TESSERA_ATTENTION_GRADIENTS(f32, float)
TESSERA_ATTENTION_GRADIENTS(f64, double)

}  // namespace tessera::cuda
