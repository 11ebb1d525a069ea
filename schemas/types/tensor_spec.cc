#include "schemas/types/tensor_spec.h"

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

std::string Describe(DType dtype, absl::Span<const int64_t> shape, const Mesh& mesh, const Placements& placements) {
  return StrCat(ToText(dtype), ToText(shape), " @ ", ToText(mesh), " ", ToText(placements));
}

absl::StatusOr<Placement> NormalizePlacement(std::string_view op, const Placement& placement, DType dtype,
                                             absl::Span<const int64_t> shape) {
  const int rank = static_cast<int>(shape.size());
  const auto about = [&] { return StrCat(": the tensor is ", ToText(dtype), ToText(shape)); };
  if (placement.is_shard()) {
    const int dim = placement.dim();
    if (rank == 0) {
      return IndexOutOfRangeError(StrCat(op, ": ", ToText(placement), " of a rank-0 tensor", about()));
    }
    if (dim < -rank || dim >= rank) {
      return IndexOutOfRangeError(
          StrCat(op, ": placement ", ToText(placement), " is out of range for rank ", rank, about()));
    }
    return Placement::Shard(dim < 0 ? dim + rank : dim);
  }
  if (placement.is_partial() && placement.reduce_op() == ReduceOp::kAvg && Kind(dtype) != DTypeKind::kFloat &&
      Kind(dtype) != DTypeKind::kComplex) {
    return DTypeError(StrCat(op, ": P(avg) needs a floating dtype", about()));
  }
  return placement;
}

}  // namespace

absl::StatusOr<TensorSpec> TensorSpec::Make(std::string_view op, DType dtype, absl::Span<const int64_t> shape,
                                            const Mesh& mesh, const Placements& placements) {
  TESSERA_RETURN_IF_ERROR(ValidateShape(op, shape, SizeBytes(dtype)));
  if (mesh.ndim() == 0) return absl::InvalidArgumentError(StrCat(op, ": the device mesh is not set"));
  if (placements.size() != static_cast<size_t>(mesh.ndim())) {
    return absl::InvalidArgumentError(StrCat(op, ": ", placements.size(), " placements for a mesh of ", mesh.ndim(),
                                             " dims: ", ToText(placements), " on ", ToText(mesh)));
  }
  TensorSpec spec{dtype, Shape(shape.begin(), shape.end()), mesh, placements};
  const Placement* partial = nullptr;
  for (Placement& placement : spec.placements) {
    TESSERA_ASSIGN_OR_RETURN(placement, NormalizePlacement(op, placement, dtype, shape));
    if (!placement.is_partial()) continue;
    if (partial != nullptr && partial->reduce_op() != placement.reduce_op()) {
      return absl::InvalidArgumentError(StrCat(op, ": one tensor has ", ToText(*partial), " and ", ToText(placement),
                                               ": ", Describe(dtype, shape, mesh, placements)));
    }
    partial = &placement;
  }
  return spec;
}

bool TensorSpec::has_partial() const {
  for (const Placement& placement : placements) {
    if (placement.is_partial()) return true;
  }
  return false;
}

ReduceOp TensorSpec::partial_op() const {
  for (const Placement& placement : placements) {
    if (placement.is_partial()) return placement.reduce_op();
  }
  return ReduceOp::kSum;
}

std::string ToShortText(const TensorSpec& spec) { return StrCat(ToText(spec.dtype), ToText(spec.shape)); }

std::string ToText(const TensorSpec& spec) { return Describe(spec.dtype, spec.shape, spec.mesh, spec.placements); }

absl::StatusOr<TensorSpec> ParseTensorSpec(Scanner& scanner) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, ParseDType(name));
  TESSERA_ASSIGN_OR_RETURN(const Shape shape, ParseShape(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.Take("@"));
  TESSERA_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(scanner));
  TESSERA_ASSIGN_OR_RETURN(const Placements placements, ParsePlacements(scanner));
  return TensorSpec::Make("spec", dtype, shape, mesh, placements);
}

absl::StatusOr<TensorSpec> ParseTensorSpec(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, ParseTensorSpec(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return spec;
}

}  // namespace tessera
