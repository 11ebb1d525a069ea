#pragma once

// The fixed tree (tree.cuh) with loads of 16 bytes, and every bit of it as there. A Source has besides MoveTo(output) the
// type T that is accumulated in, kCount, the elements that are loaded at once, and Load(p, i, v) of the elements from the
// i-th reduced one on. The op is known when the kernel is compiled.
//
// By row, f32: 4 threads a block of 128. A thread has lanes 4c to 4c+3 and loads them of each of the 8 rows of 16, 8
// loads under way at once. Blocks side by side are combined by the threads of a warp, and then the counter goes on.
//
// By column: a warp has as many columns as fit 128 bytes. In a block 4 threads have the same columns, and 4 of the 16
// lanes each: lanes y, y+4, y+8, y+12.

#include "kernels/cuda/tree.cuh"
#include "kernels/cuda/vector.cuh"

namespace tessera::cuda {

constexpr int kTreeRows = kReduceBlock / kReduceLanes;

template <typename T, int kCount>
__device__ inline void CombineEach(int op, T (&a)[kCount], const T (&b)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) a[i] = Combine(op, a[i], b[i]);
}

// ---- by row

// A thread's part of the `left` elements from `at` on, at most a block: its lanes of each row, one after the other.
template <int kOp, typename P, typename Source, typename T = typename Source::T>
__device__ inline void LoadLanes(const P& p, const Source& source, i64 at, int first_lane, int left,
                                 T (&lanes)[Source::kCount]) {
  constexpr int kCount = Source::kCount;
  const i64 mine = at + first_lane;
  if (left >= kReduceBlock) {
    T rows[kTreeRows][kCount];
#pragma unroll
    for (int r = 0; r < kTreeRows; ++r) source.Load(p, mine + r * kReduceLanes, rows[r]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) lanes[i] = rows[0][i];
#pragma unroll
    for (int r = 1; r < kTreeRows; ++r) CombineEach(kOp, lanes, rows[r]);
    return;
  }
  // Whole vectors first, then the elements of one that is cut.
#pragma unroll
  for (int i = 0; i < kCount; ++i) lanes[i] = {};
#pragma unroll 1
  for (int r = 0; r * kReduceLanes + first_lane < left; ++r) {
    const int row = r * kReduceLanes;
    T next[kCount] = {};
    if (row + first_lane + kCount <= left) {
      source.Load(p, mine + row, next);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (row + first_lane + i < left) next[i] = source.LoadOne(p, mine + row + i);
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (row + first_lane + i < left) lanes[i] = r == 0 ? next[i] : Combine(kOp, lanes[i], next[i]);
    }
  }
}

// 16 lanes in halves: those of other threads first, then a thread's own.
template <int kOp, typename T, int kCount>
__device__ inline T FoldLanes(u32 mask, int group, int left, int first_lane, T (&lanes)[kCount]) {
#pragma unroll
  for (int width = kReduceLanes / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < kCount && (width >= kCount || i < width); ++i) {
      T other;
      if (width >= kCount) {
        other = ShuffleDown(mask, lanes[i], width / kCount, group);
      } else {
        other = lanes[i + width < kCount ? i + width : i];
      }
      if (first_lane + i + width < left) lanes[i] = Combine(kOp, lanes[i], other);
    }
  }
  return lanes[0];
}

// 2^p.group_levels blocks side by side are an item's threads, at most a warp. A chunk has fewer than 2^31 elements.
template <int kOp, typename P, typename Source, typename T = typename Source::T>
__device__ inline void ReduceRowsByVector(const P& p, Source source) {
  constexpr int kCount = Source::kCount, kBlockThreads = kReduceLanes / kCount;
  constexpr int kThreadLevels = kBlockThreads == 1 ? 0 : kBlockThreads == 2 ? 1 : kBlockThreads == 4 ? 2 : 3;
  const int levels = kThreadLevels + p.group_levels, group = 1 << levels, blocks = 1 << p.group_levels;
  const int place = threadIdx.x & (group - 1), own = place >> kThreadLevels;
  const int first_lane = (place & (kBlockThreads - 1)) * kCount;
  const u32 mask = (0xFFFFFFFFU >> (32 - group)) << (threadIdx.x & 31 & ~(group - 1));
  const i64 items = p.kept.size * p.chunks.value, step = ThreadCount() >> levels;
  for (i64 item = ThreadNumber() >> levels; item < items; item += step) {
    const i64 output = Quotient(item, p.chunks), chunk = item - output * p.chunks.value;
    const i64 elements = static_cast<i64>(kReduceBlock) << p.chunk_levels;
    const i64 begin = chunk * elements, end = begin + elements < p.count ? begin + elements : p.count;
    const i64 to = source.MoveTo(p, output);
    Counter<T, kVectorLevels> counter;
    const int count = static_cast<int>(end - begin);
    for (int node = own * kReduceBlock; node < count + own * kReduceBlock; node += kReduceBlock << p.group_levels) {
      const int left = count - node;
      T lanes[kCount];
      LoadLanes<kOp>(p, source, begin + node, first_lane, left, lanes);
      T value = FoldLanes<kOp>(mask, group, left, first_lane, lanes);
#pragma unroll 1
      for (int width = 1; width < blocks; width *= 2) {
        const T other = ShuffleDown(mask, value, width * kBlockThreads, group);
        if (left > width * kReduceBlock) value = Combine(kOp, value, other);
      }
      counter.Push(kOp, value);
    }
    const T result = counter.Finish(kOp);
    if (place == 0) StoreResult(p, output, chunk, to, result);
  }
}

// ---- by column

constexpr int kColumnThreads = 4;                    // of the same columns
constexpr int kColumnGroups = 32 / kColumnThreads;   // of a warp

// Pairs of threads put their columns together, the lower one's first: each keeps half of them, the lower one the first
// half. If there is one column, both have it.
template <int kOp, typename T, int kCount, int kLeft>
__device__ inline void FoldColumns(bool is_upper, int distance, bool has_other, T (&values)[kCount]) {
  constexpr int kHalf = kLeft > 1 ? kLeft / 2 : 1;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const T low = values[i], high = kLeft > 1 ? values[kHalf + i < kCount ? kHalf + i : i] : low;
    const T own = is_upper ? high : low;
    const T given = ShuffleXor(is_upper ? low : high, distance);
    values[i] = is_upper ? given : own;
    if (has_other) values[i] = Combine(kOp, values[i], is_upper ? own : given);
  }
}

// Lanes y, y+4, y+8 and y+12 of a block's columns to one.
template <int kOp, typename P, typename Source, typename T = typename Source::T>
__device__ inline void LoadColumns(const P& p, const Source& source, i64 block, int left, int y,
                                   T (&lanes)[kReduceLanes / kColumnThreads][Source::kCount]) {
  constexpr int kCount = Source::kCount, kOwn = kReduceLanes / kColumnThreads;
#pragma unroll
  for (int l = 0; l < kOwn; ++l) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) lanes[l][i] = {};
    if (l * kColumnThreads + y < left) source.Load(p, block + l * kColumnThreads + y, lanes[l]);
  }
#pragma unroll 1
  for (int r = kReduceLanes; r < kReduceBlock && r < left; r += kReduceLanes) {
    T next[kOwn][kCount];
    if (r + kReduceLanes <= left) {
#pragma unroll
      for (int l = 0; l < kOwn; ++l) source.Load(p, block + r + l * kColumnThreads + y, next[l]);
#pragma unroll
      for (int l = 0; l < kOwn; ++l) CombineEach(kOp, lanes[l], next[l]);
    } else {
#pragma unroll
      for (int l = 0; l < kOwn; ++l) {
        if (r + l * kColumnThreads + y >= left) continue;
        source.Load(p, block + r + l * kColumnThreads + y, next[l]);
        CombineEach(kOp, lanes[l], next[l]);
      }
    }
  }
  if (y + 8 < left) CombineEach(kOp, lanes[0], lanes[2]);
  if (y + 12 < left) CombineEach(kOp, lanes[1], lanes[3]);
  if (y + 4 < left) CombineEach(kOp, lanes[0], lanes[1]);
}

// A warp an item: p.octets of 8 vectors of columns, and a chunk.
template <int kOp, typename P, typename Source, typename T = typename Source::T>
__device__ inline void ReduceColumnsByVector(const P& p, Source source) {
  constexpr int kCount = Source::kCount;
  constexpr int kKept = kCount >= 4 ? kCount / 4 : 1;  // columns of a thread in the end
  const int group = threadIdx.x & (kColumnGroups - 1), y = (threadIdx.x & 31) / kColumnGroups;
  const bool is_second = (y & 2) != 0, is_odd = (y & 1) != 0;
  const i64 vectors = p.outputs.value / kCount;
  const i64 items = p.octets.value * p.chunks.value, step = ThreadCount() / 32;
  for (i64 item = ThreadNumber() / 32; item < items; item += step) {
    const i64 chunk = Quotient(item, p.octets), vector = (item - chunk * p.octets.value) * kColumnGroups + group;
    const i64 output = (vector < vectors ? vector : vectors - 1) * kCount;
    const i64 elements = static_cast<i64>(kReduceBlock) << p.chunk_levels;
    const i64 begin = chunk * elements, end = begin + elements < p.count ? begin + elements : p.count;
    source.MoveTo(p, output);
    Counter<T, kColumnLevels> counters[kKept];
    const int count = static_cast<int>(end - begin);
    for (int block = 0; block < count; block += kReduceBlock) {
      const int left = count - block;
      T lanes[kReduceLanes / kColumnThreads][kCount];
      LoadColumns<kOp>(p, source, begin + block, left, y, lanes);
      FoldColumns<kOp, T, kCount, kCount>(is_second, 2 * kColumnGroups, (y & 1) + 2 < left, lanes[0]);
      FoldColumns<kOp, T, kCount, kCount / 2>(is_odd, kColumnGroups, left > 1, lanes[0]);
#pragma unroll
      for (int i = 0; i < kKept; ++i) counters[i].Push(kOp, lanes[0][i]);
    }
    const bool has_result = vector < vectors && (kCount >= 4 || !is_odd);
    const i64 first = output + (is_second ? kCount / 2 : 0) + (is_odd ? kKept : 0);
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const T result = counters[i].Finish(kOp);
      if (has_result) StoreResult(p, first + i, chunk, source.MoveTo(p, first + i), result);
    }
  }
}

}  // namespace tessera::cuda
