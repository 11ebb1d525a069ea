// Fourier transforms of every kind, dtype and layout against their definition.

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

using Complex = std::complex<double>;

Complex NumberAt(const StridedArray& array, int64_t i) {
  const ScalarValue value = array.Get(i);
  return {value.f, IsComplex(value.dtype) ? value.imaginary : 0};
}

// The transform of one line, as fourier_op.h defines it.
std::vector<Complex> Transformed(const FourierOp& op, std::vector<Complex> x) {
  const int64_t n = op.length;
  const bool is_backward = op.kind == FourierKind::kBackward || op.kind == FourierKind::kRealBackward;
  x.resize(static_cast<size_t>(op.taken()));
  if (op.kind == FourierKind::kRealBackward) {
    x[0] = x[0].real();
    if (n % 2 == 0) x[static_cast<size_t>(n / 2)] = x[static_cast<size_t>(n / 2)].real();
    x.resize(static_cast<size_t>(n));
    for (int64_t j = n / 2 + 1; j < n; ++j) x[static_cast<size_t>(j)] = std::conj(x[static_cast<size_t>(n - j)]);
  }
  double divisor = 1;
  if (op.scale == FourierScale::kByRoot) divisor = std::sqrt(static_cast<double>(n));
  if (op.scale == FourierScale::kByLength) divisor = static_cast<double>(n);
  std::vector<Complex> result(static_cast<size_t>(op.given()));
  for (int64_t k = 0; k < op.given(); ++k) {
    for (int64_t j = 0; j < n; ++j) {
      const double angle = 2 * std::numbers::pi * static_cast<double>(j * k % n) / static_cast<double>(n);
      result[static_cast<size_t>(k)] += x[static_cast<size_t>(j)] * std::polar(1.0, is_backward ? angle : -angle);
    }
    result[static_cast<size_t>(k)] /= divisor;
  }
  return result;
}

// Arrays [2, 6, 6, 2], along their second dim or their third.
void ExpectTransforms(const FourierOp& op, const StridedArray& x, StridedArray& out) {
  Box box;
  for (const int64_t extent : out.extents()) box.push_back({0, extent});
  const std::vector<KernelInput> inputs = {x.AsInput()};
  const LocalOp local = op;
  const KernelCall call{.op = &local,
                        .inputs = inputs,
                        .output = out.data(),
                        .output_dtype = out.dtype(),
                        .output_extents = out.extents(),
                        .output_strides = out.strides(),
                        .output_box = box};
  ASSERT_EQ(RunKernel(call), absl::OkStatus());
  EXPECT_TRUE(out.GuardsAreIntact());
  const auto dim = static_cast<size_t>(op.dim);
  int64_t inner = 1;
  for (size_t d = dim + 1; d < x.extents().size(); ++d) inner *= x.extents()[d];
  const int64_t extent = x.extents()[dim];
  const double tolerance = SizeBytes(out.dtype()) / (IsComplex(out.dtype()) ? 2 : 1) == 8 ? 0x1p-46 : 0x1p-18;
  for (int64_t line = 0; line < x.size() / extent; ++line) {
    const int64_t from = line / inner * extent * inner + line % inner,
                  to = line / inner * op.given() * inner + line % inner;
    std::vector<Complex> values;
    for (int64_t i = 0; i < extent; ++i) values.push_back(NumberAt(x, from + i * inner));
    const std::vector<Complex> wanted = Transformed(op, values);
    for (int64_t i = 0; i < op.given(); ++i) {
      const Complex want = wanted[static_cast<size_t>(i)], got = NumberAt(out, to + i * inner);
      ASSERT_LE(std::abs(got - want), tolerance * 20) << ToText(op) << " of " << ToText(x.dtype()) << ", element " << i
                                                      << " of line " << line << ": " << got << ", not " << want;
    }
  }
}

TEST(FourierKinds, AreWhatTheirDefinitionSays) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128}) {
    const bool is_double = dtype == DType::kF64 || dtype == DType::kC128;
    const DType real = is_double ? DType::kF64 : DType::kF32, complex = is_double ? DType::kC128 : DType::kC64;
    for (const Layout layout : kLayouts) {
      StridedArray x(dtype, {2, 6, 6, 2}, layout);
      x.FillSmall(8);
      for (const int64_t dim : {1, 2}) {
        for (const int64_t n : {1, 6, 9}) {
          for (const FourierKind kind :
               {FourierKind::kForward, FourierKind::kBackward, FourierKind::kRealForward, FourierKind::kRealBackward}) {
            if (IsComplex(dtype) && kind == FourierKind::kRealForward) continue;
            for (const FourierScale scale : {FourierScale::kNone, FourierScale::kByLength}) {
              const FourierOp op{.kind = kind, .dim = dim, .length = n, .scale = scale};
              Shape extents = x.extents();
              extents[static_cast<size_t>(dim)] = op.given();
              StridedArray out(kind == FourierKind::kRealBackward ? real : complex, extents, layout);
              ExpectTransforms(op, x, out);
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
