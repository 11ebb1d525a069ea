// Scatters whose updates are sorted by their element (radix.cu): all elements at once, and each one's updates in the
// order of their places, so that the bits are those of a loop over the updates.

#include "kernels/cuda/combine_wide.cuh"
#include "kernels/cuda/radix_parameters.h"

namespace tessera::cuda {

extern "C" __global__ void scatter_keys(const __grid_constant__ ScatterKeyParameters p) {
  const i64 size = p.lines.size * p.count.value;
  for (i64 i = ThreadNumber(); i < size; i += ThreadCount()) {
    const i64 line = Quotient(i, p.count), number = i - line * p.count.value;
    const i64 index = p.indices[OffsetsAt(p.lines, line).of[0] + number * p.index_stride];
    const i64 place = index < 0 ? index + p.extent : index;
    if (place < 0 || place >= p.extent) Fault(p.fault, index);
    const bool is_here = place >= p.own_start && place < p.own_stop;  // of what is nowhere it never is
    p.keys[i] = is_here ? static_cast<u32>(line * (p.own_stop - p.own_start) + (place - p.own_start)) : p.nowhere;
  }
}

// A scatter makes no products, and complex numbers have no extremes.
template <typename T>
__device__ inline T JoinOf(int op, T a, T b) {
  if constexpr (kIsSame<T, Bool>) {
    const bool is_all = op == kCodeMin;
    return {static_cast<u8>(is_all ? a.byte != 0 && b.byte != 0 : a.byte != 0 || b.byte != 0)};
  } else if constexpr (kIsComplex<T>) {
    return Add(a, b);
  } else {
    if (op == kCodeMax) return Maximum(a, b);
    return op == kCodeMin ? Minimum(a, b) : Add(a, b);
  }
}

// Elements in the type in which they are put together, and back.
template <typename T>
struct ElementOf {
  using Sum = T;
  __device__ static Sum Load(const ScatterSortedParameters&, const void* base, i64 at) {
    return static_cast<const T*>(base)[at];
  }
  __device__ static void Store(const ScatterSortedParameters& p, i64 at, Sum value) {
    static_cast<T*>(p.output)[at] = value;
  }
  __device__ static Sum Join(const ScatterSortedParameters& p, Sum a, Sum b) { return JoinOf(p.op, a, b); }
};
// Rounded after each update.
template <typename T>
struct ElementOfHalf {
  using Sum = float;
  __device__ static Sum Load(const ScatterSortedParameters&, const void* base, i64 at) {
    return ToFloat(static_cast<const T*>(base)[at]);
  }
  __device__ static void Store(const ScatterSortedParameters& p, i64 at, Sum value) {
    static_cast<T*>(p.output)[at] = Convert<T>(value);
  }
  __device__ static Sum Join(const ScatterSortedParameters& p, Sum a, Sum b) {
    return ToFloat(Convert<T>(JoinOf(p.op, a, b)));
  }
};
// A thread a sorted update and column; where the update is the first of its element it takes all of that. Loads of
// kAhead updates are on their way at once.
template <typename E, int kAhead>
__device__ inline void ScatterSorted(const ScatterSortedParameters& p) {
  using Sum = typename E::Sum;
  const i64 threads = p.size * p.columns.value;
  for (i64 i = ThreadNumber(); i < threads; i += ThreadCount()) {
    const i64 first = Quotient(i, p.columns), column = i - first * p.columns.value;
    const u32 key = p.keys[first];
    if (key == p.nowhere || (first > 0 && p.keys[first - 1] == key)) continue;
    const i64 line = Quotient(key, p.own), place = key - line * p.own.value;
    const Offsets<2> at = OffsetsAt(p.lines, line), across = OffsetsAt(p.of_columns, column);
    const i64 to = at.of[0] + across.of[0] + place * p.stride, from = at.of[1] + across.of[1];
    Sum sum = E::Load(p, p.output, to);
    bool goes_on = true;
#pragma unroll 1
    for (i64 next = first; goes_on; next += kAhead) {
      Sum updates[kAhead];
      bool is_its[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        is_its[k] = next + k < p.size && p.keys[next + k] == key;
        if (is_its[k])
          updates[k] = E::Load(p, p.updates, from + (p.places[next + k] - line * p.count) * p.update_stride);
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        if (is_its[k]) sum = p.op == kCodeAvg ? updates[k] : E::Join(p, sum, updates[k]);
      }
      goes_on = is_its[kAhead - 1];
    }
    E::Store(p, to, sum);
  }
}
#define TESSERA_SCATTER(name, E, kAhead)                                                                \
  extern "C" __global__ void scatter_sorted_##name(const __grid_constant__ ScatterSortedParameters p) { \
    ScatterSorted<E, kAhead>(p);                                                                        \
  }
TESSERA_SCATTER(bool, ElementOf<Bool>, 4)
TESSERA_SCATTER(i8, ElementOf<i8>, 4)
TESSERA_SCATTER(i16, ElementOf<i16>, 4)
TESSERA_SCATTER(i32, ElementOf<i32>, 4)
TESSERA_SCATTER(i64, ElementOf<i64>, 4)
TESSERA_SCATTER(u8, ElementOf<u8>, 4)
TESSERA_SCATTER(u16, ElementOf<u16>, 4)
TESSERA_SCATTER(u32, ElementOf<u32>, 4)
TESSERA_SCATTER(u64, ElementOf<u64>, 4)
TESSERA_SCATTER(f16, ElementOfHalf<F16>, 4)
TESSERA_SCATTER(bf16, ElementOfHalf<BF16>, 4)
TESSERA_SCATTER(f32, ElementOf<float>, 4)
TESSERA_SCATTER(f64, ElementOf<double>, 4)
TESSERA_SCATTER(c64, ElementOf<C64>, 2)
TESSERA_SCATTER(c128, ElementOf<C128>, 2)

}  // namespace tessera::cuda
