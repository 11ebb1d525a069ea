#include "schemas/ops/expression.h"

#include <cmath>
#include <complex>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/errors.h"

namespace tessera {
namespace {

constexpr int64_t kI32Min = std::numeric_limits<int32_t>::min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kI64Min = std::numeric_limits<int64_t>::min();

TEST(Expression, TextRoundTrips) {
  for (const char* text : {
           "in0:f32",
           "add:f32(in0:f32, in1:f32)",
           "mul:f32(in0:f32, arg0:f32)",
           "add:f64(cast:f64(in0:i32), in1:f64)",
           "where:i64(in0:bool, in1:i64, arg0:i64)",
           "mul:f32(n2=add:f32(in0:f32, in1:f32), n2)",
           "not:bool(less_equal:bool(in0:i32, in0:i32))",
           "where:f32(less_equal:bool(idx1:i64, idx0:i64), in0:f32, arg0:f32)",
           "random:f32(idx0:i64, arg0:i64, arg1:i64)",
           "sub:f32(n1=exp:f32(in0:f32), mul:f32(n1, n2=sqrt:f32(n1)))",
       }) {
    const absl::StatusOr<Expression> expression = ParseExpression(text);
    ASSERT_TRUE(expression.ok()) << text << expression.status();
    const std::string printed = ToText(*expression);
    const absl::StatusOr<Expression> again = ParseExpression(printed);
    ASSERT_TRUE(again.ok()) << printed << again.status();
    EXPECT_EQ(*again, *expression) << printed;
  }
  EXPECT_EQ(ToText(*ParseExpression("mul:f32(n2=add:f32(in0:f32, in1:f32), n2)")),
            "mul:f32(n2=add:f32(in0:f32, in1:f32), n2)");
}

TEST(Expression, SharedNodesStaySmall) {
  // Each node is the sum of the one before with itself: a tree would have 2^60 leaves.
  Expression expression;
  expression.nodes.push_back({ScalarOp::kInput, DType::kF64, 0, 0, 0});
  for (int32_t i = 0; i < 60; ++i) expression.nodes.push_back({ScalarOp::kAdd, DType::kF64, i, i, 0});
  ASSERT_TRUE(ValidateExpression(expression, 1, 0).ok());
  const std::string text = ToText(expression);
  EXPECT_LT(text.size(), 2000u);
  EXPECT_EQ(*ParseExpression(text), expression);
  EXPECT_EQ(EvaluateExpression(expression, {{DType::kF64, 1, 0}}, {}).f, std::ldexp(1.0, 60));
}

TEST(Expression, HostileTextsAreErrors) {
  std::vector<std::string> texts = {"",
                                    "add",
                                    "add:f32",
                                    "add:f32(",
                                    "add:f32(in0:f32)",
                                    "add:f32(in0:f32, in1:f32",
                                    "add:f32(in0:f32, in1:f64)",
                                    "add:f32(in0:f32, in0:f64)",
                                    "add:bool(in0:bool, in1:bool)",
                                    "in:f32",
                                    "in16:f32",
                                    "in99999999999:f32",
                                    "arg256:f32",
                                    "idx0:f32",
                                    "idx16:i64",
                                    "random:i32(idx0:i64, idx0:i64, idx0:i64)",
                                    "neg:f8e4m3(in0:f8e4m3)",
                                    "arg0:f8e4m3",
                                    "less:bool(in0:c64, in1:c64)",
                                    "cast:f32(in0:c64)",
                                    "floor:c64(in0:c64)",
                                    "abs:c64(in0:c64)",
                                    "complex:c128(in0:f32, in1:f32)",
                                    "n0",
                                    "n5=in0:f32(",
                                    "exp:i32(in0:i32)",
                                    "less:f32(in0:f32, in1:f32)",
                                    "where:f32(in0:f32, in1:f32, in2:f32)",
                                    "and:f32(in0:f32, in1:f32)",
                                    "shift_left:f32(in0:f32, in1:f32)",
                                    "isnan:f32(in0:f32)",
                                    "log:i32(in0:i32)",
                                    "frob:f32(in0:f32)",
                                    "in0:f32 x"};
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "neg:f32(";
  texts.push_back(deep);
  std::string wide = "in0:f32";
  for (int i = 0; i < 300; ++i) wide = "add:f32(" + wide + ", in1:f32)";
  texts.push_back(wide);
  for (const std::string& text : texts) EXPECT_FALSE(ParseExpression(text).ok()) << text.substr(0, 60);
}

TEST(Expression, ValidationOfWhatCameOverAWire) {
  const Expression add = *ParseExpression("add:f32(in0:f32, arg0:f32)");
  EXPECT_TRUE(ValidateExpression(add, 1, 1).ok());
  EXPECT_FALSE(ValidateExpression(add, 1, 0).ok());
  EXPECT_FALSE(ValidateExpression(add, 0, 1).ok());
  EXPECT_FALSE(ValidateExpression(add, kMaxExpressionInputs + 1, 1).ok());
  EXPECT_FALSE(ValidateExpression({}, 1, 1).ok());
  const auto with = [](ExpressionNode node) {
    Expression expression;
    expression.nodes = {{ScalarOp::kInput, DType::kF32, 0, 0, 0}, node};
    return ValidateExpression(expression, 1, 0);
  };
  EXPECT_TRUE(with({ScalarOp::kNeg, DType::kF32, 0, 0, 0}).ok());
  EXPECT_FALSE(with({ScalarOp::kNeg, DType::kF32, 1, 0, 0}).ok()) << "itself";
  EXPECT_FALSE(with({ScalarOp::kNeg, DType::kF32, -1, 0, 0}).ok());
  EXPECT_FALSE(with({ScalarOp::kNeg, DType::kF32, 0, 7, 0}).ok()) << "an unused reference";
  EXPECT_FALSE(with({static_cast<ScalarOp>(200), DType::kF32, 0, 0, 0}).ok());
  EXPECT_FALSE(with({ScalarOp::kNeg, static_cast<DType>(200), 0, 0, 0}).ok());
  EXPECT_TRUE(with({ScalarOp::kNeg, DType::kF64, 0, 0, 0}).GetPayload(kDTypeErrorPayload).has_value());
  Expression long_one;
  long_one.nodes.assign(kMaxExpressionNodes + 1, {ScalarOp::kInput, DType::kF32, 0, 0, 0});
  EXPECT_FALSE(ValidateExpression(long_one, 1, 0).ok());
}

ScalarValue I32(int64_t i) { return {DType::kI32, 0, i}; }
ScalarValue F64(double f) { return {DType::kF64, f, 0}; }
int64_t Int32(ScalarOp op, int64_t a, int64_t b) { return EvaluateScalarOp(op, DType::kI32, I32(a), I32(b), {}).i; }
double Double(ScalarOp op, double a, double b) { return EvaluateScalarOp(op, DType::kF64, F64(a), F64(b), {}).f; }

TEST(ScalarLaws, IntegersWrapAndDivideWithoutTraps) {
  EXPECT_EQ(Int32(ScalarOp::kAdd, 2147483647, 1), kI32Min);
  EXPECT_EQ(Int32(ScalarOp::kMul, 65536, 65536), 0);
  EXPECT_EQ(Int32(ScalarOp::kNeg, kI32Min, 0), kI32Min);
  EXPECT_EQ(Int32(ScalarOp::kDiv, 7, 0), 0);
  EXPECT_EQ(Int32(ScalarOp::kDiv, kI32Min, -1), kI32Min);
  EXPECT_EQ(Int32(ScalarOp::kDiv, -7, 2), -3);
  const ScalarValue lowest{DType::kI64, 0, kI64Min};
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kDiv, DType::kI64, lowest, {DType::kI64, 0, -1}, {}).i, kI64Min);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kMul, DType::kI64, lowest, {DType::kI64, 0, 3}, {}).i, kI64Min);
}

TEST(ScalarLaws, NanPropagates) {
  const double nan = std::nan("");
  for (const ScalarOp op : {ScalarOp::kMaximum, ScalarOp::kMinimum}) {
    EXPECT_TRUE(std::isnan(Double(op, nan, 1)));
    EXPECT_TRUE(std::isnan(Double(op, 1, nan)));
  }
  EXPECT_TRUE(std::isnan(Double(ScalarOp::kRelu, nan, 0)));
  EXPECT_EQ(Double(ScalarOp::kMaximum, -1, 2), 2);
  EXPECT_EQ(Double(ScalarOp::kMinimum, -1, 2), -1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kLess, DType::kBool, F64(nan), F64(1), {}).i, 0);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kNotEqual, DType::kBool, F64(nan), F64(nan), {}).i, 1);
}

TEST(ScalarLaws, F32IsRoundedAfterEveryOp) {
  const ScalarValue a{DType::kF32, static_cast<double>(0.1f), 0};
  const ScalarValue b{DType::kF32, static_cast<double>(0.2f), 0};
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kAdd, DType::kF32, a, b, {}).f, static_cast<double>(0.1f + 0.2f));
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kF32, F64(1e300), {}, {}).f,
            std::numeric_limits<double>::infinity());
}

TEST(ScalarLaws, DivisionRoundsDownAndTheRemainderHasTheDivisorsSign) {
  struct Case {
    int64_t a, b, quotient, remainder;
  };
  for (const Case& c : {Case{7, 2, 3, 1}, Case{-7, 2, -4, 1}, Case{7, -2, -4, -1}, Case{-7, -2, 3, -1},
                        Case{6, -2, -3, 0}, Case{7, 0, 0, 0}, Case{kI32Min, -1, kI32Min, 0}}) {
    EXPECT_EQ(Int32(ScalarOp::kFloorDivide, c.a, c.b), c.quotient) << c.a << " " << c.b;
    EXPECT_EQ(Int32(ScalarOp::kRemainder, c.a, c.b), c.remainder) << c.a << " " << c.b;
  }
  EXPECT_EQ(Double(ScalarOp::kFloorDivide, -7.5, 2), -4);
  EXPECT_EQ(Double(ScalarOp::kRemainder, -7.5, 2), 0.5);
  EXPECT_EQ(Double(ScalarOp::kFloorDivide, 1, 0.1), 9);  // 0.1 is a little more than a tenth
  EXPECT_EQ(Double(ScalarOp::kRemainder, 3, -kInfinity), -kInfinity);
  EXPECT_EQ(Double(ScalarOp::kFloorDivide, 3, -kInfinity), -1);
  EXPECT_EQ(Double(ScalarOp::kFloorDivide, -3, 0), -kInfinity);
  EXPECT_TRUE(std::isnan(Double(ScalarOp::kRemainder, 3, 0)));
  EXPECT_TRUE(std::signbit(Double(ScalarOp::kRemainder, 4, -2)));
  EXPECT_TRUE(std::isnan(Double(ScalarOp::kFloorDivide, kInfinity, 2)));
}

TEST(ScalarLaws, PowersOfIntegersAreExact) {
  EXPECT_EQ(Int32(ScalarOp::kPow, 3, 4), 81);
  EXPECT_EQ(Int32(ScalarOp::kPow, -3, 3), -27);
  EXPECT_EQ(Int32(ScalarOp::kPow, 0, 0), 1);
  EXPECT_EQ(Int32(ScalarOp::kPow, 3, 40), static_cast<int32_t>(12157665459056928801ull)) << "wraps";
  EXPECT_EQ(Int32(ScalarOp::kPow, 2, -1), 0);
  EXPECT_EQ(Int32(ScalarOp::kPow, 0, -1), 0);
  EXPECT_EQ(Int32(ScalarOp::kPow, 1, -9), 1);
  EXPECT_EQ(Int32(ScalarOp::kPow, -1, -9), -1);
  const ScalarValue three{DType::kU64, 0, 3}, forty{DType::kU64, 0, 40};
  EXPECT_EQ(static_cast<uint64_t>(EvaluateScalarOp(ScalarOp::kPow, DType::kU64, three, forty, {}).i),
            12157665459056928801ull);
}

TEST(ScalarLaws, CommonDivisorsAreNotNegative) {
  EXPECT_EQ(Int32(ScalarOp::kGcd, 12, -18), 6);
  EXPECT_EQ(Int32(ScalarOp::kGcd, 0, -7), 7);
  EXPECT_EQ(Int32(ScalarOp::kGcd, 7, 0), 7);
  EXPECT_EQ(Int32(ScalarOp::kGcd, 0, 0), 0);
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(Int32(ScalarOp::kGcd, kLeast, 6), 2);
  EXPECT_EQ(Int32(ScalarOp::kGcd, kLeast, 0), kLeast) << "wraps";
  EXPECT_DOUBLE_EQ(Double(ScalarOp::kCbrt, -27, 0), -3);
}

ScalarValue C128(double real, double imaginary) { return {DType::kC128, real, 0, imaginary}; }

// NumPy's values.
TEST(ScalarLaws, ComplexNumbers) {
  struct Case {
    ScalarOp op;
    ScalarValue a, b;
    std::complex<double> want;
  };
  const double nan = std::nan("");
  const Case cases[] = {
      {ScalarOp::kMul, C128(1, 2), C128(3, -4), {11, 2}},
      {ScalarOp::kMul, C128(kInfinity, 0), C128(0, 1), {nan, kInfinity}},
      {ScalarOp::kDiv, C128(1, 2), C128(3, -4), {-0.2, 0.4}},
      {ScalarOp::kDiv, C128(1, -2), C128(0, 0), {kInfinity, -kInfinity}},
      {ScalarOp::kDiv, C128(1e300, 1e300), C128(1e300, 1e300), {1, 0}},
      {ScalarOp::kPow, C128(0, 1), C128(2, 0), {-1, 0}},
      {ScalarOp::kPow, C128(0, 2), C128(-3, 0), {0, 0.125}},
      {ScalarOp::kPow, C128(0, 0), C128(0, 0), {1, 0}},
      {ScalarOp::kPow, C128(0, 0), C128(-1, 0), {nan, nan}},
      {ScalarOp::kPow, C128(0, 0), C128(0, 1), {nan, nan}},
      {ScalarOp::kConj, C128(1, 2), {}, {1, -2}},
      {ScalarOp::kSign, C128(3, -4), {}, {0.6, -0.8}},
      {ScalarOp::kSign, C128(0, 0), {}, {0, 0}},
      {ScalarOp::kSign, C128(kInfinity, 2), {}, {1, 0}},
      {ScalarOp::kSqrt, C128(-4, -0.0), {}, {0, -2}},
      {ScalarOp::kExp, C128(-kInfinity, nan), {}, {0, 0}},
      {ScalarOp::kLog, C128(-1, -0.0), {}, {0, -3.141592653589793}},
      {ScalarOp::kRound, C128(2.5, -3.5), {}, {2, -4}},
  };
  for (const Case& c : cases) {
    const ScalarValue got = EvaluateScalarOp(c.op, DType::kC128, c.a, c.b, {});
    const auto is_near = [](double x, double y) {
      return x == y || (std::isnan(x) && std::isnan(y)) || std::fabs(x - y) < 1e-15;
    };
    EXPECT_TRUE(is_near(got.f, c.want.real()) && is_near(got.imaginary, c.want.imag()))
        << ToText(c.op) << " of " << c.a.f << "+" << c.a.imaginary << "j: " << got.f << "+" << got.imaginary << "j";
  }
}

TEST(ScalarLaws, PartsTestsAndCastsOfComplexNumbers) {
  const double nan = std::nan("");
  const auto part = [](ScalarOp op) { return EvaluateScalarOp(op, DType::kF64, C128(3, -4), {}, {}).f; };
  EXPECT_EQ(part(ScalarOp::kAbs), 5);
  EXPECT_EQ(part(ScalarOp::kReal), 3);
  EXPECT_EQ(part(ScalarOp::kImag), -4);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kComplex, DType::kC128, F64(1), F64(2), {}).imaginary, 2);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kImag, DType::kF64, F64(7), {}, {}).f, 0);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kConj, DType::kF64, F64(7), {}, {}).f, 7);
  const auto test = [](ScalarOp op, ScalarValue a, ScalarValue b) {
    return EvaluateScalarOp(op, DType::kBool, a, b, {}).i;
  };
  EXPECT_EQ(test(ScalarOp::kEqual, C128(1, 2), C128(1, 2)), 1);
  EXPECT_EQ(test(ScalarOp::kEqual, C128(1, 2), C128(1, 3)), 0);
  EXPECT_EQ(test(ScalarOp::kNotEqual, C128(1, nan), C128(1, nan)), 1);
  EXPECT_EQ(test(ScalarOp::kIsNan, C128(1, nan), {}), 1);
  EXPECT_EQ(test(ScalarOp::kIsInf, C128(kInfinity, nan), {}), 1);
  EXPECT_EQ(test(ScalarOp::kIsFinite, C128(1, -kInfinity), {}), 0);
  EXPECT_EQ(test(ScalarOp::kCast, C128(0, -1), {}), 1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kC64, C128(0.1, 1e300), {}, {}).f, static_cast<double>(0.1f));
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kC64, I32(3), {}, {}).f, 3);
  EXPECT_FALSE(IsDefinedFor(ScalarOp::kLess, DType::kC64, DType::kBool));
  EXPECT_FALSE(IsDefinedFor(ScalarOp::kCast, DType::kC64, DType::kF32));
}

TEST(ScalarLaws, BitsAndShifts) {
  EXPECT_EQ(Int32(ScalarOp::kAnd, 12, 10), 8);
  EXPECT_EQ(Int32(ScalarOp::kOr, 12, 10), 14);
  EXPECT_EQ(Int32(ScalarOp::kXor, 12, 10), 6);
  EXPECT_EQ(Int32(ScalarOp::kNot, 12, 0), -13);
  EXPECT_EQ(Int32(ScalarOp::kShiftLeft, 1, 31), kI32Min);
  EXPECT_EQ(Int32(ScalarOp::kShiftLeft, 1, 32), 0);
  EXPECT_EQ(Int32(ScalarOp::kShiftLeft, 1, -1), 0);
  EXPECT_EQ(Int32(ScalarOp::kShiftRight, -8, 1), -4);
  EXPECT_EQ(Int32(ScalarOp::kShiftRight, -8, 32), -1);
  EXPECT_EQ(Int32(ScalarOp::kShiftRight, -8, -1), -1);
  EXPECT_EQ(Int32(ScalarOp::kShiftRight, 8, 99), 0);
  const ScalarValue yes{DType::kBool, 0, 1}, no{DType::kBool, 0, 0};
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kXor, DType::kBool, yes, yes, {}).i, 0);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kXor, DType::kBool, yes, no, {}).i, 1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kNot, DType::kBool, yes, {}, {}).i, 0);
  const ScalarValue byte{DType::kU8, 0, 0xF0};
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kNot, DType::kU8, byte, {}, {}).i, 0x0F);
}

TEST(ScalarLaws, RoundingSignsAndPredicates) {
  EXPECT_EQ(Double(ScalarOp::kRound, 2.5, 0), 2);
  EXPECT_EQ(Double(ScalarOp::kRound, -3.5, 0), -4);
  EXPECT_EQ(Double(ScalarOp::kFloor, -1.5, 0), -2);
  EXPECT_EQ(Double(ScalarOp::kCeil, -1.5, 0), -1);
  EXPECT_EQ(Double(ScalarOp::kTrunc, -1.5, 0), -1);
  EXPECT_EQ(Int32(ScalarOp::kFloor, -7, 0), -7);
  EXPECT_EQ(Int32(ScalarOp::kAbs, kI32Min, 0), kI32Min);
  EXPECT_EQ(Int32(ScalarOp::kSign, -7, 0), -1);
  EXPECT_EQ(Double(ScalarOp::kSign, -0.5, 0), -1);
  EXPECT_TRUE(std::isnan(Double(ScalarOp::kSign, std::nan(""), 0)));
  EXPECT_EQ(Double(ScalarOp::kCopySign, 3, -0.0), -3);
  const auto is = [](ScalarOp op, double a) { return EvaluateScalarOp(op, DType::kBool, F64(a), {}, {}).i; };
  EXPECT_EQ(is(ScalarOp::kIsNan, std::nan("")), 1);
  EXPECT_EQ(is(ScalarOp::kIsInf, -kInfinity), 1);
  EXPECT_EQ(is(ScalarOp::kIsInf, std::nan("")), 0);
  EXPECT_EQ(is(ScalarOp::kIsFinite, std::nan("")), 0);
  EXPECT_EQ(is(ScalarOp::kIsFinite, 1e308), 1);
  EXPECT_EQ(is(ScalarOp::kSignBit, -0.0), 1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kIsFinite, DType::kBool, I32(5), {}, {}).i, 1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kSignBit, DType::kBool, I32(-5), {}, {}).i, 1);
}

TEST(ScalarLaws, SteepFunctionsNeitherOverflowNorLoseTheirTail) {
  EXPECT_EQ(Double(ScalarOp::kSigmoid, 0, 0), 0.5);
  EXPECT_EQ(Double(ScalarOp::kSigmoid, 1000, 0), 1);
  EXPECT_EQ(Double(ScalarOp::kSigmoid, -700, 0), std::exp(-700.0));
  EXPECT_EQ(Double(ScalarOp::kLogAddExp, 1000, 1000), 1000 + std::log(2.0));
  EXPECT_EQ(Double(ScalarOp::kLogAddExp, -kInfinity, 3), 3);
  EXPECT_EQ(Double(ScalarOp::kLogAddExp, -kInfinity, -kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(Double(ScalarOp::kLogAddExp, std::nan(""), 3)));
  EXPECT_EQ(Double(ScalarOp::kHypot, 3, -4), 5);
  EXPECT_DOUBLE_EQ(Double(ScalarOp::kHypot, 3e200, 4e200), 5e200);
  EXPECT_EQ(Double(ScalarOp::kAtan2, 0, -1), std::acos(-1.0));
}

TEST(ScalarLaws, TheNextNumberIsOneOfTheDType) {
  const auto next = [](DType dtype, double a, double b) {
    return EvaluateScalarOp(ScalarOp::kNextAfter, dtype, {dtype, a, 0}, {dtype, b, 0}, {}).f;
  };
  EXPECT_EQ(next(DType::kF64, 1, 2), std::nextafter(1.0, 2.0));
  EXPECT_EQ(next(DType::kF64, 0, -1), -std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(next(DType::kF64, -1, 0), std::nextafter(-1.0, 0.0));
  EXPECT_EQ(next(DType::kF32, 1, 2), static_cast<double>(std::nextafter(1.0f, 2.0f)));
  EXPECT_EQ(next(DType::kF16, 1, 2), 1 + std::ldexp(1.0, -10));
  EXPECT_EQ(next(DType::kBF16, 1, 0), 1 - std::ldexp(1.0, -8));
  EXPECT_EQ(next(DType::kF16, 65504, kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(next(DType::kF32, 1, std::nan(""))));
}

TEST(ScalarLaws, CastsSaturate) {
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kI32, F64(1e10), {}, {}).i, 2147483647);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kI32, F64(std::nan("")), {}, {}).i, 0);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kBool, F64(0.5), {}, {}).i, 1);
  EXPECT_EQ(EvaluateScalarOp(ScalarOp::kCast, DType::kI32, {DType::kI64, 0, int64_t{1} << 32}, {}, {}).i, 0);
}

TEST(LocalOp, TextRoundTrips) {
  for (const char* text : {"map(add:f32(in0:f32, in1:f32))",
                           "reduce(sum; dims=[0,2])",
                           "reduce(max; dims=[])",
                           "argreduce(min; dim=1)",
                           "argreduce(max; dim=0)",
                           "argreduce(max; dims=[0,2])",
                           "reduce(sum; dims=[0]; map=mul:f32(in0:f32, arg0:f32))",
                           "matmul()",
                           "fill()",
                           "arange()",
                           "eye()",
                           "rand([4,6])",
                           "rand([4,6]; normal)",
                           "scan(sum; dim=0)",
                           "scan(max; dim=1; exclusive; reverse)",
                           "scan(product; dim=2; reverse)",
                           "sort(dim=0)",
                           "argsort(dim=1; descending)",
                           "argsort(dim=1; first=5)",
                           "argsort(dim=1; descending; first=0)",
                           "searchsorted(left)",
                           "searchsorted(right)",
                           "gather(dim=3)",
                           "scatter(set; dim=0)",
                           "scatter(min; dim=2)",
                           "scatter(add; dim=0; whole=8)"}) {
    const absl::StatusOr<LocalOp> op = ParseLocalOp(text);
    ASSERT_TRUE(op.ok()) << text << op.status();
    EXPECT_EQ(ToText(*op), text);
  }
}

TEST(LocalOp, HostileTextsAreErrors) {
  for (const char* text : {"",
                           "map()",
                           "reduce(avg; dims=[0])",
                           "reduce(sum)",
                           "reduce(sum; dims=[1,0])",
                           "reduce(sum; dims=[16])",
                           "argreduce(sum; dim=1)",
                           "argreduce(min; dim=-1)",
                           "argreduce(min; dims=[])",
                           "argreduce(min; dims=[1,0])",
                           "reduce(sum; dims=[0]; map=)",
                           "reduce(sum; dims=[0]; map=cast:f32(idx0:i64))",
                           "matmul",
                           "matmul() x",
                           "rand([-1])",
                           "rand([4,6]; cauchy)",
                           "scan(avg; dim=0)",
                           "scan(sum; dim=-1)",
                           "scan(sum; dim=0; backwards)",
                           "sort(dim=16)",
                           "sort(dim=0; reverse)",
                           "sort(dim=0; first=2)",
                           "argsort(dim=0; first=-1)",
                           "argsort(dim=0; first=2; descending)",
                           "searchsorted(middle)",
                           "gather()",
                           "gather(dim=-1)",
                           "scatter(mul; dim=0)",
                           "scatter(add)",
                           "scatter(add; dim=0; whole=-1)",
                           "rand([4294967296,4294967296])",
                           "frob()"}) {
    EXPECT_FALSE(ParseLocalOp(text).ok()) << text;
  }
}

TEST(LocalOp, ValidationCountsOperandsAndScalars) {
  EXPECT_TRUE(ValidateLocalOp(MatmulOp{}, 2, 0).ok());
  EXPECT_FALSE(ValidateLocalOp(MatmulOp{}, 1, 0).ok());
  EXPECT_FALSE(ValidateLocalOp(FillOp{}, 0, 0).ok());
  EXPECT_FALSE(ValidateLocalOp(ReduceLocalOp{static_cast<ReduceOp>(77), {0}}, 1, 0).ok());
  EXPECT_FALSE(ValidateLocalOp(ReduceLocalOp{ReduceOp::kSum, std::vector<int64_t>(100000, 0)}, 1, 0).ok());
  EXPECT_FALSE(ValidateLocalOp(ArgReduceOp{static_cast<Extreme>(9), {0}}, 1, 0).ok());
}

}  // namespace
}  // namespace tessera
