// Sorting by digits of 8 bits, the lowest first. A pass counts each tile's digits, says where each tile's elements of a
// digit begin, and moves them there. Elements of one digit stay in their order, so the result is that of any stable
// sort.

#include "kernels/cuda/radix.cuh"

namespace tessera::cuda {

template <typename K>
constexpr int kItemsOf = kRadixItems * 4 / static_cast<int>(sizeof(K));
template <typename K>
constexpr int kTileOf = kRadixThreads* kItemsOf<K>;

// A block a tile.
template <typename K>
__device__ inline void RadixCount(const RadixParameters& p) {
  __shared__ u32 counts[kRadixDigits];
  const i64 line = Quotient(blockIdx.x, p.tiles_of_line), tile = blockIdx.x - line * p.tiles;
  counts[threadIdx.x] = 0;
  __syncthreads();
  const K* keys = static_cast<const K*>(p.keys) + line * p.extent;
  const i64 first = tile * kTileOf<K>, last = min(first + kTileOf<K>, p.extent);
#pragma unroll 4
  for (i64 i = first + threadIdx.x; i < last; i += kRadixThreads) atomicAdd(&counts[DigitOf(keys[i], p.shift)], 1U);
  __syncthreads();
  p.counts[(line * kRadixDigits + threadIdx.x) * p.tiles + tile] = counts[threadIdx.x];
}
extern "C" __global__ void radix_count_4(const __grid_constant__ RadixParameters p) { RadixCount<u32>(p); }
extern "C" __global__ void radix_count_8(const __grid_constant__ RadixParameters p) { RadixCount<u64>(p); }

// A block a line and digit: a tile's count becomes the sum of those before it.
extern "C" __global__ void radix_sum(const __grid_constant__ RadixParameters p) {
  __shared__ u32 of_warps[kWarps];
  __shared__ u32 all;
  u32* counts = p.counts + blockIdx.x * p.tiles;
  u32 sum = 0;
#pragma unroll 1
  for (i64 first = 0; first < p.tiles; first += kRadixThreads) {
    const i64 tile = first + threadIdx.x;
    const u32 count = tile < p.tiles ? counts[tile] : 0;
    const u32 before = SumBefore(count, of_warps);
    if (tile < p.tiles) counts[tile] = sum + before;
    if (threadIdx.x == kRadixThreads - 1) all = before + count;
    __syncthreads();
    sum += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) p.totals[blockIdx.x] = sum;
}

template <typename K>
struct RadixShared {
  u32 counts[kWarps][kRadixDigits];  // of a warp; then what warps before it have
  u32 starts[kRadixDigits];          // of a digit's elements, in the tile
  u32 places_of[kRadixDigits];       // of a digit's elements in the line, less that
  u32 of_warps[kWarps];
  K keys[kTileOf<K>];
  u32 places[kTileOf<K>];
};

// A block a tile: its elements are brought to their order in shared memory, so that what goes to one place is written
// together. A warp has elements that follow each other, and a lane's come after those of lanes before it.
template <typename K>
__device__ inline void RadixMove(const RadixParameters& p) {
  __shared__ RadixShared<K> s;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const i64 line = Quotient(blockIdx.x, p.tiles_of_line), tile = blockIdx.x - line * p.tiles;
  const i64 base = line * p.extent, first = tile * kTileOf<K>;
  const int size = static_cast<int>(min(static_cast<i64>(kTileOf<K>), p.extent - first));
  for (int w = 0; w < kWarps; ++w) s.counts[w][thread] = 0;
  __syncthreads();
  K keys[kItemsOf<K>];
  u32 places[kItemsOf<K>], ranks[kItemsOf<K>];
#pragma unroll
  for (int item = 0; item < kItemsOf<K>; ++item) {
    const int at = (warp * kItemsOf<K> + item) * 32 + lane;
    const bool is_there = at < size;
    keys[item] = is_there ? static_cast<const K*>(p.keys)[base + first + at] : K(0);
    places[item] = static_cast<u32>(first + at);
    if (p.to_places != nullptr && p.places != nullptr && is_there) places[item] = p.places[base + first + at];
  }
#pragma unroll
  for (int item = 0; item < kItemsOf<K>; ++item) {
    const bool is_there = (warp * kItemsOf<K> + item) * 32 + lane < size;
    const int digit = DigitOf(keys[item], p.shift);
    const u32 same = LanesOfDigit(digit, __ballot_sync(kAllLanes, is_there));
    const u32 before = same & ((1U << lane) - 1);
    const u32 earlier = s.counts[warp][digit];
    ranks[item] = earlier + static_cast<u32>(__popc(before));
    __syncwarp();
    if (is_there && before == 0) s.counts[warp][digit] = earlier + static_cast<u32>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
  u32 sum = 0;
  for (int w = 0; w < kWarps; ++w) {
    const u32 count = s.counts[w][thread];
    s.counts[w][thread] = sum;
    sum += count;
  }
  const u32 start = SumBefore(sum, s.of_warps);
  const u32 digits_before = SumBefore(p.totals[line * kRadixDigits + thread], s.of_warps);
  s.starts[thread] = start;
  s.places_of[thread] = digits_before + p.counts[(line * kRadixDigits + thread) * p.tiles + tile] - start;
  __syncthreads();
#pragma unroll
  for (int item = 0; item < kItemsOf<K>; ++item) {
    if ((warp * kItemsOf<K> + item) * 32 + lane >= size) continue;
    const int digit = DigitOf(keys[item], p.shift);
    const u32 to = s.starts[digit] + s.counts[warp][digit] + ranks[item];
    s.keys[to] = keys[item];
    if (p.to_places != nullptr) s.places[to] = places[item];
  }
  __syncthreads();
  for (int i = thread; i < size; i += kRadixThreads) {
    const K key = s.keys[i];
    const i64 to = base + (s.places_of[DigitOf(key, p.shift)] + static_cast<u32>(i));
    static_cast<K*>(p.to_keys)[to] = key;
    if (p.to_places != nullptr) p.to_places[to] = s.places[i];
  }
}
extern "C" __global__ void radix_move_4(const __grid_constant__ RadixParameters p) { RadixMove<u32>(p); }
extern "C" __global__ void radix_move_8(const __grid_constant__ RadixParameters p) { RadixMove<u64>(p); }

// ---- elements as keys

template <int kBytes>
__device__ inline void RadixLoad(const RadixElements& p) {
  const RadixKeys<kBytes> keys(p);
  const i64 size = p.lines.size * p.extent.value;
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), place = i - line * p.extent.value;
    static_cast<typename RadixKeyOf<kBytes>::Type*>(p.destination)[i] = keys.At(OffsetsAt(p.lines, line).of[0], place);
  }
}
#define TESSERA_RADIX_LOAD(kBytes) \
  extern "C" __global__ void radix_load_##kBytes(const __grid_constant__ RadixElements p) { RadixLoad<kBytes>(p); }
TESSERA_RADIX_LOAD(1)
TESSERA_RADIX_LOAD(2)
TESSERA_RADIX_LOAD(4)
TESSERA_RADIX_LOAD(8)

template <int kBytes>
__device__ inline void RadixStore(const RadixElements& p) {
  using K = typename RadixKeyOf<kBytes>::Type;
  constexpr K kMask = kRadixMask<kBytes>, kSign = K(1) << (8 * kBytes - 1);
  const i64 size = p.lines.size * p.extent.value;
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), place = i - line * p.extent.value;
    K key = static_cast<const K*>(p.source)[i];
    if (p.is_descending != 0) key = ~key & kMask;
    if (p.kind == kRadixSigned) key ^= kSign;
    if (kBytes > 1 && p.kind == kRadixFloat) {
      key = key == kMask ? static_cast<K>(p.nan) : (key & kSign) != 0 ? key ^ kSign : ~key & kMask;
    }
    static_cast<BitsOf<kBytes>*>(p.destination)[OffsetsAt(p.lines, line).of[0] + place * p.stride] =
        static_cast<BitsOf<kBytes>>(key);
  }
}
#define TESSERA_RADIX_STORE(kBytes) \
  extern "C" __global__ void radix_store_##kBytes(const __grid_constant__ RadixElements p) { RadixStore<kBytes>(p); }
TESSERA_RADIX_STORE(1)
TESSERA_RADIX_STORE(2)
TESSERA_RADIX_STORE(4)
TESSERA_RADIX_STORE(8)

extern "C" __global__ void radix_store_places(const __grid_constant__ RadixElements p) {
  const i64 size = p.lines.size * p.extent.value;
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), place = i - line * p.extent.value;
    static_cast<i64*>(p.destination)[OffsetsAt(p.lines, line).of[0] + place * p.stride] =
        static_cast<const u32*>(p.source)[i];
  }
}

}  // namespace tessera::cuda
