// Pooling: the maximum or the mean of each window. The dims before those of windows are divided among the compute
// threads.

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided.h"
#include "kernels/cpu/windows3.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

// Rows of images that one thread takes at a time.
constexpr int64_t kImagesPerBlock = 8;

struct PoolLayout {
  LoopNest images;  // operands: input, output
  Window3 windows;
  std::array<int64_t, 3> extents, kernel, positions, input_strides, output_strides;
  PoolKind kind = PoolKind::kMax;
  PoolDivisor divisor = PoolDivisor::kElements;
};

// The elements of a window in one dim: from `first` on, by the dilation; `padded`: how many there are with padding.
struct Span1 {
  int64_t first = 0, count = 0, padded = 0;
};
Span1 SpanOf(const PoolLayout& l, size_t d, int64_t position) {
  const int64_t dilation = l.windows.dilation[d], begin = position * l.windows.stride[d] - l.windows.padding[d];
  const auto below = [&](int64_t end) {  // window elements before `end`
    return std::clamp<int64_t>((end - begin + dilation - 1) / dilation, 0, l.kernel[d]);
  };
  const int64_t skipped = begin >= 0 ? 0 : below(0);
  return {begin + skipped * dilation, std::max<int64_t>(below(l.extents[d]) - skipped, 0),
          below(l.extents[d] + l.windows.padding[d])};
}

template <typename T>
T PoolOne(const PoolLayout& l, const T* x, const std::array<Span1, 3>& spans) {
  using W = std::conditional_t<kIsHalf<T>, float, T>;
  using Limits = std::numeric_limits<W>;
  const bool is_max = l.kind == PoolKind::kMax;
  W result = !is_max ? W{0} : Limits::has_infinity ? static_cast<W>(-Limits::infinity()) : Limits::lowest();
  for (int64_t i = 0; i < spans[0].count; ++i) {
    for (int64_t j = 0; j < spans[1].count; ++j) {
      const T* line = x + (spans[0].first + i * l.windows.dilation[0]) * l.input_strides[0] +
                      (spans[1].first + j * l.windows.dilation[1]) * l.input_strides[1] +
                      spans[2].first * l.input_strides[2];
      for (int64_t k = 0; k < spans[2].count; ++k) {
        const W value = static_cast<W>(line[k * l.windows.dilation[2] * l.input_strides[2]]);
        if (is_max) {
          result = value > result || value != value ? value : result;
        } else {
          result = static_cast<W>(result + value);
        }
      }
    }
  }
  if (is_max) return T(result);
  int64_t count = 1;
  for (const Span1& span : spans) count *= l.divisor == PoolDivisor::kWithPadding ? span.padded : span.count;
  return T(static_cast<W>(result / static_cast<W>(count)));
}

template <typename T>
void Pool(const PoolLayout& l, const T* input, T* output) {
  RunBlocks((l.images.size + kImagesPerBlock - 1) / kImagesPerBlock, [&](int64_t block) {
    const int64_t end = std::min(l.images.size, (block + 1) * kImagesPerBlock);
    for (int64_t image = block * kImagesPerBlock; image < end; ++image) {
      const T* x = input + PlaceOf(l.images, 0, image).offset;
      T* to = output + PlaceOf(l.images, 1, image).offset;
      for (int64_t a = 0; a < l.positions[0]; ++a) {
        const Span1 first = SpanOf(l, 0, a);
        for (int64_t b = 0; b < l.positions[1]; ++b) {
          const Span1 second = SpanOf(l, 1, b);
          T* line = to + a * l.output_strides[0] + b * l.output_strides[1];
          for (int64_t c = 0; c < l.positions[2]; ++c) {
            line[c * l.output_strides[2]] = PoolOne(l, x, {first, second, SpanOf(l, 2, c)});
          }
        }
      }
    }
  });
}

}  // namespace

absl::Status RunPool(const PoolOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& x = call.inputs[0];
  const absl::StatusOr<Shape> output = PoolOutput(op, x.extents);
  if (!output.ok()) return output.status();
  if (*output != call.output_extents || x.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("pool: ", ToText(*output), " to ", ToText(call.output_extents)));
  }
  if (NumElements(*output) == 0) return absl::OkStatus();
  const size_t dims = op.windows.dims();
  if (dims > kMaxWindowDims) return RunEachOfSingleElements(op, op.kernel, call, RunPool);
  static const uint64_t kZero = 0;
  const auto leading = static_cast<ptrdiff_t>(x.extents.size() - dims);
  const Strides strides = x.is_zero ? Strides(x.extents.size(), 0) : x.strides;
  const PoolLayout l{.images = Coalesce(Shape(x.extents.begin(), x.extents.begin() + leading),
                                        {Strides(strides.begin(), strides.begin() + leading),
                                         Strides(call.output_strides.begin(), call.output_strides.begin() + leading)}),
                     .windows = ToThree(op.windows),
                     .extents = LastThree(x.extents, dims, 1),
                     .kernel = LastThree(op.kernel, dims, 1),
                     .positions = LastThree(*output, dims, 1),
                     .input_strides = LastThree(strides, dims, 0),
                     .output_strides = LastThree(call.output_strides, dims, 0),
                     .kind = op.kind,
                     .divisor = op.divisor};
  const bool is_known = VisitElement(call.output_dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement> || scalar::kIsComplex<T>) {
      return false;
    } else {
      Pool<T>(l, static_cast<const T*>(x.is_zero ? static_cast<const void*>(&kZero) : x.data),
              static_cast<T*>(call.output));
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("pool", call.output_dtype);
}

}  // namespace tessera::cpu
