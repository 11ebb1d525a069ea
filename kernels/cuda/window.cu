// Convolutions and pooling: a thread an element of the output, over its window alone. The products of a window are
// summed in the order of channels and then of the window's elements.

#include "kernels/cuda/combine.cuh"
#include "kernels/cuda/window_parameters.h"

namespace tessera::cuda {

// The elements of a window that meet elements of the input, in one dim: from the input's `first` on, by the dim's
// `input_step`. `padded`: how many there are with padding. kApart: the input's elements may lie apart.
struct WindowSpan {
  i64 first, number, count, padded;  // number: of `first` within the window
};
template <bool kApart>
__device__ inline WindowSpan SpanAt(const WindowDim& d, i64 position) {
  const i64 begin = position * d.stride - d.padding;
  const auto below = [&](i64 end) {  // window elements before `end`
    if (end <= begin) return i64(0);
    const i64 n = Quotient(end - begin + d.dilation.value - 1, d.dilation);
    return n < d.kernel ? n : d.kernel;
  };
  const i64 stop = below(d.extent), padded = below(d.extent + d.padding);
  i64 number = below(0), place = begin + number * d.dilation.value;
  if constexpr (!kApart) return {place, number, stop > number ? stop - number : 0, padded};
  i64 first = Quotient(place, d.apart);
  // One of the next `step` elements meets one, or none of all does.
  for (i64 tries = 1; number < stop && first * d.apart.value != place; ++tries) {
    number = tries < d.step.value ? number + 1 : stop;
    place += d.dilation.value;
    first = Quotient(place, d.apart);
  }
  const i64 count = stop > number ? Quotient(stop - number + d.step.value - 1, d.step) : 0;
  return {first, number, count, padded};
}

// Which window of the three dims an element of the output has, and what is left of its number.
struct WindowPlace {
  WindowSpan spans[3];
  i64 output = 0, rest = 0;
};
template <bool kApart>
__device__ inline WindowPlace PlaceAt(const WindowDim (&dims)[3], i64 flat) {
  WindowPlace place;
#pragma unroll
  for (int d = 2; d >= 0; --d) {
    const i64 rest = Quotient(flat, dims[d].positions), position = flat - rest * dims[d].positions.value;
    place.spans[d] = SpanAt<kApart>(dims[d], position);
    place.output += position * dims[d].output_stride;
    flat = rest;
  }
  place.rest = flat;
  return place;
}

template <typename T>
__device__ inline void Conv(const ConvParameters& p) {
  using A = typename AccumulatorOf<T>::Type;
  for (i64 i = ThreadNumber(); i < p.size; i += ThreadCount()) {
    const WindowPlace place = PlaceAt<true>(p.dims, i);
    const i64 lead = Quotient(place.rest, p.outputs), o = place.rest - lead * p.outputs.value;
    const Offsets<3> at = OffsetsAt(p.nest, lead);
    A sum = {};
#pragma unroll 1
    for (i64 c = 0; c < p.channels; ++c) {
      const T* image = static_cast<const T*>(p.input) + at.of[0] + c * p.input_channel;
      const T* weight = static_cast<const T*>(p.weight) + at.of[2] + o * p.weight_output + c * p.weight_channel;
#pragma unroll 1
      for (i64 j = 0; j < place.spans[0].count; ++j) {
#pragma unroll 1
        for (i64 k = 0; k < place.spans[1].count; ++k) {
          const T* x = image + (place.spans[0].first + j * p.dims[0].input_step) * p.dims[0].input_stride +
                       (place.spans[1].first + k * p.dims[1].input_step) * p.dims[1].input_stride +
                       place.spans[2].first * p.dims[2].input_stride;
          const T* w = weight + (place.spans[0].number + j * p.dims[0].step.value) * p.dims[0].weight_stride +
                       (place.spans[1].number + k * p.dims[1].step.value) * p.dims[1].weight_stride +
                       place.spans[2].number * p.dims[2].weight_stride;
#pragma unroll 1
          for (i64 l = 0; l < place.spans[2].count; ++l) {
            const A product = Combine(kCodeProduct, Convert<A>(x[l * p.dims[2].input_step * p.dims[2].input_stride]),
                                      Convert<A>(w[l * p.dims[2].step.value * p.dims[2].weight_stride]));
            sum = Combine(kCodeSum, sum, product);
          }
        }
      }
    }
    static_cast<T*>(p.output)[at.of[1] + o * p.output_channel + place.output] = Convert<T>(sum);
  }
}

template <typename T>
__device__ inline void Pool(const PoolParameters& p) {
  using A = typename AccumulatorOf<T>::Type;
  for (i64 i = ThreadNumber(); i < p.size; i += ThreadCount()) {
    const WindowPlace place = PlaceAt<false>(p.dims, i);
    const Offsets<2> at = OffsetsAt(p.nest, place.rest);
    A result = Convert<A>(*reinterpret_cast<const T*>(&p.identity));
    i64 divisor = 1;
#pragma unroll
    for (int d = 0; d < 3; ++d) divisor *= p.counts_padding != 0 ? place.spans[d].padded : place.spans[d].count;
#pragma unroll 1
    for (i64 j = 0; j < place.spans[0].count; ++j) {
#pragma unroll 1
      for (i64 k = 0; k < place.spans[1].count; ++k) {
        const T* x = static_cast<const T*>(p.input) + at.of[0] +
                     (place.spans[0].first + j * p.dims[0].input_step) * p.dims[0].input_stride +
                     (place.spans[1].first + k * p.dims[1].input_step) * p.dims[1].input_stride +
                     place.spans[2].first * p.dims[2].input_stride;
#pragma unroll 1
        for (i64 l = 0; l < place.spans[2].count; ++l) {
          const A value = Convert<A>(x[l * p.dims[2].input_step * p.dims[2].input_stride]);
          result = p.op == kCodeMax ? Combine(kCodeMax, result, value) : Combine(kCodeSum, result, value);
        }
      }
    }
    if (p.op == kCodeAvg) result = result / static_cast<A>(divisor);
    static_cast<T*>(p.output)[at.of[1] + place.output] = Convert<T>(result);
  }
}

// Integers wrap: those of a size have one product.
#define TESSERA_CONV(name, T) \
  extern "C" __global__ void conv_##name(const __grid_constant__ ConvParameters p) { Conv<T>(p); }
TESSERA_CONV(8, u8)
TESSERA_CONV(16, u16)
TESSERA_CONV(32, u32)
TESSERA_CONV(64, u64)
TESSERA_CONV(f16, F16)
TESSERA_CONV(bf16, BF16)
TESSERA_CONV(f32, float)
TESSERA_CONV(f64, double)

#define TESSERA_POOL(T, name) \
  extern "C" __global__ void pool_##name(const __grid_constant__ PoolParameters p) { Pool<T>(p); }
TESSERA_POOL(i8, i8)
TESSERA_POOL(i16, i16)
TESSERA_POOL(i32, i32)
TESSERA_POOL(i64, i64)
TESSERA_POOL(u8, u8)
TESSERA_POOL(u16, u16)
TESSERA_POOL(u32, u32)
TESSERA_POOL(u64, u64)
TESSERA_POOL(F16, f16)
TESSERA_POOL(BF16, bf16)
TESSERA_POOL(float, f32)
TESSERA_POOL(double, f64)

}  // namespace tessera::cuda
