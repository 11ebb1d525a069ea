#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/bounds.h"
#include "schemas/types/errors.h"
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

// Where operand `number` is asked to be.
struct Wanted {
  const Mesh& mesh;
  Placements placements;
};

Wanted WantedOf(const ResolveInput& input, size_t number) {
  const TensorSpec& source = *input.tensors[number];
  const Attributes& attributes = input.call.attributes;
  const Mesh& mesh = attributes.Get(attribute::mesh) != nullptr ? *attributes.Get(attribute::mesh) : source.mesh;
  if (!attributes.Get(attribute::placements_each).empty())
    return {mesh, attributes.Get(attribute::placements_each)[number]};
  return {mesh, attributes.Get(attribute::placements) != nullptr ? *attributes.Get(attribute::placements)
                                                                 : DefaultPlacements(source, mesh)};
}

absl::Status AddOperand(const ResolveInput& input, size_t number, OpResolution& resolution) {
  const TensorSpec& source = *input.tensors[number];
  const Attributes& attributes = input.call.attributes;
  const Wanted wanted = WantedOf(input, number);
  TESSERA_ASSIGN_OR_RETURN(TensorSpec destination, TensorSpec::Make("redistribute", source.dtype, source.shape,
                                                                    wanted.mesh, wanted.placements));
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(source, destination));
  if (attributes.Get(attribute::relabel)) {
    TESSERA_ASSIGN_OR_RETURN(destination.mesh, RelabelledMesh(source, wanted.mesh, destination.placements));
  }
  const DType dtype = attributes.Get(attribute::dtype) == nullptr ? source.dtype : *attributes.Get(attribute::dtype);
  TESSERA_RETURN_IF_ERROR(CheckMayCast(input, source.dtype, dtype));
  if (destination.has_partial() && !MayConvertTerms(source, dtype)) {
    return DTypeError(StrCat("redistribute: a pending value can't change dtype from ", ToText(source.dtype), " to ",
                             ToText(dtype), "; redistribute to Shard or Replicate first: x is ", ToText(source)));
  }
  ResolvedOperand operand = BringTo(source, destination.mesh, destination.placements);
  if (dtype != source.dtype) operand.conversion = MapOp{MakeCastExpression(source.dtype, dtype)};
  resolution.operands.push_back(std::move(operand));
  destination.dtype = dtype;
  TESSERA_RETURN_IF_ERROR(ValidateShape("redistribute", destination.shape, SizeBytes(dtype)));
  resolution.outputs.push_back(std::move(destination));
  return absl::OkStatus();
}

// With several operands the message says which one, and both of its specs.
absl::Status AboutOperand(const ResolveInput& input, size_t number, const absl::Status& status) {
  constexpr std::string_view kOp = "redistribute: ";
  std::string_view why = StdView(status.message());
  if (why.substr(0, kOp.size()) == kOp) why.remove_prefix(kOp.size());
  std::string specs;
  if (why.find(": from ") == std::string_view::npos) {
    const Wanted wanted = WantedOf(input, number);
    specs =
        StrCat(": from ", ToText(*input.tensors[number]), " to ", ToText(wanted.mesh), " ", ToText(wanted.placements));
  }
  return WithMessage(status, StrCat(kOp, "operand ", number, ": ", why, specs));
}

}  // namespace

absl::StatusOr<OpResolution> ResolveRedistribute(const ResolveInput& input) {
  const Attributes& attributes = input.call.attributes;
  const size_t count = input.tensors.size();
  const size_t lists = attributes.Get(attribute::placements_each).size();
  if (lists > 0 && attributes.Get(attribute::placements) != nullptr) {
    return OperandError(input, "placements for all and placements for each are given");
  }
  if (lists > 0 && lists != count) {
    return OperandError(input, StrCat(lists, " lists of placements for ", count, " tensors"));
  }
  if (attributes.Get(attribute::relabel) && count > 1) {
    return OperandError(input, StrCat("relabel= is for one tensor, not for ", count));
  }
  OpResolution resolution;
  for (size_t i = 0; i < count; ++i) {
    const absl::Status status = AddOperand(input, i, resolution);
    if (!status.ok()) return count == 1 ? status : AboutOperand(input, i, status);
  }
  return resolution;
}

}  // namespace tessera
