#pragma once

// Number: an element as Interpret holds it, exact for every dtype: floats and the parts of complex numbers as f64,
// integers of 64 bits as they are. It is in the dtype that it was read or made in; a number that is written is cast to
// the dtype of its place by the law of schemas/ops/expression.h. A double stands for a number of f64, so that tests
// write numbers.
//
//   Number(3.0) == Number(ScalarValue{DType::kU8, 0, 3})        numbers are equal, whatever their dtypes
//   CastTo(DType::kU8, 300.0) == 255.0                          as a cast of the catalog
//   ReduceTwo(ReduceOp::kSum, DType::kI8, 100.0, 100.0) == -56.0

#include <cstdint>
#include <ostream>
#include <string>

#include "schemas/ops/expression.h"
#include "schemas/types/dtype.h"
#include "schemas/types/placement.h"

namespace tessera {

class Number {
 public:
  Number() = default;                                                         // 0 of f64
  Number(double value) : value_{.dtype = DType::kF64, .f = value, .i = 0} {}  // NOLINT: implicit
  explicit Number(const ScalarValue& value) : value_(value) {}
  static Number Whole(int64_t value) { return Number(ScalarValue{DType::kI64, 0, value}); }

  DType dtype() const { return value_.dtype; }
  const ScalarValue& value() const { return value_; }
  // The nearest f64; a complex number's real part.
  explicit operator double() const;
  int64_t ToInt() const;
  bool is_nan() const;       // of a complex number: in either part
  bool is_negative() const;  // by the sign bit

  friend bool operator==(const Number& a, const Number& b);

 private:
  ScalarValue value_;
};
// "3", "0.5", "1+2j", "nan".
std::string ToText(const Number& number);
inline std::ostream& operator<<(std::ostream& out, const Number& number) { return out << ToText(number); }

// Both are NaN, or equal.
bool AreAlike(const Number& a, const Number& b);
// As a cast of the catalog converts it.
Number CastTo(DType to, const Number& value);
// By the scalar op's law in the dtype, to which both are cast.
Number Apply(ScalarOp op, DType dtype, const Number& a, const Number& b);
bool IsLess(DType dtype, const Number& a, const Number& b);
// a and b reduced in the dtype; kAvg adds.
Number ReduceTwo(ReduceOp op, DType dtype, const Number& a, const Number& b);
// In which products are added up: floats and complex numbers as wide as there are, so that a sum is rounded once.
DType AddedUpIn(DType dtype);
// The sum of `count` terms, in the dtype, divided by their number: of a complex number each part.
Number Averaged(DType dtype, const Number& sum, int64_t count);

}  // namespace tessera
