#pragma once

// Rows that stay in memory: the threads of a row program that goes over a row once for each of its segments. Reductions
// are the fixed tree (tree.cuh) with every bit of it as there. An element is the same thread's in each pass, so a thread
// reads what it wrote in an earlier one.
//
// PassPlace: a block has a row. Each of its warps has 2^chunk_levels blocks of 128 side by side, a node of the tree, and
// goes over them tile by tile: a tile is as many blocks as a warp has at once, where a thread has what rows.cuh says.
//
//   1 Mi elements, 4 side by side: 16 warps of 512 blocks, in 64 tiles of 8 blocks
//
// ColumnPlace: a thread has a row, and goes over its blocks of 128, of which it has all lanes. Rows side by side are
// threads side by side.
//
//   Place::Nodes<float> sums;
//   for (at.Begin(); at.IsInRow(); at.Advance()) {
//     at.Load<kByVector>(p.operands[0], r, x);                               for each r
//     at.Take<kCodeSum>(r, i, x[i], lanes[i]);                               for each r and i
//     at.Push<kCodeSum>(lanes, sums);
//   }
//   const float sum = at.Fold<kCodeSum>(sums);                               all threads of the row have it

#include "kernels/cuda/rows.cuh"

namespace tessera::cuda {

constexpr u32 kWholeWarp = 0xFFFFFFFFU;

// The nodes of a warp's tiles, combined as a binary counter carries: lane l has the node of 2^l tiles.
template <typename T>
struct TileNodes {
  T own = {};
  u32 tiles = 0;

  // The value is the first lane's.
  template <int kOp>
  __device__ inline void Push(T value) {
    int level = 0;
#pragma unroll 1
    for (; (tiles >> level & 1) != 0; ++level) value = Combine(kOp, ShuffleFrom(kWholeWarp, own, level), value);
    value = ShuffleFrom(kWholeWarp, value, 0);
    if ((threadIdx.x & 31) == level) own = value;
    ++tiles;
  }
  // For all lanes; there is one tile or more.
  template <int kOp>
  __device__ inline T Finish() const {
    T result = {};
    bool is_first = true;
#pragma unroll 1
    for (int level = 0; tiles >> level != 0; ++level) {
      if ((tiles >> level & 1) == 0) continue;
      const T node = ShuffleFrom(kWholeWarp, own, level);
      result = is_first ? node : Combine(kOp, node, result);
      is_first = false;
    }
    return result;
  }
};

template <int kCount, bool kIsWhole, int kLoops = 1>
struct PassPlace : RowOperands<PassPlace<kCount, kIsWhole, kLoops>, kCount, kIsWhole> {
  static constexpr int kRows = kTreeRows, kThreads = kReduceLanes / kCount;  // of a block of 128
  static constexpr int kTile = 32 / kThreads * kReduceBlock;
  template <typename T>
  using Nodes = TileNodes<T>;
  int first_lane, own, left = 0, half = 0;
  i64 first, end, tile = 0, at_row;
  RowNumber<kLoops> number;
  const RowNumbers& numbers;

  __device__ inline explicit PassPlace(const RowNumbers& all) : numbers(all) {
    const int place = threadIdx.x & 31;
    first_lane = place % kThreads * kCount;
    own = place / kThreads * kReduceBlock;
    const i64 chunk = static_cast<i64>(kReduceBlock) << numbers.chunk_levels;
    first = threadIdx.x / 32 * chunk;
    end = first + chunk < numbers.count ? first + chunk : numbers.count;
    at_row = blockIdx.x;
    number.MoveTo(at_row, numbers);
  }
  __device__ inline bool IsInside() const { return at_row < numbers.rows; }
  __device__ inline void Next() {
    at_row += gridDim.x;
    number.MoveTo(at_row, numbers);
  }
  __device__ inline void Begin() { MoveTo(first); }
  __device__ inline bool IsInRow() const { return tile < end; }
  __device__ inline void Advance() { MoveTo(tile + kTile); }
  __device__ inline i64 RowOffset(const RowOperand& operand) const { return number.OffsetOf(operand); }
  __device__ inline i64 At(int r) const { return tile + own + first_lane + r * kReduceLanes; }
  __device__ inline bool Has(int r, int i) const { return r * kReduceLanes + first_lane + (kIsWhole ? 0 : i) < left; }
  // All threads of the row come here before one goes on.
  __device__ inline void Sync() const { __syncthreads(); }
  template <typename T>
  __device__ inline void StoreOne(const RowOperand& operand, T value) const {
    if (threadIdx.x == 0) static_cast<T*>(operand.data)[RowOffset(operand)] = value;
  }
  // All lanes of the tile to its node.
  template <int kOp, typename T>
  __device__ inline void Push(T (&lanes)[kCount], TileNodes<T>& nodes) const {
    nodes.template Push<kOp>(FoldBlocks<kOp>(kWholeWarp, 32, left, first_lane, lanes));
  }
  template <int kOp, typename T>
  __device__ inline T Fold(const TileNodes<T>& nodes) {
    return ShuffleFrom(kWholeWarp, FoldWarps<kOp>(nodes.template Finish<kOp>(), half), 0);
  }

 private:
  __device__ inline void MoveTo(i64 to) {
    tile = to;
    left = static_cast<int>((end - tile < kTile ? end - tile : kTile) - own);
  }
};

// The nodes of a thread's blocks: level l has the node of 2^l of them.
template <typename T>
struct BlockNodes {
  T levels[40];
  u64 blocks = 0;

  template <int kOp>
  __device__ inline void Push(T value) {
    int level = 0;
#pragma unroll 1
    for (; (blocks >> level & 1) != 0; ++level) value = Combine(kOp, levels[level], value);
    levels[level] = value;
    ++blocks;
  }
  // There is one block or more.
  template <int kOp>
  __device__ inline T Finish() const {
    T result = {};
    bool is_first = true;
#pragma unroll 1
    for (int level = 0; blocks >> level != 0; ++level) {
      if ((blocks >> level & 1) == 0) continue;
      result = is_first ? levels[level] : Combine(kOp, levels[level], result);
      is_first = false;
    }
    return result;
  }
};

template <int kLoops>
struct ColumnPlace : RowOperands<ColumnPlace<kLoops>, kReduceLanes, false> {
  static constexpr int kRows = kTreeRows;
  template <typename T>
  using Nodes = BlockNodes<T>;
  int left = 0;
  i64 at_row, block = 0;
  RowNumber<kLoops> number;
  const RowNumbers& numbers;

  __device__ inline explicit ColumnPlace(const RowNumbers& all) : at_row(ThreadNumber()), numbers(all) {
    number.MoveTo(at_row, numbers);
  }
  __device__ inline bool IsInside() const { return at_row < numbers.rows; }
  __device__ inline void Next() {
    at_row += ThreadCount();
    number.MoveTo(at_row, numbers);
  }
  __device__ inline void Begin() { MoveTo(0); }
  __device__ inline bool IsInRow() const { return block < numbers.count; }
  __device__ inline void Advance() { MoveTo(block + kReduceBlock); }
  __device__ inline i64 RowOffset(const RowOperand& operand) const { return number.OffsetOf(operand); }
  __device__ inline i64 At(int r) const { return block + r * kReduceLanes; }
  __device__ inline bool Has(int r, int i) const { return r * kReduceLanes + i < left; }
  __device__ inline void Sync() const {}  // the row is one thread's
  template <typename T>
  __device__ inline void StoreOne(const RowOperand& operand, T value) const {
    static_cast<T*>(operand.data)[RowOffset(operand)] = value;
  }
  template <int kOp, typename T>
  __device__ inline void Push(T (&lanes)[kReduceLanes], Nodes<T>& nodes) const {
    nodes.template Push<kOp>(FoldLanes<kOp>(kWholeWarp, 1, left, 0, lanes));
  }
  template <int kOp, typename T>
  __device__ inline T Fold(const Nodes<T>& nodes) const {
    return nodes.template Finish<kOp>();
  }

 private:
  __device__ inline void MoveTo(i64 to) {
    block = to;
    left = static_cast<int>(numbers.count - to < kReduceBlock ? numbers.count - to : kReduceBlock);
  }
};

}  // namespace tessera::cuda
