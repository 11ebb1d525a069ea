// Cumulative sums, products, maxima and minima of lines, each element read once and written once.
//
// A line is cut in tiles. A thread has kCount elements of each of the tile's rows, those of 16 bytes; 32 lanes make a
// row, kRows rows a warp's part, p.warps warps a tile. The value before an element is put together in this order,
// whatever the layout: (what stands before the tile, (warps before, (rows before, (lanes before, elements before)))),
// where elements and rows are added one after the other, lanes and warps as shuffles by 1, 2, 4, 8, 16 do. So bits are
// a function of extents and dtypes.
//
// Before a tile stands the chain of groups of 64 tiles, and the tiles before it in its group. A tile publishes its own
// total at once; the last one of a group also that of all groups so far. Tiles are numbered by tickets: a block that
// has one runs to its end, and waits for smaller tickets alone, so no order is needed in which blocks start. (Merrill
// and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016, but for the fixed order.)

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/scan_parameters.h"
#include "kernels/cuda/vector.cuh"

namespace tessera::cuda {

// A value that may be missing: nothing is added for it, so that -0 stays.
template <typename T>
struct Maybe {
  T value = {};
  bool is_there = false;
};
template <int kOp, typename T>
__device__ inline Maybe<T> Join(const Maybe<T>& first, const Maybe<T>& second) {
  if (!first.is_there) return second;
  return {second.is_there ? Combine(kOp, first.value, second.value) : first.value, true};
}

template <typename T>
__device__ inline T ShuffleUp(T value, int distance) {
  return __shfl_up_sync(0xFFFFFFFFU, value, distance);
}
// With those of the lanes before.
template <int kOp, typename T>
__device__ inline T ScanLanes(T value, int lane) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const T other = ShuffleUp(value, distance);
    if (lane >= distance) value = Combine(kOp, other, value);
  }
  return value;
}

// A total that other blocks wait for: of 4 bytes in one word with its flag, of 8 beside it.
template <typename T>
__device__ inline void Publish(u64* slots, i64 at, T value) {
  if constexpr (sizeof(T) == 4) {
    u32 bits;
    if constexpr (kIsSame<T, float>)
      bits = BitsOfFloat(value);
    else
      bits = static_cast<u32>(value);
    const u64 word = u64(1) << 32 | bits;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(slots + at), "l"(word) : "memory");
  } else {
    *reinterpret_cast<T*>(slots + 2 * at) = value;
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(slots + 2 * at + 1), "l"(u64(1)) : "memory");
  }
}
template <typename T>
__device__ inline T Await(const u64* slots, i64 at) {
  u64 word = 0;
  if constexpr (sizeof(T) == 4) {
    do {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(slots + at) : "memory");
    } while (word >> 32 == 0);
    if constexpr (kIsSame<T, float>)
      return FloatOfBits(static_cast<u32>(word));
    else
      return static_cast<T>(word);
  } else {
    do {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(slots + 2 * at + 1) : "memory");
    } while (word == 0);
    return *reinterpret_cast<const T*>(slots + 2 * at);
  }
}

// The value before the tile, by the first warp of its block; all lanes have it.
template <int kOp, typename T>
__device__ inline Maybe<T> LookBack(const ScanTileParameters& p, i64 line, i64 place, T total, const Maybe<T>& before) {
  const int lane = threadIdx.x & 31, in_group = static_cast<int>(place & (kScanGroup - 1));
  const i64 tiles = line * p.tiles_of_line, group = place / kScanGroup, groups = line * p.groups_of_line;
  if (lane == 0) Publish(p.tiles, tiles + place, total);
  Maybe<T> here;
#pragma unroll 1
  for (int from = 0; from < in_group; from += 32) {
    const int left = in_group - from < 32 ? in_group - from : 32;
    T sum = {};
    if (lane < left) sum = Await<T>(p.tiles, tiles + group * kScanGroup + from + lane);
    __syncwarp();
    sum = ScanLanes<kOp>(sum, lane);
    here = Join<kOp>(here, Maybe<T>{__shfl_sync(0xFFFFFFFFU, sum, left - 1), true});
  }
  Maybe<T> chain = before;
  if (group > 0) {
    chain.is_there = true;
    if (lane == 0) chain.value = Await<T>(p.groups, groups + group - 1);
    __syncwarp();
    chain.value = __shfl_sync(0xFFFFFFFFU, chain.value, 0);
  }
  if (in_group == kScanGroup - 1 && lane == 0) {
    Publish(p.groups, groups + group, Join<kOp>(chain, Join<kOp>(here, Maybe<T>{total, true})).value);
  }
  return Join<kOp>(chain, here);
}

// The value before a line.
template <typename T>
__device__ inline Maybe<T> BeforeLine(const ScanTileParameters& p, i64 at) {
  if (p.all.before != nullptr) return {static_cast<const T*>(p.all.before)[at], true};
  return {*reinterpret_cast<const T*>(&p.all.identity), p.all.is_exclusive != 0};
}

template <typename T, typename In>
struct ScanShape {
  static constexpr int kCount = sizeof(In) > 1 ? kVectorBytes / sizeof(In) : 8;
  static constexpr int kRows = kScanThreadBytes / (kCount * sizeof(T));
  static constexpr int kWarpElements = 32 * kCount * kRows;
};

// The thread's elements from `at` on, counted from its first one, of which `left` are there.
template <typename In, int kCount>
__device__ inline void LoadScanned(const ScanTileParameters& p, const In* from, int at, int left,
                                   In (&elements)[kCount]) {
  if (p.is_input_vectors != 0 && at + kCount <= left) {
    LoadVector(from, at, elements);
    return;
  }
  // Elements move down, so that one statement loads them all.
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int k = 1; k < kCount; ++k) elements[k - 1] = elements[k];
    elements[kCount - 1] = {};
    if (at + i < left) elements[kCount - 1] = from[(at + i) * p.all.input_stride];
  }
}
template <typename T, typename In, int kCount>
__device__ inline void StoreScanned(const ScanTileParameters& p, i64 to, int at, int left, T (&values)[kCount]) {
  const bool is_whole = at + kCount <= left;
  if (is_whole && p.output_vectors == kVectorsAccumulated) {
    StoreVector(p.all.output, to + at, values);
  } else if (is_whole && !kIsSame<T, In> && p.output_vectors == kVectorsOfInput) {
    In rounded[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) rounded[i] = Convert<In>(values[i]);
    StoreVector(p.all.output, to + at, rounded);
  } else {
#pragma unroll 1
    for (int i = 0; i < kCount && at + i < left; ++i) {
      StoreReduced(p.all.output_dtype, p.all.output, to + (at + i) * p.all.output_stride, values[0]);
#pragma unroll
      for (int k = 1; k < kCount; ++k) values[k - 1] = values[k];
    }
  }
}

template <typename T>
struct ScanShared {
  T of_warps[32];
  Maybe<T> before;
  u32 ticket;
};

// A warp has a line on its own, or a block a tile of one.
enum class Team { kWarp, kBlock };
template <Team kTeam, int kOp, typename T, typename In>
__device__ inline void ScanTile(const ScanTileParameters& p, i64 line, i64 place, ScanShared<T>* shared) {
  using Shape = ScanShape<T, In>;
  constexpr int kCount = Shape::kCount, kRows = Shape::kRows;
  const int lane = threadIdx.x & 31, warp = kTeam == Team::kBlock ? threadIdx.x / 32 : 0;
  const Offsets<3> base = OffsetsAt(p.all.lines, line);
  const i64 first = (place * p.warps + warp) * Shape::kWarpElements + lane * kCount, after = p.all.count - first;
  const int left = after < Shape::kWarpElements ? static_cast<int>(after) : Shape::kWarpElements;
  const In* from = static_cast<const In*>(p.all.input) + base.of[0] + first * p.all.input_stride;
  T own[kRows][kCount];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    In elements[kCount] = {};
    LoadScanned(p, from, r * 32 * kCount, left, elements);
#pragma unroll
    for (int i = 0; i < kCount; ++i) own[r][i] = Convert<T>(elements[i]);
  }
  // The value before a thread's elements in its warp, by row.
  Maybe<T> before[kRows], warp_total;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 1; i < kCount; ++i) own[r][i] = Combine(kOp, own[r][i - 1], own[r][i]);
    const T lanes = ScanLanes<kOp>(own[r][kCount - 1], lane);
    before[r] = Join<kOp>(warp_total, Maybe<T>{ShuffleUp(lanes, 1), lane > 0});
    warp_total = Join<kOp>(warp_total, Maybe<T>{__shfl_sync(0xFFFFFFFFU, lanes, 31), true});
  }
  Maybe<T> outside;
  if constexpr (kTeam == Team::kBlock) {
    if (lane == 0) shared->of_warps[warp] = warp_total.value;
    __syncthreads();
    T warps = {};
    if (lane < p.warps) warps = shared->of_warps[lane];
    warps = ScanLanes<kOp>(warps, lane);
    const Maybe<T> of_warps = {__shfl_sync(0xFFFFFFFFU, warps, warp > 0 ? warp - 1 : 0), warp > 0};
    const T total = __shfl_sync(0xFFFFFFFFU, warps, p.warps - 1);
    if (warp == 0) {
      outside = BeforeLine<T>(p, base.of[2]);
      if (p.tiles_of_line > 1) outside = LookBack<kOp>(p, line, place, total, outside);
      if (lane == 0) shared->before = outside;
    }
    __syncthreads();
    outside = shared->before;
#pragma unroll
    for (int r = 0; r < kRows; ++r) before[r] = Join<kOp>(of_warps, before[r]);
  } else {
    outside = BeforeLine<T>(p, base.of[2]);
  }
  const bool is_exclusive = p.all.is_exclusive != 0;
  const i64 to = base.of[1] + first * p.all.output_stride;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const Maybe<T> all = Join<kOp>(outside, before[r]);
    T results[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T one_before = own[r][i > 0 ? i - 1 : 0];
      results[i] = Join<kOp>(all, Maybe<T>{is_exclusive ? one_before : own[r][i], !is_exclusive || i > 0}).value;
    }
    StoreScanned<T, In>(p, to, r * 32 * kCount, left, results);
  }
}

template <int kOp, typename T, typename In>
struct ScanShortLines {
  static __device__ inline void Run(const ScanTileParameters& p) {
    for (i64 line = ThreadNumber() / 32; line < p.line_count.value; line += ThreadCount() / 32) {
      ScanTile<Team::kWarp, kOp, T, In>(p, line, 0, nullptr);
    }
  }
};
template <int kOp, typename T, typename In>
struct ScanTiles {
  // Neighbours are tiles of neighbouring lines, so that a line's tiles before are long under way.
  static __device__ inline void Run(const ScanTileParameters& p) {
    __shared__ ScanShared<T> shared;
    const i64 tiles = p.line_count.value * p.tiles_of_line;
    for (i64 tile = blockIdx.x;; tile += gridDim.x) {
      if (p.ticket != nullptr) {
        if (threadIdx.x == 0) shared.ticket = atomicAdd(p.ticket, 1U);
        __syncthreads();
        tile = shared.ticket;
      }
      if (tile >= tiles) break;
      const i64 place = Quotient(tile, p.line_count);
      ScanTile<Team::kBlock, kOp, T, In>(p, tile - place * p.line_count.value, place, &shared);
      __syncthreads();
    }
  }
};

template <template <int, typename, typename> typename Scan, typename T, typename In>
__device__ inline void ScanByOp(const ScanTileParameters& p) {
  switch (p.all.op) {
    case kCodeSum: return Scan<kCodeSum, T, In>::Run(p);
    case kCodeProduct: return Scan<kCodeProduct, T, In>::Run(p);
    case kCodeMax: return Scan<kCodeMax, T, In>::Run(p);
    default: return Scan<kCodeMin, T, In>::Run(p);
  }
}
#define TESSERA_SCAN_KERNEL(name, T)                                                                \
  extern "C" __global__ void __launch_bounds__(32 * (sizeof(T) == 4 ? kScanWarps : kScanWideWarps), \
                                               sizeof(T) == 4 ? 2 : 3) name
#define TESSERA_SCAN(name, T, In)                                                           \
  TESSERA_SCAN_KERNEL(scan_tiles_##name, T)(const __grid_constant__ ScanTileParameters p) { \
    ScanByOp<ScanTiles, T, In>(p);                                                          \
  }                                                                                         \
  TESSERA_SCAN_KERNEL(scan_lines_##name, T)(const __grid_constant__ ScanTileParameters p) { \
    ScanByOp<ScanShortLines, T, In>(p);                                                     \
  }
TESSERA_SCAN(f32, float, float)
TESSERA_SCAN(f64, double, double)
TESSERA_SCAN(f32_of_f16, float, F16)
TESSERA_SCAN(f32_of_bf16, float, BF16)
TESSERA_SCAN(i64, i64, i64)
TESSERA_SCAN(i64_of_i32, i64, i32)
// How many are true so far.
TESSERA_SCAN_KERNEL(scan_tiles_i64_of_bool, i64)(const __grid_constant__ ScanTileParameters p) {
  ScanTiles<kCodeSum, i64, Bool>::Run(p);
}
TESSERA_SCAN_KERNEL(scan_lines_i64_of_bool, i64)(const __grid_constant__ ScanTileParameters p) {
  ScanShortLines<kCodeSum, i64, Bool>::Run(p);
}

}  // namespace tessera::cuda
