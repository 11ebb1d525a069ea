// The places of the first elements of each line in the order of a sort, without sorting the line.
//
// A short line is ordered by one block in shared memory. A longer one has its bound found first, the key of the last
// element that is wanted: a pass for each digit of 8 bits, the highest first, counts the keys that have the digits
// found so far. Keys below the bound, and as many of those that equal it as are wanted, the first ones, are then
// brought together in the order of their places, and only these are sorted, stably. All counts are integers, so the
// result is that of any stable sort, on every run. (Alabi, Blanchard, Gordon, Steinbach, "Fast k-selection algorithms
// for graphics processing units", 2012, have radix selection.)

#include "kernels/cuda/radix.cuh"
#include "kernels/cuda/select_parameters.h"

namespace tessera::cuda {

constexpr i64 kSelectTile = i64(kRadixThreads) * kSelectItems;

__device__ inline u32 SumOfWarp(u32 value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// Where a block is: its line, the tile in it, and the tile's elements.
struct SelectPlace {
  i64 line, tile, base, first, last;
};
__device__ inline SelectPlace PlaceOfBlock(const SelectParameters& p) {
  const i64 line = Quotient(blockIdx.x, p.tiles_of_line), tile = blockIdx.x - line * p.tiles_of_line.value;
  const i64 first = tile * kSelectTile;
  return {line, tile, OffsetsAt(p.elements.lines, line).of[0], first,
          min(first + kSelectTile, p.elements.extent.value)};
}

// The digits of the line's bound that are known before this pass; the block of the first tile keeps it for the next
// pass. Before the first of `kDigits` nothing is, and behind the last (kIsWhole) all of it.
template <int kDigits, bool kIsWhole>
__device__ inline SelectState StateOfLine(const SelectParameters& p, i64 line, i64 tile) {
  __shared__ SelectState found;
  __shared__ u32 of_warps[kWarps];
  SelectState state = {};
  const i64 lines = p.elements.lines.size;
  if (kIsWhole || (kDigits > 1 && p.pass > 0)) {
    const i64 before = (p.pass - 1) * lines + line;
    const SelectState known = p.states[before];
    const u32 rank = static_cast<u32>(p.first) - 1 - known.below;  // of the bound among keys that have its digits
    const u32 count = p.counts[before * kRadixDigits + threadIdx.x], lower = SumBefore(count, of_warps);
    if (rank - lower < count) found = {known.bound << 8 | threadIdx.x, known.below + lower, 0};
    __syncthreads();
    state = found;
  }
  if (tile == 0 && threadIdx.x == 0) p.states[p.pass * lines + line] = state;
  return state;
}

// A block a tile. Threads of a warp whose keys have the same digit count it once.
template <int kBytes>
__device__ inline void SelectCount(const SelectParameters& p) {
  using K = typename RadixKeyOf<kBytes>::Type;
  constexpr int kAtOnce = 8;
  __shared__ u32 counts[kRadixDigits];
  const RadixKeys<kBytes> all(p.elements);
  const SelectPlace at = PlaceOfBlock(p);
  const SelectState state = StateOfLine<kBytes, false>(p, at.line, at.tile);
  counts[threadIdx.x] = 0;
  __syncthreads();
  const int shift = 8 * (kBytes - 1 - p.pass), lane = static_cast<int>(threadIdx.x) % 32;
  const K bound = static_cast<K>(state.bound);
#pragma unroll 1
  for (i64 first = at.first + threadIdx.x; first < at.first + kSelectTile; first += kAtOnce * kRadixThreads) {
    K keys[kAtOnce];
#pragma unroll
    for (int item = 0; item < kAtOnce; ++item) {
      const i64 place = first + item * kRadixThreads;
      keys[item] = place < at.last ? all.At(at.base, place) : K(0);
    }
#pragma unroll
    for (int item = 0; item < kAtOnce; ++item) {
      // The first pass knows no digit: both sides are 0.
      const bool counts_here = first + item * kRadixThreads < at.last && (keys[item] >> shift) >> 8 == bound;
      const u32 those = __ballot_sync(kAllLanes, counts_here);
      if (those == 0) continue;
      const int digit = DigitOf(keys[item], shift);
      const u32 same = LanesOfDigit(digit, those);
      if (counts_here && (same & ((1U << lane) - 1)) == 0) atomicAdd(&counts[digit], static_cast<u32>(__popc(same)));
    }
  }
  __syncthreads();
  const u32 count = counts[threadIdx.x];
  const i64 line = p.pass * p.elements.lines.size + at.line;
  if (count != 0) atomicAdd(&p.counts[line * kRadixDigits + threadIdx.x], count);
}

// A block a tile: how many of its keys are below the bound, and equal to it.
template <int kBytes>
__device__ inline void SelectTiles(const SelectParameters& p) {
  using K = typename RadixKeyOf<kBytes>::Type;
  __shared__ u32 below, equal;
  const RadixKeys<kBytes> all(p.elements);
  const SelectPlace at = PlaceOfBlock(p);
  const K bound = static_cast<K>(StateOfLine<kBytes, true>(p, at.line, at.tile).bound);
  if (threadIdx.x == 0) below = equal = 0;
  __syncthreads();
  u32 own_below = 0, own_equal = 0;
#pragma unroll 4
  for (i64 place = at.first + threadIdx.x; place < at.last; place += kRadixThreads) {
    const K key = all.At(at.base, place);
    own_below += key < bound;
    own_equal += key == bound;
  }
  own_below = SumOfWarp(own_below);
  own_equal = SumOfWarp(own_equal);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&below, own_below);
    atomicAdd(&equal, own_equal);
  }
  __syncthreads();
  if (threadIdx.x == 0) p.tiles[blockIdx.x] = {below, equal, 0, 0};
}

// A block a line: the sums of the tiles before each. A thread has tiles that follow each other.
extern "C" __global__ void select_sum(const __grid_constant__ SelectParameters p) {
  __shared__ u32 of_warps[kWarps];
  const i64 tiles = p.tiles_of_line.value, each = (tiles + kRadixThreads - 1) / kRadixThreads;
  SelectTile* const line = p.tiles + blockIdx.x * tiles;
  const i64 first = min(threadIdx.x * each, tiles), last = min(first + each, tiles);
  u32 below = 0, equal = 0;
#pragma unroll 1
  for (i64 tile = first; tile < last; ++tile) {
    below += line[tile].below;
    equal += line[tile].equal;
  }
  below = SumBefore(below, of_warps);
  equal = SumBefore(equal, of_warps);
#pragma unroll 1
  for (i64 tile = first; tile < last; ++tile) {
    line[tile].below_before = below;
    line[tile].equal_before = equal;
    below += line[tile].below;
    equal += line[tile].equal;
  }
}

// A block a tile. A warp has elements that follow each other. Tiles of which nothing is selected aren't read.
template <int kBytes>
__device__ inline void SelectMove(const SelectParameters& p) {
  using K = typename RadixKeyOf<kBytes>::Type;
  __shared__ u32 below_of[kWarps], equal_of[kWarps];
  const RadixKeys<kBytes> all(p.elements);
  const SelectPlace at = PlaceOfBlock(p);
  const SelectTile tile = p.tiles[blockIdx.x];
  const SelectState state = p.states[p.pass * p.elements.lines.size + at.line];
  const u32 ties = static_cast<u32>(p.first) - state.below;  // as many are selected of those that equal the bound
  if (tile.below == 0 && (tile.equal == 0 || tile.equal_before >= ties)) return;
  const K bound = static_cast<K>(state.bound);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const i64 first = at.first + warp * (kSelectItems * 32) + lane, last = min(first + kSelectItems * 32, at.last);
  u32 below = 0, equal = 0;
#pragma unroll 4
  for (i64 place = first; place < last; place += 32) {
    const K key = all.At(at.base, place);
    below += key < bound;
    equal += key == bound;
  }
  below = SumOfWarp(below);
  equal = SumOfWarp(equal);
  if (lane == 0) {
    below_of[warp] = below;
    equal_of[warp] = equal;
  }
  __syncthreads();
  u32 to_below = tile.below_before, to_equal = tile.equal_before;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    if (other < warp) {
      to_below += below_of[other];
      to_equal += equal_of[other];
    }
  }
  const i64 base = at.line * p.first;
#pragma unroll 1
  for (int item = 0; item < kSelectItems; ++item) {
    const i64 place = first + item * 32;
    const bool is_there = place < at.last;
    const K key = is_there ? all.At(at.base, place) : K(0);
    const u32 lower = __ballot_sync(kAllLanes, is_there && key < bound);
    const u32 same = __ballot_sync(kAllLanes, is_there && key == bound);
    const u32 lanes_before = (1U << lane) - 1;
    const bool is_below = (lower >> lane & 1) != 0;
    const u32 tie = to_equal + static_cast<u32>(__popc(same & lanes_before));
    if (is_below || ((same >> lane & 1) != 0 && tie < ties)) {
      const i64 to = base + (is_below ? to_below + static_cast<u32>(__popc(lower & lanes_before)) : state.below + tie);
      static_cast<K*>(p.keys)[to] = key;
      p.places[to] = static_cast<u32>(place);
    }
    to_below += static_cast<u32>(__popc(lower));
    to_equal += static_cast<u32>(__popc(same));
  }
}

// Elements of a line in order, by their keys, those of equal keys by their numbers: Batcher, "Sorting networks and
// their applications", 1968, the bitonic one.
template <typename K>
struct Ordered {
  K keys[kMaxOrdered];
  u32 numbers[kMaxOrdered];

  __device__ void Order(int size) {
#pragma unroll 1
    for (int width = 2; width <= size; width *= 2) {
#pragma unroll 1
      for (int distance = width / 2; distance > 0; distance /= 2) {
        __syncthreads();
#pragma unroll 1
        for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += static_cast<int>(blockDim.x)) {
          const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
          const K a = keys[low], b = keys[high];
          const u32 c = numbers[low], d = numbers[high];
          const bool is_above = a > b || (a == b && c > d);
          if (is_above != ((low & width) == 0)) continue;
          keys[low] = b, keys[high] = a;
          numbers[low] = d, numbers[high] = c;
        }
      }
    }
    __syncthreads();
  }
};

// A block a line of elements, or (kAreSelected) of keys that were brought together.
template <typename K, bool kAreSelected, typename KeyAt>
__device__ inline void OrderLines(const SelectParameters& p, KeyAt key_at) {
  __shared__ Ordered<K> s;
  const i64 count = kAreSelected ? p.first : p.elements.extent.value;
#pragma unroll 1
  for (i64 line = blockIdx.x; line < p.elements.lines.size; line += gridDim.x) {
    const i64 base = kAreSelected ? line * p.first : OffsetsAt(p.elements.lines, line).of[0];
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < p.ordered; i += static_cast<int>(blockDim.x)) {
      s.keys[i] = i < count ? key_at(base, i) : ~K(0);
      s.numbers[i] = static_cast<u32>(i);
    }
    s.Order(p.ordered);
    const i64 output = OffsetsAt(p.outputs, line).of[0];
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < p.first; i += static_cast<int>(blockDim.x)) {
      const u32 number = s.numbers[i];
      static_cast<i64*>(p.elements.destination)[output + i * p.output_stride] =
          kAreSelected ? p.places[base + number] : number;
    }
    __syncthreads();
  }
}
template <int kBytes>
__device__ inline void SelectShort(const SelectParameters& p) {
  using K = typename RadixKeyOf<kBytes>::Type;
  const RadixKeys<kBytes> all(p.elements);
  OrderLines<K, false>(p, [&](i64 base, int i) { return all.At(base, i); });
}
template <typename K>
__device__ inline void SelectOrder(const SelectParameters& p) {
  OrderLines<K, true>(p, [&](i64 base, int i) { return static_cast<const K*>(p.keys)[base + i]; });
}

#define TESSERA_SELECT(bytes)                                                                   \
  extern "C" __global__ void select_short_##bytes(const __grid_constant__ SelectParameters p) { \
    SelectShort<bytes>(p);                                                                      \
  }                                                                                             \
  extern "C" __global__ void select_count_##bytes(const __grid_constant__ SelectParameters p) { \
    SelectCount<bytes>(p);                                                                      \
  }                                                                                             \
  extern "C" __global__ void select_tiles_##bytes(const __grid_constant__ SelectParameters p) { \
    SelectTiles<bytes>(p);                                                                      \
  }                                                                                             \
  extern "C" __global__ void select_move_##bytes(const __grid_constant__ SelectParameters p) { SelectMove<bytes>(p); }
TESSERA_SELECT(1)
TESSERA_SELECT(2)
TESSERA_SELECT(4)
TESSERA_SELECT(8)
extern "C" __global__ void select_order_4(const __grid_constant__ SelectParameters p) { SelectOrder<u32>(p); }
extern "C" __global__ void select_order_8(const __grid_constant__ SelectParameters p) { SelectOrder<u64>(p); }

// Where more were sorted by digits: `sorted` are numbers among those selected, in their order.
extern "C" __global__ void select_store(const __grid_constant__ SelectParameters p) {
  const i64 size = p.elements.lines.size * p.first;
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.elements.extent), number = i - line * p.first;
    static_cast<i64*>(p.elements.destination)[OffsetsAt(p.outputs, line).of[0] + number * p.output_stride] =
        p.places[line * p.first + static_cast<const u32*>(p.elements.source)[i]];
  }
}

}  // namespace tessera::cuda
