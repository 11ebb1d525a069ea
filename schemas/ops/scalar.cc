#include "schemas/ops/scalar.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "schemas/types/float8.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }
bool IsFloating(DType dtype) { return Kind(dtype) == DTypeKind::kFloat || IsComplex(dtype); }

bool IsWeakDType(DType dtype) {
  return dtype == DType::kBool || dtype == DType::kI64 || dtype == DType::kF64 || dtype == DType::kC128;
}

uint64_t FloatBits(double value) {
  return std::bit_cast<uint64_t>(std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value);
}

// The lowest `bits` bits, extended by sign or by zeros.
int64_t WrapInteger(DType dtype, int64_t value) {
  const int unused = 64 - SizeBits(dtype);
  const uint64_t shifted = static_cast<uint64_t>(value) << unused;
  return Kind(dtype) == DTypeKind::kUnsigned ? static_cast<int64_t>(shifted >> unused)
                                             : static_cast<int64_t>(shifted) >> unused;
}

int64_t SaturateToInteger(DType dtype, double value) {
  if (std::isnan(value)) return 0;
  const int bits = SizeBits(dtype);
  if (Kind(dtype) == DTypeKind::kUnsigned) {
    if (value <= 0) return 0;
    if (value >= std::ldexp(1.0, bits)) return WrapInteger(dtype, -1);
    return static_cast<int64_t>(static_cast<uint64_t>(value));
  }
  const double limit = std::ldexp(1.0, bits - 1);
  if (value >= limit) return static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1);
  if (value < -limit) return WrapInteger(dtype, static_cast<int64_t>(uint64_t{1} << (bits - 1)));
  return static_cast<int64_t>(value);
}

// Rounded once, from an integer, too.
template <typename N>
double RoundTo(DType dtype, N value) {
  switch (dtype) {
    case DType::kF16: return static_cast<double>(F16(value));
    case DType::kBF16: return static_cast<double>(BF16(value));
    case DType::kF8E4M3: return static_cast<double>(F8E4M3(value));
    case DType::kF8E5M2: return static_cast<double>(F8E5M2(value));
    case DType::kF32:
    case DType::kC64: return static_cast<double>(static_cast<float>(value));
    default: return static_cast<double>(value);
  }
}

std::string FloatText(DType dtype, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = RealOf(dtype) == DType::kF32
                       ? std::to_chars(buffer, buffer + sizeof(buffer), static_cast<float>(value))
                       : std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string ComplexText(DType dtype, std::complex<double> value) {
  const std::string imaginary = FloatText(dtype, value.imag());
  return StrCat(FloatText(dtype, value.real()), imaginary[0] == '-' ? "" : "+", imaginary, "j");
}

// Where the sign of the imaginary part is in "1.5e-3-2j"; 0 where there is no real part.
size_t ImaginaryStart(std::string_view word) {
  for (size_t i = word.size(); i-- > 1;) {
    if ((word[i] == '+' || word[i] == '-') && word[i - 1] != 'e') return i;
  }
  return 0;
}

// The number and the weak dtype of its notation.
absl::StatusOr<Scalar> ParseLiteral(std::string_view word) {
  if (word.size() > 1 && word.back() == 'j') {
    word.remove_suffix(1);
    const size_t start = ImaginaryStart(word);
    Scalar real;
    if (start > 0) {
      TESSERA_ASSIGN_OR_RETURN(real, ParseLiteral(word.substr(0, start)));
    }
    TESSERA_ASSIGN_OR_RETURN(const Scalar imaginary, ParseLiteral(word.substr(start)));
    if (!IsComplex(real.dtype()) && !IsComplex(imaginary.dtype())) {
      return Scalar::Complex({real.AsDouble(), imaginary.AsDouble()});
    }
    return absl::InvalidArgumentError(StrCat("not a number: \"", Printable(word, 60), "j\""));
  }
  if (word == "true") return Scalar::Bool(true);
  if (word == "false") return Scalar::Bool(false);
  if (!word.empty() && word[0] == '+') word.remove_prefix(1);
  const char* const end = word.data() + word.size();
  int64_t integer = 0;
  if (const auto parsed = std::from_chars(word.data(), end, integer); parsed.ptr == end && parsed.ec == std::errc()) {
    return Scalar::Int(integer);
  }
  uint64_t large = 0;
  if (const auto parsed = std::from_chars(word.data(), end, large); parsed.ptr == end && parsed.ec == std::errc()) {
    return Scalar::FromBits(DType::kU64, ScalarStrength::kStrong, large);
  }
  double real = 0;
  const bool is_float = word.find_first_of(".en") != std::string_view::npos;
  if (const auto parsed = std::from_chars(word.data(), end, real);
      is_float && parsed.ptr == end && parsed.ec == std::errc()) {
    return Scalar::Float(real);
  }
  return absl::InvalidArgumentError(StrCat("not a number: \"", Printable(word, 60), "\""));
}

}  // namespace

Scalar Scalar::Bool(bool v, ScalarStrength s) { return FromBits(DType::kBool, s, v ? 1 : 0); }
Scalar Scalar::Int(int64_t v, ScalarStrength s) { return FromBits(DType::kI64, s, static_cast<uint64_t>(v)); }
Scalar Scalar::Float(double v, ScalarStrength s) { return FromBits(DType::kF64, s, FloatBits(v)); }

Scalar Scalar::Complex(std::complex<double> v, ScalarStrength s) {
  return FromBits(DType::kC128, s, FloatBits(v.real()), FloatBits(v.imag()));
}

Scalar Scalar::FromBits(DType dtype, ScalarStrength strength, uint64_t bits, uint64_t imaginary_bits) {
  Scalar scalar;
  scalar.dtype_ = dtype;
  scalar.strength_ = IsWeakDType(dtype) ? strength : ScalarStrength::kStrong;
  if (IsFloating(dtype)) {
    scalar.bits_ = FloatBits(RoundTo(dtype, std::bit_cast<double>(bits)));
    if (IsComplex(dtype)) {
      scalar.imaginary_bits_ = FloatBits(RoundTo(dtype, std::bit_cast<double>(imaginary_bits)));
    }
  } else if (dtype == DType::kBool) {
    scalar.bits_ = bits != 0 ? 1 : 0;
  } else {
    scalar.bits_ = static_cast<uint64_t>(WrapInteger(dtype, static_cast<int64_t>(bits)));
  }
  return scalar;
}

double Scalar::AsDouble() const {
  if (IsFloating(dtype_)) return std::bit_cast<double>(bits_);
  return dtype_ == DType::kU64 ? static_cast<double>(bits_) : static_cast<double>(static_cast<int64_t>(bits_));
}

int64_t Scalar::AsInt() const {
  return IsFloating(dtype_) ? SaturateToInteger(DType::kI64, std::bit_cast<double>(bits_))
                            : static_cast<int64_t>(bits_);
}

std::complex<double> Scalar::AsComplex() const {
  return {AsDouble(), IsComplex(dtype_) ? std::bit_cast<double>(imaginary_bits_) : 0.0};
}

bool Scalar::AsBool() const { return IsFloating(dtype_) ? AsComplex() != 0.0 : bits_ != 0; }

bool Scalar::IsSpecialAs(DType dtype) const {
  const std::complex<double> value = As(dtype).AsComplex();
  return value == 0.0 || !std::isfinite(value.real()) || !std::isfinite(value.imag());
}

uint8_t Scalar::SpecialDTypes() const {
  uint8_t mask = 0;
  int bit = 0;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128}) {
    mask = static_cast<uint8_t>(mask | (IsSpecialAs(dtype) ? 1 : 0) << bit++);
  }
  return mask;
}

Scalar Scalar::As(DType dtype) const {
  uint64_t bits = bits_;
  if (dtype == DType::kBool) {
    bits = AsBool() ? 1 : 0;
  } else if (IsFloating(dtype)) {
    bits = FloatBits(IsFloating(dtype_)      ? RoundTo(dtype, AsDouble())
                     : dtype_ == DType::kU64 ? RoundTo(dtype, bits_)
                                             : RoundTo(dtype, static_cast<int64_t>(bits_)));
  } else if (IsFloating(dtype_)) {
    bits = static_cast<uint64_t>(SaturateToInteger(dtype, AsDouble()));
  }
  return FromBits(dtype, ScalarStrength::kStrong, bits, imaginary_bits_);
}

std::string ToText(const Scalar& scalar) {
  std::string text;
  if (IsComplex(scalar.dtype())) {
    text = ComplexText(scalar.dtype(), scalar.AsComplex());
  } else if (IsFloating(scalar.dtype())) {
    text = FloatText(scalar.dtype(), scalar.AsDouble());
  } else if (scalar.dtype() == DType::kBool) {
    text = scalar.AsBool() ? "true" : "false";
  } else {
    text = scalar.dtype() == DType::kU64 ? StrCat(scalar.bits()) : StrCat(scalar.AsInt());
  }
  if (scalar.strength() == ScalarStrength::kStrong) StrAppend(&text, ":", ToText(scalar.dtype()));
  return text;
}

absl::StatusOr<Scalar> ParseScalar(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view word, scanner.TakeWord());
  TESSERA_ASSIGN_OR_RETURN(const Scalar literal, ParseLiteral(word));
  if (!scanner.TryTake(":")) {
    if (literal.strength() == ScalarStrength::kWeak) return literal;
    return absl::InvalidArgumentError(StrCat("not a number of 64 bits: \"", Printable(word, 60), "\""));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, ParseDType(name));
  return literal.As(dtype);
}

absl::StatusOr<Scalar> ParseScalar(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(const Scalar scalar, ParseScalar(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return scalar;
}

}  // namespace tessera
