#include "schemas/types/dtype.h"

#include <string>

#include "gtest/gtest.h"
#include "schemas/types/errors.h"

namespace tessera {
namespace {

DType Parse(std::string_view text) { return *ParseDType(text); }

TEST(DType, TextRoundTrips) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType dtype = static_cast<DType>(i);
    EXPECT_EQ(Parse(ToText(dtype)), dtype);
    EXPECT_EQ(*DTypeFromWire(static_cast<uint32_t>(i)), dtype);
    EXPECT_EQ(SizeBytes(dtype) * 8, SizeBits(dtype));
  }
}

TEST(DType, UnknownOnesAreErrorsThatListTheKnown) {
  const absl::Status status = ParseDType("float32").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("bf16"), absl::string_view::npos);
  EXPECT_TRUE(status.GetPayload(kDTypeErrorPayload).has_value());
  EXPECT_FALSE(DTypeFromWire(kDTypeCount).ok());
  EXPECT_FALSE(DTypeFromWire(0xffffffff).ok());
}

// Rows and columns in one order: what NumPy 2's result_type gives (ml_dtypes for bf16).
TEST(DType, PromotionTable) {
  const std::string names[] = {"bool", "i8", "i32", "i64", "u8", "u32", "u64", "f16", "bf16", "f32", "f64", "c64"};
  const std::string table[][12] = {
      {"bool", "i8", "i32", "i64", "u8", "u32", "u64", "f16", "bf16", "f32", "f64", "c64"},
      {"i8", "i8", "i32", "i64", "i16", "i64", "f64", "f16", "bf16", "f32", "f64", "c64"},
      {"i32", "i32", "i32", "i64", "i32", "i64", "f64", "f64", "f64", "f64", "f64", "c128"},
      {"i64", "i64", "i64", "i64", "i64", "i64", "f64", "f64", "f64", "f64", "f64", "c128"},
      {"u8", "i16", "i32", "i64", "u8", "u32", "u64", "f16", "bf16", "f32", "f64", "c64"},
      {"u32", "i64", "i64", "i64", "u32", "u32", "u64", "f64", "f64", "f64", "f64", "c128"},
      {"u64", "f64", "f64", "f64", "u64", "u64", "u64", "f64", "f64", "f64", "f64", "c128"},
      {"f16", "f16", "f64", "f64", "f16", "f64", "f64", "f16", "f32", "f32", "f64", "c64"},
      {"bf16", "bf16", "f64", "f64", "bf16", "f64", "f64", "f32", "bf16", "f32", "f64", "c64"},
      {"f32", "f32", "f64", "f64", "f32", "f64", "f64", "f32", "f32", "f32", "f64", "c64"},
      {"f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "f64", "c128"},
      {"c64", "c64", "c128", "c128", "c64", "c128", "c128", "c64", "c64", "c64", "c128", "c64"},
  };
  for (int i = 0; i < 12; ++i) {
    for (int j = 0; j < 12; ++j) {
      const absl::StatusOr<DType> promoted = Promote(Parse(names[i]), Parse(names[j]));
      const std::string text = promoted.ok() ? std::string(ToText(*promoted)) : "-";
      EXPECT_EQ(text, table[i][j]) << names[i] << " with " << names[j];
    }
  }
  EXPECT_EQ(*Promote(DType::kI16, DType::kF16), DType::kF32);
  EXPECT_EQ(*Promote(DType::kC64, DType::kC128), DType::kC128);
  EXPECT_EQ(Promote(DType::kF8E4M3, DType::kF32).status().message(),
            "dtype: f8e4m3 and f32 have no common dtype; cast the float of 8 bits by astype");
  EXPECT_FALSE(Promote(DType::kF8E4M3, DType::kF8E5M2).ok());
}

TEST(DType, FloatsAreAddedUpIn32Bits) {
  for (const char* name : {"f8e4m3", "f8e5m2", "f16", "bf16"})
    EXPECT_EQ(AccumulatedIn(Parse(name)), DType::kF32) << name;
  EXPECT_TRUE(IsFloat8(DType::kF8E5M2) && !IsFloat8(DType::kF16) && !IsFloat8(DType::kI8));
}

}  // namespace
}  // namespace tessera
