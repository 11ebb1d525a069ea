// Creation ops: full, arange, eye, rand. An element depends on its global index alone, so every shard
// of every placement holds the same values.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/philox.h"

namespace tessera::cpu {
namespace {

absl::Status ExpectScalars(const char* op, const KernelCall& call, size_t scalars, size_t min_rank, size_t max_rank) {
  const size_t rank = call.output_extents.size();
  if (call.scalars.size() != scalars || rank < min_rank || rank > max_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": takes ", scalars, " scalars, got ", call.scalars.size(), ", for an output of rank ", rank));
  }
  if (min_rank > 0 && call.output_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": box of rank ", call.output_box.size(), " for an output of rank ", rank));
  }
  return absl::OkStatus();
}

// Calls row(pointer, index of the row's first element per dim) for every innermost row.
template <typename T, typename Row>
void ForEachOutputRow(const KernelCall& call, Row&& row) {
  const size_t rank = call.output_extents.size();
  if (NumElements(call.output_extents) == 0) return;
  Shape index(rank, 0);
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset += index[d] * call.output_strides[d];
    row(static_cast<T*>(call.output) + offset, index);
    size_t d = rank > 0 ? rank - 1 : 0;
    while (d > 0 && ++index[d - 1] == call.output_extents[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// start + step * index: in f64 for floats, wrapping for integers.
template <typename T>
void Arange(const KernelCall& call, bool is_bool) {
  const int64_t first = call.output_box[0].start;
  const int64_t stride = call.output_strides[0];
  T* out = static_cast<T*>(call.output);
  for (int64_t i = 0; i < call.output_extents[0]; ++i) {
    if constexpr (!std::is_integral_v<T>) {
      out[i * stride] =
          static_cast<T>(call.scalars[0].AsDouble() + call.scalars[1].AsDouble() * static_cast<double>(first + i));
    } else {
      const uint64_t value = static_cast<uint64_t>(call.scalars[0].AsInt()) +
                             static_cast<uint64_t>(call.scalars[1].AsInt()) * static_cast<uint64_t>(first + i);
      out[i * stride] = is_bool ? static_cast<T>(value != 0) : static_cast<T>(value);
    }
  }
}

template <typename T>
void Eye(const KernelCall& call) {
  const int64_t diagonal = call.scalars[0].AsInt();
  ForEachOutputRow<T>(call, [&](T* row, const Shape& index) {
    const int64_t stride = call.output_strides[1];
    const int64_t columns = call.output_extents[1];
    for (int64_t j = 0; j < columns; ++j) row[j * stride] = T{0};
    // The one's column in this shard; a column beyond 64 bits is in no shard.
    int64_t one = 0;
    if (__builtin_add_overflow(call.output_box[0].start + index[0] - call.output_box[1].start, diagonal, &one)) return;
    if (one >= 0 && one < columns) row[one * stride] = T{1};
  });
}

template <typename T, typename ToUniform>
void Rand(const RandOp& op, const KernelCall& call, ToUniform to_uniform) {
  const uint64_t seed = static_cast<uint64_t>(call.scalars[0].AsInt());
  const uint64_t stream = static_cast<uint64_t>(call.scalars[1].AsInt());
  const size_t rank = call.output_extents.size();
  const Strides global = RowMajorStrides(op.global_shape);
  ForEachOutputRow<T>(call, [&](T* row, const Shape& index) {
    uint64_t first = 0;
    for (size_t d = 0; d < rank; ++d) {
      first += static_cast<uint64_t>(call.output_box[d].start + index[d]) * static_cast<uint64_t>(global[d]);
    }
    const int64_t n = rank > 0 ? call.output_extents[rank - 1] : 1;
    const int64_t stride = rank > 0 ? call.output_strides[rank - 1] : 1;
    for (int64_t j = 0; j < n; ++j) {
      row[j * stride] = to_uniform(ElementWords(seed, stream, first + static_cast<uint64_t>(j)));
    }
  });
}

}  // namespace

ElementBits ToElement(const Scalar& scalar, DType dtype) {
  ElementBits element{};
  const Scalar typed = scalar.As(dtype);
  auto put = [&](auto value) { std::memcpy(element.bytes, &value, sizeof(value)); };
  if (dtype == DType::kF8E4M3) put(F8E4M3(typed.AsDouble()));
  if (dtype == DType::kF8E5M2) put(F8E5M2(typed.AsDouble()));
  VisitElement(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, BoolElement>) {
      put(static_cast<uint8_t>(typed.AsBool()));
    } else if constexpr (std::is_integral_v<T>) {
      put(static_cast<T>(typed.AsInt()));
    } else if constexpr (scalar::kIsComplex<T>) {
      put(T(typed.AsComplex()));
    } else {
      put(T(typed.AsDouble()));
    }
    return true;
  });
  return element;
}

absl::Status RunFill(const FillOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("full", call, 1, 0, kMaxRank); !s.ok()) return s;
  return VisitDType("full", MovedAs(call.output_dtype), [&](auto zero) {
    const ElementBits element = ToElement(call.scalars[0], call.output_dtype);
    CopyStrided(call.output_extents, sizeof(zero), element.bytes, Strides(call.output_extents.size(), 0), call.output,
                call.output_strides);
  });
}

absl::Status RunArange(const ArangeOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("arange", call, 2, 1, 1); !s.ok()) return s;
  if (Kind(call.output_dtype) == DTypeKind::kComplex) return NoKernelFor("arange", call.output_dtype);
  return VisitDType("arange", call.output_dtype, [&](auto zero) {
    if constexpr (!scalar::kIsComplex<decltype(zero)>) {
      Arange<decltype(zero)>(call, call.output_dtype == DType::kBool);
    }
  });
}

absl::Status RunEye(const EyeOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("eye", call, 1, 2, 2); !s.ok()) return s;
  return VisitDType("eye", call.output_dtype, [&](auto zero) { Eye<decltype(zero)>(call); });
}

absl::Status RunRand(const RandOp& op, const KernelCall& call) {
  if (absl::Status s = ExpectScalars("rand", call, 2, 0, kMaxRank); !s.ok()) return s;
  const size_t rank = call.output_extents.size();
  if (op.global_shape.size() != rank || call.output_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rand: global shape ", ToText(op.global_shape), " for an output ", ToText(call.output_extents)));
  }
  switch (call.output_dtype) {
    case DType::kF16: Rand<F16>(op, call, ToUniformF16); return absl::OkStatus();
    case DType::kBF16: Rand<BF16>(op, call, ToUniformBF16); return absl::OkStatus();
    case DType::kF32: Rand<float>(op, call, ToUniformF32); return absl::OkStatus();
    case DType::kF64: Rand<double>(op, call, ToUniformF64); return absl::OkStatus();
    default: break;
  }
  return absl::UnimplementedError(
      absl::StrCat("rand: no CPU kernel for ", std::string(ToText(call.output_dtype)), "; floats have one"));
}

}  // namespace tessera::cpu
