// Reductions of dense rows by loads of 16 bytes, one kernel for each op, type that is accumulated in and type in
// memory; whether any byte of a row isn't 0, or all aren't.

#include "kernels/cuda/vector_reduce.cuh"

namespace tessera::cuda {

#define TESSERA_REDUCE_ROWS(op, kOp, name, T, In)                               \
  extern "C" __global__ void __launch_bounds__(kVectorThreads)                  \
      reduce_rows_v_##op##_##name(const __grid_constant__ ReduceParameters p) { \
    ReduceRowsByVector<kOp>(p, VectorsOfRow<T, In>{});                          \
  }
#define TESSERA_REDUCE_ROWS_OF(name, T, In)            \
  TESSERA_REDUCE_ROWS(sum, kCodeSum, name, T, In)      \
  TESSERA_REDUCE_ROWS(prod, kCodeProduct, name, T, In) \
  TESSERA_REDUCE_ROWS(max, kCodeMax, name, T, In)      \
  TESSERA_REDUCE_ROWS(min, kCodeMin, name, T, In)
TESSERA_REDUCE_ROWS_OF(f32, float, float)
TESSERA_REDUCE_ROWS_OF(f64, double, double)
TESSERA_REDUCE_ROWS_OF(f32_of_f16, float, F16)
TESSERA_REDUCE_ROWS_OF(f32_of_bf16, float, BF16)
TESSERA_REDUCE_ROWS(sum, kCodeSum, i64, i64, i64)
TESSERA_REDUCE_ROWS(max, kCodeMax, i64, i64, i64)
TESSERA_REDUCE_ROWS(min, kCodeMin, i64, i64, i64)
TESSERA_REDUCE_ROWS(sum, kCodeSum, i64_of_i32, i64, i32)
TESSERA_REDUCE_ROWS(max, kCodeMax, i64_of_i32, i64, i32)
TESSERA_REDUCE_ROWS(min, kCodeMin, i64_of_i32, i64, i32)

// The bits of bytes that are 0, in place of each.
__device__ inline u32 ZeroBytes(u32 word) { return ~(((word & 0x7F7F7F7FU) + 0x7F7F7F7FU) | word | 0x7F7F7F7FU); }

// In any order: 2^p.group_levels threads an item.
template <bool kIsAll>
__device__ inline void ReduceTruths(const ReduceParameters& p) {
  const int group = 1 << p.group_levels, place = threadIdx.x & (group - 1);
  const u32 mask = (0xFFFFFFFFU >> (32 - group)) << (threadIdx.x & 31 & ~(group - 1));
  const i64 items = p.kept.size * p.chunks.value, step = ThreadCount() >> p.group_levels;
  for (i64 item = ThreadNumber() >> p.group_levels; item < items; item += step) {
    const i64 output = Quotient(item, p.chunks), chunk = item - output * p.chunks.value;
    const i64 bytes = static_cast<i64>(kReduceBlock) << p.chunk_levels, begin = chunk * bytes;
    const Offsets<2> at = OffsetsAt(p.kept, output);
    const u8* from = static_cast<const u8*>(p.input) + at.of[0] + begin;
    const i64 count = begin + bytes < p.count ? bytes : p.count - begin, vectors = count / kVectorBytes;
    u32 seen = 0;
    const auto see = [&seen](const uint4& w) {
      seen |= kIsAll ? ZeroBytes(w.x) | ZeroBytes(w.y) | ZeroBytes(w.z) | ZeroBytes(w.w) : w.x | w.y | w.z | w.w;
    };
    i64 v = place;
    for (; v + 7 * group < vectors; v += 8 * group) {
      uint4 words[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i] = reinterpret_cast<const uint4*>(from)[v + i * group];
#pragma unroll
      for (int i = 0; i < 8; ++i) see(words[i]);
    }
#pragma unroll 1
    for (; v < vectors; v += group) see(reinterpret_cast<const uint4*>(from)[v]);
#pragma unroll 1
    for (i64 b = vectors * kVectorBytes + place; b < count; b += group) seen |= (from[b] != 0) != kIsAll ? 1 : 0;
    const bool is_seen = __any_sync(mask, seen != 0);
    if (place == 0) StoreResult(p, output, chunk, at.of[1], static_cast<i64>(is_seen != kIsAll));
  }
}
extern "C" __global__ void reduce_rows_v_any(const __grid_constant__ ReduceParameters p) { ReduceTruths<false>(p); }
extern "C" __global__ void reduce_rows_v_all(const __grid_constant__ ReduceParameters p) { ReduceTruths<true>(p); }

}  // namespace tessera::cuda
