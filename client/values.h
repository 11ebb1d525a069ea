#pragma once

// Values of a program, typed: spans go up, vectors and spans come down, and the dtype is checked. No cast happens here:
// numbers of another type are a DTypeError that names both (ops::Astype casts, on the workers).
//
//   std::vector<float> rows = ...;                                               // 1,000 x 16
//   TESSERA_ASSIGN_OR_RETURN(Tensor x, Distribute(session, rows, {1000, 16}, mesh, {Placement::Shard(0)}));
//   TESSERA_ASSIGN_OR_RETURN(std::vector<float> y, ToVector<float>(x));           // row-major
//   TESSERA_ASSIGN_OR_RETURN(double sum, Item<double>(total));                    // of one element
//
// C++ types and dtypes: bool is bool; int8_t to uint64_t are i8 to u64, and any other integer type is that of its size
// and sign; float f32, double f64, std::complex of them c64 and c128. f16 and bf16 have no C++ type here: cast them.

#include <complex>
#include <concepts>
#include <cstring>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <vector>

#include "client/require_cxx20.h"

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/session.h"

namespace tessera {

// The dtype of a C++ type; a type that has none doesn't compile.
template <typename T>
constexpr DType DTypeOf() {
  static_assert(std::is_integral_v<T> || std::is_same_v<T, float> || std::is_same_v<T, double> ||
                    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>,
                "tessera: this type has no dtype; docs: client/values.h");
  if constexpr (std::is_same_v<T, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::kF64;
  } else if constexpr (std::is_same_v<T, std::complex<float>>) {
    return DType::kC64;
  } else if constexpr (std::is_same_v<T, std::complex<double>>) {
    return DType::kC128;
  } else {
    constexpr DType kSigned[] = {DType::kI8, DType::kI16, DType::kI32, DType::kI64};
    constexpr DType kUnsigned[] = {DType::kU8, DType::kU16, DType::kU32, DType::kU64};
    constexpr int kLog = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    return std::is_signed_v<T> ? kSigned[kLog] : kUnsigned[kLog];
  }
}

// For the templates. InvalidArgument: `count` values are not what the shape has. DTypeError: another dtype.
absl::Status CheckCount(std::string_view what, DType dtype, const Shape& shape, int64_t count);
absl::Status CheckDType(std::string_view what, DType wanted, DType dtype, std::string_view of);
absl::Status CheckOneElement(const Tensor& tensor);

// A row-major view of the values, which must outlive the calls that it is given to.
template <std::ranges::contiguous_range Values>
absl::StatusOr<HostView> ViewOf(const Values& values, const Shape& shape) {
  constexpr DType kDType = DTypeOf<std::ranges::range_value_t<Values>>();
  const absl::Status fits = CheckCount("view", kDType, shape, static_cast<int64_t>(std::ranges::size(values)));
  if (!fits.ok()) return fits;
  return MakeHostView(kDType, shape, std::ranges::data(values));
}

// Uploads row-major values, a vector, array or span of them: Session::DistributeTensor. They may go when it returns.
template <std::ranges::contiguous_range Values>
absl::StatusOr<Tensor> Distribute(const Session& session, const Values& values, const Shape& shape, const Mesh& mesh,
                                  const Placements& placements) {
  constexpr DType kDType = DTypeOf<std::ranges::range_value_t<Values>>();
  const absl::Status fits =
      CheckCount("distribute_tensor", kDType, shape, static_cast<int64_t>(std::ranges::size(values)));
  if (!fits.ok()) return fits;
  return session.DistributeTensor(MakeHostView(kDType, shape, std::ranges::data(values)), mesh, placements);
}

// The values of an array that was fetched, without a copy: they live as long as array.memory.
template <typename T>
absl::StatusOr<absl::Span<const T>> SpanOf(const HostArray& array) {
  const absl::Status fits = CheckDType("span", DTypeOf<T>(), array.dtype, ToText(array.shape));
  if (!fits.ok()) return fits;
  return absl::Span<const T>(reinterpret_cast<const T*>(array.memory->data()),
                             static_cast<size_t>(NumElements(array.shape)));
}

// All values, row-major, in a vector of the caller. Blocks for a tensor as FullTensor does.
template <typename T>
absl::StatusOr<std::vector<T>> ToVector(const HostArray& array) {
  static_assert(!std::is_same_v<T, bool>, "tessera: std::vector<bool> has no elements to write to: take SpanOf<bool>");
  const absl::StatusOr<absl::Span<const T>> span = SpanOf<T>(array);
  if (!span.ok()) return span.status();
  return std::vector<T>(span->begin(), span->end());
}

// The same into memory of the caller, without a copy between: Tensor::FullTensorTo. Blocks.
template <typename T>
absl::Status ToSpan(const Tensor& tensor, absl::Span<T> out) {
  absl::Status fits = CheckDType("full_tensor", DTypeOf<T>(), tensor.dtype(), "the tensor");
  if (fits.ok()) fits = tensor.AwaitSpec();
  if (fits.ok()) fits = CheckCount("full_tensor", tensor.dtype(), tensor.shape(), static_cast<int64_t>(out.size()));
  if (!fits.ok()) return fits;
  return tensor.FullTensorTo({tensor.dtype(), tensor.shape(), reinterpret_cast<char*>(out.data())});
}

template <typename T>
absl::StatusOr<std::vector<T>> ToVector(const Tensor& tensor) {
  static_assert(!std::is_same_v<T, bool>, "tessera: std::vector<bool> has no elements to write to: take ToSpan<bool>");
  absl::Status status = CheckDType("full_tensor", DTypeOf<T>(), tensor.dtype(), "the tensor");
  if (status.ok()) status = tensor.AwaitSpec();
  if (!status.ok()) return status;
  std::vector<T> values(static_cast<size_t>(NumElements(tensor.shape())));
  status = ToSpan(tensor, absl::MakeSpan(values));
  if (!status.ok()) return status;
  return values;
}

// The one element of a tensor that has one. Blocks.
template <typename T>
absl::StatusOr<T> Item(const Tensor& tensor) {
  absl::Status status = CheckDType("item", DTypeOf<T>(), tensor.dtype(), "the tensor");
  if (status.ok()) status = CheckOneElement(tensor);
  T value{};
  if (status.ok()) status = ToSpan(tensor, absl::Span<T>(&value, 1));
  if (!status.ok()) return status;
  return value;
}

}  // namespace tessera
