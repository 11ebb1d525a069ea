// Gradients of convolutions, by products of matrices as the convolutions themselves (window_products.h).
//
// The gradient of x: elements of x that lie a stride apart see the result's gradient through the same elements of the
// weight. Such elements are a *phase*: of stride 2 and a kernel of 3, the even ones see elements 0 and 2 of the weight,
// the odd ones element 1. A phase is a convolution of stride 1 of the gradient with its part of the weight, so nothing
// is added up in memory, and no zero is multiplied. Phases that see the same elements of the gradient are one product:
// with a kernel of 2 and stride 2 all of them.
//
// The gradient of the weight: the products of blocks of the gradient with the windows of x there, added up. Parts of
// the weight, and of the batch, are added up apart and then together, cut by extents alone.

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/window_products.h"
#include "kernels/cpu/windows3.h"
#include "schemas/ops/scalar_functions.h"

namespace tessera::cpu {
namespace {

// About so many columns of the weight's gradient, [O, columns], are added up together; and into how many parts it is
// cut at least, over columns or the batch, if it is large enough.
constexpr int64_t kGradientColumns = 256;  // docs/limits.md: conv_gradient_columns
constexpr int64_t kGradientParts = 16;     // docs/limits.md: conv_gradient_parts
// Elements of one product for the gradient of x, about.
constexpr int64_t kBlockProductElements = int64_t{1} << 19;  // docs/limits.md: block_product_elements

using Five = std::array<int64_t, 5>;

// gradient [N, O, P0, P1, P2], x [N, C, X0, X1, X2], weight [O, C / groups, K0, K1, K2].
struct Geometry {
  Window3 windows;
  int64_t groups = 1, batch = 0, outputs = 0, channels = 0;  // outputs and channels of one group
  std::array<int64_t, 3> positions, x, kernel;
  Five gradient_strides, x_strides, weight_strides;
};

// The elements first, first + stride, ... of x in one dim, for each of `firsts`: they see the same elements of the
// gradient, by its taps. of_kernel: the kernel's element of each tap, by first.
struct Phases {
  std::vector<int64_t> firsts;
  int64_t count = 0;
  Taps taps;
  std::vector<std::vector<int64_t>> of_kernel;
};

std::vector<Phases> PhasesOf(const Geometry& g, size_t dim) {
  const int64_t stride = g.windows.stride[dim], padding = g.windows.padding[dim], dilation = g.windows.dilation[dim];
  // By taps and count: those that see alike together.
  std::map<std::pair<std::vector<int64_t>, int64_t>, Phases> alike;
  std::map<int64_t, std::pair<std::vector<int64_t>, std::vector<int64_t>>> seen;  // offsets and kernel's, by first
  for (int64_t k = 0; k < g.kernel[dim]; ++k) {
    // The result's element at p has x's element p * stride + shift.
    const int64_t shift = k * dilation - padding, first = (shift % stride + stride) % stride;
    auto& [offsets, of_kernel] = seen[first];
    offsets.push_back((first - shift) / stride);
    of_kernel.push_back(k);
  }
  for (int64_t first = 0; first < std::min(stride, g.x[dim]); ++first) {
    const auto found = seen.find(first);
    const auto& [offsets, of_kernel] = found == seen.end() ? decltype(seen)::mapped_type() : found->second;
    const int64_t count = (g.x[dim] - first + stride - 1) / stride;
    Phases& phases = alike[{offsets, count}];
    phases.count = count;
    phases.taps.offsets = offsets;
    phases.firsts.push_back(first);
    phases.of_kernel.push_back(of_kernel);
  }
  std::vector<Phases> all;
  for (auto& [key, phases] : alike) all.push_back(std::move(phases));
  return all;
}

using ThreePhases = std::array<const Phases*, 3>;

int64_t MembersOf(const ThreePhases& phases) {
  int64_t members = 1;
  for (const Phases* of_dim : phases) members *= static_cast<int64_t>(of_dim->firsts.size());
  return members;
}
// Which phase of each dim a member is.
std::array<size_t, 3> MemberAt(const ThreePhases& phases, int64_t member) {
  std::array<size_t, 3> at;
  for (size_t d = 3; d-- > 0;) {
    const auto size = static_cast<int64_t>(phases[d]->firsts.size());
    at[d] = static_cast<size_t>(member % size);
    member /= size;
  }
  return at;
}

// The weight's part in the phases: of each group [C / groups, members, O / groups * taps].
template <typename T, typename W>
std::vector<W> PartOfWeight(const Geometry& g, const ThreePhases& phases, const T* weight) {
  const int64_t taps = phases[0]->taps.size() * phases[1]->taps.size() * phases[2]->taps.size();
  const int64_t members = MembersOf(phases);
  std::vector<W> part(static_cast<size_t>(g.groups * g.channels * members * g.outputs * taps));
  const Five& s = g.weight_strides;
  RunBlocks(g.groups * g.channels, [&](int64_t channel) {
    W* to = part.data() + channel * members * g.outputs * taps;
    for (int64_t member = 0; member < members; ++member) {
      const std::array<size_t, 3> at = MemberAt(phases, member);
      const T* first = weight + channel / g.channels * g.outputs * s[0] + channel % g.channels * s[1];
      for (int64_t o = 0; o < g.outputs; ++o) {
        for (const int64_t k0 : phases[0]->of_kernel[at[0]]) {
          for (const int64_t k1 : phases[1]->of_kernel[at[1]]) {
            for (const int64_t k2 : phases[2]->of_kernel[at[2]]) {
              *to++ = static_cast<W>(first[o * s[0] + k0 * s[2] + k1 * s[3] + k2 * s[4]]);
            }
          }
        }
      }
    }
  });
  return part;
}

// Elements [start, start + count) of a phase of one channel, whose first element is at `to`.
template <typename T, typename W>
void StorePhase(const Geometry& g, const std::array<int64_t, 3>& extents, int64_t start, int64_t count, const W* from,
                T* to) {
  const Five& s = g.x_strides;
  const auto& [p0, p1, p2] = extents;
  const int64_t apart = g.windows.stride[2] * s[4];
  for (int64_t j = 0; j < count;) {
    const int64_t flat = start + j, column = flat % p2, n = std::min(count - j, p2 - column);
    T* line = to + flat / (p1 * p2) * g.windows.stride[0] * s[2] + flat / p2 % p1 * g.windows.stride[1] * s[3] +
              column * apart;
    for (int64_t i = 0; i < n; ++i) line[i * apart] = static_cast<T>(from[j + i]);
    j += n;
  }
}

template <typename T>
void RunPhases(const Geometry& g, const ThreePhases& phases, const T* gradient, const T* weight, T* output) {
  using W = MultipliedIn<T>;
  WindowReader reader{.channels = g.outputs, .extents = g.positions, .strides = g.gradient_strides};
  for (size_t d = 0; d < 3; ++d) {
    reader.taps[d] = phases[d]->taps;
    reader.positions[d] = phases[d]->count;
  }
  const int64_t members = MembersOf(phases), rows = g.channels * members;
  const int64_t window = reader.window(), positions = reader.position_count();
  const int64_t size = std::min(reader.block_positions(), std::max(kMinBlockPositions, kBlockProductElements / rows));
  const std::vector<W> part = PartOfWeight<T, W>(g, phases, weight);
  const int64_t blocks = (positions + size - 1) / size;
  RunBlocks(g.batch * g.groups * blocks, [&](int64_t block) {
    const int64_t start = block % blocks * size, count = std::min(size, positions - start);
    const int64_t group = block / blocks % g.groups, image = block / blocks / g.groups;
    std::vector<W> windows(static_cast<size_t>(window * count)), product(static_cast<size_t>(rows * count));
    if (window > 0) {
      CopyWindows(reader, gradient + image * reader.strides[0] + group * g.outputs * reader.strides[1], start, count,
                  windows.data());
      MultiplyDense(rows, count, window, part.data() + group * rows * window, windows.data(), SecondFactor::kAsIs,
                    Sum::kNew, product.data());
    }
    for (int64_t row = 0; row < rows; ++row) {
      const std::array<size_t, 3> at = MemberAt(phases, row % members);
      T* to = output + image * g.x_strides[0] + (group * g.channels + row / members) * g.x_strides[1];
      for (size_t d = 0; d < 3; ++d) to += phases[d]->firsts[at[d]] * g.x_strides[d + 2];
      StorePhase(g, reader.positions, start, count, product.data() + row * count, to);
    }
  });
}

template <typename T>
void RunOfX(const Geometry& g, const T* gradient, const T* weight, T* output) {
  const std::vector<Phases> of_dims[] = {PhasesOf(g, 0), PhasesOf(g, 1), PhasesOf(g, 2)};
  for (const Phases& p0 : of_dims[0]) {
    for (const Phases& p1 : of_dims[1]) {
      for (const Phases& p2 : of_dims[2]) RunPhases<T>(g, {&p0, &p1, &p2}, gradient, weight, output);
    }
  }
}

template <typename T>
void RunOfWeight(const Geometry& g, const T* gradient, const T* x, T* output) {
  using W = MultipliedIn<T>;
  WindowReader reader{
      .taps = TapsOf(g.windows, g.kernel), .extents = g.x, .positions = g.positions, .strides = g.x_strides};
  WindowReader of_gradient{
      .channels = g.outputs, .extents = g.positions, .positions = g.positions, .strides = g.gradient_strides};
  const int64_t kernel = g.kernel[0] * g.kernel[1] * g.kernel[2];
  // Channels are cut into slices, each of which is a task of its own for a part of the batch.
  const int64_t per_slice = std::clamp(kGradientColumns / kernel, int64_t{1}, g.channels);
  const int64_t slices = (g.channels + per_slice - 1) / per_slice;
  reader.channels = per_slice;
  const int64_t positions = reader.position_count(), size = reader.block_positions();
  const int64_t per_image = (positions + size - 1) / size, blocks = g.batch * per_image;
  const int64_t parts = std::clamp(kGradientParts / (g.groups * slices), int64_t{1}, std::max<int64_t>(1, blocks));
  const int64_t columns = per_slice * kernel;
  std::vector<std::vector<W>> sums(static_cast<size_t>(g.groups * slices * parts));
  RunBlocks(g.groups * slices * parts, [&](int64_t task) {
    const int64_t part = task % parts, slice = task / parts % slices, group = task / parts / slices;
    const int64_t first_channel = slice * per_slice;
    WindowReader own = reader;
    own.channels = std::min(per_slice, g.channels - first_channel);
    std::vector<W>& sum = sums[static_cast<size_t>(task)];
    sum.assign(static_cast<size_t>(g.outputs * columns), W{0});
    std::vector<W> windows(static_cast<size_t>(own.window() * size)), of_block(static_cast<size_t>(g.outputs * size));
    for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block) {
      const int64_t image = block / per_image, start = block % per_image * size;
      const int64_t count = std::min(size, positions - start);
      CopyWindows(own, x + image * g.x_strides[0] + (group * g.channels + first_channel) * g.x_strides[1], start, count,
                  windows.data());
      CopyWindows(of_gradient, gradient + image * g.gradient_strides[0] + group * g.outputs * g.gradient_strides[1],
                  start, count, of_block.data());
      MultiplyDense(g.outputs, own.window(), count, of_block.data(), windows.data(), SecondFactor::kTransposed,
                    Sum::kMore, sum.data());
    }
  });
  RunBlocks(g.groups * slices, [&](int64_t at) {
    const int64_t slice = at % slices, group = at / slices, first_channel = slice * per_slice;
    const int64_t width = std::min(per_slice, g.channels - first_channel) * kernel;
    const Five& s = g.weight_strides;
    for (int64_t o = 0; o < g.outputs; ++o) {
      for (int64_t column = 0; column < width; ++column) {
        W sum = sums[static_cast<size_t>(at * parts)][static_cast<size_t>(o * width + column)];
        for (int64_t part = 1; part < parts; ++part) {
          sum = scalar::Add(sum, sums[static_cast<size_t>(at * parts + part)][static_cast<size_t>(o * width + column)]);
        }
        const int64_t k = column % kernel, k1 = k / g.kernel[2] % g.kernel[1];
        output[(group * g.outputs + o) * s[0] + (first_channel + column / kernel) * s[1] +
               k / (g.kernel[1] * g.kernel[2]) * s[2] + k1 * s[3] + k % g.kernel[2] * s[4]] = static_cast<T>(sum);
      }
    }
  });
}

}  // namespace

absl::Status RunConvGradient(const ConvGradientOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput &gradient = call.inputs[0], &other = call.inputs[1];
  const absl::Status fits = CheckConvGradientOf(op, gradient.extents, other.extents, call.output_extents);
  if (!fits.ok()) return fits;
  if (gradient.dtype != call.output_dtype || other.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("conv_gradient: operands are of another dtype than ", std::string(ToText(call.output_dtype))));
  }
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const bool is_of_x = op.of == ConvOperand::kX;
  const size_t dims = op.windows.dims();
  const Shape& x = is_of_x ? call.output_extents : other.extents;
  const Shape& weight = is_of_x ? other.extents : call.output_extents;
  const Five of_output = FiveStrides(call.output_strides, dims), of_other = FiveStrides(StridesOrZeros(other), dims);
  const Geometry g{.windows = ToThree(op.windows),
                   .groups = op.groups,
                   .batch = x[0],
                   .outputs = weight[0] / op.groups,
                   .channels = weight[1],
                   .positions = LastThree(gradient.extents, dims, 1),
                   .x = LastThree(x, dims, 1),
                   .kernel = LastThree(weight, dims, 1),
                   .gradient_strides = FiveStrides(StridesOrZeros(gradient), dims),
                   .x_strides = is_of_x ? of_output : of_other,
                   .weight_strides = is_of_x ? of_other : of_output};
  const bool is_known = VisitElement(call.output_dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement> || scalar::kIsComplex<T>) {
      return false;
    } else {
      T* output = static_cast<T*>(call.output);
      if (is_of_x) {
        RunOfX<T>(g, ElementsOf<T>(gradient), ElementsOf<T>(other), output);
      } else {
        RunOfWeight<T>(g, ElementsOf<T>(gradient), ElementsOf<T>(other), output);
      }
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("conv_gradient", call.output_dtype);
}

}  // namespace tessera::cpu
