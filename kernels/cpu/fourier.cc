// Fourier transforms of lines along a dim, in f64, by kissfft as Eigen has it. A length with a large prime factor is a
// product of polynomials of another length (Bluestein, "A linear filtering approach to the computation of the discrete
// Fourier transform", 1970), so that none takes n^2 steps. Lines are divided among the compute threads.

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <string>
#include <type_traits>
#include <vector>

#include <eigen3/unsupported/Eigen/FFT>
#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided.h"
#include "kernels/fourier_scale.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

using Complex = std::complex<double>;
using Engine = Eigen::FFT<double>;

constexpr int64_t kLargestRadix = 7;
constexpr int64_t kElementsPerBlock = 1 << 14;

bool HasSmallFactors(int64_t n) {
  for (int64_t p = 2; p <= kLargestRadix; ++p) {
    while (n % p == 0) n /= p;
  }
  return n == 1;
}

// exp(pi i k^2 / n), the angle reduced before it is rounded.
std::vector<Complex> Chirp(int64_t n) {
  std::vector<Complex> chirp(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const double turn = static_cast<double>(k * k % (2 * n)) / static_cast<double>(n);
    chirp[static_cast<size_t>(k)] = std::polar(1.0, std::numbers::pi * turn);
  }
  return chirp;
}

// Forward transforms of one length, for one thread.
class Transform {
 public:
  explicit Transform(int64_t n) : n_(n), engine_(Engine::impl_type(), Engine::Unscaled) {
    if (HasSmallFactors(n)) return;
    padded_ = 1;
    while (padded_ < 2 * n - 1) padded_ *= 2;
    chirp_ = Chirp(n);
    std::vector<Complex> filter(static_cast<size_t>(padded_));
    for (int64_t k = 0; k < n; ++k) {
      filter[static_cast<size_t>(k)] = chirp_[static_cast<size_t>(k)];
      if (k > 0) filter[static_cast<size_t>(padded_ - k)] = chirp_[static_cast<size_t>(k)];
    }
    filter_.resize(filter.size());
    product_.resize(filter.size());
    signal_.resize(filter.size());
    engine_.fwd(filter_.data(), filter.data(), static_cast<Engine::Index>(padded_));
  }

  // `to` has n elements, and is other memory.
  void Run(const Complex* from, Complex* to) {
    if (n_ == 1) {  // kissfft has no stage for it
      *to = *from;
    } else if (padded_ == 0) {
      engine_.fwd(to, from, static_cast<Engine::Index>(n_));
    } else {
      Convolve(from, to);
    }
  }

 private:
  void Convolve(const Complex* from, Complex* to) {
    std::fill(signal_.begin(), signal_.end(), Complex{});
    for (size_t k = 0; k < chirp_.size(); ++k) signal_[k] = from[k] * std::conj(chirp_[k]);
    engine_.fwd(product_.data(), signal_.data(), static_cast<Engine::Index>(padded_));
    for (size_t k = 0; k < product_.size(); ++k) product_[k] *= filter_[k];
    engine_.inv(signal_.data(), product_.data(), static_cast<Engine::Index>(padded_));
    const double scale = 1 / static_cast<double>(padded_);
    for (size_t k = 0; k < chirp_.size(); ++k) to[k] = signal_[k] * std::conj(chirp_[k]) * scale;
  }

  int64_t n_;
  int64_t padded_ = 0;  // of a product; 0 where none is needed
  Engine engine_;
  std::vector<Complex> chirp_, filter_, product_, signal_;
};

struct FourierLayout {
  LoopNest lines;  // operands: input, output
  int64_t extent = 0, input_stride = 0, output_stride = 0;
};

// A line's elements as a forward transform takes them: of backward ones conjugated, of half a spectrum continued.
template <typename T>
void Gather(const FourierOp& op, const FourierLayout& l, const T* line, std::vector<Complex>& to) {
  const int64_t taken = std::min(l.extent, op.taken());
  const bool is_backward = op.kind == FourierKind::kBackward || op.kind == FourierKind::kRealBackward;
  std::fill(to.begin(), to.end(), Complex{});
  for (int64_t i = 0; i < taken; ++i) {
    const T element = line[i * l.input_stride];
    Complex value;
    if constexpr (scalar::kIsComplex<T>) {
      value = Complex(element);
    } else {
      value = Complex(static_cast<double>(static_cast<std::conditional_t<kIsHalf<T>, float, T>>(element)));
    }
    to[static_cast<size_t>(i)] = is_backward ? std::conj(value) : value;
  }
  if (op.kind != FourierKind::kRealBackward) return;
  // A real signal's first element, and the middle one of an even length, are real.
  const size_t n = static_cast<size_t>(op.length);
  to[0] = to[0].real();
  if (n % 2 == 0) to[n / 2] = to[n / 2].real();
  for (size_t i = n / 2 + 1; i < n; ++i) to[i] = std::conj(to[n - i]);
}

template <typename T, typename Out>
void RunLines(const FourierOp& op, const FourierLayout& l, const T* input, Out* output) {
  const int64_t per_block = std::max<int64_t>(1, kElementsPerBlock / op.length);
  const double scale = ScaleOf(op);
  RunBlocks((l.lines.size + per_block - 1) / per_block, [&](int64_t block) {
    Transform transform(op.length);
    std::vector<Complex> from(static_cast<size_t>(op.length)), to(static_cast<size_t>(op.length));
    const int64_t end = std::min(l.lines.size, (block + 1) * per_block);
    for (int64_t k = block * per_block; k < end; ++k) {
      Gather(op, l, input + PlaceOf(l.lines, 0, k).offset, from);
      transform.Run(from.data(), to.data());
      Out* line = output + PlaceOf(l.lines, 1, k).offset;
      for (int64_t i = 0; i < op.given(); ++i) {
        const Complex value = to[static_cast<size_t>(i)] * scale;
        Out& place = line[i * l.output_stride];
        if constexpr (scalar::kIsComplex<Out>) {
          place = Out(op.kind == FourierKind::kBackward ? std::conj(value) : value);
        } else {
          place = static_cast<Out>(value.real());
        }
      }
    }
  });
}

}  // namespace

absl::Status RunFourier(const FourierOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  const absl::StatusOr<DType> result = FourierResult(op.kind, input.dtype);
  if (!result.ok()) return result.status();
  Shape wanted = input.extents;
  if (dim < wanted.size()) wanted[dim] = op.given();
  if (dim >= rank || wanted != call.output_extents || *result != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("fourier: along dim ", op.dim, " of ", ToText(input.extents), " to ",
                                                   ToText(call.output_extents)));
  }
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  const Strides strides = input.is_zero ? Strides(rank, 0) : input.strides;
  Shape lines = call.output_extents;
  lines[dim] = 1;
  const FourierLayout l{.lines = Coalesce(lines, {strides, call.output_strides}),
                        .extent = input.extents[dim],
                        .input_stride = strides[dim],
                        .output_stride = call.output_strides[dim]};
  static const Complex kZero;
  const void* data = input.is_zero ? static_cast<const void*>(&kZero) : input.data;
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T> || kIsHalf<T> || std::is_floating_point_v<T>) {
      using Real =
          std::conditional_t<std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>, double, float>;
      if (op.kind == FourierKind::kRealBackward) {
        RunLines(op, l, static_cast<const T*>(data), static_cast<Real*>(call.output));
      } else {
        RunLines(op, l, static_cast<const T*>(data), static_cast<std::complex<Real>*>(call.output));
      }
      return true;
    } else {
      return false;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("fourier", input.dtype);
}

}  // namespace tessera::cpu
