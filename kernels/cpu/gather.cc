// gather, filter and scatter along a dim by indices, or by a mask. An index is checked before it is used; a negative
// one counts from the end.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "kernels/operands.h"
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

// The value of an element that another shard has: nothing, to a sum.
template <typename T>
T NothingOf() {
  if constexpr (std::is_same_v<T, BoolElement>) return {0};
  if constexpr (kIsHalf<T>) return T(-0.0F);
  if constexpr (!kIsHalf<T> && !std::is_same_v<T, BoolElement>) return std::is_integral_v<T> ? T{} : -T{};
}

// Gives the elements along a line from a place of the dim on: null where another shard has them.
template <typename T>
struct OwnRows {
  const T* data = nullptr;
  Interval own;
  int64_t stride = 0;

  const T* Take(int64_t at, int64_t) const {
    return at >= own.start && at < own.stop ? data + (at - own.start) * stride : nullptr;
  }
};

// The rows of shards that lie apart, and how many elements are taken of each.
template <typename T>
struct ApartRows {
  std::vector<const T*> data;
  std::vector<int64_t> starts;  // of the shards, and behind the last
  std::vector<int64_t> taken;
  int64_t stride = 0;

  // Without a branch where there are few shards: which one it is can't be foretold.
  size_t ShardOf(int64_t at) const {
    constexpr size_t kFew = 16;
    if (data.size() > kFew) {
      return static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), at) - starts.begin()) - 1;
    }
    size_t shard = 0;
    for (size_t i = 1; i < data.size(); ++i) shard += at >= starts[i] ? 1 : 0;
    return shard;
  }
  const T* Take(int64_t at, int64_t elements) {
    const size_t shard = ShardOf(at);
    taken[shard] += elements;
    return data[shard] + (at - starts[shard]) * stride;
  }
};

// Rows of few bytes are copied without a call.
template <typename T>
void CopyRow(const T* from, int64_t n, T* to) {
  const auto bytes = static_cast<size_t>(n) * sizeof(T);
  const auto copy = [&](auto size) { std::memcpy(static_cast<void*>(to), static_cast<const void*>(from), size); };
  switch (bytes) {
    case 8: return copy(std::integral_constant<size_t, 8>());
    case 16: return copy(std::integral_constant<size_t, 16>());
    case 32: return copy(std::integral_constant<size_t, 32>());
    case 64: return copy(std::integral_constant<size_t, 64>());
    default: return copy(bytes);
  }
}

// Whether the nest is of dense rows, one for each index.
bool IsOfDenseRows(const IndexedLayout& l) {
  const auto is_dense = [&](size_t operand) { return l.nest.strides[operand][1] == 1; };
  return l.nest.extents.size() == 2 && l.nest.strides[0][0] == 0 && l.nest.strides[1][1] == 0 && is_dense(0) &&
         is_dense(2);
}

// So many rows are on their way while one is copied.
inline constexpr int64_t kRowsAhead = 16;

template <typename T, typename Rows>
absl::Status GatherDenseRows(const IndexedLayout& l, int64_t dim, Rows& rows, T* out) {
  const int64_t count = l.nest.extents[0], n = l.nest.extents[1];
  const int64_t index_step = l.nest.strides[1][0], out_step = l.nest.strides[2][0];
  std::array<const T*, kRowsAhead> ahead;
  for (int64_t first = 0; first < count; first += kRowsAhead) {
    const int64_t end = std::min(count, first + kRowsAhead);
    for (int64_t i = first; i < end; ++i) {
      const int64_t at = Wrapped(l.indices[i * index_step], l.extent);
      if (at < 0) return OutOfRange("gather", l.indices[i * index_step], dim, l.extent);
      const T* const source = rows.Take(at, n);
      __builtin_prefetch(source);
      ahead[static_cast<size_t>(i - first)] = source;
    }
    for (int64_t i = first; i < end; ++i) {
      const T* const source = ahead[static_cast<size_t>(i - first)];
      if (source == nullptr) {
        std::fill_n(out + i * out_step, n, NothingOf<T>());
      } else {
        CopyRow(source, n, out + i * out_step);
      }
    }
  }
  return absl::OkStatus();
}

template <typename T, typename Rows>
absl::Status Gather(const IndexedLayout& l, int64_t dim, Rows& rows, T* out) {
  if (IsOfDenseRows(l)) return GatherDenseRows(l, dim, rows, out);
  const int64_t data_step = l.nest.strides[0].back(), index_step = l.nest.strides[1].back(),
                out_step = l.nest.strides[2].back();
  return ForEachIndexedRow(l, [&](int64_t from, int64_t indices, int64_t to, int64_t n) {
    if (index_step == 0) {
      const int64_t at = Wrapped(l.indices[indices], l.extent);
      if (at < 0) return OutOfRange("gather", l.indices[indices], dim, l.extent);
      const T* source = rows.Take(at, n);
      if (source == nullptr) {
        for (int64_t i = 0; i < n; ++i) out[to + i * out_step] = NothingOf<T>();
        return absl::OkStatus();
      }
      source += from;
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
      const T* const source = rows.Take(at, 1);
      out[to + i * out_step] = source != nullptr ? source[from + i * data_step] : NothingOf<T>();
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

// One update after the other into a vector: as counts are added up. Indices were checked.
template <typename T, typename Update>
void ScatterVector(const IndexedLayout& l, const T* updates, T* out, Update&& update) {
  const int64_t index_step = l.nest.strides[1][0], update_step = l.nest.strides[2][0];
  for (int64_t i = 0; i < l.nest.size; ++i) {
    int64_t at = l.indices[i * index_step];
    at += at < 0 ? l.extent : 0;
    if (at < l.own.start || at >= l.own.stop) continue;
    T& element = out[(at - l.own.start) * l.stride];
    element = update(element, updates[i * update_step]);
  }
}

template <typename T>
void Scatter(const IndexedLayout& l, ScatterMode mode, const T* updates, T* out) {
  if (l.nest.extents.size() == 1 && l.nest.strides[0][0] == 0 && mode == ScatterMode::kAdd) {
    return ScatterVector(l, updates, out, [](T old, T update) { return Updated(ScatterMode::kAdd, old, update); });
  }
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

// For a shard: indices are of the whole dim, and the kernel's box says which of it are here.
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

namespace {

// The rows of shards that lie apart: all inputs but the last, which has the indices.
template <typename T>
absl::StatusOr<ApartRows<T>> ShardsOf(const GatherOp& op, const KernelCall& call) {
  const auto d = static_cast<size_t>(op.dim);
  const absl::Span<const KernelInput> shards = call.inputs.first(call.inputs.size() - 1);
  ApartRows<T> rows;
  rows.stride = shards[0].strides[d];
  rows.starts.push_back(0);
  for (const KernelInput& shard : shards) {
    Shape as_first = shard.extents;
    if (d < as_first.size()) as_first[d] = shards[0].extents[d];
    if (shard.dtype != call.output_dtype || as_first != shards[0].extents || shard.strides != shards[0].strides ||
        shard.is_zero) {
      return absl::InvalidArgumentError(absl::StrCat("gather: shards that lie apart, ",
                                                     std::string(ToText(shard.dtype)), ToText(shard.extents),
                                                     " beside ", ToText(shards[0].extents)));
    }
    rows.data.push_back(static_cast<const T*>(shard.data));
    rows.starts.push_back(rows.starts.back() + shard.extents[d]);
  }
  rows.taken.resize(shards.size());
  return rows;
}

template <typename T>
absl::Status GatherApart(const GatherOp& op, const KernelCall& call) {
  const KernelInput& first = call.inputs[0];
  if (op.dim >= static_cast<int64_t>(first.extents.size()) || first.strides.size() != first.extents.size()) {
    return absl::InvalidArgumentError(absl::StrCat("gather: dim ", op.dim, " of ", ToText(first.extents)));
  }
  auto rows = ShardsOf<T>(op, call);
  if (!rows.ok()) return rows.status();
  Shape whole = first.extents;
  whole[static_cast<size_t>(op.dim)] = rows->starts.back();
  auto layout =
      LayoutOf("gather", op.dim, whole, first.strides, call.inputs.back(), call.output_extents, call.output_strides);
  if (!layout.ok()) return layout.status();
  absl::Status status = Gather(*layout, op.dim, *rows, static_cast<T*>(call.output));
  if (call.more_outputs.empty()) return status;
  auto* const taken = static_cast<int64_t*>(call.more_outputs[0].data);
  for (size_t i = 0; i < rows->taken.size(); ++i) {
    taken[static_cast<int64_t>(i) * call.more_outputs[0].strides[0]] = rows->taken[i];
  }
  return status;
}

// The places where a mask is true, in blocks of a vector on the stack.
inline constexpr int64_t kPlacesInBlock = 2048;

template <typename Block>
absl::Status ForEachBlockOfPlaces(const KernelInput& mask, Block&& block) {
  int64_t places[kPlacesInBlock];
  const auto* const bytes =
      static_cast<const uint8_t*>(mask.is_zero ? static_cast<const void*>(&kZeroElement) : mask.data);
  const int64_t step = mask.is_zero ? 0 : mask.strides[0], count = mask.extents[0];
  for (int64_t first = 0; first < count; first += kPlacesInBlock) {
    const int64_t end = std::min(count, first + kPlacesInBlock);
    int64_t found = 0;
    for (int64_t i = first; i < end; ++i) {
      places[found] = i;
      found += bytes[i * step] != 0 ? 1 : 0;
    }
    if (found == 0) continue;
    if (absl::Status s = block(absl::MakeConstSpan(places, static_cast<size_t>(found))); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status CheckFilter(const FilterOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput &data = call.inputs[0], &mask = call.inputs.back();
  const bool is_rows = op.result == FilterResult::kRows;
  const auto d = static_cast<size_t>(op.dim);
  const bool fits = mask.dtype == DType::kBool && mask.extents.size() == 1 &&
                    call.output_dtype == (is_rows ? data.dtype : DType::kI64) && d < data.extents.size() &&
                    data.extents.size() == call.output_extents.size() && mask.extents[0] == data.extents[d] &&
                    (is_rows || call.input_box.size() == 1);
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("filter: ", std::string(ToText(data.dtype)), ToText(data.extents),
                                                 " by ", std::string(ToText(mask.dtype)), ToText(mask.extents), " to ",
                                                 std::string(ToText(call.output_dtype)), ToText(call.output_extents)));
}

// Rows at places, from the output's `to` on.
template <typename T>
absl::Status FilterBlock(const FilterOp& op, const KernelCall& call, absl::Span<const int64_t> places, int64_t to) {
  const auto d = static_cast<size_t>(op.dim);
  const KernelInput& data = call.inputs[0];
  const auto count = static_cast<int64_t>(places.size());
  Shape extents = call.output_extents;
  extents[d] = count;
  const KernelInput indices{.data = places.data(), .dtype = DType::kI64, .extents = {count}, .strides = {1}};
  auto layout = LayoutOf("filter", op.dim, data.extents, data.is_zero ? Strides(data.extents.size(), 0) : data.strides,
                         indices, extents, call.output_strides);
  if (!layout.ok()) return layout.status();
  OwnRows<T> rows{static_cast<const T*>(data.is_zero ? &kZeroElement : data.data), layout->own, layout->stride};
  return Gather(*layout, op.dim, rows, static_cast<T*>(call.output) + to * call.output_strides[d]);
}

}  // namespace

absl::Status RunFilter(const FilterOp& op, const KernelCall& call) {
  if (absl::Status s = CheckFilter(op, call); !s.ok()) return s;
  const int64_t room = call.output_extents[static_cast<size_t>(op.dim)];
  int64_t seen = 0;
  const absl::Status known = VisitDType("filter", MovedAs(call.output_dtype), [](auto) {});
  if (!known.ok()) return known;
  absl::Status status = ForEachBlockOfPlaces(call.inputs.back(), [&](absl::Span<const int64_t> places) {
    const int64_t to = seen;
    seen += static_cast<int64_t>(places.size());
    absl::Status written;
    if (seen > room) return written;  // counted to the end
    if (op.result == FilterResult::kPlaces) {
      auto* out = static_cast<int64_t*>(call.output) + to * call.output_strides[0];
      for (const int64_t place : places) {
        *out = call.input_box[0].start + place;
        out += call.output_strides[0];
      }
      return written;
    }
    VisitDType("filter", MovedAs(call.output_dtype), [&](auto element) {
      written = FilterBlock<decltype(element)>(op, call, places, to);
    }).IgnoreError();
    return written;
  });
  if (!status.ok()) return status;
  return seen == room ? absl::OkStatus() : FilterMismatch(seen, room);
}

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
  absl::Status status;
  if (op.from == GatherFrom::kApart) {
    const absl::Status known = VisitDType("gather", MovedAs(data.dtype),
                                          [&](auto element) { status = GatherApart<decltype(element)>(op, call); });
    return known.ok() ? status : known;
  }
  auto layout = LayoutOf("gather", op.dim, data.extents, data.is_zero ? Strides(data.extents.size(), 0) : data.strides,
                         call.inputs[1], call.output_extents, call.output_strides);
  if (!layout.ok()) return layout.status();
  if (absl::Status s = SetShard("gather", op.dim, op.whole, call, &*layout); !s.ok()) return s;
  const absl::Status known = VisitDType("gather", MovedAs(data.dtype), [&](auto element) {
    using T = decltype(element);
    OwnRows<T> rows{static_cast<const T*>(data.is_zero ? &kZeroElement : data.data), layout->own, layout->stride};
    status = Gather(*layout, op.dim, rows, static_cast<T*>(call.output));
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
