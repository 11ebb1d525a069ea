#include "server/plan/reference/interpret_fourier.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>
#include <vector>

namespace tessera {
namespace {

using Complex = std::complex<double>;

Complex ToComplex(const Number& number) {
  return {static_cast<double>(number), Kind(number.dtype()) == DTypeKind::kComplex ? number.value().imaginary : 0};
}
Number ToNumber(const Complex& value) {
  return Number(ScalarValue{.dtype = DType::kC128, .f = value.real(), .i = 0, .imaginary = value.imag()});
}

double DivisorOf(const FourierOp& op) {
  const double n = static_cast<double>(op.length);
  switch (op.scale) {
    case FourierScale::kNone: return 1;
    case FourierScale::kByRoot: return std::sqrt(n);
    case FourierScale::kByLength: return n;
  }
  return 1;
}

}  // namespace

void InterpretFourier(const FourierOp& op, const StridedNumbers& input, const StridedNumbers& output) {
  const size_t dim = static_cast<size_t>(op.dim), n = static_cast<size_t>(op.length);
  const bool is_backward = op.kind == FourierKind::kBackward || op.kind == FourierKind::kRealBackward;
  Shape lines = output.extents;
  lines[dim] = std::min<int64_t>(1, lines[dim]);
  ForEachIndex(lines, [&](const Shape& line) {
    std::vector<Complex> from(n);
    Shape at = line;
    for (int64_t i = 0; i < std::min(input.extents[dim], op.taken()); ++i) {
      at[dim] = i;
      from[static_cast<size_t>(i)] = ToComplex(input.Read(at));
    }
    if (op.kind == FourierKind::kRealBackward) {
      from[0] = from[0].real();
      if (n % 2 == 0) from[n / 2] = from[n / 2].real();
      for (size_t i = n / 2 + 1; i < n; ++i) from[i] = std::conj(from[n - i]);
    }
    for (int64_t k = 0; k < op.given(); ++k) {
      Complex sum;
      for (size_t j = 0; j < n; ++j) {
        const double turn = static_cast<double>(static_cast<int64_t>(j) * k % op.length) / static_cast<double>(n);
        sum += from[j] * std::polar(1.0, (is_backward ? 2 : -2) * std::numbers::pi * turn);
      }
      sum /= DivisorOf(op);
      at[dim] = k;
      output.Write(at, op.kind == FourierKind::kRealBackward ? Number(sum.real()) : ToNumber(sum));
    }
  });
}

}  // namespace tessera
