#pragma once

// The functions of complex numbers, as templates over std::complex<float> and std::complex<double>, with the values
// that NumPy gives. schemas/ops/complex_meaning.h says which op has which.
//
// A product is the plain one, (ar br - ai bi, ar bi + ai br), also of infinities; a quotient is Smith's (CACM 5, 1962),
// which neither overflows nor vanishes where the result doesn't; a number over 0 is divided part by part. The second
// product of a sum is rounded with it: g++ 12 makes fused multiply-adds of vectors of complex numbers whatever it is
// told of contraction, and so every target and every place in a row has the bits of the others. The C library's
// functions (cexp, clog, csqrt, casin, ...) have the special values of C99's Annex G, as the array API asks for.
//
//   Divide({1, 2}, {0, 0}) is (inf, inf);  Sign({3, 4}) is (0.6, 0.8);  Power({0, 0}, {-1, 0}) is (nan, nan)

#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

namespace tessera::scalar {

template <typename C>
inline constexpr bool kIsComplex = std::is_same_v<C, std::complex<float>> || std::is_same_v<C, std::complex<double>>;
template <typename C>
using PartOf = typename C::value_type;

template <typename P>
inline std::complex<P> ComplexAdd(std::complex<P> a, std::complex<P> b) {
  return {a.real() + b.real(), a.imag() + b.imag()};
}
template <typename P>
inline std::complex<P> ComplexSubtract(std::complex<P> a, std::complex<P> b) {
  return {a.real() - b.real(), a.imag() - b.imag()};
}
template <typename P>
inline std::complex<P> ComplexMultiply(std::complex<P> a, std::complex<P> b) {
  return {std::fma(a.real(), b.real(), -(a.imag() * b.imag())), std::fma(a.real(), b.imag(), a.imag() * b.real())};
}
template <typename P>
inline std::complex<P> ComplexDivide(std::complex<P> a, std::complex<P> b) {
  const P real_size = std::fabs(b.real()), imag_size = std::fabs(b.imag());
  if (real_size >= imag_size) {
    if (real_size == 0 && imag_size == 0) return {a.real() / real_size, a.imag() / real_size};
    const P ratio = b.imag() / b.real(), scale = P{1} / std::fma(b.imag(), ratio, b.real());
    return {std::fma(a.imag(), ratio, a.real()) * scale, std::fma(-a.real(), ratio, a.imag()) * scale};
  }
  const P ratio = b.real() / b.imag(), scale = P{1} / std::fma(b.real(), ratio, b.imag());
  return {std::fma(a.real(), ratio, a.imag()) * scale, std::fma(a.imag(), ratio, -a.real()) * scale};
}
template <typename P>
inline P ComplexAbsolute(std::complex<P> a) {
  return std::hypot(a.real(), a.imag());
}
// a / |a|, and 0 of 0. A number with one infinite part has that part's direction; one with two has none.
template <typename P>
inline std::complex<P> ComplexSign(std::complex<P> a) {
  constexpr P kNan = std::numeric_limits<P>::quiet_NaN();
  const P size = ComplexAbsolute(a);
  if (size == 0) return {0, 0};
  const bool is_real_infinite = std::isinf(a.real()), is_imag_infinite = std::isinf(a.imag());
  if (size != size || (is_real_infinite && is_imag_infinite)) return {kNan, kNan};
  if (is_real_infinite) return {a.real() > 0 ? P{1} : P{-1}, 0};
  if (is_imag_infinite) return {0, a.imag() > 0 ? P{1} : P{-1}};
  return {a.real() / size, a.imag() / size};
}
// Each part times a real number.
template <typename P>
inline std::complex<P> ComplexScale(std::complex<P> a, P factor) {
  return {a.real() * factor, a.imag() * factor};
}
template <typename P>
inline std::complex<P> ComplexLog1p(std::complex<P> a) {
  const P real = a.real() + 1;
  return {std::log(std::hypot(real, a.imag())), std::atan2(a.imag(), real)};
}
template <typename P>
inline std::complex<P> ComplexExpm1(std::complex<P> a) {
  const P half_sine = std::sin(a.imag() / 2);
  return {std::expm1(a.real()) * std::cos(a.imag()) - 2 * half_sine * half_sine,
          std::sin(a.imag()) * std::exp(a.real())};
}
// Halves to even, part by part.
template <typename P>
inline std::complex<P> ComplexRound(std::complex<P> a) {
  return {std::rint(a.real()), std::rint(a.imag())};
}

// By squares where the exponent is a small integer.
template <typename P>
inline std::complex<P> ComplexPower(std::complex<P> base, std::complex<P> exponent) {
  constexpr P kNan = std::numeric_limits<P>::quiet_NaN();
  const P real = exponent.real(), imag = exponent.imag();
  if (real == 0 && imag == 0) return {1, 0};
  if (base.real() == 0 && base.imag() == 0) {
    return real > 0 ? std::complex<P>{0, 0} : std::complex<P>{kNan, kNan};
  }
  const bool is_small = imag == 0 && std::fabs(real) < 100 && real == std::trunc(real);
  if (!is_small) return std::pow(base, exponent);
  if (real == 1) return base;
  if (real == 2) return ComplexMultiply(base, base);
  if (real == 3) return ComplexMultiply(base, ComplexMultiply(base, base));
  std::complex<P> power = {1, 0};
  for (int rest = static_cast<int>(std::fabs(real));;) {
    if ((rest & 1) != 0) power = ComplexMultiply(power, base);
    rest >>= 1;
    if (rest == 0) break;
    base = ComplexMultiply(base, base);
  }
  return real < 0 ? ComplexDivide(std::complex<P>{1, 0}, power) : power;
}

}  // namespace tessera::scalar
