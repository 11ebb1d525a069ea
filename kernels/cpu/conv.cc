// Convolutions: a block of the output's positions at a time, whose windows are copied beside each other (im2col) and
// multiplied with the weight by BLAS; integers by loops. A block's windows stay in the cache, and blocks, which are cut
// by extents alone, are divided among the compute threads. f16 and bf16 are multiplied in f32 and rounded once.

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/window_products.h"
#include "kernels/cpu/windows3.h"

namespace tessera::cpu {
namespace {

// x [N, C, X0, X1, X2], weight [O, C / groups, K0, K1, K2], output [N, O, P0, P1, P2], as they lie.
struct ConvLayout {
  WindowReader windows;                        // of x
  int64_t groups = 1, batch = 0, outputs = 0;  // outputs of one group
  std::array<int64_t, 5> output_strides;
};

template <typename T>
void Convolve(const ConvLayout& l, const T* x, const KernelInput& weight, T* output) {
  using W = MultipliedIn<T>;
  const WindowReader& reader = l.windows;
  const int64_t window = reader.window(), positions = reader.position_count(), size = reader.block_positions();
  // The weight [O, window], densely.
  std::vector<W> dense(static_cast<size_t>(l.groups * l.outputs * window));
  const T* weights = ElementsOf<T>(weight);
  const Strides strides = StridesOrZeros(weight);
  Shape index(weight.extents.size(), 0);
  for (W& element : dense) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
    element = static_cast<W>(weights[offset]);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < weight.extents[d]) break;
      index[d] = 0;
    }
  }
  const int64_t blocks = (positions + size - 1) / size;
  RunBlocks(l.batch * l.groups * blocks, [&](int64_t block) {
    const int64_t start = block % blocks * size, count = std::min(size, positions - start);
    const int64_t group = block / blocks % l.groups, image = block / blocks / l.groups;
    std::vector<W> windows(static_cast<size_t>(window * count)), product(static_cast<size_t>(l.outputs * count));
    CopyWindows(reader, x + image * reader.strides[0] + group * reader.channels * reader.strides[1], start, count,
                windows.data());
    if (window > 0) {
      MultiplyDense(l.outputs, count, window, dense.data() + group * l.outputs * window, windows.data(),
                    SecondFactor::kAsIs, Sum::kNew, product.data());
    }
    const auto& s = l.output_strides;
    const auto& [p0, p1, p2] = reader.positions;
    for (int64_t o = 0; o < l.outputs; ++o) {
      T* to = output + image * s[0] + (group * l.outputs + o) * s[1];
      for (int64_t j = 0; j < count; ++j) {
        const int64_t flat = start + j;
        to[flat / (p1 * p2) * s[2] + flat / p2 % p1 * s[3] + flat % p2 * s[4]] =
            T(product[static_cast<size_t>(o * count + j)]);
      }
    }
  });
}

}  // namespace

absl::Status RunConv(const ConvOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput &x = call.inputs[0], &weight = call.inputs[1];
  const absl::StatusOr<Shape> output = ConvOutput(op, x.extents, weight.extents);
  if (!output.ok()) return output.status();
  if (*output != call.output_extents || x.dtype != call.output_dtype || weight.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("conv: ", ToText(*output), " to ", ToText(call.output_extents)));
  }
  if (NumElements(*output) == 0) return absl::OkStatus();
  const size_t dims = op.windows.dims();
  if (dims > kMaxWindowDims) {
    return RunEachOfSingleElements(op, absl::MakeConstSpan(weight.extents).subspan(2), call, RunConv);
  }
  const ConvLayout l{.windows = {.taps = TapsOf(ToThree(op.windows), LastThree(weight.extents, dims, 1)),
                                 .channels = x.extents[1] / op.groups,
                                 .extents = LastThree(x.extents, dims, 1),
                                 .positions = LastThree(*output, dims, 1),
                                 .strides = FiveStrides(StridesOrZeros(x), dims)},
                     .groups = op.groups,
                     .batch = x.extents[0],
                     .outputs = weight.extents[0] / op.groups,
                     .output_strides = FiveStrides(call.output_strides, dims)};
  const bool is_known = VisitElement(call.output_dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement> || scalar::kIsComplex<T>) {
      return false;
    } else {
      Convolve<T>(l, ElementsOf<T>(x), weight, static_cast<T*>(call.output));
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("conv", call.output_dtype);
}

}  // namespace tessera::cpu
