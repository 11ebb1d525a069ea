// Place: pieces written into the output, over its base. Copies of strided boxes alone.

#include "kernels/cpu/families.h"
#include "kernels/operands.h"

namespace tessera::cpu {
namespace {

bool HasBaseInPlace(const KernelCall& call) {
  const KernelInput& base = call.inputs[0];
  return base.data == call.output && base.strides == call.output_strides && !base.is_zero;
}

}  // namespace

absl::Status RunPlace(const PlaceOp& op, const KernelCall& call) {
  const int64_t bytes = SizeBytes(call.output_dtype);
  if (op.base == PlaceBase::kScalar) {
    const absl::Status filled = RunFill(FillOp{}, call);
    if (!filled.ok()) return filled;
  } else if (op.base == PlaceBase::kInput && !HasBaseInPlace(call)) {
    CopyStrided(call.output_extents, bytes, call.inputs[0].data, call.inputs[0].strides, call.output,
                call.output_strides);
  }
  for (size_t p = 0; p < op.starts.size(); ++p) {
    const KernelInput& piece = call.inputs[(op.base == PlaceBase::kInput ? 1 : 0) + p];
    if (NumElements(piece.extents) == 0) continue;
    const absl::StatusOr<PlacedPiece> placed = PlacePiece(op, call, p);
    if (!placed.ok()) return placed.status();
    CopyStrided(piece.extents, bytes, piece.data, piece.strides,
                static_cast<std::byte*>(call.output) + placed->offset * bytes, placed->strides);
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
