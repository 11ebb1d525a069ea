// Convolutions: a block of the output's positions at a time, whose windows are copied beside each other (im2col) and
// multiplied with the weight by BLAS; integers by loops. A block's windows stay in the cache, and blocks, which are cut
// by extents alone, are divided among the compute threads. f16 and bf16 are multiplied in f32 and rounded once.

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include <cblas.h>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/windows3.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"

namespace tessera::cpu {
namespace {

// Elements of the windows of a block, about; and the fewest positions that a product is worth.
constexpr int64_t kBlockWindowElements = int64_t{1} << 17;  // docs/limits.md: block_window_elements
constexpr int64_t kMinBlockPositions = 32;

// c = a b of dense row-major matrices [m, k] and [k, n].
void Multiply(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), 1.0f, a, static_cast<blasint>(k), b, static_cast<blasint>(n), 0.0f, c,
              static_cast<blasint>(n));
}
void Multiply(int64_t m, int64_t n, int64_t k, const double* a, const double* b, double* c) {
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(m), static_cast<blasint>(n),
              static_cast<blasint>(k), 1.0, a, static_cast<blasint>(k), b, static_cast<blasint>(n), 0.0, c,
              static_cast<blasint>(n));
}
template <typename W>
void Multiply(int64_t m, int64_t n, int64_t k, const W* a, const W* b, W* c) {
  for (int64_t i = 0; i < m; ++i) {
    std::fill_n(c + i * n, n, W{0});
    for (int64_t l = 0; l < k; ++l) {
      const W factor = a[i * k + l];
      for (int64_t j = 0; j < n; ++j) c[i * n + j] = scalar::Add(c[i * n + j], scalar::Multiply(factor, b[l * n + j]));
    }
  }
}

// x [N, C, X0, X1, X2], weight [O, C / groups, K0, K1, K2], output [N, O, P0, P1, P2], as they lie.
struct ConvLayout {
  Window3 windows;
  int64_t groups = 1, batch = 0, channels = 0, outputs = 0;  // channels and outputs of one group
  std::array<int64_t, 3> x_extents, kernel, positions;
  std::array<int64_t, 5> x_strides, output_strides;
  int64_t window() const { return channels * kernel[0] * kernel[1] * kernel[2]; }
  int64_t position_count() const { return positions[0] * positions[1] * positions[2]; }
  int64_t block_positions() const {
    const int64_t wanted = std::max(kMinBlockPositions, kBlockWindowElements / std::max<int64_t>(1, window()));
    return std::min(position_count(), wanted);
  }
};

std::array<int64_t, 5> FiveStrides(absl::Span<const int64_t> strides, size_t dims) {
  const std::array<int64_t, 3> last = LastThree(strides, dims, 0);
  return {strides[0], strides[1], last[0], last[1], last[2]};
}

// The windows of positions [start, start + count) of one image and group: [window, count].
template <typename T, typename W>
void CopyWindows(const ConvLayout& l, const T* x, int64_t start, int64_t count, W* to) {
  const auto& [p0, p1, p2] = l.positions;
  for (int64_t c = 0; c < l.channels; ++c) {
    for (int64_t k = 0; k < l.kernel[0] * l.kernel[1] * l.kernel[2]; ++k, to += count) {
      const std::array<int64_t, 3> at = {k / (l.kernel[1] * l.kernel[2]), k / l.kernel[2] % l.kernel[1],
                                         k % l.kernel[2]};
      // The place of x's element for position 0 of each dim.
      std::array<int64_t, 3> first;
      for (size_t d = 0; d < 3; ++d) first[d] = at[d] * l.windows.dilation[d] - l.windows.padding[d];
      for (int64_t seen = 0; seen < count;) {
        const int64_t flat = start + seen, row = flat / p2, from = flat % p2;
        const int64_t n = std::min(count - seen, p2 - from);
        const int64_t i0 = first[0] + row / p1 * l.windows.stride[0], i1 = first[1] + row % p1 * l.windows.stride[1];
        const bool inside = i0 >= 0 && i0 < l.x_extents[0] && i1 >= 0 && i1 < l.x_extents[1];
        const T* line = x + c * l.x_strides[1] + (inside ? i0 * l.x_strides[2] + i1 * l.x_strides[3] : 0);
        for (int64_t j = 0; j < n; ++j) {
          const int64_t i2 = first[2] + (from + j) * l.windows.stride[2];
          to[seen + j] = inside && i2 >= 0 && i2 < l.x_extents[2] ? static_cast<W>(line[i2 * l.x_strides[4]]) : W{0};
        }
        seen += n;
      }
    }
  }
}

template <typename T>
void Convolve(const ConvLayout& l, const T* x, const KernelInput& weight, T* output) {
  using W = std::conditional_t<kIsHalf<T>, float, T>;
  static const uint64_t kZero = 0;
  const int64_t window = l.window(), positions = l.position_count(), size = l.block_positions();
  // The weight [O, window], densely.
  std::vector<W> dense(static_cast<size_t>(l.groups * l.outputs * window));
  const T* weights = static_cast<const T*>(weight.is_zero ? static_cast<const void*>(&kZero) : weight.data);
  const Strides strides = weight.is_zero ? Strides(weight.extents.size(), 0) : weight.strides;
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
    CopyWindows(l, x + image * l.x_strides[0] + group * l.channels * l.x_strides[1], start, count, windows.data());
    if (window > 0) {
      Multiply(l.outputs, count, window, dense.data() + group * l.outputs * window, windows.data(), product.data());
    }
    const auto& s = l.output_strides;
    const auto& [p0, p1, p2] = l.positions;
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
  static const uint64_t kZero = 0;
  const Strides x_strides = x.is_zero ? Strides(x.extents.size(), 0) : x.strides;
  const ConvLayout l{.windows = ToThree(op.windows),
                     .groups = op.groups,
                     .batch = x.extents[0],
                     .channels = x.extents[1] / op.groups,
                     .outputs = weight.extents[0] / op.groups,
                     .x_extents = LastThree(x.extents, dims, 1),
                     .kernel = LastThree(weight.extents, dims, 1),
                     .positions = LastThree(*output, dims, 1),
                     .x_strides = FiveStrides(x_strides, dims),
                     .output_strides = FiveStrides(call.output_strides, dims)};
  const bool is_known = VisitElement(call.output_dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement> || scalar::kIsComplex<T>) {
      return false;
    } else {
      Convolve<T>(l, static_cast<const T*>(x.is_zero ? static_cast<const void*>(&kZero) : x.data), weight,
                  static_cast<T*>(call.output));
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("conv", call.output_dtype);
}

}  // namespace tessera::cpu
