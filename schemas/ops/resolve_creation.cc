#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool IsFloating(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }

absl::Status CheckCreation(const ResolveInput& input, DType dtype, const Shape& shape) {
  const std::string_view name = input.row.name;
  switch (input.call.op) {
    case OpId::kArange:
      if (shape.size() != 1) {
        return absl::InvalidArgumentError(StrCat("arange: the shape must be 1-D, not ", ToText(shape)));
      }
      if (dtype == DType::kBool || Kind(dtype) == DTypeKind::kComplex) {
        return DTypeError(StrCat("arange: needs a real dtype, not ", ToText(dtype)));
      }
      break;
    case OpId::kEye:
      if (shape.size() != 2) {
        return absl::InvalidArgumentError(StrCat("eye: the shape must be 2-D, not ", ToText(shape)));
      }
      break;
    case OpId::kRand:
    case OpId::kNormal:
      if (!IsFloating(dtype)) return DTypeError(StrCat(name, ": the dtype must be a float, not ", ToText(dtype)));
      break;
    default: break;
  }
  if (input.call.attributes.Get(attribute::placements) != nullptr) {
    for (const Placement& placement : *input.call.attributes.Get(attribute::placements)) {
      if (!placement.is_partial()) continue;
      return absl::InvalidArgumentError(StrCat(name, ": nothing can be made as ", ToText(placement),
                                               ": placements are ",
                                               ToText(*input.call.attributes.Get(attribute::placements))));
    }
  }
  return absl::OkStatus();
}

size_t WantedScalars(OpId op) { return op == OpId::kNormal ? 4 : op == OpId::kArange || op == OpId::kRand ? 2 : 1; }

LocalOp LocalOf(OpId op, const Shape& shape) {
  switch (op) {
    case OpId::kArange: return ArangeOp{};
    case OpId::kRand: return RandOp{shape};
    case OpId::kNormal: return RandOp{shape, Distribution::kNormal};
    case OpId::kEye: return EyeOp{};
    default: return FillOp{};
  }
}

// In the dtype that the kernel computes in: arange of floats in f64, rounded at the end, as a normal number's mean and
// deviation; `at`: which of the call's numbers it is.
Scalar LocalScalar(OpId op, DType dtype, size_t at, const Scalar& scalar) {
  switch (op) {
    case OpId::kNormal: return scalar.As(at < 2 ? DType::kF64 : DType::kI64);
    case OpId::kFull: return scalar.As(dtype);
    case OpId::kArange: return scalar.As(IsFloating(dtype) ? DType::kF64 : DType::kI64);
    default: return scalar.As(DType::kI64);
  }
}

}  // namespace

absl::StatusOr<OpResolution> ResolveCreation(const ResolveInput& input) {
  const OpCall& call = input.call;
  const std::string_view name = input.row.name;
  if (call.attributes.Get(attribute::shape) == nullptr)
    return absl::InvalidArgumentError(StrCat(name, ": needs a shape"));
  if (call.attributes.Get(attribute::mesh) == nullptr)
    return absl::InvalidArgumentError(StrCat(name, ": needs a device mesh"));
  if (call.scalars.size() != WantedScalars(call.op)) {
    return absl::InvalidArgumentError(
        StrCat(name, ": takes ", WantedScalars(call.op), " numbers, not ", call.scalars.size()));
  }
  // Not the scalars' dtype: they are no part of a plan's key, and the dtype is.
  if (call.attributes.Get(attribute::dtype) == nullptr) return DTypeError(StrCat(name, ": needs a dtype"));
  const DType dtype = *call.attributes.Get(attribute::dtype);
  const Shape& shape = *call.attributes.Get(attribute::shape);
  TESSERA_RETURN_IF_ERROR(CheckCreation(input, dtype, shape));
  if (call.op == OpId::kFull && !Fits(call.scalars[0], dtype)) {
    return DTypeError(StrCat(name, ": ", ToText(call.scalars[0]), " doesn't fit dtype ", ToText(dtype)));
  }
  // Before the layout is asked, which multiplies extents.
  TESSERA_RETURN_IF_ERROR(ValidateShape(name, shape, SizeBytes(dtype)));
  const Mesh& mesh = *call.attributes.Get(attribute::mesh);
  OpResolution resolution;
  TESSERA_ASSIGN_OR_RETURN(TensorSpec output, TensorSpec::Make(name, dtype, shape, mesh,
                                                               call.attributes.Get(attribute::placements) != nullptr
                                                                   ? *call.attributes.Get(attribute::placements)
                                                                   : AutoPlacements(dtype, shape, mesh)));
  for (size_t i = 0; i < call.scalars.size(); ++i) {
    resolution.scalars.push_back(LocalScalar(call.op, dtype, i, call.scalars[i]));
  }
  resolution.local = LocalOf(call.op, shape);
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
