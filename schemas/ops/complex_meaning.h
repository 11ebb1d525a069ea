#pragma once

// A scalar op on complex numbers: the counterpart of scalar_meaning.h, in its terms, for C of std::complex<float> and
// std::complex<double>.
//
//   VisitComplexUnary, VisitComplexBinary  numbers to a number of their type
//   VisitComplexPart                       a number to one of the type of its parts
//   VisitComplexPredicate, VisitComplexComparison  numbers to a bool; they have no order

#include <cmath>
#include <complex>
#include <numbers>

#include "schemas/ops/complex_functions.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::scalar {

template <typename C, typename Visit>
inline bool VisitComplexUnary(ScalarOp op, Visit&& visit) {
  using P = PartOf<C>;
  switch (op) {
    case ScalarOp::kNeg: return visit([](C a) { return C(-a.real(), -a.imag()); });
    case ScalarOp::kConj: return visit([](C a) { return C(a.real(), -a.imag()); });
    case ScalarOp::kSign: return visit([](C a) { return ComplexSign(a); });
    case ScalarOp::kRound: return visit([](C a) { return ComplexRound(a); });
    case ScalarOp::kSqrt: return visit([](C a) { return std::sqrt(a); });
    case ScalarOp::kExp: return visit([](C a) { return std::exp(a); });
    case ScalarOp::kExpm1: return visit([](C a) { return ComplexExpm1(a); });
    case ScalarOp::kLog: return visit([](C a) { return std::log(a); });
    case ScalarOp::kLog1p: return visit([](C a) { return ComplexLog1p(a); });
    case ScalarOp::kLog2: return visit([](C a) { return ComplexScale(std::log(a), std::numbers::log2e_v<P>); });
    case ScalarOp::kLog10: return visit([](C a) { return ComplexScale(std::log(a), std::numbers::log10e_v<P>); });
    case ScalarOp::kSin: return visit([](C a) { return std::sin(a); });
    case ScalarOp::kCos: return visit([](C a) { return std::cos(a); });
    case ScalarOp::kTan: return visit([](C a) { return std::tan(a); });
    case ScalarOp::kAsin: return visit([](C a) { return std::asin(a); });
    case ScalarOp::kAcos: return visit([](C a) { return std::acos(a); });
    case ScalarOp::kAtan: return visit([](C a) { return std::atan(a); });
    case ScalarOp::kSinh: return visit([](C a) { return std::sinh(a); });
    case ScalarOp::kCosh: return visit([](C a) { return std::cosh(a); });
    case ScalarOp::kTanh: return visit([](C a) { return std::tanh(a); });
    case ScalarOp::kAsinh: return visit([](C a) { return std::asinh(a); });
    case ScalarOp::kAcosh: return visit([](C a) { return std::acosh(a); });
    case ScalarOp::kAtanh: return visit([](C a) { return std::atanh(a); });
    default: return false;
  }
}

template <typename C, typename Visit>
inline bool VisitComplexBinary(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kAdd: return visit([](C a, C b) { return ComplexAdd(a, b); });
    case ScalarOp::kSub: return visit([](C a, C b) { return ComplexSubtract(a, b); });
    case ScalarOp::kMul: return visit([](C a, C b) { return ComplexMultiply(a, b); });
    case ScalarOp::kDiv: return visit([](C a, C b) { return ComplexDivide(a, b); });
    case ScalarOp::kPow: return visit([](C a, C b) { return ComplexPower(a, b); });
    default: return false;
  }
}

template <typename C, typename Visit>
inline bool VisitComplexPart(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kAbs: return visit([](C a) { return ComplexAbsolute(a); });
    case ScalarOp::kReal: return visit([](C a) { return a.real(); });
    case ScalarOp::kImag: return visit([](C a) { return a.imag(); });
    default: return false;
  }
}

// True if it holds for either part; isfinite has to hold for both.
template <typename C, typename Visit>
inline bool VisitComplexPredicate(ScalarOp op, Visit&& visit) {
  using P = PartOf<C>;
  constexpr P kMost = std::numeric_limits<P>::max();
  switch (op) {
    case ScalarOp::kIsNan: return visit([](C a) { return (a.real() != a.real()) | (a.imag() != a.imag()); });
    case ScalarOp::kIsInf:
      return visit([](C a) { return (std::fabs(a.real()) > kMost) | (std::fabs(a.imag()) > kMost); });
    case ScalarOp::kIsFinite:
      return visit([](C a) { return (std::fabs(a.real()) <= kMost) & (std::fabs(a.imag()) <= kMost); });
    default: return false;
  }
}

template <typename C, typename Visit>
inline bool VisitComplexComparison(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kEqual: return visit([](C a, C b) { return (a.real() == b.real()) & (a.imag() == b.imag()); });
    case ScalarOp::kNotEqual: return visit([](C a, C b) { return (a.real() != b.real()) | (a.imag() != b.imag()); });
    default: return false;
  }
}

}  // namespace tessera::scalar
