// A cast whose input lies at the end of its output's memory, in place.
//
// With N elements in the memory of the output, of W bytes there and of n in the input, element i is written to
// [i W, i W + W), and the input's element j lies from N (W - n) + j n on. So front to back nothing is written over that
// is still to be read: (i + 1) W <= N (W - n) + (i + 1) n for every i < N.
//
// If R elements are left, the first R (W - n) / W end before the first of the input begins: these are converted like
// elements that lie apart, on all threads. Each time W / n times fewer are left; the last ones go by way of a copy.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/families.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cpu {
namespace {

// Elements from the first one to the last, with what lies between them.
int64_t SpanOf(absl::Span<const int64_t> extents, absl::Span<const int64_t> strides) {
  int64_t span = 1;
  for (size_t d = 0; d < extents.size(); ++d) span += (extents[d] - 1) * strides[d];
  return span;
}

class Widener {
 public:
  explicit Widener(const KernelCall& call)
      : from_(call.inputs[0].dtype),
        to_(call.output_dtype),
        from_bytes_(SizeBytes(from_)),
        to_bytes_(SizeBytes(to_)),
        nest_(Coalesce(call.output_extents, {&call.output_strides, 1})) {}

  // The dims from `dim` on of what begins at these addresses.
  void Run(size_t dim, const std::byte* from, std::byte* to) {
    const bool is_innermost = dim + 1 == nest_.extents.size();
    const int64_t rows = nest_.extents[dim], stride = nest_.strides[0][dim];
    for (int64_t row = 0; row < rows;) {
      const std::byte* const next = from + row * stride * from_bytes_;
      std::byte* const place = to + row * stride * to_bytes_;
      int64_t count = std::min(rows - row, RowsApart(dim, next, place));
      if (count >= (is_innermost ? kBlockElements : 1)) {
        ConvertApart(dim, count, next, place);
      } else if (is_innermost) {
        count = std::min(rows - row, kBlockElements);
        ConvertByCopy(count, stride, next, place);
      } else {
        count = 1;
        Run(dim + 1, next, place);
      }
      row += count;
    }
  }

 private:
  absl::Span<const int64_t> ExtentsFrom(size_t dim) const { return absl::MakeConstSpan(nest_.extents).subspan(dim); }
  absl::Span<const int64_t> StridesFrom(size_t dim) const { return absl::MakeConstSpan(nest_.strides[0]).subspan(dim); }

  // How many rows that begin at `to` end before `from`.
  int64_t RowsApart(size_t dim, const std::byte* from, const std::byte* to) const {
    const int64_t left_bytes = from - to - SpanOf(ExtentsFrom(dim + 1), StridesFrom(dim + 1)) * to_bytes_;
    const int64_t stride_bytes = std::max<int64_t>(1, nest_.strides[0][dim]) * to_bytes_;
    return left_bytes < 0 ? 0 : left_bytes / stride_bytes + 1;
  }

  void ConvertApart(size_t dim, int64_t rows, const std::byte* from, std::byte* to) const {
    Shape extents(ExtentsFrom(dim).begin(), ExtentsFrom(dim).end());
    extents[0] = rows;
    const Strides strides(StridesFrom(dim).begin(), StridesFrom(dim).end());
    const ReduceTerm term = {from, strides};
    const ReduceDestination destination = {to, strides};
    ReduceTermsInto(ReduceOp::kSum, from_, extents, {&term, 1}, 1, to_, {&destination, 1});
  }

  // All are read before one is written.
  void ConvertByCopy(int64_t count, int64_t stride, const std::byte* from, std::byte* to) const {
    alignas(64) std::array<std::byte, static_cast<size_t>(kBlockElements * kMaxElementBytes)> narrow, wide;
    CopyStrided({count}, from_bytes_, from, {stride}, narrow.data(), {1});
    CastBlock(from_, to_, narrow.data(), count, wide.data());
    CopyStrided({count}, to_bytes_, wide.data(), {1}, to, {stride});
  }

  const DType from_, to_;
  const int64_t from_bytes_, to_bytes_;
  const LoopNest nest_;
};

}  // namespace

bool IsWideningInPlace(const MapOp& op, const KernelCall& call) {
  const std::vector<ExpressionNode>& nodes = op.expression.nodes;
  if (nodes.size() != 2 || nodes[0].op != ScalarOp::kInput || nodes[1].op != ScalarOp::kCast) return false;
  if (call.inputs.size() != 1 || NumElements(call.output_extents) == 0) return false;
  const KernelInput& input = call.inputs[0];
  if (input.is_zero || SizeBytes(input.dtype) >= SizeBytes(call.output_dtype)) return false;
  if (input.extents != call.output_extents || input.strides != call.output_strides) return false;
  const auto* const from = static_cast<const std::byte*>(input.data);
  const auto* const to = static_cast<const std::byte*>(call.output);
  const std::byte* const end = to + SpanOf(call.output_extents, call.output_strides) * SizeBytes(call.output_dtype);
  return to <= from && from < end;
}

void WidenInPlace(const KernelCall& call) {
  Widener(call).Run(0, static_cast<const std::byte*>(call.inputs[0].data), static_cast<std::byte*>(call.output));
}

}  // namespace tessera::cpu
