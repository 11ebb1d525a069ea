#include "schemas/types/tensor_spec.h"

#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
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
    return placement.OnDim(dim < 0 ? dim + rank : dim);
  }
  if (placement.is_partial() && IsFloat8(dtype)) {
    return DTypeError(StrCat(op, ": ", ToText(placement), " of ", ToText(dtype), ", which isn't added up", about()));
  }
  if (placement.is_partial() && placement.reduce_op() == ReduceOp::kAvg && Kind(dtype) != DTypeKind::kFloat &&
      Kind(dtype) != DTypeKind::kComplex) {
    return DTypeError(StrCat(op, ": P(avg) needs a floating dtype", about()));
  }
  if (placement.is_partial() && IsBitwise(placement.reduce_op()) && Kind(dtype) >= DTypeKind::kFloat) {
    return DTypeError(StrCat(op, ": ", ToText(placement), " is of the bits of integers, or of bools", about()));
  }
  const bool is_extreme =
      placement.is_partial() && (placement.reduce_op() == ReduceOp::kMin || placement.reduce_op() == ReduceOp::kMax);
  if (is_extreme && Kind(dtype) == DTypeKind::kComplex) {
    return DTypeError(
        StrCat(op, ": ", ToText(placement), " needs a real dtype, complex numbers have no order", about()));
  }
  return placement;
}

// The pieces that mesh dims up to `mesh_dim` cut the tensor dim into as torch.chunk does, with the sizes of earlier
// mesh dims.
std::vector<int64_t> ChunkSizes(const TensorSpec& spec, size_t mesh_dim, int dim) {
  TensorSpec cut = spec;
  for (size_t i = mesh_dim; i < cut.placements.size(); ++i) {
    cut.placements[i] = i == mesh_dim ? Placement::Shard(dim) : Placement::Replicate();
  }
  std::vector<int64_t> sizes;
  for (const Interval& interval : DimIntervals(cut, dim)) sizes.push_back(interval.size());
  return sizes;
}

absl::Status CheckSizes(std::string_view op, const TensorSpec& spec, size_t mesh_dim) {
  if (!spec.placements[mesh_dim].has_sizes() || HasFittingSizes(spec, mesh_dim)) return absl::OkStatus();
  const Placement& placement = spec.placements[mesh_dim];
  size_t pieces = 1;
  for (size_t i = 0; i <= mesh_dim; ++i) {
    if (spec.placements[i].is_shard(placement.dim())) pieces *= static_cast<size_t>(spec.mesh.shape()[i]);
  }
  return absl::InvalidArgumentError(StrCat(op, ": the sizes of ", ToText(placement), " must be ", pieces,
                                           " numbers that add up to ", spec.shape[static_cast<size_t>(placement.dim())],
                                           ": ", Describe(spec.dtype, spec.shape, spec.mesh, spec.placements)));
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
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    Placement& placement = spec.placements[i];
    TESSERA_ASSIGN_OR_RETURN(placement, NormalizePlacement(op, placement, dtype, shape));
    TESSERA_RETURN_IF_ERROR(CheckSizes(op, spec, i));
    if (!placement.is_partial()) continue;
    if (partial != nullptr && partial->reduce_op() != placement.reduce_op()) {
      return absl::InvalidArgumentError(StrCat(op, ": one tensor has ", ToText(*partial), " and ", ToText(placement),
                                               ": ", Describe(dtype, shape, mesh, placements)));
    }
    partial = &placement;
  }
  DropIdleSizes(spec);
  return spec;
}

void DropIdleSizes(TensorSpec& spec) {
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    Placement& placement = spec.placements[i];
    if (!placement.has_sizes()) continue;
    const bool is_idle = !HasFittingSizes(spec, i) || placement.sizes() == ChunkSizes(spec, i, placement.dim());
    if (is_idle) placement = Placement::Shard(placement.dim());
  }
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
