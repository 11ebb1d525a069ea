#include "schemas/types/dtype.h"

#include <algorithm>
#include <array>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct DTypeRow {
  std::string_view name;
  int bits;
  DTypeKind kind;
};

// By the number of the dtype.
constexpr std::array<DTypeRow, kDTypeCount> kRows = {{
    {"bool", 8, DTypeKind::kBool},
    {"i8", 8, DTypeKind::kSigned},
    {"i16", 16, DTypeKind::kSigned},
    {"i32", 32, DTypeKind::kSigned},
    {"i64", 64, DTypeKind::kSigned},
    {"u8", 8, DTypeKind::kUnsigned},
    {"u16", 16, DTypeKind::kUnsigned},
    {"u32", 32, DTypeKind::kUnsigned},
    {"u64", 64, DTypeKind::kUnsigned},
    {"f16", 16, DTypeKind::kFloat},
    {"bf16", 16, DTypeKind::kFloat},
    {"f32", 32, DTypeKind::kFloat},
    {"f64", 64, DTypeKind::kFloat},
    {"c64", 64, DTypeKind::kComplex},
    {"c128", 128, DTypeKind::kComplex},
    {"f8e4m3", 8, DTypeKind::kFloat},
    {"f8e5m2", 8, DTypeKind::kFloat},
}};

const DTypeRow& Row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

std::string KnownNames() {
  std::string names;
  for (const DTypeRow& row : kRows) StrAppend(&names, names.empty() ? "" : " ", row.name);
  return names;
}

absl::Status NoPromotion(DType a, DType b, std::string_view hint) {
  return DTypeError(StrCat("dtype: ", ToText(a), " and ", ToText(b), " have no common dtype", hint));
}

absl::StatusOr<DType> PromoteIntegers(DType a, DType b) {
  if (Kind(a) == Kind(b)) return SizeBits(a) >= SizeBits(b) ? a : b;
  const DType signed_one = Kind(a) == DTypeKind::kSigned ? a : b;
  const DType unsigned_one = Kind(a) == DTypeKind::kSigned ? b : a;
  if (SizeBits(signed_one) > SizeBits(unsigned_one)) return signed_one;
  switch (unsigned_one) {
    case DType::kU8: return DType::kI16;
    case DType::kU16: return DType::kI32;
    case DType::kU32: return DType::kI64;
    default: return DType::kF64;  // as NumPy: no integer holds both
  }
}

// Bits of the smallest float that NumPy gives for the integer (or bool) beside a float.
int FloatBitsFor(DType integer) {
  if (Kind(integer) == DTypeKind::kBool || SizeBits(integer) == 8) return 16;
  return SizeBits(integer) == 16 ? 32 : 64;
}

DType FloatOfBits(int bits) { return bits <= 32 ? DType::kF32 : DType::kF64; }

// Bits of one of the two parts of a complex, or of a float.
int PartBits(DType dtype) { return Kind(dtype) == DTypeKind::kComplex ? SizeBits(dtype) / 2 : SizeBits(dtype); }

}  // namespace

int SizeBits(DType dtype) { return Row(dtype).bits; }
int64_t SizeBytes(DType dtype) { return Row(dtype).bits / 8; }
DTypeKind Kind(DType dtype) { return Row(dtype).kind; }
bool IsFloat8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }
DType AccumulatedIn(DType dtype) {
  return Kind(dtype) == DTypeKind::kFloat && SizeBits(dtype) <= 16 ? DType::kF32 : dtype;
}
DType RealOf(DType dtype) { return dtype == DType::kC64 ? DType::kF32 : dtype == DType::kC128 ? DType::kF64 : dtype; }
bool MayCast(DType from, DType to) {
  return Kind(from) != DTypeKind::kComplex || Kind(to) == DTypeKind::kComplex || to == DType::kBool;
}
std::string_view ToText(DType dtype) { return Row(dtype).name; }

absl::StatusOr<DType> ParseDType(std::string_view text) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == text) return static_cast<DType>(i);
  }
  return DTypeError(StrCat("unknown dtype \"", Printable(text, 40), "\"; known: ", KnownNames()));
}

absl::StatusOr<DType> DTypeFromWire(uint32_t value) {
  if (value < kDTypeCount) return static_cast<DType>(value);
  return DTypeError(StrCat("unknown dtype number ", value));
}

absl::StatusOr<DType> Promote(DType a, DType b) {
  if (a == b) return a;
  if (IsFloat8(a) || IsFloat8(b)) return NoPromotion(a, b, "; cast the float of 8 bits by astype");
  if (Kind(a) == DTypeKind::kBool) return b;
  if (Kind(b) == DTypeKind::kBool) return a;
  const bool a_integer = Kind(a) == DTypeKind::kSigned || Kind(a) == DTypeKind::kUnsigned;
  const bool b_integer = Kind(b) == DTypeKind::kSigned || Kind(b) == DTypeKind::kUnsigned;
  if (a_integer && b_integer) return PromoteIntegers(a, b);
  const int bits = std::max(a_integer ? FloatBitsFor(a) : PartBits(a), b_integer ? FloatBitsFor(b) : PartBits(b));
  if (Kind(a) == DTypeKind::kComplex || Kind(b) == DTypeKind::kComplex) {
    return bits <= 32 ? DType::kC64 : DType::kC128;
  }
  const DType wide = a_integer || (!b_integer && SizeBits(b) > SizeBits(a)) ? b : a;
  if (PartBits(wide) >= bits && (a_integer || b_integer || PartBits(a) != PartBits(b))) return wide;
  // An integer wider than the float, or f16 with bf16.
  return FloatOfBits(bits);
}

}  // namespace tessera
