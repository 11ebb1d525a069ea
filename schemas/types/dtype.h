#pragma once

// The element types. A dtype knows its size in bits, so that sub-byte types need no new interface.
//
//   ToText(DType::kF32) == "f32";  SizeBits(DType::kF32) == 32;  Promote(kI32, kF32) == kF64
//
// Text: bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128 f8e4m3 f8e5m2.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// The numbers are on the wire and in files: append only.
enum class DType : uint8_t {
  kBool = 0,
  kI8 = 1,
  kI16 = 2,
  kI32 = 3,
  kI64 = 4,
  kU8 = 5,
  kU16 = 6,
  kU32 = 7,
  kU64 = 8,
  kF16 = 9,
  kBF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 13,
  kC128 = 14,
  kF8E4M3 = 15,  // without infinities, as NumPy's (ml_dtypes) and torch's float8_e4m3fn
  kF8E5M2 = 16,
};
inline constexpr int kDTypeCount = 17;

enum class DTypeKind : uint8_t { kBool, kSigned, kUnsigned, kFloat, kComplex };

int SizeBits(DType dtype);
// Bytes of one element. Every dtype of today has whole bytes.
int64_t SizeBytes(DType dtype);
DTypeKind Kind(DType dtype);
// Whether it is a float of 8 bits. Tensors of these are made, moved, cast and multiplied (matmul); no other op takes
// them.
bool IsFloat8(DType dtype);
// In which sums and products of several elements are made, and rounded in the end: f32 for floats of 8 and 16 bits,
// else itself.
DType AccumulatedIn(DType dtype);
// The dtype of a complex number's parts: f32 for c64, f64 for c128; else itself.
DType RealOf(DType dtype);
// Whether numbers of the one become numbers of the other by a cast: complex ones only complex ones, or truth values.
bool MayCast(DType from, DType to);

std::string_view ToText(DType dtype);
// InvalidArgument that lists the known names.
absl::StatusOr<DType> ParseDType(std::string_view text);
// From the number on the wire; InvalidArgument for an unknown one.
absl::StatusOr<DType> DTypeFromWire(uint32_t value);

// The array API's type promotion (https://data-apis.org/array-api/latest/API_specification/type_promotion.html),
// extended across kinds as NumPy does: bool < ints < floats, i32 with f32 is f64. i64 with u64 is InvalidArgument.
absl::StatusOr<DType> Promote(DType a, DType b);

}  // namespace tessera
