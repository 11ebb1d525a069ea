// Fourier transforms: the dim is whole on every worker, as of scans and sorts; the other dims keep their shards.

#include <algorithm>
#include <string>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

FourierKind KindOf(OpId op) {
  switch (op) {
    case OpId::kIfft: return FourierKind::kBackward;
    case OpId::kRfft: return FourierKind::kRealForward;
    case OpId::kIrfft: return FourierKind::kRealBackward;
    default: return FourierKind::kForward;
  }
}

// backward: the way back is divided by the length; forward: the other; ortho: both by its root.
absl::StatusOr<FourierScale> ScaleOf(const ResolveInput& input, FourierKind kind) {
  const std::string& norm = input.call.attributes.Get(attribute::norm);
  const bool goes_back = kind == FourierKind::kBackward || kind == FourierKind::kRealBackward;
  if (norm == "ortho") return FourierScale::kByRoot;
  if (norm.empty() || norm == "backward") return goes_back ? FourierScale::kByLength : FourierScale::kNone;
  if (norm == "forward") return goes_back ? FourierScale::kNone : FourierScale::kByLength;
  return OperandError(input, StrCat("norm is ", norm, ", not backward, ortho or forward"));
}

}  // namespace

absl::StatusOr<OpResolution> ResolveFourier(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  const Attributes& attributes = input.call.attributes;
  if (attributes.Get(attribute::dims).size() != 1) return OperandError(input, "needs one axis");
  FourierOp op;
  op.kind = KindOf(input.call.op);
  op.dim = attributes.Get(attribute::dims)[0];
  if (op.dim < 0 || op.dim >= own.rank()) {
    return IndexOutOfRangeError(
        StrCat(input.row.name, ": axis ", op.dim, " is out of range: ", DescribeOperands(input)));
  }
  const size_t dim = static_cast<size_t>(op.dim);
  const int64_t extent = own.shape[dim];
  op.length = attributes.Get(attribute::k) != nullptr ? *attributes.Get(attribute::k)
              : op.kind == FourierKind::kRealBackward ? 2 * (std::min(extent, kMaxFourierLength) - 1)
                                                      : extent;
  TESSERA_ASSIGN_OR_RETURN(op.scale, ScaleOf(input, op.kind));
  const absl::StatusOr<DType> dtype = FourierResult(op.kind, own.dtype);
  if (!dtype.ok()) return OperandDTypeError(input, StdView(dtype.status().message()));
  if (absl::Status s = ValidateFourierOp(op, 1, 0); !s.ok()) return OperandError(input, StdView(s.message()));
  TensorSpec x = own;
  for (int i = 0; i < own.mesh.ndim(); ++i) {
    const Placement placement = own.placements[static_cast<size_t>(i)];
    if (placement.is_partial() || placement.is_shard(static_cast<int>(op.dim))) {
      x.placements[static_cast<size_t>(i)] = ShardOrReplicate(x, i, static_cast<int>(op.dim));
    }
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(own, x.mesh, x.placements));
  x.dtype = *dtype;
  x.shape[dim] = op.given();
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, x.shape, SizeBytes(x.dtype)));
  resolution.flops = 5 * static_cast<double>(NumElements(x.shape)) * 20;
  resolution.local = op;
  resolution.outputs.push_back(std::move(x));
  return resolution;
}

}  // namespace tessera
