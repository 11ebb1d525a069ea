#pragma once

// An array with any layout, read and written element by element as ScalarValue: what kernels are
// compared through. Its storage has guard elements around it; CheckGuards finds a write outside.

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "schemas/ops/expression.h"

namespace tessera::testing {

enum class Layout : uint8_t { kRowMajor, kColumnMajor, kPadded, kStepped, kReversed };
inline constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kColumnMajor, Layout::kPadded, Layout::kStepped,
                                      Layout::kReversed};

// The dtypes that are implemented.
inline constexpr DType kDTypes[] = {DType::kBool, DType::kI8,  DType::kI16, DType::kI32, DType::kI64,
                                    DType::kU8,   DType::kU16, DType::kU32, DType::kU64, DType::kF16,
                                    DType::kBF16, DType::kF32, DType::kF64, DType::kC64, DType::kC128};
inline constexpr DType kFloat8DTypes[] = {DType::kF8E4M3, DType::kF8E5M2};
inline bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }

class StridedArray {
 public:
  StridedArray(DType dtype, const Shape& extents, Layout layout);

  DType dtype() const { return dtype_; }
  const Shape& extents() const { return extents_; }
  const Strides& strides() const { return strides_; }
  void* data() { return storage_.data() + first_ * element_bytes_; }
  const void* data() const { return storage_.data() + first_ * element_bytes_; }
  // By row-major index.
  ScalarValue Get(int64_t flat_index) const;
  void Set(int64_t flat_index, const ScalarValue& value);
  int64_t size() const { return NumElements(extents_); }
  // Random values; with the dtype's awkward ones among them (NaN, infinities, extremes, zeros).
  void Randomize(uint32_t seed);
  // Small integers, and complex numbers of them, so that sums and products are exact in every order.
  void FillSmall(uint32_t seed);
  // Whether bytes outside the elements are as they were made.
  bool GuardsAreIntact() const;
  KernelInput AsInput() const;

 private:
  int64_t OffsetBytes(int64_t flat_index) const;
  DType dtype_;
  int64_t element_bytes_;
  Shape extents_;
  Strides strides_;
  int64_t first_ = 0;
  std::vector<std::byte> storage_;
};

// The number as the dtype holds it: floats rounded, integers wrapped.
ScalarValue ValueOf(DType dtype, double number);
// The result of `op` on the terms, in order: in the dtype in which they are accumulated, and rounded in the end.
ScalarValue Fold(ScalarOp op, DType dtype, const std::vector<ScalarValue>& terms);
// Equal bits of meaning: NaN equals NaN, -0 equals 0.
bool SameValue(const ScalarValue& a, const ScalarValue& b);
std::string ValueText(const ScalarValue& value);
std::string LayoutText(Layout layout);

}  // namespace tessera::testing
