#include "server/plan/reference/number.h"

#include <cmath>
#include <complex>

#include "schemas/ops/scalar.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera {
namespace {

bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }
bool IsFloating(DType dtype) { return Kind(dtype) == DTypeKind::kFloat || IsComplex(dtype); }

// The value of a whole number, u64 among them.
__int128 WholeOf(const ScalarValue& value) {
  return value.dtype == DType::kU64 ? static_cast<__int128>(static_cast<uint64_t>(value.i)) : value.i;
}

ScalarOp PairwiseOp(ReduceOp op, DType dtype) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return is_bool ? ScalarOp::kOr : ScalarOp::kAdd;
    case ReduceOp::kProduct: return is_bool ? ScalarOp::kAnd : ScalarOp::kMul;
    case ReduceOp::kMin: return is_bool ? ScalarOp::kAnd : ScalarOp::kMinimum;
    case ReduceOp::kMax: return is_bool ? ScalarOp::kOr : ScalarOp::kMaximum;
    case ReduceOp::kBand: return ScalarOp::kAnd;
    case ReduceOp::kBor: return ScalarOp::kOr;
    case ReduceOp::kBxor: return ScalarOp::kXor;
  }
  return ScalarOp::kAdd;
}

}  // namespace

Number::operator double() const { return IsFloating(value_.dtype) ? value_.f : static_cast<double>(WholeOf(value_)); }

int64_t Number::ToInt() const { return CastTo(DType::kI64, *this).value_.i; }

bool Number::is_nan() const {
  return IsFloating(value_.dtype) && (std::isnan(value_.f) || std::isnan(value_.imaginary));
}

bool Number::is_negative() const { return IsFloating(value_.dtype) ? std::signbit(value_.f) : WholeOf(value_) < 0; }

bool operator==(const Number& a, const Number& b) {
  const ScalarValue &x = a.value_, &y = b.value_;
  if (!IsFloating(x.dtype) && !IsFloating(y.dtype)) return WholeOf(x) == WholeOf(y);
  return static_cast<double>(a) == static_cast<double>(b) && x.imaginary == y.imaginary;
}

std::string ToText(const Number& number) {
  Scalar scalar = ToScalar(number.value());
  return ToText(Scalar::FromBits(scalar.dtype(), ScalarStrength::kWeak, scalar.bits(), scalar.imaginary_bits()));
}

bool AreAlike(const Number& a, const Number& b) { return a == b || (a.is_nan() && b.is_nan()); }

Number CastTo(DType to, const Number& value) {
  if (value.dtype() == to) return value;
  return Number(EvaluateScalarOp(ScalarOp::kCast, to, value.value(), {}, {}));
}

Number Apply(ScalarOp op, DType dtype, const Number& a, const Number& b) {
  return Number(EvaluateScalarOp(op, dtype, CastTo(dtype, a).value(), CastTo(dtype, b).value(), {}));
}

bool IsLess(DType dtype, const Number& a, const Number& b) {
  const ScalarValue x = CastTo(dtype, a).value(), y = CastTo(dtype, b).value();
  return EvaluateScalarOp(ScalarOp::kLess, DType::kBool, x, y, {}).i != 0;
}

Number ReduceTwo(ReduceOp op, DType dtype, const Number& a, const Number& b) {
  return Apply(PairwiseOp(op, dtype), dtype, a, b);
}

Number Averaged(DType dtype, const Number& sum, int64_t count) {
  const ScalarValue value = CastTo(dtype, sum).value();
  const DType part = RealOf(dtype);
  const Number divisor = Number::Whole(count);
  const double real = static_cast<double>(Apply(ScalarOp::kDiv, part, Number(value.f), divisor));
  if (!IsComplex(dtype)) return CastTo(dtype, Number(real));
  const double imaginary = static_cast<double>(Apply(ScalarOp::kDiv, part, Number(value.imaginary), divisor));
  return Number(ScalarValue{.dtype = dtype, .f = real, .i = 0, .imaginary = imaginary});
}

DType AddedUpIn(DType dtype) {
  switch (Kind(dtype)) {
    case DTypeKind::kFloat: return DType::kF64;
    case DTypeKind::kComplex: return DType::kC128;
    default: return dtype;
  }
}

}  // namespace tessera
