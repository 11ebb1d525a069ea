// Floats of 8 bits against the numbers that their bits stand for, and the nearest of these.

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/float8.h"

namespace tessera {
namespace {

// By the definition: sign, exponent, mantissa. e4m3 has a number where e5m2 has infinities and NaNs, but for the last.
template <int kMantissa>
double Meaning(int bits) {
  constexpr int kBias = kMantissa == 3 ? 7 : 15, kOnes = (1 << (7 - kMantissa)) - 1;
  const int exponent = (bits & 0x7F) >> kMantissa, mantissa = bits & ((1 << kMantissa) - 1);
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  const bool is_special = exponent == kOnes && (kMantissa == 2 || mantissa == 7);
  if (is_special && mantissa == 0) return sign * std::numeric_limits<double>::infinity();
  if (is_special) return std::numeric_limits<double>::quiet_NaN();
  const double fraction = std::ldexp(mantissa, -kMantissa);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - kBias) : std::ldexp(1 + fraction, exponent - kBias));
}

template <int kMantissa>
Float8<kMantissa> OfBits(int bits) {
  Float8<kMantissa> number;
  number.bits = static_cast<uint8_t>(bits);
  return number;
}

template <int kMantissa>
void ExpectEveryNumber() {
  for (int bits = 0; bits < 256; ++bits) {
    const double want = Meaning<kMantissa>(bits);
    const float got = OfBits<kMantissa>(bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_EQ(Float8<kMantissa>(got).bits & 0x7F, 0x7F) << bits;
      continue;
    }
    EXPECT_EQ(static_cast<double>(got), want) << bits;
    EXPECT_EQ(Float8<kMantissa>(got).bits, bits);
    EXPECT_EQ(Float8<kMantissa>(want).bits, bits);
  }
}

// Between two neighbours: below the middle the lower one, above it the upper one, in the middle that of even bits.
template <int kMantissa>
void ExpectTheNearest(int greatest) {
  for (int bits = 0; bits < greatest; ++bits) {
    const double low = Meaning<kMantissa>(bits), high = Meaning<kMantissa>(bits + 1), middle = (low + high) / 2;
    EXPECT_EQ(Float8<kMantissa>(middle).bits, bits + bits % 2) << bits;
    EXPECT_EQ(Float8<kMantissa>(std::nextafter(middle, low)).bits, bits) << bits;
    EXPECT_EQ(Float8<kMantissa>(std::nextafter(middle, high)).bits, bits + 1) << bits;
    EXPECT_EQ(Float8<kMantissa>(-std::nextafter(static_cast<float>(middle), 0.0f)).bits, bits | 0x80) << bits;
  }
}

TEST(Float8, BitsAreTheNumbersOfTheDefinition) {
  ExpectEveryNumber<3>();
  ExpectEveryNumber<2>();
}

TEST(Float8, RoundsToTheNearestTiesToEven) {
  ExpectTheNearest<3>(0x7E);
  ExpectTheNearest<2>(0x7B);
}

TEST(Float8, WhatIsTooLargeIsNaNInE4M3AndInfiniteInE5M2) {
  EXPECT_EQ(static_cast<float>(F8E4M3(464.0)), 448.0f);  // the middle of 448 and what would be 480
  EXPECT_TRUE(std::isnan(F8E4M3(std::nextafter(464.0, 1e9))));
  EXPECT_EQ(static_cast<float>(F8E5M2(std::nextafter(61440.0, 0.0))), 57344.0f);
  EXPECT_TRUE(std::isinf(F8E5M2(61440.0)));
  for (const double large : {480.0, 65536.0, 1e9, 1e300, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(F8E4M3(-large).bits, 0xFF) << large;
  }
  EXPECT_EQ(F8E5M2(-1e300).bits, 0xFC);
}

TEST(Float8, IntegersAreRoundedOnce) {
  EXPECT_EQ(static_cast<float>(F8E4M3(17)), 16.0f);
  EXPECT_EQ(static_cast<float>(F8E4M3(19)), 20.0f);
  EXPECT_EQ(static_cast<float>(F8E5M2((int64_t{9} << 11) + 1)), 20480.0f);  // above the middle of 16384 and 20480
}

}  // namespace
}  // namespace tessera
