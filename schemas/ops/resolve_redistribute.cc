#include "schemas/ops/resolve_internal.h"
#include "schemas/types/bounds.h"
#include "schemas/types/relabel.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The placements that are meant when none are given: the same ones, as far as the mesh has them.
Placements DefaultPlacements(const TensorSpec& source, const Mesh& mesh) {
  if (HaveSameArrangement(source.mesh, mesh)) return source.placements;
  Placements placements(static_cast<size_t>(mesh.ndim()));
  if (source.mesh.ndim() != mesh.ndim()) return placements;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (source.placements[i].is_shard()) placements[i] = source.placements[i];
  }
  return placements;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveRedistribute(const ResolveInput& input) {
  const TensorSpec& source = *input.tensors[0];
  const OpAttributes& attributes = input.call.attributes;
  const Mesh& asked = attributes.mesh.has_value() ? *attributes.mesh : source.mesh;
  TESSERA_ASSIGN_OR_RETURN(
      TensorSpec destination,
      TensorSpec::Make("redistribute", source.dtype, source.shape, asked,
                       attributes.placements.has_value() ? *attributes.placements : DefaultPlacements(source, asked)));
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(source, destination));
  if (attributes.relabel) {
    TESSERA_ASSIGN_OR_RETURN(destination.mesh, RelabelledMesh(source, asked, destination.placements));
  }
  const DType dtype = attributes.dtype.value_or(source.dtype);
  if (destination.has_partial() && !IsWidening(source.dtype, dtype)) {
    return DTypeError(StrCat("redistribute: a pending value can't change dtype from ", ToText(source.dtype), " to ",
                             ToText(dtype), "; redistribute to Shard or Replicate first: x is ", ToText(source)));
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(source, destination.mesh, destination.placements));
  if (dtype != source.dtype) resolution.local = MapOp{MakeCastExpression(source.dtype, dtype)};
  destination.dtype = dtype;
  TESSERA_RETURN_IF_ERROR(ValidateShape("redistribute", destination.shape, SizeBytes(dtype)));
  resolution.outputs.push_back(std::move(destination));
  return resolution;
}

}  // namespace tessera
