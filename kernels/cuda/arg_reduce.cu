// argmin and argmax of floats and of integers of 32 and 64 bits: rows by loads of 16 bytes, columns by a thread each.
// The first one of equal elements is wanted, so that the result is the same in whatever order they are looked at.

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/extremes.cuh"
#include "kernels/cuda/vector.cuh"

namespace tessera::cuda {

// In the order of elements, -0 as 0. `flip` has all bits for a maximum; a NaN comes before everything.
template <typename T>
struct KeyOf {
  using Type = u32;
};
template <>
struct KeyOf<double> {
  using Type = u64;
};
template <>
struct KeyOf<i64> {
  using Type = u64;
};
template <typename Key>
__device__ inline Key Ordered(Key bits, Key flip) {
  constexpr Key kTop = Key(1) << (8 * sizeof(Key) - 1);
  return ((bits & kTop) != 0 ? ~bits : bits | kTop) ^ flip;
}
__device__ inline u32 ToKey(i32 v, u32 flip) { return (static_cast<u32>(v) ^ 0x80000000U) ^ flip; }
__device__ inline u64 ToKey(i64 v, u64 flip) { return (static_cast<u64>(v) ^ (u64(1) << 63)) ^ flip; }
__device__ inline u32 ToKey(float v, u32 flip) { return v != v ? 0 : Ordered(BitsOfFloat(v + 0.0F), flip); }
__device__ inline u64 ToKey(double v, u64 flip) { return v != v ? 0 : Ordered(BitsOfDouble(v + 0.0), flip); }
__device__ inline u32 ToKey(F16 v, u32 flip) { return ToKey(ToFloat(v), flip); }
__device__ inline u32 ToKey(BF16 v, u32 flip) { return ToKey(ToFloat(v), flip); }

constexpr int kNoNumber = 0x7FFFFFFF;
// The least key so far and its number in the chunk.
template <typename Key>
struct First {
  Key key = ~Key(0);
  int number = kNoNumber;

  // A later one.
  __device__ inline void See(Key other, int other_number) {
    if (other < key) {
      key = other;
      number = other_number;
    }
  }
  __device__ inline void Take(Key other, int other_number) {
    if (other < key || (other == key && other_number < number)) {
      key = other;
      number = other_number;
    }
  }
};

template <typename T, typename Key>
__device__ inline void StoreChunk(const ArgChunkParameters& p, i64 output, i64 chunk, const First<Key>& first,
                                  i64 stride) {
  const i64 number = chunk * p.chunk_elements + first.number;
  if (p.chunks.value > 1) {
    p.partials[output * p.chunks.value + chunk] = {first.key, number};
  } else {
    const Offsets<4> kept = OffsetsAt(p.all.kept, output);
    p.all.output[kept.of[2]] = InWhole(p.all.whole, number);
    if (p.all.values == nullptr) return;
    static_cast<T*>(p.all.values)[kept.of[3]] = static_cast<const T*>(p.all.input)[kept.of[0] + number * stride];
  }
}

// 2^group_levels threads an item.
template <typename T>
__device__ inline void ArgReduceRows(const ArgChunkParameters& p) {
  using Key = typename KeyOf<T>::Type;
  constexpr int kCount = kVectorBytes / sizeof(T), kUnder = 4;
  const int group = 1 << p.group_levels, place = threadIdx.x & (group - 1);
  const u32 mask = (0xFFFFFFFFU >> (32 - group)) << (threadIdx.x & 31 & ~(group - 1));
  const Key flip = p.all.is_maximum != 0 ? ~Key(0) : Key(0);
  const i64 items = p.all.kept.size * p.chunks.value, step = ThreadCount() >> p.group_levels;
  for (i64 item = ThreadNumber() >> p.group_levels; item < items; item += step) {
    const i64 output = Quotient(item, p.chunks), chunk = item - output * p.chunks.value;
    const i64 begin = chunk * p.chunk_elements, left = p.all.reduced.size - begin;
    const int count = static_cast<int>(left < p.chunk_elements ? left : p.chunk_elements);
    const T* from = static_cast<const T*>(p.all.input) + OffsetsAt(p.all.kept, output).of[0] + begin;
    const int vectors = p.is_aligned != 0 ? count / kCount : 0;
    First<Key> first;
    // Where all keys are the highest the first one counts.
    if (place < vectors) first.number = place * kCount;
    int v = place;
    for (; v + (kUnder - 1) * group < vectors; v += kUnder * group) {
      T elements[kUnder][kCount];
#pragma unroll
      for (int u = 0; u < kUnder; ++u) LoadVector(from, static_cast<i64>(v + u * group) * kCount, elements[u]);
#pragma unroll
      for (int u = 0; u < kUnder; ++u) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) first.See(ToKey(elements[u][i], flip), (v + u * group) * kCount + i);
      }
    }
#pragma unroll 1
    for (; v < vectors; v += group) {
      T elements[kCount];
      LoadVector(from, static_cast<i64>(v) * kCount, elements);
#pragma unroll
      for (int i = 0; i < kCount; ++i) first.See(ToKey(elements[i], flip), v * kCount + i);
    }
#pragma unroll 1
    for (int i = vectors * kCount + place; i < count; i += group) first.Take(ToKey(from[i], flip), i);
#pragma unroll 1
    for (int width = group / 2; width > 0; width /= 2) {
      const Key key = __shfl_down_sync(mask, first.key, width, group);
      const int number = __shfl_down_sync(mask, first.number, width, group);
      first.Take(key, number);
    }
    if (place == 0) StoreChunk<T>(p, output, chunk, first, 1);
  }
}

// A thread an item.
template <typename T>
__device__ inline void ArgReduceColumns(const ArgChunkParameters& p) {
  using Key = typename KeyOf<T>::Type;
  const Key flip = p.all.is_maximum != 0 ? ~Key(0) : Key(0);
  const i64 items = p.all.kept.size * p.chunks.value, stride = p.all.reduced.strides[0][0];
  for (i64 item = ThreadNumber(); item < items; item += ThreadCount()) {
    const i64 chunk = Quotient(item, p.outputs), output = item - chunk * p.outputs.value;
    const i64 begin = chunk * p.chunk_elements, left = p.all.reduced.size - begin;
    const int count = static_cast<int>(left < p.chunk_elements ? left : p.chunk_elements);
    const T* from = static_cast<const T*>(p.all.input) + OffsetsAt(p.all.kept, output).of[0] + begin * stride;
    First<Key> first;
    first.number = 0;
    int i = 0;
#pragma unroll 1
    for (; i + 8 <= count; i += 8) {
      T elements[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) elements[u] = from[(i + u) * stride];
#pragma unroll
      for (int u = 0; u < 8; ++u) first.See(ToKey(elements[u], flip), i + u);
    }
#pragma unroll 1
    for (; i < count; ++i) first.See(ToKey(from[i * stride], flip), i);
    StoreChunk<T>(p, output, chunk, first, stride);
  }
}

#define TESSERA_ARG_REDUCE(name, T)                                                                   \
  extern "C" __global__ void argreduce_rows_##name(const __grid_constant__ ArgChunkParameters p) {    \
    ArgReduceRows<T>(p);                                                                              \
  }                                                                                                   \
  extern "C" __global__ void argreduce_columns_##name(const __grid_constant__ ArgChunkParameters p) { \
    ArgReduceColumns<T>(p);                                                                           \
  }
TESSERA_ARG_REDUCE(f32, float)
TESSERA_ARG_REDUCE(f64, double)
TESSERA_ARG_REDUCE(f16, F16)
TESSERA_ARG_REDUCE(bf16, BF16)
TESSERA_ARG_REDUCE(i32, i32)
TESSERA_ARG_REDUCE(i64, i64)

// The first of an output's chunks: a warp an output, of more than 32 chunks a block.
extern "C" __global__ void __launch_bounds__(1024) argreduce_chunks(const __grid_constant__ ArgChunkParameters p) {
  __shared__ ArgPartial of_warps[32];
  const int group = p.chunks.value > 32 ? blockDim.x : 32, place = threadIdx.x & (group - 1);
  const i64 stride = p.all.reduced.strides[0][0], step = ThreadCount() / group;
  for (i64 output = ThreadNumber() / group; output < p.all.kept.size; output += step) {
    const ArgPartial* partials = p.partials + output * p.chunks.value;
    ArgPartial first = {~u64(0), kHighest<i64>};
    const auto take = [&](u64 key, i64 number) {
      if (key < first.key || (key == first.key && number < first.number)) first = {key, number};
    };
    const auto take_of_warp = [&] {
#pragma unroll 1
      for (int width = 16; width > 0; width /= 2) {
        const u64 key = __shfl_down_sync(0xFFFFFFFFU, first.key, width);
        take(key, __shfl_down_sync(0xFFFFFFFFU, first.number, width));
      }
    };
#pragma unroll 1
    for (i64 c = place; c < p.chunks.value; c += group) take(partials[c].key, partials[c].number);
    take_of_warp();
    if (group > 32) {
      if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x / 32] = first;
      __syncthreads();
      if (threadIdx.x < 32) {
        if (threadIdx.x < blockDim.x / 32) first = of_warps[threadIdx.x];
        take_of_warp();
      }
      __syncthreads();
    }
    if (place != 0) continue;
    const Offsets<4> kept = OffsetsAt(p.all.kept, output);
    StoreFirst(p.all, kept, first.number, kept.of[0] + first.number * stride);
  }
}

}  // namespace tessera::cuda
