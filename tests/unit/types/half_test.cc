#include "schemas/types/half.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

template <typename T>
T FromBits(uint32_t bits) {
  T half;
  half.bits = static_cast<uint16_t>(bits);
  return half;
}

template <typename T>
class HalfTest : public ::testing::Test {};
using Halves = ::testing::Types<F16, BF16>;
TYPED_TEST_SUITE(HalfTest, Halves);

TYPED_TEST(HalfTest, EveryNumberIsItselfAgain) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const TypeParam half = FromBits<TypeParam>(bits);
    const float value = half;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
      continue;
    }
    ASSERT_EQ(TypeParam(value).bits, bits);
    ASSERT_EQ(TypeParam(static_cast<double>(value)).bits, bits);
  }
}

// Between two neighbours: a number in the middle goes to the even one, anything else to the nearer one.
TYPED_TEST(HalfTest, RoundsToTheNearest) {
  constexpr uint32_t kInfinite = std::is_same_v<TypeParam, F16> ? 0x7C00 : 0x7F80;
  for (uint32_t bits = 0; bits + 1 < kInfinite; ++bits) {
    const double low = static_cast<double>(static_cast<float>(FromBits<TypeParam>(bits)));
    const double high = static_cast<double>(static_cast<float>(FromBits<TypeParam>(bits + 1)));
    ASSERT_LT(low, high);
    const double middle = low + (high - low) / 2;
    for (const double sign : {1.0, -1.0}) {
      const uint32_t sign_bit = sign < 0 ? 0x8000 : 0;
      const uint32_t even = (bits % 2 == 0 ? bits : bits + 1) | sign_bit;
      ASSERT_EQ(TypeParam(sign * middle).bits, even) << bits;
      // A double that lies off the middle by less than a float tells.
      ASSERT_EQ(TypeParam(sign * std::nextafter(middle, 0)).bits, bits | sign_bit) << bits;
      ASSERT_EQ(TypeParam(sign * std::nextafter(middle, high)).bits, (bits + 1) | sign_bit) << bits;
      const float as_float = static_cast<float>(middle);
      if (static_cast<double>(as_float) != middle) continue;
      ASSERT_EQ(TypeParam(static_cast<float>(sign) * as_float).bits, even) << bits;
      ASSERT_EQ(TypeParam(static_cast<float>(sign) * std::nextafter(as_float, 0.0f)).bits, bits | sign_bit) << bits;
    }
  }
}

// Integers of 64 bits, by which a double may lie in the middle where they don't.
TYPED_TEST(HalfTest, LargeIntegersAreRoundedOnce) {
  constexpr uint32_t kInfinite = std::is_same_v<TypeParam, F16> ? 0x7C00 : 0x7F80;
  constexpr double kMost = 0x1p64;
  for (uint32_t bits = 0; bits + 1 < kInfinite; ++bits) {
    const double low = static_cast<double>(static_cast<float>(FromBits<TypeParam>(bits)));
    const double high = static_cast<double>(static_cast<float>(FromBits<TypeParam>(bits + 1)));
    const double middle = low + (high - low) / 2;
    if (low < 1 || high >= kMost || middle != std::floor(middle)) continue;
    const uint64_t whole = static_cast<uint64_t>(middle);
    ASSERT_EQ(TypeParam(whole - 1).bits, bits) << whole;
    ASSERT_EQ(TypeParam(whole).bits, bits % 2 == 0 ? bits : bits + 1) << whole;
    ASSERT_EQ(TypeParam(whole + 1).bits, bits + 1) << whole;
    if (high >= kMost / 2) continue;
    const int64_t negative = -static_cast<int64_t>(whole);
    ASSERT_EQ(TypeParam(negative + 1).bits, bits | 0x8000) << negative;
    ASSERT_EQ(TypeParam(negative).bits, (bits % 2 == 0 ? bits : bits + 1) | 0x8000) << negative;
    ASSERT_EQ(TypeParam(negative - 1).bits, (bits + 1) | 0x8000) << negative;
  }
  EXPECT_EQ(static_cast<float>(BF16(std::numeric_limits<int64_t>::min())), -0x1p63f);
  EXPECT_EQ(static_cast<float>(BF16(std::numeric_limits<uint64_t>::max())), 0x1p64f);
}

TYPED_TEST(HalfTest, WhatIsTooLargeIsInfinite) {
  for (const double large : {1e39, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(static_cast<float>(TypeParam(large)), std::numeric_limits<float>::infinity());
    EXPECT_EQ(static_cast<float>(TypeParam(-large)), -std::numeric_limits<float>::infinity());
  }
  EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::nan("")))));
}

// NumPy's and ml_dtypes' values.
TEST(Half, KnownValues) {
  EXPECT_EQ(F16(0.1).bits, 0x2E66);
  EXPECT_EQ(F16(65519.0).bits, 0x7BFF);
  EXPECT_EQ(F16(65520.0).bits, 0x7C00);
  EXPECT_EQ(F16(6e-8).bits, 0x0001);
  EXPECT_EQ(F16(2.9e-8).bits, 0x0000);
  EXPECT_EQ(F16(-2).bits, 0xC000);
  EXPECT_EQ(BF16(0.1).bits, 0x3DCD);
  EXPECT_EQ(BF16(3.4e38).bits, 0x7F80);
  EXPECT_EQ(BF16(257).bits, 0x4380);
  EXPECT_EQ(BF16(int64_t{259}).bits, 0x4382);
}

}  // namespace
}  // namespace tessera
