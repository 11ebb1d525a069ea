// Reductions over dims by one fixed tree, whatever the strides: the reduced elements of an output, in
// row-major order of the reduced dims, are cut into blocks of 128; a block is reduced in 16 lanes
// (loops.h); the blocks are combined pairwise, as a binary counter carries. Two walks give the same
// tree: along the reduced dims for one output (`Row`), or across a tile of outputs (`Column`).

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/strided.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kTreeBlock = 128;
constexpr int64_t kTileOutputs = 128;

template <typename T>
T Identity(ReduceOp op, DType dtype) {
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return T{0};
    case ReduceOp::kProduct: return T{1};
    case ReduceOp::kMin:
      if (dtype == DType::kBool) return T{1};
      if constexpr (Limits::has_infinity) return Limits::infinity();
      return Limits::max();
    case ReduceOp::kMax:
      if (dtype == DType::kBool) return T{0};
      if constexpr (Limits::has_infinity) return -Limits::infinity();
      return Limits::lowest();
  }
  return T{0};
}

// Combines block results pairwise; `width` results side by side. Its levels lie in scratch memory of the
// thread, so that a reduction allocates nothing: one stack of a T at a time.
template <typename T>
class PairwiseStack {
 public:
  PairwiseStack(ReduceOp op, DType dtype, int64_t width)
      : op_(op), dtype_(dtype), width_(width), levels_(ThreadLevels()) {}
  void Reset() { count_ = 0; }
  // Takes the block's values; `values` is overwritten.
  void Push(T* values) {
    size_t level = 0;
    for (uint64_t c = count_; (c & 1) != 0; c >>= 1, ++level) CombineInto(Level(level), values);
    std::copy_n(values, width_, Level(level));
    ++count_;
  }
  void Finish(T* result) {
    bool first = true;
    for (size_t level = 0; (count_ >> level) != 0; ++level) {
      if (((count_ >> level) & 1) == 0) continue;
      if (first) {
        std::copy_n(Level(level), width_, result);
        first = false;
      } else {
        CombineInto(Level(level), result);
      }
    }
  }

 private:
  static std::vector<T>& ThreadLevels() {
    static thread_local std::vector<T> levels;
    return levels;
  }
  T* Level(size_t level) {
    const size_t end = (level + 1) * static_cast<size_t>(width_);
    if (levels_.size() < end) levels_.resize(end);
    return levels_.data() + level * static_cast<size_t>(width_);
  }
  // values = op(earlier, values)
  void CombineInto(T* earlier, T* values) {
    AccumulateBlock(op_, dtype_, earlier, values, width_);
    std::copy_n(earlier, width_, values);
  }
  ReduceOp op_;
  DType dtype_;
  int64_t width_;
  uint64_t count_ = 0;
  std::vector<T>& levels_;
};

// The reduction of one call: `kept` walks outputs (operand 0: input, 1: output), `reduced` the input.
struct ReduceLayout {
  ReduceOp op = ReduceOp::kSum;
  LoopNest kept;
  LoopNest reduced;
  DType input_dtype = DType::kF32;
  DType dtype = DType::kF32;  // in which everything is accumulated
  DType output_dtype = DType::kF32;
  const std::byte* input = nullptr;
  void* output = nullptr;
};

// Results from the k-th output on.
template <typename T>
void StoreResults(const ReduceLayout& l, int64_t k, int64_t count, const T* results) {
  if (l.output_dtype == l.dtype) return StoreBlock(l.kept, 1, static_cast<T*>(l.output), k, count, results);
  std::array<uint64_t, kTileOutputs> rounded;
  CastBlock(l.dtype, l.output_dtype, results, count, rounded.data());
  StoreBlockBytes(l.kept, 1, SizeBytes(l.output_dtype), l.output, k, count, rounded.data());
}

// Elements of the input as they are accumulated, dense.
template <typename T>
const T* LoadBlock(const ReduceLayout& l, const LoopNest& nest, int64_t base_offset, int64_t start, int64_t count,
                   void* raw, T* converted) {
  const int64_t bytes = SizeBytes(l.input_dtype);
  const void* values = OperandBlockBytes(nest, 0, bytes, l.input + base_offset * bytes, start, count, raw);
  if (l.input_dtype == l.dtype) return static_cast<const T*>(values);
  CastBlock(l.input_dtype, l.dtype, values, count, converted);
  return converted;
}

template <typename T>
void ReduceByRow(const ReduceLayout& l) {
  alignas(64) std::array<uint64_t, kTreeBlock> raw;
  alignas(64) std::array<T, kTreeBlock> converted;
  PairwiseStack<T> stack(l.op, l.dtype, 1);
  for (int64_t k = 0; k < l.kept.size; ++k) {
    const int64_t base = PlaceOf(l.kept, 0, k).offset;
    stack.Reset();
    for (int64_t r = 0; r < l.reduced.size; r += kTreeBlock) {
      const int64_t n = std::min(kTreeBlock, l.reduced.size - r);
      const T* row = LoadBlock(l, l.reduced, base, r, n, raw.data(), converted.data());
      T value;
      ReduceRowBlock(l.op, l.dtype, row, n, &value);
      stack.Push(&value);
    }
    T result;
    stack.Finish(&result);
    StoreResults(l, k, 1, &result);
  }
}

template <typename T>
void ReduceByColumn(const ReduceLayout& l) {
  alignas(64) std::array<T, kReduceLanes * kTileOutputs> lanes;
  alignas(64) std::array<uint64_t, kTileOutputs> raw;
  alignas(64) std::array<T, kTileOutputs> converted;
  alignas(64) std::array<T, kTileOutputs> result;
  for (int64_t k = 0; k < l.kept.size; k += kTileOutputs) {
    const int64_t width = std::min(kTileOutputs, l.kept.size - k);
    PairwiseStack<T> stack(l.op, l.dtype, width);
    for (int64_t r = 0; r < l.reduced.size; r += kTreeBlock) {
      const int64_t n = std::min(kTreeBlock, l.reduced.size - r);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t base = PlaceOf(l.reduced, 0, r + i).offset;
        const T* row = LoadBlock(l, l.kept, base, k, width, raw.data(), converted.data());
        T* lane = lanes.data() + (i % kReduceLanes) * width;
        if (i < kReduceLanes) {
          std::copy_n(row, width, lane);
        } else {
          AccumulateBlock(l.op, l.dtype, lane, row, width);
        }
      }
      const int64_t filled = std::min(n, kReduceLanes);
      for (int64_t w = kReduceLanes / 2; w > 0; w /= 2) {
        for (int64_t i = 0; i < w && i + w < filled; ++i) {
          AccumulateBlock(l.op, l.dtype, lanes.data() + i * width, lanes.data() + (i + w) * width, width);
        }
      }
      stack.Push(lanes.data());
    }
    stack.Finish(result.data());
    StoreResults(l, k, width, result.data());
  }
}

template <typename T>
void Reduce(const ReduceLayout& l) {
  if (l.reduced.size == 0) {
    const T identity = Identity<T>(l.op, l.dtype);
    for (int64_t k = 0; k < l.kept.size; ++k) StoreResults(l, k, 1, &identity);
    return;
  }
  // Along the row where the reduced elements are dense, or where there are too few outputs for a tile.
  const bool dense_row = l.reduced.strides[0].back() == 1 && l.reduced.extents.back() >= 16;
  if (dense_row || l.kept.size < 8) {
    ReduceByRow<T>(l);
  } else {
    ReduceByColumn<T>(l);
  }
}

}  // namespace

absl::Status RunReduce(const ReduceLocalOp& op, const KernelCall& call) {
  if (call.inputs.size() != 1) return absl::InvalidArgumentError("reduce: takes one input");
  if (op.op == ReduceOp::kAvg) return absl::InvalidArgumentError("reduce: avg is not a local reduction");
  const KernelInput& input = call.inputs[0];
  const size_t rank = input.extents.size();
  if (call.output_extents.size() != rank || !IsImplemented(input.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("reduce: input rank ", rank, ", output rank ",
                                                   call.output_extents.size(), ", dtype ",
                                                   std::string(ToText(input.dtype))));
  }
  absl::InlinedVector<char, kMaxRank> is_reduced(rank, 0);
  for (int64_t d : op.dims) {
    if (d < 0 || d >= static_cast<int64_t>(rank)) {
      return absl::InvalidArgumentError(absl::StrCat("reduce: dim ", d, " is out of range for rank ", rank));
    }
    is_reduced[static_cast<size_t>(d)] = 1;
  }
  Shape kept_extents, reduced_extents;
  Strides kept_input, kept_output, reduced_input;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t stride = input.is_zero ? 0 : input.strides[d];
    if (is_reduced[d]) {
      reduced_extents.push_back(input.extents[d]);
      reduced_input.push_back(stride);
    } else {
      if (call.output_extents[d] != input.extents[d]) {
        return absl::InvalidArgumentError(
            absl::StrCat("reduce: extent ", input.extents[d], " of dim ", d, " becomes ", call.output_extents[d]));
      }
      kept_extents.push_back(input.extents[d]);
      kept_input.push_back(stride);
      kept_output.push_back(call.output_strides[d]);
    }
  }
  static const uint64_t kZero = 0;
  ReduceLayout layout{.op = op.op,
                      .kept = Coalesce(kept_extents, {kept_input, kept_output}),
                      .reduced = Coalesce(reduced_extents, {reduced_input}),
                      .input_dtype = input.dtype,
                      .dtype = AccumulatedIn(call.output_dtype),
                      .output_dtype = call.output_dtype,
                      .input = static_cast<const std::byte*>(input.is_zero ? &kZero : input.data),
                      .output = call.output};
  return VisitAccumulated("reduce", layout.dtype, [&](auto zero) { Reduce<decltype(zero)>(layout); });
}

}  // namespace tessera::cpu
