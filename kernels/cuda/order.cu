// Kernels that compare: first extremes, sorting, merging, searching. Elements are keys of 64 bits in their order,
// whatever their dtype.

#include "kernels/cuda/extremes.cuh"
#include "kernels/cuda/wide.cuh"

namespace tessera::cuda {

constexpr u64 kSign = u64(1) << 63;
constexpr u64 kNanKey = ~u64(0);
// Whether -0 is below 0, as sorted values have it, or equal, as it is compared.
enum Zeros : int { kDistinct, kEqual };

// A NaN is above all numbers.
__device__ inline u64 KeyAt(int dtype, Zeros zeros, const void* base, i64 at) {
  __builtin_assume(!IsComplexCode(dtype));  // they have no order
  const Wide w = LoadWide(dtype, base, at);
  if (IsFloatCode(dtype)) {
    if (w.real != w.real) return kNanKey;
    const u64 bits = BitsOfDouble(w.real);
    if (zeros == kEqual && bits == kSign) return kSign;
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  }
  return IsUnsignedCode(dtype) ? static_cast<u64>(w.i) : static_cast<u64>(w.i) ^ kSign;
}
__device__ inline Wide FromKey(int dtype, u64 key) {
  __builtin_assume(!IsComplexCode(dtype));
  Wide w;
  if (IsFloatCode(dtype)) {
    w.real = key == kNanKey ? NaN<double>() : DoubleOfBits((key & kSign) != 0 ? key ^ kSign : ~key);
  } else {
    w.i = static_cast<i64>(IsUnsignedCode(dtype) ? key : key ^ kSign);
  }
  return w;
}

struct Candidate {
  u64 key;
  i64 number;  // below 0: none
  i64 place;
};
// The lower number comes first of equal keys.
__device__ inline bool IsBefore(const Candidate& a, const Candidate& b) {
  if (b.number < 0) return a.number >= 0;
  return a.number >= 0 && (a.key < b.key || (a.key == b.key && a.number < b.number));
}

// A block an output.
constexpr int kArgThreads = 128;
extern "C" __global__ void argreduce(const __grid_constant__ ArgReduceParameters p) {
  __shared__ Candidate best[kArgThreads];
  for (i64 output = blockIdx.x; output < p.kept.size; output += gridDim.x) {
    const Offsets<4> kept = OffsetsAt(p.kept, output);
    Candidate mine = {0, -1, 0};
#pragma unroll 1
    for (i64 r = threadIdx.x; r < p.reduced.size; r += blockDim.x) {
      const Offsets<2> at = OffsetsAt(p.reduced, r);
      const i64 place = kept.of[0] + at.of[0];
      const u64 key = KeyAt(p.dtype, kEqual, p.input, place);
      const bool is_nan = IsFloatCode(p.dtype) && key == kNanKey;
      const i64 number = p.numbers == nullptr ? r : p.numbers[kept.of[1] + at.of[1]];
      // A NaN comes before all numbers.
      const Candidate next = {is_nan ? 0 : p.is_maximum != 0 ? ~key : key, number, place};
      if (IsBefore(next, mine)) mine = next;
    }
    best[threadIdx.x] = mine;
    __syncthreads();
#pragma unroll 1
    for (int width = kArgThreads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width && IsBefore(best[threadIdx.x + width], best[threadIdx.x])) {
        best[threadIdx.x] = best[threadIdx.x + width];
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      StoreFirst(p, kept, best[0].number, best[0].place);
    }
    __syncthreads();
  }
}

template <int kBytes>
__device__ inline void Pick(const PickParameters& p) {
  using T = BitsOf<kBytes>;
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<3> at = OffsetsAt(p.nest, i);
    i64 number = p.numbers[at.of[1]], place = at.of[0];
    bool is_here = number >= 0 && p.is_zero == 0;
#pragma unroll 1
    for (int d = 0; d < p.whole.dims; ++d) {
      const i64 quotient = Quotient(number, p.whole.strides[d]), index = quotient - p.whole.starts[d];
      number -= quotient * p.whole.strides[d].value;
      is_here = is_here && index >= 0 && index < p.whole.extents[d].value;
      place += index * p.strides[d];
    }
    T picked = {};
    if (is_here) picked = static_cast<const T*>(p.input)[place];
    static_cast<T*>(p.output)[at.of[2]] = picked;
  }
}
#define TESSERA_PICK(kBytes) \
  extern "C" __global__ void pick_##kBytes(const __grid_constant__ PickParameters p) { Pick<kBytes>(p); }
TESSERA_PICK(1)
TESSERA_PICK(2)
TESSERA_PICK(4)
TESSERA_PICK(8)
TESSERA_PICK(16)

// ---- sorting: runs of 1, which passes merge

extern "C" __global__ void sort_load(const __grid_constant__ SortParameters p) {
  const i64 extent = p.extent.value, size = p.lines.size * extent;
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), place = i - line * extent;
    const Zeros zeros = p.gives_places != 0 ? kEqual : kDistinct;
    const u64 key = KeyAt(p.dtype, zeros, p.input, OffsetsAt(p.lines, line).of[0] + place * p.input_stride);
    p.keys[i] = p.is_descending != 0 ? ~key : key;
    p.places[i] = place;
  }
}

// An element goes to its number in its own run and the elements of the other run that come before it.
extern "C" __global__ void sort_pass(const __grid_constant__ SortParameters p) {
  const i64 extent = p.extent.value, size = p.lines.size * extent;
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), base = line * extent, place = i - base, width = i64(1) << p.level;
    const i64 pair = place & ~(2 * width - 1), middle = min(pair + width, extent);
    const bool is_first = place < middle;
    const u64 key = p.keys[i];
    i64 low = is_first ? middle : pair, high = is_first ? min(pair + 2 * width, extent) : middle;
    const i64 other = low;
    while (low < high) {
      const i64 half = low + (high - low) / 2;
      const u64 at = p.keys[base + half];
      if (at < key || (!is_first && at == key)) {
        low = half + 1;
      } else {
        high = half;
      }
    }
    const i64 to = base + pair + (place - (is_first ? pair : middle)) + (low - other);
    p.merged_keys[to] = key;
    p.merged_places[to] = p.places[i];
  }
}

extern "C" __global__ void sort_store(const __grid_constant__ SortParameters p) {
  const i64 extent = p.extent.value, size = p.lines.size * extent;
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.extent), place = i - line * extent;
    const i64 to = OffsetsAt(p.lines, line).of[1] + place * p.output_stride;
    if (p.gives_places != 0) {
      static_cast<i64*>(p.output)[to] = p.places[i];
    } else {
      StoreWide(p.dtype, p.output, to, FromKey(p.dtype, p.is_descending != 0 ? ~p.keys[i] : p.keys[i]));
    }
  }
}

// An element's rank in the whole: its number in its run, the elements of runs before that are not above it, those of
// runs behind that are below it.
extern "C" __global__ void merge_runs(const __grid_constant__ MergeParameters p) {
  const Zeros zeros = p.gives_places != 0 ? kEqual : kDistinct;
  const auto key_at = [&](i64 place) {
    const u64 key = KeyAt(p.dtype, zeros, p.input, place * p.input_stride);
    return p.is_descending != 0 ? ~key : key;
  };
  for (i64 i = ThreadNumber(); i < p.starts[p.runs]; i += ThreadCount()) {
    const u64 key = key_at(i);
    int run = 0;
#pragma unroll 1
    while (p.starts[run + 1] <= i) ++run;
    i64 rank = i - p.starts[run];
#pragma unroll 1
    for (int other = 0; other < p.runs; ++other) {
      if (other == run) continue;
      i64 low = p.starts[other], high = p.starts[other + 1];
      while (low < high) {
        const i64 half = low + (high - low) / 2;
        const u64 at = key_at(half);
        if (at < key || (other < run && at == key)) {
          low = half + 1;
        } else {
          high = half;
        }
      }
      rank += low - p.starts[other];
    }
    if (rank < p.first || rank >= p.last) continue;
    const i64 to = (rank - p.first) * p.output_stride;
    if (p.gives_places != 0) {
      static_cast<i64*>(p.output)[to] = p.starts[run] + p.places[i * p.place_stride];
    } else {
      StoreWide(p.dtype, p.output, to, FromKey(p.dtype, p.is_descending != 0 ? ~key : key));
    }
  }
}

extern "C" __global__ void searchsorted(const __grid_constant__ SearchParameters p) {
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    const u64 key = KeyAt(p.dtype, kEqual, p.values, at.of[0]);
    i64 low = 0, high = p.extent;
    while (low < high) {
      const i64 half = low + (high - low) / 2;
      const u64 sorted = KeyAt(p.dtype, kEqual, p.sorted, half * p.stride);
      if (sorted < key || (p.is_right != 0 && sorted == key)) {
        low = half + 1;
      } else {
        high = half;
      }
    }
    p.output[at.of[1]] = low;
  }
}

}  // namespace tessera::cuda
