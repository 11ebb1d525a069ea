// Creation: an element depends on its global index alone.

#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/normal.cuh"
#include "kernels/cuda/random_parameters.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/wide.cuh"

namespace tessera::cuda {

template <int kBytes>
__device__ inline void FillWith(const FillParameters& p) {
  using T = BitsOf<kBytes>;
  const T element = *reinterpret_cast<const T*>(&p.element);
  T* destination = static_cast<T*>(p.destination);
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < p.nest.size; i += ThreadCount()) destination[OffsetsAt(p.nest, i).of[0]] = element;
}

template <int kBytes>
__device__ inline void Eye(const EyeParameters& p) {
  using T = BitsOf<kBytes>;
  const T one = *reinterpret_cast<const T*>(&p.one), zero = {};
  T* destination = static_cast<T*>(p.destination);
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < p.rows * p.columns.value; i += ThreadCount()) {
    const i64 row = Quotient(i, p.columns), column = i - row * p.columns.value;
    // Without leaving 64 bits: the distance of two indexes is compared.
    const bool is_one = p.first_column + column - (p.first_row + row) == p.diagonal;
    destination[row * p.row_stride + column * p.column_stride] = is_one ? one : zero;
  }
}

#define TESSERA_CREATE(kBytes)                                                                                \
  extern "C" __global__ void fill_##kBytes(const __grid_constant__ FillParameters p) { FillWith<kBytes>(p); } \
  extern "C" __global__ void eye_##kBytes(const __grid_constant__ EyeParameters p) { Eye<kBytes>(p); }
TESSERA_CREATE(1)
TESSERA_CREATE(2)
TESSERA_CREATE(4)
TESSERA_CREATE(8)
TESSERA_CREATE(16)

// In f64 for floats, wrapping for integers.
extern "C" __global__ void arange(const __grid_constant__ ArangeParameters p) {
  __builtin_assume(!IsComplexCode(p.dtype));
  for (i64 i = ThreadNumber(); i < p.count; i += ThreadCount()) {
    Wide w;
    if (IsFloatCode(p.dtype)) {
      w.real = p.start + p.step * static_cast<double>(p.first + i);
    } else {
      w.i = static_cast<i64>(static_cast<u64>(p.integer_start) +
                             static_cast<u64>(p.integer_step) * static_cast<u64>(p.first + i));
    }
    StoreWide(p.dtype, p.destination, i * p.stride, w);
  }
}

template <typename T>
struct MadeInOf {
  using Type = float;
};
template <>
struct MadeInOf<double> {
  using Type = double;
};

// Numbers that the words of a counter are.
template <typename T>
__device__ inline void ToUniform(const RandParameters&, const Words& words, T (&values)[kNumbersPerCounter<T>]) {
  constexpr int kWords = 4 / kNumbersPerCounter<T>;  // of a number
#pragma unroll
  for (int k = 0; k < 4 / kWords; ++k) {
    values[k] = UniformOf<T>(words.word[k * kWords], words.word[k * kWords + kWords - 1]);
  }
}
template <typename T>
__device__ inline void ToNormal(const RandParameters& p, const Words& words, T (&values)[kNumbersPerCounter<T>]) {
  using Made = typename MadeInOf<T>::Type;
  const u32* w = words.word;
#pragma unroll
  for (int k = 0; k < kNumbersPerCounter<T>; k += 2) {
    NormalPair<Made> pair;
    if constexpr (sizeof(T) == 8) {
      pair = NormalPairOf<double>(static_cast<u64>(w[0]) << 32 | w[1], static_cast<u64>(w[2]) << 32 | w[3]);
    } else {
      pair = NormalPairOf<float>(w[k], w[k + 1]);
    }
    const Made mean = static_cast<Made>(p.mean), deviation = static_cast<Made>(p.deviation);
    values[k] = Convert<T>(mean + deviation * pair.first);
    values[k + 1] = Convert<T>(mean + deviation * pair.second);
  }
}

// A thread makes the numbers of one counter: neighbours of a row, of which those that lie in it are stored, by one
// store where they lie side by side.
template <typename T, bool kIsNormal>
__device__ inline void Rand(const RandParameters& p) {
  constexpr int kShared = kNumbersPerCounter<T>;
  T* destination = static_cast<T*>(p.destination);
#pragma unroll 1
  for (i64 i = ThreadNumber(); i < p.rows.size * p.counters.value; i += ThreadCount()) {
    const i64 row = Quotient(i, p.counters), place = i - row * p.counters.value;
    const Offsets<2> at = OffsetsAt(p.rows, row);
    const u64 number = static_cast<u64>(p.first + at.of[1]);
    const Words words = CounterWords(p.seed, p.stream, number / kShared + static_cast<u64>(place));
    T values[kShared];
    if constexpr (kIsNormal)
      ToNormal<T>(p, words, values);
    else
      ToUniform<T>(p, words, values);
    // Below 0 where the row begins amid a counter's numbers.
    const i64 column = place * kShared - static_cast<i64>(number % kShared), to = at.of[0] + column * p.stride;
    if (p.stride == 1 && column >= 0 && column + kShared <= p.columns &&
        (reinterpret_cast<u64>(p.destination) + static_cast<u64>(to) * sizeof(T)) % sizeof(values) == 0) {
      StoreVector(destination, to, values);
    } else {
#pragma unroll
      for (int k = 0; k < kShared; ++k) {
        if (column + k >= 0 && column + k < p.columns) destination[to + k * p.stride] = values[k];
      }
    }
  }
}
#define TESSERA_RAND(name, kIsNormal)                                                \
  extern "C" __global__ void rand_##name(const __grid_constant__ RandParameters p) { \
    switch (p.dtype) {                                                               \
      case kF16Code: Rand<F16, kIsNormal>(p); break;                                 \
      case kBF16Code: Rand<BF16, kIsNormal>(p); break;                               \
      case kF32Code: Rand<float, kIsNormal>(p); break;                               \
      default: Rand<double, kIsNormal>(p); break;                                    \
    }                                                                                \
  }
TESSERA_RAND(uniform, false)
TESSERA_RAND(normal, true)

}  // namespace tessera::cuda
