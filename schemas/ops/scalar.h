#pragma once

// Scalar: one number beside tensors (x * 2, full(shape, 3.5), a seed, a slice start). It is a
// parameter of an operation, never part of a plan's key.
//
// A weak scalar (a Python number) takes the tensor's dtype where its kind fits (array API: bool < int
// < float < complex); a strong one takes part in promotion.

#include <complex>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/dtype.h"

namespace tessera {

class Scanner;

enum class ScalarStrength : uint8_t { kWeak = 0, kStrong = 1 };

class Scalar {
 public:
  Scalar() = default;  // i64 0
  static Scalar Bool(bool v, ScalarStrength s = ScalarStrength::kWeak);
  static Scalar Int(int64_t v, ScalarStrength s = ScalarStrength::kWeak);                   // dtype i64
  static Scalar Float(double v, ScalarStrength s = ScalarStrength::kWeak);                  // dtype f64
  static Scalar Complex(std::complex<double> v, ScalarStrength s = ScalarStrength::kWeak);  // dtype c128
  // The same number as `dtype`: integers wrap as C++ conversions of two's complement do, a float out
  // of an integer's range saturates, NaN to integer is 0; a real dtype but bool takes the real part of
  // a complex number (schemas/ops/resolve.h refuses that). The result is strong.
  Scalar As(DType dtype) const;

  DType dtype() const { return dtype_; }
  ScalarStrength strength() const { return strength_; }
  double AsDouble() const;  // the real part of a complex number, as AsInt
  int64_t AsInt() const;
  bool AsBool() const;
  std::complex<double> AsComplex() const;
  // Zero, or with an infinite or NaN part, as a number of the dtype: what may make a NaN of a number that it multiplies
  // or divides.
  bool IsSpecialAs(DType dtype) const;
  // For keys: a bit for each float or complex dtype of which it is such a number.
  uint8_t SpecialDTypes() const;
  uint64_t bits() const { return bits_; }  // i64 two's complement, or f64 bits of a float or a real part
  uint64_t imaginary_bits() const { return imaginary_bits_; }  // f64 bits; 0 unless the dtype is complex
  // Bits that the dtype can't have are made to fit, as As does; a weak dtype is bool, i64, f64 or c128, and
  // another one makes the scalar strong.
  static Scalar FromBits(DType dtype, ScalarStrength strength, uint64_t bits, uint64_t imaginary_bits = 0);
  bool operator==(const Scalar&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Scalar& s) {
    return H::combine(std::move(h), s.dtype_, s.strength_, s.bits_, s.imaginary_bits_);
  }

 private:
  DType dtype_ = DType::kI64;
  ScalarStrength strength_ = ScalarStrength::kWeak;
  uint64_t bits_ = 0;
  uint64_t imaginary_bits_ = 0;
};

// "2", "3.5", "true", "nan", "1.0-2.5j"; a strong one carries its dtype: "2:i32". Round-trips.
std::string ToText(const Scalar& scalar);
absl::StatusOr<Scalar> ParseScalar(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<Scalar> ParseScalar(Scanner& scanner);

}  // namespace tessera
