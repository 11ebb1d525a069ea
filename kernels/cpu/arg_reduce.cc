// argmin and argmax along one dim: the index of the first extreme; the first NaN wins.

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

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

struct ArgLayout {
  LoopNest kept;  // operand 0: input, 1: output
  int64_t extent = 0;
  int64_t stride = 0;
  Extreme extreme = Extreme::kMin;
};

template <typename T>
void AlongRow(const ArgLayout& l, const T* input, int64_t* output) {
  for (int64_t k = 0; k < l.kept.size; ++k) {
    const T* row = input + PlaceOf(l.kept, 0, k).offset;
    T best = row[0];
    int64_t index = 0;
    for (int64_t i = 1; i < l.extent; ++i) {
      if (Beats(row[i * l.stride], best, l.extreme)) {
        best = row[i * l.stride];
        index = i;
      }
    }
    output[PlaceOf(l.kept, 1, k).offset] = index;
  }
}

// A tile of outputs at a time, so that dense memory is read densely.
template <typename T>
void AcrossColumns(const ArgLayout& l, const T* input, int64_t* output) {
  std::array<T, kTileOutputs> best, scratch;
  std::array<int64_t, kTileOutputs> index;
  for (int64_t k = 0; k < l.kept.size; k += kTileOutputs) {
    const int64_t width = std::min(kTileOutputs, l.kept.size - k);
    index.fill(0);
    std::copy_n(OperandBlock(l.kept, 0, input, k, width, scratch.data()), width, best.data());
    for (int64_t i = 1; i < l.extent; ++i) {
      const T* values = OperandBlock(l.kept, 0, input + i * l.stride, k, width, scratch.data());
      for (int64_t c = 0; c < width; ++c) {
        const bool beats = Beats(values[c], best[static_cast<size_t>(c)], l.extreme);
        best[static_cast<size_t>(c)] = beats ? values[c] : best[static_cast<size_t>(c)];
        index[static_cast<size_t>(c)] = beats ? i : index[static_cast<size_t>(c)];
      }
    }
    StoreBlock(l.kept, 1, output, k, width, index.data());
  }
}

}  // namespace

absl::Status RunArgReduce(const ArgReduceOp& op, const KernelCall& call) {
  if (call.inputs.size() != 1 || call.output_dtype != DType::kI64) {
    return absl::InvalidArgumentError("argmin, argmax: take one input and give i64");
  }
  const KernelInput& input = call.inputs[0];
  const size_t rank = input.extents.size();
  if (op.dim < 0 || op.dim >= static_cast<int64_t>(rank) || call.output_extents.size() != rank) {
    return absl::InvalidArgumentError(absl::StrCat("argmin, argmax: dim ", op.dim, " is out of range for rank ", rank));
  }
  const size_t dim = static_cast<size_t>(op.dim);
  Shape kept = input.extents;
  kept[dim] = 1;
  Strides strides = input.is_zero ? Strides(rank, 0) : input.strides;
  ArgLayout layout{.kept = Coalesce(kept, {strides, call.output_strides}),
                   .extent = input.extents[dim],
                   .stride = strides[dim],
                   .extreme = op.extreme};
  if (layout.kept.size == 0) return absl::OkStatus();
  if (layout.extent == 0) return absl::InvalidArgumentError("argmin, argmax: of an empty dim");
  static const uint64_t kZero = 0;
  const void* data = input.is_zero ? &kZero : input.data;
  const bool is_known = VisitElement(input.dtype, [&](auto element) {
    using T = decltype(element);
    if (layout.stride == 1 || layout.kept.size < 8) {
      AlongRow(layout, static_cast<const T*>(data), static_cast<int64_t*>(call.output));
    } else {
      AcrossColumns(layout, static_cast<const T*>(data), static_cast<int64_t*>(call.output));
    }
    return true;
  });
  return is_known ? absl::OkStatus() : NoKernelFor("argmin, argmax", input.dtype);
}

}  // namespace tessera::cpu
