// Place: pieces written into the output, over its base. Copies of strided boxes alone.

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/families.h"

namespace tessera::cpu {
namespace {

bool HasBaseInPlace(const KernelCall& call) {
  const KernelInput& base = call.inputs[0];
  return base.data == call.output && base.strides == call.output_strides && !base.is_zero;
}

}  // namespace

absl::Status RunPlace(const PlaceOp& op, const KernelCall& call) {
  const size_t rank = call.output_extents.size();
  const size_t first = op.base == PlaceBase::kInput ? 1 : 0;
  if (call.inputs.size() != first + op.starts.size() || op.step.size() != rank || call.output_box.size() != rank) {
    return absl::InvalidArgumentError("place: inputs and pieces differ in number, or a rank differs");
  }
  const int64_t bytes = SizeBytes(call.output_dtype);
  if (op.base == PlaceBase::kScalar) {
    const absl::Status filled = RunFill(FillOp{}, call);
    if (!filled.ok()) return filled;
  } else if (op.base == PlaceBase::kInput && !HasBaseInPlace(call)) {
    CopyStrided(call.output_extents, bytes, call.inputs[0].data, call.inputs[0].strides, call.output,
                call.output_strides);
  }
  for (size_t p = 0; p < op.starts.size(); ++p) {
    const KernelInput& piece = call.inputs[first + p];
    if (NumElements(piece.extents) == 0 && rank > 0) continue;
    int64_t offset = 0;
    Strides strides(rank);
    for (size_t d = 0; d < rank; ++d) {
      const Interval box = call.output_box[d];
      const int64_t from = PiecesInBox(box, op.starts[p][d], op.step[d], std::numeric_limits<int64_t>::max()).start;
      const int64_t start = op.starts[p][d] + op.step[d] * from - box.start;
      if (start < 0 || start + op.step[d] * (piece.extents[d] - 1) >= call.output_extents[d]) {
        return absl::InvalidArgumentError(
            absl::StrCat("place: piece ", p, " lies outside of the output along dim ", d));
      }
      offset += start * call.output_strides[d];
      strides[d] = op.step[d] * call.output_strides[d];
    }
    CopyStrided(piece.extents, bytes, piece.data, piece.strides, static_cast<std::byte*>(call.output) + offset * bytes,
                strides);
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
