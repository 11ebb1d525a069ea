#include "schemas/ops/scalar.h"

#include <cmath>
#include <complex>
#include <limits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Scalar, TextRoundTrips) {
  for (const char* text : {"2",
                           "-9223372036854775808",
                           "9223372036854775807",
                           "3.5",
                           "2.0",
                           "1e+300",
                           "-0.0",
                           "inf",
                           "-inf",
                           "nan",
                           "true",
                           "false",
                           "2:i32",
                           "2:i64",
                           "true:bool",
                           "0.1:f32",
                           "0.1:f64",
                           "nan:f32",
                           "18446744073709551615:u64",
                           "-1:i8",
                           "1:u8",
                           "1.0+2.5j",
                           "-0.0-0.0j",
                           "1e-30-infj",
                           "nan+nanj",
                           "0.1-0.2j:c64",
                           "0.1-0.2j:c128"}) {
    const absl::StatusOr<Scalar> scalar = ParseScalar(text);
    ASSERT_TRUE(scalar.ok()) << text << scalar.status();
    EXPECT_EQ(ToText(*scalar), text);
    EXPECT_EQ(*ParseScalar(ToText(*scalar)), *scalar);
    EXPECT_EQ(Scalar::FromBits(scalar->dtype(), scalar->strength(), scalar->bits(), scalar->imaginary_bits()), *scalar);
  }
}

TEST(Scalar, HostileTextsAreErrors) {
  for (const char* text : {"",
                           "x",
                           "1.2.3",
                           "--1",
                           "1e999999x",
                           "1:f99",
                           "1:",
                           ":i32",
                           "0x10",
                           "1 2",
                           "e",
                           "n",
                           "infx",
                           "j",
                           "+j",
                           "1+j",
                           "1j2",
                           "1+2j3j",
                           "1+2k",
                           "99999999999999999999",
                           "9223372036854775808"}) {
    EXPECT_FALSE(ParseScalar(text).ok()) << text;
  }
  EXPECT_FALSE(ParseScalar(std::string(1 << 20, '9')).ok());
}

TEST(Scalar, IntegersWrap) {
  EXPECT_EQ(Scalar::Int(int64_t{1} << 31).As(DType::kI32).AsInt(), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Scalar::Int((int64_t{1} << 32) + 5).As(DType::kI32).AsInt(), 5);
  EXPECT_EQ(Scalar::Int(-1).As(DType::kU8).AsInt(), 255);
  EXPECT_TRUE(Scalar::Int(2).As(DType::kBool).AsBool());
}

TEST(Scalar, FloatsSaturateToIntegers) {
  EXPECT_EQ(Scalar::Float(1e20).As(DType::kI64).AsInt(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Scalar::Float(-1e20).As(DType::kI64).AsInt(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Scalar::Float(3e9).As(DType::kI32).AsInt(), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(Scalar::Float(-3e9).As(DType::kI32).AsInt(), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(Scalar::Float(-2.9).As(DType::kI32).AsInt(), -2);
  EXPECT_EQ(Scalar::Float(std::nan("")).As(DType::kI32).AsInt(), 0);
  EXPECT_EQ(Scalar::Float(-5).As(DType::kU8).AsInt(), 0);
  EXPECT_TRUE(Scalar::Float(std::nan("")).AsBool());
}

TEST(Scalar, ComplexNumbersConvertPartByPart) {
  EXPECT_EQ(*ParseScalar("2j"), Scalar::Complex({0, 2}));
  EXPECT_EQ(*ParseScalar("1+2j"), Scalar::Complex({1, 2}));
  const Scalar narrow = Scalar::Complex({0.1, 1e300}).As(DType::kC64);
  EXPECT_EQ(narrow.AsComplex(), std::complex<double>(0.1f, std::numeric_limits<double>::infinity()));
  EXPECT_EQ(Scalar::Int(3).As(DType::kC128).AsComplex(), std::complex<double>(3, 0));
  EXPECT_TRUE(Scalar::Complex({0, 1e-300}).AsBool());
  EXPECT_FALSE(Scalar::Complex({0, -0.0}).As(DType::kBool).AsBool());
  EXPECT_TRUE(Scalar::Complex({1, 1e300}).IsSpecialAs(DType::kC64));
  EXPECT_FALSE(Scalar::Complex({0, 2}).IsSpecialAs(DType::kC64));
}

TEST(Scalar, F32RoundsOnce) {
  EXPECT_EQ(Scalar::Float(0.1).As(DType::kF32).AsDouble(), static_cast<double>(0.1f));
  const int64_t between = (int64_t{1} << 54) + (int64_t{1} << 30) + 1;  // f64 first would round to even
  EXPECT_EQ(Scalar::Int(between).As(DType::kF32).AsDouble(), static_cast<double>(static_cast<float>(between)));
}

TEST(Scalar, SixteenBitsAreRoundedToOnce) {
  const int64_t above = (int64_t{1} << 62) + (int64_t{1} << 54) + 1;  // f64 first would lie in the middle
  EXPECT_EQ(Scalar::Int(above).As(DType::kBF16).AsDouble(), 0x1p62 + 0x1p55);
  EXPECT_EQ(Scalar::Int(-above).As(DType::kBF16).AsDouble(), -0x1p62 - 0x1p55);
  const uint64_t large = (uint64_t{1} << 63) + (uint64_t{1} << 55) + 1;
  EXPECT_EQ(Scalar::FromBits(DType::kU64, ScalarStrength::kStrong, large).As(DType::kBF16).AsDouble(), 0x1p63 + 0x1p56);
}

}  // namespace
}  // namespace tessera
