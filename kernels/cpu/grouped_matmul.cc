// Products by groups: the rows, or the inner elements, of each group by the kernel for products, one group after the
// other; a product is cut among the threads by itself.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "schemas/types/errors.h"

namespace tessera::cpu {
namespace {

// Where each group begins; one more is the end of the last.
absl::StatusOr<std::vector<int64_t>> Bounds(const KernelInput& offsets, int64_t whole) {
  std::vector<int64_t> bounds = {0};
  const int64_t stride = offsets.extents[0] == 1 ? 0 : offsets.strides[0];
  for (int64_t g = 0; g < offsets.extents[0]; ++g) {
    const int64_t end = offsets.dtype == DType::kI64 ? static_cast<const int64_t*>(offsets.data)[g * stride]
                                                     : static_cast<const int32_t*>(offsets.data)[g * stride];
    if (end < bounds.back() || end > whole) {
      return IndexOutOfRangeError(
          absl::StrCat("grouped_matmul: offset ", end, " of group ", g, " is not from ", bounds.back(), " to ", whole));
    }
    bounds.push_back(end);
  }
  return bounds;
}

absl::Status CheckOperands(const GroupedMatmulOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  const bool is_rows = op.grouped == GroupedDim::kRows;
  const KernelInput &a = call.inputs[0], &b = call.inputs[1], &offsets = call.inputs[2];
  const Shape& out = call.output_extents;
  bool fits = a.extents.size() == (is_rows ? 3U : 2U) && b.extents.size() == 2 && offsets.extents.size() == 1 &&
              out.size() == (is_rows ? 2U : 3U) && call.output_box.size() == out.size() &&
              call.input_box.size() == a.extents.size() && !a.is_zero && !b.is_zero && !offsets.is_zero;
  fits = fits && a.dtype == call.output_dtype && b.dtype == call.output_dtype &&
         (offsets.dtype == DType::kI64 || offsets.dtype == DType::kI32);
  if (fits && is_rows) {
    fits = b.extents[1] == a.extents[1] && out[0] == b.extents[0] && out[1] == a.extents[2] &&
           call.input_box[0].stop <= offsets.extents[0];
  } else if (fits) {
    fits = a.extents[1] == b.extents[0] && out[1] == a.extents[0] && out[2] == b.extents[1] &&
           call.output_box[0].stop <= offsets.extents[0];
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("grouped_matmul: operands don't fit ", ToText(out)));
}

// Elements [first, first + count) of a dim.
KernelInput Part(const KernelInput& input, size_t dim, int64_t first, int64_t count) {
  KernelInput part = input;
  part.data = static_cast<const std::byte*>(input.data) + first * input.strides[dim] * SizeBytes(input.dtype);
  part.extents[dim] = count;
  return part;
}
KernelInput OneOf(const KernelInput& input, int64_t number) {
  KernelInput one = Part(input, 0, number, 1);
  one.extents.erase(one.extents.begin());
  one.strides.erase(one.strides.begin());
  return one;
}

class GroupedMatmul {
 public:
  GroupedMatmul(const KernelCall& call, std::vector<int64_t> bounds) : call_(call), bounds_(std::move(bounds)) {}

  absl::Status Rows() const {
    const Interval own = call_.input_box[0], rows = call_.output_box[0];
    const auto row_of = [&](int64_t bound) { return std::clamp(bound, rows.start, rows.stop) - rows.start; };
    // Rows of other groups, and of none.
    const int64_t first = row_of(BoundOf(own.start)), end = std::max(first, row_of(BoundOf(own.stop)));
    Clear(0, first);
    Clear(end, rows.size());
    for (int64_t g = own.start; g < own.stop; ++g) {
      const int64_t from = row_of(BoundOf(g)), to = row_of(BoundOf(g + 1));
      if (from == to) continue;
      const std::vector<KernelInput> operands = {Part(call_.inputs[1], 0, from, to - from),
                                                 OneOf(call_.inputs[0], g - own.start)};
      absl::Status status = Multiply(operands, from * call_.output_strides[0], {to - from, call_.output_extents[1]},
                                     call_.output_strides);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Inner() const {
    const Interval own = call_.output_box[0], inner = call_.input_box[1];
    const auto place_of = [&](int64_t bound) { return std::clamp(bound, inner.start, inner.stop) - inner.start; };
    const Strides strides(call_.output_strides.begin() + 1, call_.output_strides.end());
    for (int64_t g = own.start; g < own.stop; ++g) {
      const int64_t from = place_of(BoundOf(g)), count = place_of(BoundOf(g + 1)) - from;
      const std::vector<KernelInput> operands = {Part(call_.inputs[0], 1, from, count),
                                                 Part(call_.inputs[1], 0, from, count)};
      absl::Status status = Multiply(operands, (g - own.start) * call_.output_strides[0],
                                     {call_.output_extents[1], call_.output_extents[2]}, strides);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  int64_t BoundOf(int64_t group) const { return bounds_[static_cast<size_t>(group)]; }
  std::byte* At(int64_t offset) const {
    return static_cast<std::byte*>(call_.output) + offset * SizeBytes(call_.output_dtype);
  }

  absl::Status Multiply(const std::vector<KernelInput>& operands, int64_t offset, Shape extents,
                        Strides strides) const {
    const LocalOp op = MatmulOp{};
    return RunMatmul(std::get<MatmulOp>(op), {.op = &op,
                                              .inputs = operands,
                                              .output = At(offset),
                                              .output_dtype = call_.output_dtype,
                                              .output_extents = std::move(extents),
                                              .output_strides = std::move(strides)});
  }

  void Clear(int64_t first, int64_t end) const {
    if (first >= end) return;
    CopyStrided({end - first, call_.output_extents[1]}, SizeBytes(call_.output_dtype), &kZeroElement, {0, 0},
                At(first * call_.output_strides[0]), call_.output_strides);
  }

  const KernelCall& call_;
  const std::vector<int64_t> bounds_;
};

}  // namespace

absl::Status RunGroupedMatmul(const GroupedMatmulOp& op, const KernelCall& call) {
  if (absl::Status s = CheckOperands(op, call); !s.ok()) return s;
  absl::StatusOr<std::vector<int64_t>> bounds = Bounds(call.inputs[2], op.whole);
  if (!bounds.ok()) return bounds.status();
  const GroupedMatmul product(call, *std::move(bounds));
  return op.grouped == GroupedDim::kRows ? product.Rows() : product.Inner();
}

}  // namespace tessera::cpu
