#pragma once

// The fixed tree of kernels/cpu/reduce.cc: the reduced elements of an output are cut into blocks of 128; in a block lane
// i of 16 takes elements i, i+16, ..., one after the other; lanes 0..7 take lanes 8..15, and so on; blocks are combined
// pairwise, as a binary counter carries. So a chunk of 2^k blocks that begins at a multiple of 2^k is a node of the
// tree: chunks are reduced apart, and their results combined by the same counter.
//
// A Source has the elements: MoveTo(output), and Load(i) of the i-th reduced one, of which kUnrolled are written side by
// side.

#include "kernels/cuda/combine.cuh"

namespace tessera::cuda {

// Results of 2^k blocks in the k-th place, as the bits of `blocks` say. All indexes are known at compile time.
template <typename T, int kLevels = kChunkLevels>
struct Counter {
  T levels[kLevels + 1] = {};
  u32 blocks = 0;

  __device__ inline void Push(int op, T value) {
    bool is_placed = false;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if (is_placed) continue;
      if ((blocks >> level & 1) != 0) {
        value = Combine(op, levels[level], value);
      } else {
        levels[level] = value;
        is_placed = true;
      }
    }
    if (!is_placed) levels[kLevels] = value;
    ++blocks;
  }
  // With as many blocks as a chunk has at most, the last place alone is the result.
  __device__ inline T Finish(int op) const {
    T result = levels[kLevels];
    bool is_first = true;
#pragma unroll
    for (int level = 0; level < kLevels; ++level) {
      if ((blocks >> level & 1) == 0) continue;
      result = is_first ? levels[level] : Combine(op, levels[level], result);
      is_first = false;
    }
    return result;
  }
};

template <typename P, typename T>
__device__ inline void StoreResult(const P& p, i64 output, i64 chunk, i64 place, T value) {
  if (p.chunks.value > 1) {
    static_cast<T*>(p.partials)[output * p.chunks.value + chunk] = value;
  } else {
    StoreReduced(p.output_dtype, p.output, place, value);
  }
}

// Half a warp an item: its lanes are the lanes of a block.
template <typename T, typename P, typename Source>
__device__ inline void ReduceRows(const P& p, Source source) {
  const int lane = threadIdx.x & (kReduceLanes - 1);
  const u32 mask = 0xFFFFU << (threadIdx.x & kReduceLanes);
  const i64 items = p.kept.size * p.chunks.value, step = ThreadCount() / kReduceLanes;
  for (i64 item = ThreadNumber() / kReduceLanes; item < items; item += step) {
    const i64 output = Quotient(item, p.chunks), chunk = item - output * p.chunks.value;
    const i64 elements = static_cast<i64>(kReduceBlock) << p.chunk_levels;
    const i64 begin = chunk * elements, end = begin + elements < p.count ? begin + elements : p.count;
    const i64 place = source.MoveTo(p, output);
    Counter<T> counter;
    for (i64 block = begin; block < end; block += kReduceBlock) {
      const i64 left = end - block;
      T value = {};
      if (lane < left) value = source.Load(p, block + lane);
#pragma unroll(Source::kUnrolled)
      for (int i = lane + kReduceLanes; i < kReduceBlock; i += kReduceLanes) {
        if (i < left) value = Combine(p.op, value, source.Load(p, block + i));
      }
#pragma unroll
      for (int width = kReduceLanes / 2; width > 0; width /= 2) {
        const T other = ShuffleDown(mask, value, width, kReduceLanes);
        if (lane < width && lane + width < left) value = Combine(p.op, value, other);
      }
      counter.Push(p.op, value);
    }
    const T result = counter.Finish(p.op);
    if (lane == 0) StoreResult(p, output, chunk, place, result);
  }
}

// Lanes below the width take those above it. A template, so that all places are known at compile time.
template <typename T, int kWidth>
__device__ inline void CombineLanes(int op, i64 left, T (&lanes)[kReduceLanes]) {
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    if (lane + kWidth < left) lanes[lane] = Combine(op, lanes[lane], lanes[lane + kWidth]);
  }
  if constexpr (kWidth > 1) CombineLanes<T, kWidth / 2>(op, left, lanes);
}

// A thread an item: outputs side by side are threads side by side.
template <typename T, typename P, typename Source>
__device__ inline void ReduceColumns(const P& p, Source source) {
  const i64 items = p.kept.size * p.chunks.value;
  for (i64 item = ThreadNumber(); item < items; item += ThreadCount()) {
    const i64 chunk = Quotient(item, p.outputs), output = item - chunk * p.outputs.value;
    const i64 elements = static_cast<i64>(kReduceBlock) << p.chunk_levels;
    const i64 begin = chunk * elements, end = begin + elements < p.count ? begin + elements : p.count;
    const i64 place = source.MoveTo(p, output);
    Counter<T> counter;
    for (i64 block = begin; block < end; block += kReduceBlock) {
      const i64 left = end - block;
      T lanes[kReduceLanes];
#pragma unroll
      for (int lane = 0; lane < kReduceLanes; ++lane) {
        lanes[lane] = {};
        if (lane < left) lanes[lane] = source.Load(p, block + lane);
      }
      for (int row = kReduceLanes; row < kReduceBlock && row < left; row += kReduceLanes) {
#pragma unroll
        for (int lane = 0; lane < kReduceLanes; ++lane) {
          if (row + lane < left) lanes[lane] = Combine(p.op, lanes[lane], source.Load(p, block + row + lane));
        }
      }
      CombineLanes<T, kReduceLanes / 2>(p.op, left, lanes);
      counter.Push(p.op, lanes[0]);
    }
    StoreResult(p, output, chunk, place, counter.Finish(p.op));
  }
}

// 2^p.group_levels threads an output, part of a warp or the whole block: each takes kTreeRun partials side by side, then threads and
// warps go pairwise. If there are more partials than that, their results go to the first ones, and so on.
template <typename T>
__device__ inline void CombineChunks(const TreeParameters& p) {
  __shared__ T of_warps[32];
  const int group = 1 << p.group_levels, place = threadIdx.x & (group - 1), lanes = group < 32 ? group : 32;
  const u32 mask = (0xFFFFFFFFU >> (32 - lanes)) << (threadIdx.x & 31 & ~(lanes - 1));
  const i64 tile = static_cast<i64>(kTreeRun) << p.group_levels, outputs = ThreadCount() >> p.group_levels;
  const auto pairwise = [&](T value, i64 left, i64 run, int threads) {
#pragma unroll 1
    for (int width = 1; width < threads; width *= 2) {
      const T other = ShuffleDown(mask, value, width, lanes);
      if (left > width * run) value = Combine(p.op, value, other);
    }
    return value;
  };
  for (i64 output = ThreadNumber() >> p.group_levels; output < p.kept.size; output += outputs) {
    T* partials = static_cast<T*>(p.partials) + output * p.chunks;
    for (i64 count = p.chunks; count > 0; count = count > tile ? (count + tile - 1) / tile : 0) {
#pragma unroll 1
      for (i64 first = 0; first < count; first += tile) {
        const i64 at = first + place * kTreeRun, left = count - at;
        T run[kTreeRun];
#pragma unroll
        for (int i = 0; i < kTreeRun; ++i) {
          run[i] = {};
          if (i < left) run[i] = partials[at + i];
        }
#pragma unroll
        for (int width = 1; width < kTreeRun; width *= 2) {
#pragma unroll
          for (int i = 0; i < kTreeRun; i += 2 * width) {
            if (i + width < left) run[i] = Combine(p.op, run[i], run[i + width]);
          }
        }
        T value = pairwise(run[0], left, kTreeRun, lanes);
        if (group > 32) {
          const int warp = threadIdx.x / 32;
          if ((threadIdx.x & 31) == 0) of_warps[warp] = value;
          __syncthreads();
          if (warp == 0) {
            const int warps = group / 32;
            value = threadIdx.x < warps ? of_warps[threadIdx.x] : T{};
            value = pairwise(value, count - first - static_cast<i64>(threadIdx.x) * 32 * kTreeRun, 32 * kTreeRun, warps);
          }
          __syncthreads();
        }
        if (place != 0) continue;
        if (count <= tile) {
          StoreReduced(p.output_dtype, p.output, OffsetsAt(p.kept, output).of[0], value);
        } else {
          partials[first / tile] = value;
        }
      }
      if (group > 32) __syncthreads();
    }
  }
}

}  // namespace tessera::cuda
