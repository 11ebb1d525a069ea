// gather and scatter along a dim by indices. An index is checked before it is used; a negative one counts from the end.

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"
#include "schemas/types/errors.h"

namespace tessera::cpu {
namespace {

// The elements that are moved, in row-major order: operand 0 is the indexed array, which stands still along the dim;
// 1 the indices; 2 the other array.
struct IndexedLayout {
  LoopNest nest;
  const int64_t* indices = nullptr;
  int64_t extent = 0;  // of the indexed array along the dim, as indices count
  int64_t stride = 0;
  Interval own;  // which of it is here
};

absl::Status OutOfRange(const char* kernel, int64_t index, int64_t dim, int64_t extent) {
  return IndexOutOfRangeError(
      absl::StrCat(kernel, ": index ", index, " is out of range for dim ", dim, " of extent ", extent));
}

// Indices of one dim are those along the dim; else they are broadcast to the other array's extents.
absl::StatusOr<Strides> IndexStrides(const char* kernel, const KernelInput& indices, size_t dim, const Shape& extents) {
  if (indices.dtype != DType::kI64) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": indices are i64, not ", std::string(ToText(indices.dtype))));
  }
  if (indices.extents.size() != 1 || extents.size() == 1) return BroadcastStrides(kernel, indices, extents);
  if (indices.extents[0] != extents[dim]) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": ", indices.extents[0], " indices for an extent of ", extents[dim]));
  }
  Strides strides(extents.size(), 0);
  if (!indices.is_zero) strides[dim] = indices.strides[0];
  return strides;
}

absl::StatusOr<IndexedLayout> LayoutOf(const char* kernel, int64_t dim, absl::Span<const int64_t> data_extents,
                                       Strides data_strides, const KernelInput& indices, const Shape& extents,
                                       const Strides& strides) {
  const size_t d = static_cast<size_t>(dim);
  if (dim < 0 || d >= extents.size() || data_extents.size() != extents.size()) {
    return absl::InvalidArgumentError(absl::StrCat(kernel, ": dim ", dim, " of ",
                                                   ToText(Shape(data_extents.begin(), data_extents.end())), " and ",
                                                   ToText(extents)));
  }
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == d || data_extents[i] == extents[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat(kernel, ": extents ",
                                                   ToText(Shape(data_extents.begin(), data_extents.end())), " and ",
                                                   ToText(extents), " differ in dim ", i));
  }
  auto index_strides = IndexStrides(kernel, indices, d, extents);
  if (!index_strides.ok()) return index_strides.status();
  static const int64_t kZero = 0;
  IndexedLayout l;
  l.indices = indices.is_zero ? &kZero : static_cast<const int64_t*>(indices.data);
  l.extent = data_extents[d];
  l.own = {0, l.extent};
  l.stride = data_strides[d];
  data_strides[d] = 0;
  l.nest = Coalesce(extents, {data_strides, *index_strides, strides});
  return l;
}

// Calls row(places of the three operands, elements) for the rows of the nest, until one fails.
template <typename Row>
absl::Status ForEachIndexedRow(const IndexedLayout& l, Row&& row) {
  const int64_t n = l.nest.extents.back();
  for (int64_t at = 0; at < l.nest.size; at += n) {
    absl::Status s =
        row(PlaceOf(l.nest, 0, at).offset, PlaceOf(l.nest, 1, at).offset, PlaceOf(l.nest, 2, at).offset, n);
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

// Where the index stands, or -1.
int64_t Wrapped(int64_t index, int64_t extent) {
  if (index < 0) index += extent;
  return index >= 0 && index < extent ? index : -1;
}

// What an element is that another shard has: nothing, to a sum.
template <typename T>
T NothingOf() {
  if constexpr (std::is_same_v<T, BoolElement>) return {0};
  if constexpr (kIsHalf<T>) return T(-0.0F);
  if constexpr (!kIsHalf<T> && !std::is_same_v<T, BoolElement>) return std::is_integral_v<T> ? T{} : -T{};
}

template <typename T>
absl::Status Gather(const IndexedLayout& l, int64_t dim, const T* data, T* out) {
  const int64_t data_step = l.nest.strides[0].back(), index_step = l.nest.strides[1].back(),
                out_step = l.nest.strides[2].back();
  const auto is_here = [&](int64_t at) { return at >= l.own.start && at < l.own.stop; };
  return ForEachIndexedRow(l, [&](int64_t from, int64_t indices, int64_t to, int64_t n) {
    if (index_step == 0) {
      const int64_t at = Wrapped(l.indices[indices], l.extent);
      if (at < 0) return OutOfRange("gather", l.indices[indices], dim, l.extent);
      if (!is_here(at)) {
        for (int64_t i = 0; i < n; ++i) out[to + i * out_step] = NothingOf<T>();
        return absl::OkStatus();
      }
      const T* source = data + from + (at - l.own.start) * l.stride;
      if (data_step == 1 && out_step == 1) {
        std::memcpy(static_cast<void*>(out + to), source, static_cast<size_t>(n) * sizeof(T));
      } else {
        for (int64_t i = 0; i < n; ++i) out[to + i * out_step] = source[i * data_step];
      }
      return absl::OkStatus();
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = Wrapped(l.indices[indices + i * index_step], l.extent);
      if (at < 0) return OutOfRange("gather", l.indices[indices + i * index_step], dim, l.extent);
      out[to + i * out_step] =
          is_here(at) ? data[from + i * data_step + (at - l.own.start) * l.stride] : NothingOf<T>();
    }
    return absl::OkStatus();
  });
}

template <typename T>
T Updated(ScatterMode mode, T old, T update) {
  if (mode == ScatterMode::kSet) return update;
  if constexpr (std::is_same_v<T, BoolElement>) {
    if (mode == ScatterMode::kMin) return {static_cast<uint8_t>(old.byte != 0 && update.byte != 0)};
    return {static_cast<uint8_t>(old.byte != 0 || update.byte != 0)};
  } else if constexpr (kIsHalf<T>) {
    return T(Updated(mode, static_cast<float>(old), static_cast<float>(update)));
  } else if constexpr (scalar::kIsComplex<T>) {
    return scalar::ComplexAdd(old, update);
  } else {
    if (mode == ScatterMode::kAdd) return scalar::Add(old, update);
    return mode == ScatterMode::kMax ? scalar::Maximum(old, update) : scalar::Minimum(old, update);
  }
}

template <typename T>
void Scatter(const IndexedLayout& l, ScatterMode mode, const T* updates, T* out) {
  const int64_t out_step = l.nest.strides[0].back(), index_step = l.nest.strides[1].back(),
                update_step = l.nest.strides[2].back();
  ForEachIndexedRow(l, [&](int64_t to, int64_t indices, int64_t from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = Wrapped(l.indices[indices + i * index_step], l.extent);
      if (at < l.own.start || at >= l.own.stop) continue;
      T& element = out[to + i * out_step + (at - l.own.start) * l.stride];
      element = Updated(mode, element, updates[from + i * update_step]);
    }
    return absl::OkStatus();
  }).IgnoreError();
}

// Of a shard: indices are of the whole dim, and what is here the kernel's box of it.
absl::Status SetShard(const char* kernel, int64_t dim, std::optional<int64_t> whole, const KernelCall& call,
                      IndexedLayout* l) {
  if (!whole.has_value()) return absl::OkStatus();
  const Shape& extents = call.inputs[0].extents;
  if (call.input_box.size() != extents.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, ": a box of ", call.input_box.size(), " dims for ", ToText(extents)));
  }
  l->extent = *whole;
  l->own = call.input_box[static_cast<size_t>(dim)];
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGather(const GatherOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& data = call.inputs[0];
  if (data.dtype != call.output_dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("gather: of ", std::string(ToText(data.dtype)), " to ", std::string(ToText(call.output_dtype))));
  }
  auto layout = LayoutOf("gather", op.dim, data.extents, data.is_zero ? Strides(data.extents.size(), 0) : data.strides,
                         call.inputs[1], call.output_extents, call.output_strides);
  if (!layout.ok()) return layout.status();
  if (absl::Status s = SetShard("gather", op.dim, op.whole, call, &*layout); !s.ok()) return s;
  absl::Status status;
  const absl::Status known = VisitDType("gather", data.dtype, [&](auto element) {
    using T = decltype(element);
    status = Gather(*layout, op.dim, static_cast<const T*>(data.is_zero ? &kZeroElement : data.data),
                    static_cast<T*>(call.output));
  });
  return known.ok() ? status : known;
}

absl::Status RunScatter(const ScatterOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput &data = call.inputs[0], &updates = call.inputs[2];
  if (data.dtype != call.output_dtype || updates.dtype != call.output_dtype || data.extents != call.output_extents) {
    return absl::InvalidArgumentError(absl::StrCat("scatter: ", std::string(ToText(updates.dtype)),
                                                   ToText(updates.extents), " into ", std::string(ToText(data.dtype)),
                                                   ToText(data.extents), " to ", std::string(ToText(call.output_dtype)),
                                                   ToText(call.output_extents)));
  }
  const Strides update_strides = updates.is_zero ? Strides(updates.extents.size(), 0) : updates.strides;
  auto layout = LayoutOf("scatter", op.dim, call.output_extents, call.output_strides, call.inputs[1], updates.extents,
                         update_strides);
  if (!layout.ok()) return layout.status();
  if (absl::Status s = SetShard("scatter", op.dim, op.whole, call, &*layout); !s.ok()) return s;
  if (Kind(call.output_dtype) == DTypeKind::kComplex && op.mode != ScatterMode::kSet && op.mode != ScatterMode::kAdd) {
    return NoKernelFor("scatter", call.output_dtype);
  }
  // Before anything is written.
  const int64_t index_step = layout->nest.strides[1].back();
  absl::Status inside = ForEachIndexedRow(*layout, [&](int64_t, int64_t indices, int64_t, int64_t n) {
    for (int64_t i = 0; i < (index_step == 0 ? 1 : n); ++i) {
      const int64_t index = layout->indices[indices + i * index_step];
      if (Wrapped(index, layout->extent) < 0) return OutOfRange("scatter", index, op.dim, layout->extent);
    }
    return absl::OkStatus();
  });
  if (!inside.ok()) return inside;
  if (data.is_zero || data.data != call.output) {
    CopyStrided(call.output_extents, SizeBytes(call.output_dtype), data.is_zero ? &kZeroElement : data.data,
                data.is_zero ? Strides(data.extents.size(), 0) : data.strides, call.output, call.output_strides);
  }
  const bool is_known = VisitElement(call.output_dtype, [&](auto element) {
    using T = decltype(element);
    Scatter(*layout, op.mode,
            static_cast<const T*>(updates.is_zero ? static_cast<const void*>(&kZeroElement) : updates.data),
            static_cast<T*>(call.output));
    return true;
  });
  return is_known ? absl::OkStatus() : NoKernelFor("scatter", call.output_dtype);
}

}  // namespace tessera::cpu
