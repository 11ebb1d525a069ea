// sort, argsort and searchsorted: of keys (sort_keys.h). Keys are sorted by Highway's vectorised quicksort; for argsort
// an element's place is the lower part of its key, which makes the order stable.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/sort_keys.h"
#include "kernels/cpu/sort_loops.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

// Where a line's keys are sorted: in the output itself, where they are as large as its elements and it lies in one
// piece, else in memory of their own.
template <typename Key, typename Out>
class KeyLine {
 public:
  KeyLine(int64_t extent, int64_t output_stride)
      : is_output_(sizeof(Key) == sizeof(Out) && output_stride == 1),
        own_(static_cast<size_t>(is_output_ ? 0 : extent)) {}

  Key* At(Out* output) { return is_output_ ? reinterpret_cast<Key*>(output) : own_.data(); }

 private:
  const bool is_output_;
  std::vector<Key> own_;
};

// The memory of an output may hold keys: accesses to it have no type.
template <typename T>
T Load(const T* from) {
  T value;
  std::memcpy(static_cast<void*>(&value), from, sizeof(T));
  return value;
}
template <typename T>
void Store(T* to, T value) {
  std::memcpy(static_cast<void*>(to), &value, sizeof(T));
}

// The lines along the dim.
struct SortLayout {
  LoopNest lines;  // operands: input, output
  int64_t extent = 0;
  int64_t input_stride = 0;
  int64_t output_stride = 0;
  SortOrder order = SortOrder::kAscending;
};

template <typename T>
void SortValues(const SortLayout& l, const T* input, T* output) {
  using Key = KeyOf<T>;
  KeyLine<Key, T> line(l.extent, l.output_stride);
  const Key flip = FlipOf<T>(l.order);
  for (int64_t k = 0; k < l.lines.size; ++k) {
    const T* from = input + PlaceOf(l.lines, 0, k).offset;
    T* to = output + PlaceOf(l.lines, 1, k).offset;
    Key* const keys = line.At(to);
    WithStride(l.input_stride, [&](auto stride) {
      for (int64_t i = 0; i < l.extent; ++i) {
        Store(keys + i, static_cast<Key>(ToKey<Zeros::kDistinct>(from[i * stride]) ^ flip));
      }
    });
    SortKeys(keys, l.extent);
    WithStride(l.output_stride, [&](auto stride) {
      for (int64_t i = 0; i < l.extent; ++i) {
        Store(to + i * stride, FromKey<T>(static_cast<Key>(Load(keys + i) ^ flip)));
      }
    });
  }
}

// Keys of up to 32 bits with places of 32; longer ones with places of 64.
template <typename T>
void SortPlaces(const SortLayout& l, const T* input, int64_t* output) {
  constexpr bool kIsShort = sizeof(T) <= 4;
  using Key = std::conditional_t<kIsShort, uint64_t, hwy::uint128_t>;
  KeyLine<Key, int64_t> line(l.extent, l.output_stride);
  const KeyOf<T> flip = FlipOf<T>(l.order);
  for (int64_t k = 0; k < l.lines.size; ++k) {
    const T* from = input + PlaceOf(l.lines, 0, k).offset;
    int64_t* to = output + PlaceOf(l.lines, 1, k).offset;
    Key* const keys = line.At(to);
    WithStride(l.input_stride, [&](auto stride) {
      for (int64_t i = 0; i < l.extent; ++i) {
        const KeyOf<T> key = static_cast<KeyOf<T>>(ToKey<Zeros::kEqual>(from[i * stride]) ^ flip);
        if constexpr (kIsShort) Store(keys + i, uint64_t{key} << 32 | static_cast<uint64_t>(i));
        if constexpr (!kIsShort) keys[i] = {.lo = static_cast<uint64_t>(i), .hi = key};
      }
    });
    SortKeys(keys, l.extent);
    WithStride(l.output_stride, [&](auto stride) {
      for (int64_t i = 0; i < l.extent; ++i) {
        if constexpr (kIsShort) Store(to + i * stride, static_cast<int64_t>(Load(keys + i) & 0xFFFFFFFF));
        if constexpr (!kIsShort) Store(to + i * stride, static_cast<int64_t>(keys[i].lo));
      }
    });
  }
}

// How many keys are before each of `count` values. Every search halves the same extents, without a branch that the
// processor could mispredict; several go side by side, so that none waits for another one's loads.
template <typename T, typename Before>
void PlacesOf(const std::vector<KeyOf<T>>& keys, const T* values, int64_t count, Before before, int64_t* places) {
  constexpr int64_t kSideBySide = 8;
  for (int64_t start = 0; start < count; start += kSideBySide) {
    std::array<KeyOf<T>, kSideBySide> wanted = {};
    std::array<int64_t, kSideBySide> first = {};
    const int64_t some = std::min(kSideBySide, count - start);
    for (int64_t j = 0; j < some; ++j) wanted[static_cast<size_t>(j)] = ToKey<Zeros::kEqual>(values[start + j]);
    for (int64_t left = static_cast<int64_t>(keys.size()); left > 0;) {
      const int64_t half = (left + 1) / 2;
      for (size_t j = 0; j < wanted.size(); ++j) {
        first[j] += before(keys[static_cast<size_t>(first[j] + half - 1)], wanted[j]) ? half : 0;
      }
      left -= half;
    }
    std::copy_n(first.begin(), some, places + start);
  }
}

// The `first` smallest of keys that all differ, in order: one that may be among them is kept, and when as many again
// have been, the larger half goes. Elements of random order are a comparison each.
template <typename Key>
class Smallest {
 public:
  explicit Smallest(int64_t first) : first_(static_cast<size_t>(first)) { kept_.reserve(2 * first_ + kLeastRoom); }

  void Offer(Key key) {
    if (!(key < bound_)) return;
    kept_.push_back(key);
    if (kept_.size() == 2 * first_ + kLeastRoom) Halve();
  }
  const std::vector<Key>& InOrder() {
    if (kept_.size() > first_) Halve();
    SortKeys(kept_.data(), static_cast<int64_t>(kept_.size()));
    return kept_;
  }

 private:
  static constexpr size_t kLeastRoom = 1024;

  void Halve() {
    std::nth_element(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(first_ - 1), kept_.end());
    kept_.resize(first_);
    bound_ = kept_.back();
  }

  const size_t first_;  // at least 1
  std::vector<Key> kept_;
  Key bound_ = Greatest();

  static Key Greatest() {
    if constexpr (std::is_same_v<Key, hwy::uint128_t>) {
      return {.lo = std::numeric_limits<uint64_t>::max(), .hi = std::numeric_limits<uint64_t>::max()};
    } else {
      return std::numeric_limits<Key>::max();
    }
  }
};

// Keys with places below, as SortPlaces has them.
template <typename T>
void SelectPlaces(const SortLayout& l, int64_t first, const T* input, int64_t* output) {
  constexpr bool kIsShort = sizeof(T) <= 4;
  using Key = std::conditional_t<kIsShort, uint64_t, hwy::uint128_t>;
  const KeyOf<T> flip = FlipOf<T>(l.order);
  for (int64_t k = 0; k < l.lines.size; ++k) {
    const T* from = input + PlaceOf(l.lines, 0, k).offset;
    int64_t* to = output + PlaceOf(l.lines, 1, k).offset;
    Smallest<Key> smallest(first);
    WithStride(l.input_stride, [&](auto stride) {
      for (int64_t i = 0; i < l.extent; ++i) {
        const KeyOf<T> key = static_cast<KeyOf<T>>(ToKey<Zeros::kEqual>(from[i * stride]) ^ flip);
        if constexpr (kIsShort) smallest.Offer(uint64_t{key} << 32 | static_cast<uint64_t>(i));
        if constexpr (!kIsShort) smallest.Offer({.lo = static_cast<uint64_t>(i), .hi = key});
      }
    });
    for (const Key& key : smallest.InOrder()) {
      if constexpr (kIsShort) *to = static_cast<int64_t>(key & 0xFFFFFFFF);
      if constexpr (!kIsShort) *to = static_cast<int64_t>(key.lo);
      to += l.output_stride;
    }
  }
}

template <typename T>
void Search(const SearchSortedOp& op, const KernelInput& sorted, const KernelInput& values, const KernelCall& call) {
  using Key = KeyOf<T>;
  static const uint64_t kZero = 0;
  std::vector<Key> keys(static_cast<size_t>(sorted.extents[0]));
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = ToKey<Zeros::kEqual>(
        sorted.is_zero ? T{} : static_cast<const T*>(sorted.data)[static_cast<int64_t>(i) * sorted.strides[0]]);
  }
  const Strides strides = values.is_zero ? Strides(values.extents.size(), 0) : values.strides;
  const LoopNest nest = Coalesce(call.output_extents, {strides, call.output_strides});
  const T* from = static_cast<const T*>(values.is_zero ? &kZero : values.data);
  std::array<T, kBlockElements> scratch;
  std::array<int64_t, kBlockElements> places;
  for (int64_t start = 0; start < nest.size; start += kBlockElements) {
    const int64_t count = std::min(kBlockElements, nest.size - start);
    const T* const block = OperandBlock(nest, 0, from, start, count, scratch.data());
    if (op.side == SearchSide::kLeft) {
      PlacesOf(
          keys, block, count, [](Key key, Key wanted) { return key < wanted; }, places.data());
    } else {
      PlacesOf(
          keys, block, count, [](Key key, Key wanted) { return key <= wanted; }, places.data());
    }
    StoreBlock(nest, 1, static_cast<int64_t*>(call.output), start, count, places.data());
  }
}

}  // namespace

absl::Status RunSort(const SortOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim), rank = call.output_extents.size();
  const DType result = op.result == SortResult::kPlaces ? DType::kI64 : input.dtype;
  Shape wanted = input.extents;
  if (op.first.has_value() && dim < wanted.size()) wanted[dim] = std::min(*op.first, wanted[dim]);
  if (wanted != call.output_extents || dim >= rank || call.output_dtype != result) {
    return absl::InvalidArgumentError(
        absl::StrCat("sort: along dim ", op.dim, " of ", std::string(ToText(input.dtype)), ToText(input.extents),
                     " to ", std::string(ToText(call.output_dtype)), ToText(call.output_extents)));
  }
  if (NumElements(call.output_extents) == 0) return absl::OkStatus();
  if (op.result == SortResult::kPlaces && SizeBytes(input.dtype) <= 4 &&
      input.extents[dim] > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat("argsort: of ", input.extents[dim], " elements; up to 2^32 - 1"));
  }
  static const uint64_t kZero = 0;
  const Strides strides = input.is_zero ? Strides(rank, 0) : input.strides;
  Shape lines = input.extents;
  lines[dim] = 1;
  const SortLayout l{.lines = Coalesce(lines, {strides, call.output_strides}),
                     .extent = input.extents[dim],
                     .input_stride = strides[dim],
                     .output_stride = call.output_strides[dim],
                     .order = op.order};
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T>) {
      return false;
    } else {
      const T* from = static_cast<const T*>(input.is_zero ? &kZero : input.data);
      if (op.first.value_or(l.extent) < l.extent) {
        SelectPlaces(l, *op.first, from, static_cast<int64_t*>(call.output));
      } else if (op.result == SortResult::kPlaces) {
        SortPlaces(l, from, static_cast<int64_t*>(call.output));
      } else {
        SortValues(l, from, static_cast<T*>(call.output));
      }
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("sort", input.dtype);
}

absl::Status RunSearchSorted(const SearchSortedOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const KernelInput &sorted = call.inputs[0], &values = call.inputs[1];
  if (sorted.extents.size() != 1 || values.extents != call.output_extents || sorted.dtype != values.dtype ||
      call.output_dtype != DType::kI64) {
    return absl::InvalidArgumentError(
        absl::StrCat("searchsorted: ", std::string(ToText(values.dtype)), ToText(values.extents), " in ",
                     std::string(ToText(sorted.dtype)), ToText(sorted.extents), " to ",
                     std::string(ToText(call.output_dtype)), ToText(call.output_extents)));
  }
  const bool is_known = VisitElement(values.dtype, [&](auto element) {
    if constexpr (scalar::kIsComplex<decltype(element)>) {
      return false;
    } else {
      Search<decltype(element)>(op, sorted, values, call);
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("searchsorted", values.dtype);
}

}  // namespace tessera::cpu
