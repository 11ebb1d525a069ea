// gather, scatter and scan along a dim. An index that is out of range is written to the fault word, and left out.

#include "kernels/cuda/combine_wide.cuh"
#include "kernels/cuda/scan_parameters.h"

namespace tessera::cuda {

template <int kBytes>
__device__ inline void Gather(const GatherParameters& p) {
  using T = BitsOf<kBytes>;
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<3> at = OffsetsAt(p.nest, i);
    const i64 index = p.indices[at.of[1]], place = index < 0 ? index + p.extent : index;
    if (place < 0 || place >= p.extent) Fault(p.fault, index);
    T value = *reinterpret_cast<const T*>(&p.nothing);
    const bool is_here = place >= p.own_start && place < p.own_stop;
    if (is_here) value = static_cast<const T*>(p.data)[at.of[0] + (place - p.own_start) * p.stride];
    static_cast<T*>(p.output)[at.of[2]] = value;
  }
}
#define TESSERA_GATHER(kBytes) \
  extern "C" __global__ void gather_##kBytes(const __grid_constant__ GatherParameters p) { Gather<kBytes>(p); }
TESSERA_GATHER(1)
TESSERA_GATHER(2)
TESSERA_GATHER(4)
TESSERA_GATHER(8)
TESSERA_GATHER(16)

__device__ inline i64 WordOf(i64 number) { return number; }
__device__ inline i64 WordOf(double number) { return static_cast<i64>(BitsOfDouble(number)); }

template <typename T>
__device__ inline void CheckRange(const CheckRangeParameters& p) {
  const T low = *reinterpret_cast<const T*>(&p.low), high = *reinterpret_cast<const T*>(&p.high),
          other = *reinterpret_cast<const T*>(&p.other);
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) {
    const Offsets<2> at = OffsetsAt(p.nest, i);
    const T number = static_cast<const T*>(p.source)[at.of[0]];
    if (!((number >= low && number <= high) || number == other)) Fault(p.fault, WordOf(number));
    static_cast<T*>(p.output)[at.of[1]] = number;
  }
}
#define TESSERA_CHECK_RANGE(name, T) \
  extern "C" __global__ void check_range_##name(const __grid_constant__ CheckRangeParameters p) { CheckRange<T>(p); }
TESSERA_CHECK_RANGE(i64, i64)
TESSERA_CHECK_RANGE(f32, float)
TESSERA_CHECK_RANGE(f64, double)

// A thread a line along the dim, its updates one after the other: their order is that of the numbers.
extern "C" __global__ void scatter(const __grid_constant__ ScatterParameters p) {
  for (i64 line = ThreadNumber(); line < p.lines.size; line += ThreadCount()) {
    const Offsets<3> at = OffsetsAt(p.lines, line);
#pragma unroll 1
    for (i64 i = 0; i < p.count; ++i) {
      const i64 index = p.indices[at.of[1] + i * p.index_stride], place = index < 0 ? index + p.extent : index;
      if (place < 0 || place >= p.extent) {
        Fault(p.fault, index);
        continue;
      }
      if (place < p.own_start || place >= p.own_stop) continue;
      const i64 to = at.of[0] + (place - p.own_start) * p.stride;
      Wide value = LoadWide(p.dtype, p.updates, at.of[2] + i * p.update_stride);
      if (p.op != kCodeAvg) value = CombineWide<DTypes::kAny>(p.op, p.dtype, LoadWide(p.dtype, p.output, to), value);
      StoreWide(p.dtype, p.output, to, value);
    }
  }
}

// A thread a line: each sum is made of the one before, so that its bits are those of a loop.
extern "C" __global__ void scan(const __grid_constant__ ScanParameters p) {
  for (i64 line = ThreadNumber(); line < p.lines.size; line += ThreadCount()) {
    const Offsets<3> at = OffsetsAt(p.lines, line);
    const bool is_seeded = p.before != nullptr;
    Wide sum = LoadWide(p.dtype, is_seeded ? p.before : &p.identity, is_seeded ? at.of[2] : 0);
#pragma unroll 1
    for (i64 i = 0; i < p.count; ++i) {
      const Wide next = CastWide<DTypes::kAccumulated>(p.input_dtype, p.dtype,
                                                       LoadWide(p.input_dtype, p.input, at.of[0] + i * p.input_stride));
      // The first is taken as it is: the identity plus -0 would be 0.
      Wide after = CombineWide<DTypes::kAccumulated>(p.op, p.dtype, sum, next);
      if (i == 0 && !is_seeded && p.is_exclusive == 0) after = next;
      Wide result = after;
      if (p.is_exclusive != 0) result = sum;
      StoreWide(p.output_dtype, p.output, at.of[1] + i * p.output_stride, result);
      sum = after;
    }
  }
}

}  // namespace tessera::cuda
