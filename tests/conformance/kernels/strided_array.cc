#include "tests/conformance/kernels/strided_array.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "schemas/ops/scalar.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/float8.h"

namespace tessera::testing {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr int64_t kGuardElements = 8;

}  // namespace

StridedArray::StridedArray(DType dtype, const Shape& extents, Layout layout)
    : dtype_(dtype), element_bytes_(SizeBytes(dtype)), extents_(extents), strides_(extents.size(), 1) {
  int64_t stride = layout == Layout::kStepped ? 3 : 1;
  auto place = [&](size_t d) {
    strides_[d] = stride;
    stride *= std::max<int64_t>(1, extents[d]) + (layout == Layout::kPadded ? 5 : 0);
  };
  if (layout == Layout::kColumnMajor) {
    for (size_t d = 0; d < extents.size(); ++d) place(d);
  } else {
    for (size_t d = extents.size(); d-- > 0;) place(d);
  }
  first_ = kGuardElements;
  if (layout == Layout::kReversed) {
    for (size_t d = 0; d < extents.size(); ++d) {
      first_ += strides_[d] * std::max<int64_t>(0, extents[d] - 1);
      strides_[d] = -strides_[d];
    }
  }
  storage_.assign(static_cast<size_t>((stride + 2 * kGuardElements) * element_bytes_), kGuard);
  for (int64_t i = 0; i < size(); ++i) Set(i, ScalarValue{.dtype = dtype});
}

int64_t StridedArray::OffsetBytes(int64_t flat_index) const {
  int64_t offset = first_;
  for (size_t d = extents_.size(); d-- > 0;) {
    offset += flat_index % extents_[d] * strides_[d];
    flat_index /= extents_[d];
  }
  return offset * element_bytes_;
}

ScalarValue StridedArray::Get(int64_t flat_index) const {
  const std::byte* at = storage_.data() + OffsetBytes(flat_index);
  ScalarValue value{.dtype = dtype_};
  auto get = [&](auto typed) {
    std::memcpy(&typed, at, sizeof(typed));
    return typed;
  };
  switch (dtype_) {
    case DType::kBool: value.i = get(uint8_t{}); break;
    case DType::kI8: value.i = get(int8_t{}); break;
    case DType::kI16: value.i = get(int16_t{}); break;
    case DType::kI32: value.i = get(int32_t{}); break;
    case DType::kI64: value.i = get(int64_t{}); break;
    case DType::kU8: value.i = get(uint8_t{}); break;
    case DType::kU16: value.i = get(uint16_t{}); break;
    case DType::kU32: value.i = get(uint32_t{}); break;
    case DType::kU64: value.i = static_cast<int64_t>(get(uint64_t{})); break;
    case DType::kF16: value.f = static_cast<double>(get(F16{})); break;
    case DType::kBF16: value.f = static_cast<double>(get(BF16{})); break;
    case DType::kF32: value.f = get(float{}); break;
    case DType::kF8E4M3: value.f = static_cast<double>(get(F8E4M3{})); break;
    case DType::kF8E5M2: value.f = static_cast<double>(get(F8E5M2{})); break;
    case DType::kC64: {
      const auto number = get(std::array<float, 2>{});
      value.f = number[0];
      value.imaginary = number[1];
      break;
    }
    case DType::kC128: {
      const auto number = get(std::array<double, 2>{});
      value.f = number[0];
      value.imaginary = number[1];
      break;
    }
    default: value.f = get(double{}); break;
  }
  return value;
}

void StridedArray::Set(int64_t flat_index, const ScalarValue& value) {
  std::byte* at = storage_.data() + OffsetBytes(flat_index);
  auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof(typed)); };
  switch (dtype_) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8: put(static_cast<uint8_t>(value.i)); break;
    case DType::kI16:
    case DType::kU16: put(static_cast<uint16_t>(value.i)); break;
    case DType::kI32:
    case DType::kU32: put(static_cast<uint32_t>(value.i)); break;
    case DType::kI64:
    case DType::kU64: put(value.i); break;
    case DType::kF16: put(F16(value.f)); break;
    case DType::kBF16: put(BF16(value.f)); break;
    case DType::kF32: put(static_cast<float>(value.f)); break;
    case DType::kF8E4M3: put(F8E4M3(value.f)); break;
    case DType::kF8E5M2: put(F8E5M2(value.f)); break;
    case DType::kC64:
      put(std::array<float, 2>{static_cast<float>(value.f), static_cast<float>(value.imaginary)});
      break;
    case DType::kC128: put(std::array<double, 2>{value.f, value.imaginary}); break;
    default: put(value.f); break;
  }
}

void StridedArray::Randomize(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> real(-50, 50);
  std::uniform_int_distribution<int64_t> integer(-100, 100);
  const double kFloats[] = {0.0,
                            -0.0,
                            1.0,
                            -1.0,
                            3e-8,
                            -7e4,
                            3e9,
                            -3e9,
                            1e19,
                            -1e19,
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};
  const double kInfinite = std::numeric_limits<double>::infinity();
  const int64_t kMin = Scalar::Float(-kInfinite).As(dtype_).AsInt(), kMax = Scalar::Float(kInfinite).As(dtype_).AsInt();
  const int64_t kIntegers[] = {0, 1, -1, kMin, kMax};
  for (int64_t i = 0; i < size(); ++i) {
    const bool awkward = random() % 3 == 0;
    const double number = awkward ? kFloats[random() % std::size(kFloats)] : real(random);
    const int64_t whole = awkward ? kIntegers[random() % std::size(kIntegers)] : integer(random);
    if (IsComplex(dtype_)) {
      const bool is_odd = random() % 3 == 0;
      const double imaginary = is_odd ? kFloats[random() % std::size(kFloats)] : real(random);
      Set(i, ToScalarValue(Scalar::Complex({number, imaginary}).As(dtype_)));
    } else if (Kind(dtype_) == DTypeKind::kFloat) {
      Set(i, ValueOf(dtype_, number));
    } else if (dtype_ == DType::kBool) {
      Set(i, {.dtype = dtype_, .i = static_cast<int64_t>(random() % 2)});
    } else {
      Set(i, {.dtype = dtype_, .i = Scalar::Int(whole).As(dtype_).AsInt()});
    }
  }
}

void StridedArray::FillSmall(uint32_t seed) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t v = static_cast<int64_t>(random() % 9) - (Kind(dtype_) == DTypeKind::kUnsigned ? 0 : 4);
    if (IsComplex(dtype_)) {
      const double imaginary = static_cast<double>(random() % 5) - 2;
      Set(i, ToScalarValue(Scalar::Complex({static_cast<double>(v), imaginary}).As(dtype_)));
    } else {
      Set(i, ValueOf(dtype_, dtype_ == DType::kBool ? v > 0 : static_cast<double>(v)));
    }
  }
}

bool StridedArray::GuardsAreIntact() const {
  std::set<int64_t> used;
  for (int64_t i = 0; i < size(); ++i) used.insert(OffsetBytes(i) / element_bytes_);
  for (int64_t e = 0; e * element_bytes_ < static_cast<int64_t>(storage_.size()); ++e) {
    if (used.count(e) != 0) continue;
    for (int64_t b = 0; b < element_bytes_; ++b) {
      if (storage_[static_cast<size_t>(e * element_bytes_ + b)] != kGuard) return false;
    }
  }
  return true;
}

KernelInput StridedArray::AsInput() const {
  return {.data = data(), .dtype = dtype_, .extents = extents_, .strides = strides_};
}

ScalarValue ValueOf(DType dtype, double number) {
  const bool is_float = Kind(dtype) == DTypeKind::kFloat || IsComplex(dtype);
  return ToScalarValue((is_float ? Scalar::Float(number) : Scalar::Int(static_cast<int64_t>(number))).As(dtype));
}

ScalarValue Fold(ScalarOp op, DType dtype, const std::vector<ScalarValue>& terms) {
  const DType accumulated = AccumulatedIn(dtype);
  ScalarValue folded;
  for (size_t t = 0; t < terms.size(); ++t) {
    const ScalarValue term = EvaluateScalarOp(ScalarOp::kCast, accumulated, terms[t], {}, {});
    folded = t == 0 ? term : EvaluateScalarOp(op, accumulated, folded, term, {});
  }
  return EvaluateScalarOp(ScalarOp::kCast, dtype, folded, {}, {});
}

bool SameValue(const ScalarValue& a, const ScalarValue& b) {
  const auto is_same = [](double x, double y) { return (std::isnan(x) && std::isnan(y)) || x == y; };
  if (IsComplex(a.dtype)) return is_same(a.f, b.f) && is_same(a.imaginary, b.imaginary);
  if (Kind(a.dtype) == DTypeKind::kFloat) return is_same(a.f, b.f);
  return a.i == b.i;
}

std::string ValueText(const ScalarValue& value) {
  if (IsComplex(value.dtype)) return absl::StrCat(value.f, "+", value.imaginary, "j");
  if (Kind(value.dtype) == DTypeKind::kFloat) return absl::StrCat(value.f);
  return absl::StrCat(value.i);
}

std::string LayoutText(Layout layout) {
  const char* kNames[] = {"row-major", "column-major", "padded", "stepped", "reversed"};
  return kNames[static_cast<size_t>(layout)];
}

}  // namespace tessera::testing
