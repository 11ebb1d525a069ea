// argmin and argmax: the number of the first extreme among the reduced elements in row-major order; the first NaN wins.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "absl/container/inlined_vector.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/reduce_loops.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kTileOutputs = 256;

template <typename T>
bool Beats(T candidate, T best, Extreme extreme) {
  if (best != best) return false;
  if (candidate != candidate) return true;
  return extreme == Extreme::kMin ? candidate < best : candidate > best;
}

bool Beats(BoolElement candidate, BoolElement best, Extreme extreme) {
  return Beats<uint8_t>(candidate.byte != 0, best.byte != 0, extreme);
}

// From a number within the shard to the one in the whole tensor.
class NumbersInWhole {
 public:
  NumbersInWhole() = default;
  NumbersInWhole(absl::Span<const int64_t> dims, const Shape& whole, const Box& box) {
    const Strides strides = RowMajorStrides(whole);
    for (size_t i = 0; i < dims.size(); ++i) {
      const Interval own = box[static_cast<size_t>(dims[i])];
      dims_.push_back({own.size(), own.start, strides[i]});
      start_ += own.start * strides[i];
    }
  }
  int64_t operator()(int64_t number) const {
    if (dims_.empty()) return number;
    int64_t in_whole = start_;
    for (size_t d = dims_.size(); d-- > 0;) {
      in_whole += number % dims_[d].extent * dims_[d].stride;
      number /= dims_[d].extent;
    }
    return in_whole;
  }
  // The indexes within the shard of a number of the whole tensor.
  void IndexesOf(int64_t number, absl::Span<int64_t> indexes) const {
    for (size_t d = 0; d < dims_.size(); ++d) {
      indexes[d] = number / dims_[d].stride - dims_[d].start;
      number %= dims_[d].stride;
    }
  }

 private:
  struct Dim {
    int64_t extent;  // of the shard
    int64_t start;
    int64_t stride;  // of the numbers
  };
  absl::InlinedVector<Dim, 4> dims_;
  int64_t start_ = 0;
};

struct ArgLayout {
  LoopNest kept;     // operands: the inputs, the output, and where it is asked for that of the values
  LoopNest reduced;  // the inputs
  Extreme extreme = Extreme::kMin;
  DType dtype = DType::kF32;
  const void* input = nullptr;
  const int64_t* numbers = nullptr;  // the second input; null where they are counted
  NumbersInWhole in_whole;
  int64_t* output = nullptr;
  void* values = nullptr;  // the extremes themselves, where asked for
};

// Takes the reduced elements [start, start + count), after those that gave best and index.
template <typename T>
void TakeBlock(const ArgLayout& l, const T* values, int64_t count, int64_t start, T* best, int64_t* index) {
  const int64_t first =
      l.extreme == Extreme::kMin ? FirstMinimum(l.dtype, values, count) : FirstMaximum(l.dtype, values, count);
  if (start > 0 && !Beats(values[first], *best, l.extreme)) return;
  *best = values[first];
  *index = start + first;
}

// Rows of few elements, one after the other: looked at one by one.
constexpr int64_t kNarrowRow = 32;

template <typename T>
void AlongNarrowRows(const ArgLayout& l) {
  const T* row = static_cast<const T*>(l.input);
  int64_t* to = l.output;
  T* value = static_cast<T*>(l.values);
  for (int64_t k = 0; k < l.kept.size; ++k) {
    T best = row[0];
    int64_t index = 0;
    for (int64_t r = 1; r < l.reduced.size; ++r) {
      const bool beats = Beats(row[r], best, l.extreme);
      best = beats ? row[r] : best;
      index = beats ? r : index;
    }
    *to = l.in_whole(index);
    row += l.kept.strides[0][0];
    to += l.kept.strides[1][0];
    if (value == nullptr) continue;
    *value = best;
    value += l.kept.strides[2][0];
  }
}

template <typename T>
void AlongRow(const ArgLayout& l) {
  const bool is_dense = l.reduced.extents.size() == 1 && l.reduced.strides[0][0] == 1;
  const int64_t step = is_dense ? l.reduced.size : kBlockElements;
  std::array<T, kBlockElements> scratch;
  for (int64_t k = 0; k < l.kept.size; ++k) {
    const T* base = static_cast<const T*>(l.input) + PlaceOf(l.kept, 0, k).offset;
    T best{};
    int64_t index = 0;
    for (int64_t r = 0; r < l.reduced.size; r += step) {
      const int64_t n = std::min(step, l.reduced.size - r);
      TakeBlock(l, OperandBlock(l.reduced, 0, base, r, n, scratch.data()), n, r, &best, &index);
    }
    l.output[PlaceOf(l.kept, 1, k).offset] = l.in_whole(index);
    if (l.values != nullptr) static_cast<T*>(l.values)[PlaceOf(l.kept, 2, k).offset] = best;
  }
}

// A tile of outputs at a time, so that dense memory is read densely.
template <typename T>
void AcrossColumns(const ArgLayout& l) {
  std::array<T, kTileOutputs> best, scratch;
  std::array<int64_t, kTileOutputs> index;
  const T* input = static_cast<const T*>(l.input);
  for (int64_t k = 0; k < l.kept.size; k += kTileOutputs) {
    const int64_t width = std::min(kTileOutputs, l.kept.size - k);
    index.fill(0);
    std::copy_n(OperandBlock(l.kept, 0, input, k, width, scratch.data()), width, best.data());
    for (int64_t r = 1; r < l.reduced.size; ++r) {
      const T* values = OperandBlock(l.kept, 0, input + PlaceOf(l.reduced, 0, r).offset, k, width, scratch.data());
      for (int64_t c = 0; c < width; ++c) {
        const bool beats = Beats(values[c], best[static_cast<size_t>(c)], l.extreme);
        best[static_cast<size_t>(c)] = beats ? values[c] : best[static_cast<size_t>(c)];
        index[static_cast<size_t>(c)] = beats ? r : index[static_cast<size_t>(c)];
      }
    }
    for (int64_t c = 0; c < width; ++c) index[static_cast<size_t>(c)] = l.in_whole(index[static_cast<size_t>(c)]);
    StoreBlock(l.kept, 1, l.output, k, width, index.data());
    if (l.values != nullptr) StoreBlock(l.kept, 2, static_cast<T*>(l.values), k, width, best.data());
  }
}

// Winners of shards: of equal ones that with the lower number; a number below 0 is of a shard without elements.
template <typename T>
void ByNumbers(const ArgLayout& l) {
  for (int64_t k = 0; k < l.kept.size; ++k) {
    const T* values = static_cast<const T*>(l.input) + PlaceOf(l.kept, 0, k).offset;
    const int64_t* numbers = l.numbers + PlaceOf(l.kept, 1, k).offset;
    T best{};
    int64_t index = -1;
    for (int64_t r = 0; r < l.reduced.size; ++r) {
      const T value = values[PlaceOf(l.reduced, 0, r).offset];
      const int64_t number = numbers[PlaceOf(l.reduced, 1, r).offset];
      const bool beats = Beats(value, best, l.extreme), is_beaten = Beats(best, value, l.extreme);
      if (number < 0 || (index >= 0 && (is_beaten || (!beats && number >= index)))) continue;
      best = value;
      index = number;
    }
    l.output[PlaceOf(l.kept, 2, k).offset] = index;
    if (l.values != nullptr) static_cast<T*>(l.values)[PlaceOf(l.kept, 3, k).offset] = best;
  }
}

}  // namespace

absl::Status RunArgReduce(const ArgReduceOp& op, const KernelCall& call) {
  static const uint64_t kZero = 0;
  const KernelInput& input = call.inputs[0];
  Shape kept_extents, reduced_extents;
  absl::InlinedVector<Strides, 4> kept, reduced;
  const auto add = [&](absl::Span<const int64_t> strides, bool is_input) {
    Strides outer, inner;
    for (size_t d = 0; d < input.extents.size(); ++d) {
      const bool is_reduced = std::find(op.dims.begin(), op.dims.end(), static_cast<int64_t>(d)) != op.dims.end();
      (is_reduced ? inner : outer).push_back(strides.empty() ? 0 : strides[d]);
    }
    kept.push_back(outer);
    if (is_input) reduced.push_back(inner);
  };
  for (const KernelInput& each : call.inputs) add(each.is_zero ? absl::Span<const int64_t>() : each.strides, true);
  add(call.output_strides, false);
  if (!call.more_outputs.empty()) add(call.more_outputs[0].strides, false);
  for (size_t d = 0; d < input.extents.size(); ++d) {
    const bool is_reduced = std::find(op.dims.begin(), op.dims.end(), static_cast<int64_t>(d)) != op.dims.end();
    (is_reduced ? reduced_extents : kept_extents).push_back(input.extents[d]);
  }
  const ArgLayout layout{
      .kept = Coalesce(kept_extents, kept),
      .reduced = Coalesce(reduced_extents, reduced),
      .extreme = op.extreme,
      .dtype = input.dtype,
      .input = input.is_zero ? &kZero : input.data,
      .numbers = call.inputs.size() < 2   ? nullptr
                 : call.inputs[1].is_zero ? reinterpret_cast<const int64_t*>(&kZero)
                                          : static_cast<const int64_t*>(call.inputs[1].data),
      .in_whole = op.whole.empty() ? NumbersInWhole() : NumbersInWhole(op.dims, op.whole, call.input_box),
      .output = static_cast<int64_t*>(call.output),
      .values = call.more_outputs.empty() ? nullptr : call.more_outputs[0].data};
  if (layout.kept.size == 0) return absl::OkStatus();
  if (layout.reduced.size == 0) {
    if (op.whole.empty()) return absl::InvalidArgumentError("argmin, argmax: of an empty dim");
    for (int64_t k = 0; k < layout.kept.size; ++k) layout.output[PlaceOf(layout.kept, 1, k).offset] = -1;
    return absl::OkStatus();
  }
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (scalar::kIsComplex<T>) {
      return false;
    } else {
      if (layout.numbers != nullptr) {
        ByNumbers<T>(layout);
      } else if (layout.kept.extents.size() == 1 && layout.reduced.extents.size() == 1 &&
                 layout.reduced.strides[0][0] == 1 && layout.reduced.size <= kNarrowRow) {
        AlongNarrowRows<T>(layout);
      } else if (layout.reduced.strides[0].back() == 1 || layout.kept.size < 8) {
        AlongRow<T>(layout);
      } else {
        AcrossColumns<T>(layout);
      }
      return true;
    }
  });
  return is_known ? absl::OkStatus() : NoKernelFor("argmin, argmax", input.dtype);
}

absl::Status RunPick(const PickOp& op, const KernelCall& call) {
  const KernelInput &input = call.inputs[0], &numbers = call.inputs[1];
  const NumbersInWhole in_whole(op.dims, op.whole, call.input_box);
  Strides kept = input.strides, reduced;
  for (const int64_t dim : op.dims) {
    reduced.push_back(input.strides[static_cast<size_t>(dim)]);
    kept[static_cast<size_t>(dim)] = 0;
  }
  const LoopNest nest = Coalesce(call.output_extents, {kept, numbers.strides, call.output_strides});
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    Shape indexes(op.dims.size());
    for (int64_t k = 0; k < nest.size; ++k) {
      const int64_t number =
          numbers.is_zero ? 0 : static_cast<const int64_t*>(numbers.data)[PlaceOf(nest, 1, k).offset];
      T& picked = static_cast<T*>(call.output)[PlaceOf(nest, 2, k).offset];
      picked = T{};
      if (number < 0 || input.is_zero) continue;
      in_whole.IndexesOf(number, absl::MakeSpan(indexes));
      int64_t offset = PlaceOf(nest, 0, k).offset;
      for (size_t d = 0; d < indexes.size(); ++d) {
        if (indexes[d] < 0 || indexes[d] >= input.extents[static_cast<size_t>(op.dims[d])]) {
          return false;
        }
        offset += indexes[d] * reduced[d];
      }
      picked = static_cast<const T*>(input.data)[offset];
    }
    return true;
  });
  return is_known ? absl::OkStatus() : NoKernelFor("pick", input.dtype);
}

}  // namespace tessera::cpu
