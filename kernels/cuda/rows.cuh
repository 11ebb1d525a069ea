#pragma once

// The threads of a row program, and the elements that each of them has. A row's reductions are the fixed tree
// (tree.cuh) with every bit of it as there.
//
// 16 / kCount threads have a block of 128 of a row: a thread has kCount lanes side by side, in each of the block's 8
// rows of 16. So element (r, i) of a thread is always the same, whichever operand it is of, and stays in a register.
//
//   for (RowPlace<4, true, false> at(p.numbers); at.IsInside(); at.Next()) {
//     float x[8][4];
//     at.Load<kByVector>(p.operands[0], r, x[r]);                            for each r
//     at.Take<kCodeSum>(r, i, x[r][i], lanes[i]);                            for each r and i
//     const float sum = at.Fold<kCodeSum>(lanes);                            all threads of the row have it

#include "kernels/cuda/row_parameters.h"
#include "kernels/cuda/vector_tree.cuh"

namespace tessera::cuda {

enum RowAccess : int { kByElement, kByVector };

// The value of one lane of each `width`.
template <typename T>
__device__ inline T ShuffleFrom(u32 mask, T value, int lane, int width = 32) {
  return __shfl_sync(mask, value, lane, width);
}

// The results of a block's warps, of which two reductions that follow each other have one half each.
__device__ inline u64* WarpNodes(int half) {
  __shared__ u64 nodes[2][32];
  return nodes[half];
}

// A row's number in each of the loops that rows are made of.
template <int kLoops>
struct RowNumber {
  i64 in_loop[kLoops];

  __device__ inline void MoveTo(i64 row, const RowNumbers& numbers) {
#pragma unroll
    for (int l = 0; l + 1 < kLoops; ++l) {
      const i64 behind = Quotient(row, numbers.loops[l]);
      in_loop[l] = row - behind * numbers.loops[l].value;
      row = behind;
    }
    in_loop[kLoops - 1] = row;
  }
  __device__ inline i64 OffsetOf(const RowOperand& operand) const {
    i64 offset = 0;
#pragma unroll
    for (int l = 0; l < kLoops; ++l) offset += in_loop[l] * operand.loops[l];
    return offset;
  }
};

// The access to operands and elements that both kinds of places have. A place has RowOffset(operand), At(r), the number in the row
// of its first element of r, and Has(r, i).
template <typename Place, int kCount, bool kIsWhole>
struct RowOperands {
  // With kIsWhole a vector is inside of the row or not, as a whole.
  template <int kAccess, typename T>
  __device__ inline void Load(const RowOperand& operand, int r, T (&values)[kCount]) const {
    const Place& place = static_cast<const Place&>(*this);
    const T* from = static_cast<const T*>(operand.data) + place.RowOffset(operand);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = {};
    if constexpr (kAccess == kByVector) {
      if (place.Has(r, 0)) LoadVector(from, place.At(r), values);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (place.Has(r, i)) values[i] = from[(place.At(r) + i) * operand.element];
      }
    }
  }
  template <int kAccess, typename T>
  __device__ inline void Store(const RowOperand& operand, int r, const T (&values)[kCount]) const {
    const Place& place = static_cast<const Place&>(*this);
    T* to = static_cast<T*>(operand.data) + place.RowOffset(operand);
    if constexpr (kAccess == kByVector) {
      if (place.Has(r, 0)) StoreVector(to, place.At(r), values);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (place.Has(r, i)) to[(place.At(r) + i) * operand.element] = values[i];
      }
    }
  }
  // Element (r, i) joins its lane, which has those of smaller r.
  template <int kOp, typename T>
  __device__ inline void Take(int r, int i, T value, T& lane) const {
    if (static_cast<const Place&>(*this).Has(r, i)) lane = r == 0 ? value : Combine(kOp, lane, value);
  }
  // A value of which a row has one.
  template <typename T>
  __device__ inline T LoadOne(const RowOperand& operand) const {
    return static_cast<const T*>(operand.data)[static_cast<const Place&>(*this).RowOffset(operand)];
  }
};

// The lanes of blocks of 128 side by side to one node, which the first of these threads has: `group` of them, part of a
// warp. `left` elements are this thread's block's and those behind it.
template <int kOp, typename T, int kCount>
__device__ inline T FoldBlocks(u32 mask, int group, int left, int first_lane, T (&lanes)[kCount]) {
  constexpr int kThreads = kReduceLanes / kCount;
  T value = FoldLanes<kOp>(mask, group, left, first_lane, lanes);
  const int blocks = group / kThreads;
#pragma unroll 1
  for (int width = 1; width < blocks; width *= 2) {
    const T other = ShuffleDown(mask, value, width * kThreads, group);
    if (left > width * kReduceBlock) value = Combine(kOp, value, other);
  }
  return value;
}
// A warp has a node of the tree. They are combined pairwise, by each warp for itself: its first thread has the result.
template <int kOp, typename T>
__device__ inline T FoldWarps(T value, int& half) {
  T* nodes = reinterpret_cast<T*>(WarpNodes(half));
  half ^= 1;
  const int lane = threadIdx.x & 31, warps = blockDim.x / 32;
  if (lane == 0) nodes[threadIdx.x / 32] = value;
  __syncthreads();
  value = nodes[lane < warps ? lane : 0];
#pragma unroll 1
  for (int width = 1; width < warps; width *= 2) {
    const T other = ShuffleDown(0xFFFFFFFFU, value, width, 32);
    if (lane + width < warps) value = Combine(kOp, value, other);
  }
  return value;
}

// A row's threads: 2^group_levels of them, or with kByBlock a block's.
template <int kCount, bool kIsWhole, bool kByBlock, int kLoops = 1>
struct RowPlace : RowOperands<RowPlace<kCount, kIsWhole, kByBlock, kLoops>, kCount, kIsWhole> {
  static constexpr int kRows = kTreeRows, kThreads = kReduceLanes / kCount;  // of a block of 128
  int group, place, first_lane, begin, left, half = 0;
  u32 mask;
  i64 at_row, step;
  RowNumber<kLoops> number;
  const RowNumbers& numbers;

  __device__ inline explicit RowPlace(const RowNumbers& all) : numbers(all) {
    group = kByBlock ? 32 : 1 << numbers.group_levels;
    place = kByBlock ? threadIdx.x : threadIdx.x & (group - 1);
    mask = kByBlock ? 0xFFFFFFFFU : (0xFFFFFFFFU >> (32 - group)) << (threadIdx.x & 31 & ~(group - 1));
    const int block = place / kThreads;
    first_lane = (place - block * kThreads) * kCount;
    begin = block * kReduceBlock + first_lane;
    left = static_cast<int>(numbers.count) - block * kReduceBlock;
    at_row = kByBlock ? blockIdx.x : ThreadNumber() >> numbers.group_levels;
    step = kByBlock ? gridDim.x : ThreadCount() >> numbers.group_levels;
    number.MoveTo(at_row, numbers);
  }
  __device__ inline bool IsInside() const { return at_row < numbers.rows; }
  __device__ inline void Next() {
    at_row += step;
    number.MoveTo(at_row, numbers);
  }
  __device__ inline i64 RowOffset(const RowOperand& operand) const { return number.OffsetOf(operand); }
  __device__ inline int At(int r) const { return begin + r * kReduceLanes; }
  __device__ inline bool Has(int r, int i) const { return r * kReduceLanes + first_lane + (kIsWhole ? 0 : i) < left; }
  // All threads of the row come here before one goes on.
  __device__ inline void Sync() const {
    if constexpr (kByBlock) __syncthreads();
    else __syncwarp(mask);
  }
  template <typename T>
  __device__ inline void StoreOne(const RowOperand& operand, T value) const {
    if (place == 0) static_cast<T*>(operand.data)[RowOffset(operand)] = value;
  }
  // All lanes of the row to one, for all of its threads.
  template <int kOp, typename T>
  __device__ inline T Fold(T (&lanes)[kCount]) {
    T value = FoldBlocks<kOp>(mask, group, left, first_lane, lanes);
    if constexpr (kByBlock) value = FoldWarps<kOp>(value, half);
    return ShuffleFrom(mask, value, 0, group);
  }
};

// Rows of one element, as maps alone have: all elements side by side, kCount of them a thread.
template <int kCount, bool kIsWhole>
struct ElementPlace : RowOperands<ElementPlace<kCount, kIsWhole>, kCount, kIsWhole> {
  static constexpr int kRows = 1;
  i64 at, count;

  __device__ inline explicit ElementPlace(const RowNumbers& numbers) {
    at = ThreadNumber() * kCount;
    count = numbers.count;
  }
  __device__ inline bool IsInside() const { return at < count; }
  __device__ inline void Next() { at += ThreadCount() * kCount; }
  __device__ inline i64 RowOffset(const RowOperand&) const { return 0; }
  __device__ inline i64 At(int) const { return at; }
  __device__ inline bool Has(int, int i) const { return kIsWhole || at + i < count; }
};

}  // namespace tessera::cuda
