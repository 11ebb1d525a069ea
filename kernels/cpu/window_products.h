#pragma once

// Windows copied beside each other (im2col), and their products with a matrix by BLAS: what convolutions and their
// gradients are made of. A product is of a block of positions, whose windows stay in the cache.
//
// An element of a window is a *tap*. Position j of a dim sees, by its tap t, the element j * step + offsets[t] of the
// input, and 0 where there is none:
//
//   stride 2, padding 1, kernel 3 of dilation 1:  step 2, offsets {-1, 0, 1}

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/cpu/blas_calls.h"
#include "kernels/cpu/element_types.h"
#include "kernels/cpu/windows3.h"
#include "kernels/kernel.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"
#include "schemas/types/shape.h"

namespace tessera::cpu {

// Elements of the windows of a block, about; and the fewest positions that a product is worth.
inline constexpr int64_t kBlockWindowElements = int64_t{1} << 17;  // docs/limits.md: block_window_elements
inline constexpr int64_t kMinBlockPositions = 32;

// f16 and bf16 are multiplied in f32.
template <typename T>
using MultipliedIn = std::conditional_t<kIsHalf<T>, float, T>;

enum class Sum : uint8_t { kNew, kMore };
enum class SecondFactor : uint8_t { kAsIs, kTransposed };

// c = a b, or c += a b (kMore), of dense row-major matrices: a [m, k], b [k, n], or [n, k] where it is transposed.
template <typename W>
void MultiplyDense(int64_t m, int64_t n, int64_t k, const W* a, const W* b, SecondFactor second, Sum sum, W* c) {
  const bool is_transposed = second == SecondFactor::kTransposed;
  if constexpr (std::is_same_v<W, float> || std::is_same_v<W, double>) {
    const auto columns = static_cast<blasint>(n), terms = static_cast<blasint>(k);
    Gemm(CblasNoTrans, is_transposed ? CblasTrans : CblasNoTrans, m, n, k, a, terms, b, is_transposed ? terms : columns,
         sum == Sum::kMore ? W{1} : W{0}, c, columns);
  } else {
    const int64_t along_k = is_transposed ? 1 : n, along_n = is_transposed ? k : 1;
    for (int64_t i = 0; i < m; ++i) {
      if (sum == Sum::kNew) std::fill_n(c + i * n, n, W{0});
      for (int64_t l = 0; l < k; ++l) {
        const W factor = a[i * k + l];
        for (int64_t j = 0; j < n; ++j) {
          c[i * n + j] = scalar::Add(c[i * n + j], scalar::Multiply(factor, b[l * along_k + j * along_n]));
        }
      }
    }
  }
}

struct Taps {
  int64_t step = 1;
  std::vector<int64_t> offsets = {0};
  int64_t size() const { return static_cast<int64_t>(offsets.size()); }
};
// Taps of a convolution's windows in each dim, of a kernel of these extents.
inline std::array<Taps, 3> TapsOf(const Window3& windows, const std::array<int64_t, 3>& kernel) {
  std::array<Taps, 3> taps;
  for (size_t d = 0; d < 3; ++d) {
    taps[d] = {.step = windows.stride[d], .offsets = {}};
    for (int64_t k = 0; k < kernel[d]; ++k) taps[d].offsets.push_back(k * windows.dilation[d] - windows.padding[d]);
  }
  return taps;
}

// How the windows of an input [batch, channels, X0, X1, X2] lie; channels are those of one group.
struct WindowReader {
  std::array<Taps, 3> taps = {};
  int64_t channels = 0;
  std::array<int64_t, 3> extents = {1, 1, 1}, positions = {1, 1, 1};
  std::array<int64_t, 5> strides = {};

  int64_t window() const { return channels * taps[0].size() * taps[1].size() * taps[2].size(); }
  int64_t position_count() const { return positions[0] * positions[1] * positions[2]; }
  int64_t block_positions() const {
    const int64_t wanted = std::max(kMinBlockPositions, kBlockWindowElements / std::max<int64_t>(1, window()));
    return std::max<int64_t>(1, std::min(position_count(), wanted));
  }
};

// The windows of positions [start, start + count) of one image and group, whose first element x is: [window, count].
template <typename T, typename W>
void CopyWindows(const WindowReader& r, const T* x, int64_t start, int64_t count, W* to) {
  const auto& [p0, p1, p2] = r.positions;
  const int64_t step = r.taps[2].step, stride = r.strides[4];
  for (int64_t c = 0; c < r.channels; ++c) {
    for (const int64_t t0 : r.taps[0].offsets) {
      for (const int64_t t1 : r.taps[1].offsets) {
        for (const int64_t t2 : r.taps[2].offsets) {
          // Positions [low, high) of a line see an element of it.
          const int64_t low = t2 >= 0 ? 0 : (-t2 + step - 1) / step;
          const int64_t high = t2 >= r.extents[2] ? 0 : (r.extents[2] - t2 + step - 1) / step;
          for (int64_t seen = 0; seen < count;) {
            const int64_t flat = start + seen, row = flat / p2, from = flat % p2;
            const int64_t n = std::min(count - seen, p2 - from);
            const int64_t i0 = t0 + row / p1 * r.taps[0].step, i1 = t1 + row % p1 * r.taps[1].step;
            const bool inside = i0 >= 0 && i0 < r.extents[0] && i1 >= 0 && i1 < r.extents[1];
            const int64_t first = inside ? std::clamp(low - from, int64_t{0}, n) : n;
            const int64_t last = std::max(first, std::clamp(high - from, int64_t{0}, n));
            W* const line = to + seen;
            std::fill(line, line + first, W{0});
            if (first < last) {
              const T* source =
                  x + c * r.strides[1] + i0 * r.strides[2] + i1 * r.strides[3] + (t2 + (from + first) * step) * stride;
              for (int64_t j = first; j < last; ++j) line[j] = static_cast<W>(source[(j - first) * step * stride]);
            }
            std::fill(line + last, line + n, W{0});
            seen += n;
          }
          to += count;
        }
      }
    }
  }
}

// An input of zeros has one element, of strides 0.
template <typename T>
const T* ElementsOf(const KernelInput& input) {
  return static_cast<const T*>(input.is_zero ? static_cast<const void*>(&kZeroElement) : input.data);
}
inline Strides StridesOrZeros(const KernelInput& input) {
  return input.is_zero ? Strides(input.extents.size(), 0) : input.strides;
}

}  // namespace tessera::cpu
