// Views: transpose and slice, and what a view reads of its operand. reshape is in resolve_reshape.cc, relabel in
// resolve_relabel.cc.

#include <algorithm>
#include <array>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/resolve_relabel.h"
#include "schemas/ops/resolve_reshape.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::Status CheckPermutation(const ResolveInput& input) {
  const std::vector<int64_t>& dims = input.call.attributes.Get(attribute::dims);
  const int rank = input.tensors[0]->rank();
  std::array<bool, kMaxRank> seen = {};
  bool valid = static_cast<int>(dims.size()) == rank;
  for (const int64_t dim : dims) {
    valid = valid && dim >= 0 && dim < rank && !seen[static_cast<size_t>(dim)];
    if (valid) seen[static_cast<size_t>(dim)] = true;
  }
  if (valid) return absl::OkStatus();
  const std::string shown = dims.size() > static_cast<size_t>(kMaxRank) ? StrCat(dims.size(), " dims") : ToText(dims);
  return IndexOutOfRangeError(
      StrCat(input.row.name, ": ", shown, " is no permutation of ", rank, " dims: ", DescribeOperands(input)));
}

absl::StatusOr<TensorSpec> TransposeSpec(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckPermutation(input));
  const TensorSpec& own = *input.tensors[0];
  TensorSpec output = own;
  std::array<int, kMaxRank> output_dim = {};
  for (int d = 0; d < own.rank(); ++d) {
    const int64_t from = input.call.attributes.Get(attribute::dims)[static_cast<size_t>(d)];
    output.shape[static_cast<size_t>(d)] = own.shape[static_cast<size_t>(from)];
    output_dim[static_cast<size_t>(from)] = d;
  }
  for (Placement& placement : output.placements) {
    if (placement.is_shard()) placement = placement.OnDim(output_dim[static_cast<size_t>(placement.dim())]);
  }
  return output;
}

absl::Status CheckItem(const ResolveInput& input, const IndexItem& item, int64_t extent, size_t dim) {
  if (item.kind == IndexItem::Kind::kInteger) {
    if (item.start >= 0 && item.start < extent) return absl::OkStatus();
    return IndexOutOfRangeError(StrCat("slice: index ", item.start, " is out of range for dim ", dim, " of ", extent,
                                       ": ", DescribeOperands(input)));
  }
  // The last element, if there is one, must be in range too.
  int64_t last = 0;
  const bool valid =
      item.size >= 0 && item.step != 0 &&
      (item.size == 0 ||
       (item.start >= 0 && item.start < extent && !__builtin_mul_overflow(item.size - 1, item.step, &last) &&
        !__builtin_add_overflow(last, item.start, &last) && last >= 0 && last < extent));
  if (valid) return absl::OkStatus();
  return IndexOutOfRangeError(StrCat("slice: ", item.size, " elements from ", item.start, " by ", item.step,
                                     " are out of range for dim ", dim, " of ", extent, ": ", DescribeOperands(input)));
}

absl::StatusOr<TensorSpec> SliceSpec(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  std::array<int, kMaxRank> output_dim;
  output_dim.fill(-1);
  TensorSpec output = own;
  output.shape.clear();
  size_t dim = 0;
  for (const IndexItem& item : input.call.attributes.Get(attribute::index)) {
    if (item.kind != IndexItem::Kind::kInteger && output.shape.size() == static_cast<size_t>(kMaxRank)) {
      return OperandError(input, StrCat("more than ", kMaxRank, " dims in the result (max_rank)"));
    }
    if (item.kind == IndexItem::Kind::kNewAxis) {
      output.shape.push_back(1);
      continue;
    }
    if (dim == own.shape.size()) {
      return IndexOutOfRangeError(StrCat("slice: more indices than dims: ", DescribeOperands(input)));
    }
    TESSERA_RETURN_IF_ERROR(CheckItem(input, item, own.shape[dim], dim));
    if (item.kind == IndexItem::Kind::kSlice) {
      output_dim[dim] = static_cast<int>(output.shape.size());
      output.shape.push_back(item.size);
    }
    ++dim;
  }
  if (dim != own.shape.size()) return OperandError(input, StrCat("indices for ", dim, " dims"));
  TESSERA_RETURN_IF_ERROR(ValidateShape("slice", output.shape, SizeBytes(own.dtype)));
  for (Placement& placement : output.placements) {
    if (!placement.is_shard()) continue;
    const int dim = placement.dim();
    const int kept = output_dim[static_cast<size_t>(dim)];
    const bool is_whole = kept >= 0 && output.shape[static_cast<size_t>(kept)] == own.shape[static_cast<size_t>(dim)];
    placement = kept < 0 ? Placement::Replicate() : is_whole ? placement.OnDim(kept) : Placement::Shard(kept);
  }
  const Attributes& attributes = input.call.attributes;
  if (attributes.Get(attribute::placements) == nullptr) return output;
  // Where it is wanted instead.
  const Mesh& mesh = attributes.Get(attribute::mesh) != nullptr ? *attributes.Get(attribute::mesh) : own.mesh;
  TESSERA_ASSIGN_OR_RETURN(TensorSpec wanted, TensorSpec::Make("slice", own.dtype, output.shape, mesh,
                                                               *attributes.Get(attribute::placements)));
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(output, wanted));
  return wanted;
}

// Whether more than one position along the dim holds a piece of it.
bool IsCut(const TensorSpec& spec, size_t dim) {
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (spec.placements[i].is_shard(static_cast<int>(dim)) && spec.mesh.shape()[i] > 1) return true;
  }
  return false;
}

bool IsWhole(const IndexItem& item, int64_t extent) {
  return item.kind == IndexItem::Kind::kSlice && item.size == extent && (extent <= 1 || item.step == 1);
}

absl::StatusOr<ViewLayout> SliceLayout(const OpCall& call, const TensorSpec& operand,
                                       absl::Span<const int64_t> strides) {
  if (call.attributes.Get(attribute::placements) != nullptr) {
    return absl::FailedPreconditionError(StrCat("slice: goes to where it is wanted: x is ", ToText(operand)));
  }
  ViewLayout layout;
  size_t dim = 0;
  bool empty = false;
  for (const IndexItem& item : call.attributes.Get(attribute::index)) {
    if (item.kind == IndexItem::Kind::kNewAxis) {
      layout.strides.push_back(0);
      continue;
    }
    const int64_t extent = operand.shape[dim];
    if (IsCut(operand, dim) && !IsWhole(item, extent)) {
      return absl::FailedPreconditionError(StrCat("slice: dim ", dim, " is sharded and cut: x is ", ToText(operand)));
    }
    if (item.kind == IndexItem::Kind::kSlice) {
      layout.strides.push_back(IsWhole(item, extent) ? strides[dim] : strides[dim] * item.step);
      empty = empty || item.size == 0;
    }
    if (!IsWhole(item, extent)) layout.offset += item.start * strides[dim];
    ++dim;
  }
  // The start of an empty slice may lie anywhere.
  if (empty) layout.offset = 0;
  return layout;
}

absl::StatusOr<OpResolution> ResolveReshape(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(ReshapedSpecs specs, ReshapeSpecs(input));
  OpResolution resolution;
  resolution.operands.push_back(BringTo(*input.tensors[0], specs.operand.mesh, specs.operand.placements));
  resolution.outputs.push_back(std::move(specs.output));
  return resolution;
}

// A dim of extent 1 that is repeated is whole on every worker; one that a mesh dim of several coordinates shards lies
// at one of them, so it is gathered before.
absl::StatusOr<TensorSpec> BroadcastSpec(const ResolveInput& input) {
  const TensorSpec& own = *input.tensors[0];
  if (input.call.attributes.Get(attribute::shape) == nullptr) return OperandError(input, "needs a shape");
  const Shape& shape = *input.call.attributes.Get(attribute::shape);
  const absl::StatusOr<Shape> joined = BroadcastShapes(own.shape, shape);
  if (!joined.ok() || *joined != shape) return OperandError(input, StrCat("doesn't broadcast to ", ToText(shape)));
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(own.dtype)));
  TensorSpec output = own;
  output.shape = shape;
  const int missing = static_cast<int>(shape.size()) - own.rank();
  for (Placement& placement : output.placements) {
    if (!placement.is_shard()) continue;
    const size_t dim = static_cast<size_t>(placement.dim());
    placement = own.shape[dim] == shape[dim + static_cast<size_t>(missing)] ? placement.OnDim(placement.dim() + missing)
                                                                            : Placement::Replicate();
  }
  return output;
}

// The operand of a broadcast: whole where its dim is repeated.
Placements BroadcastOperand(const TensorSpec& own, const TensorSpec& output) {
  Placements placements = own.placements;
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i].is_shard() && output.placements[i].is_replicate()) placements[i] = Placement::Replicate();
  }
  return placements;
}

Strides BroadcastStrides(const TensorSpec& operand, absl::Span<const int64_t> strides, const TensorSpec& output) {
  const size_t missing = output.shape.size() - operand.shape.size();
  Strides broadcast(output.shape.size(), 0);
  for (size_t d = 0; d < operand.shape.size(); ++d) {
    if (operand.shape[d] == output.shape[missing + d]) broadcast[missing + d] = strides[d];
  }
  return broadcast;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveViewOp(const ResolveInput& input) {
  absl::StatusOr<TensorSpec> output;
  switch (input.call.op) {
    case OpId::kTranspose: output = TransposeSpec(input); break;
    case OpId::kSlice: output = SliceSpec(input); break;
    case OpId::kBroadcastTo: output = BroadcastSpec(input); break;
    case OpId::kRelabel: output = RelabelSpec(input); break;
    default: return ResolveReshape(input);
  }
  if (!output.ok()) return output.status();
  OpResolution resolution;
  const TensorSpec& own = *input.tensors[0];
  const bool repeats = input.call.op == OpId::kBroadcastTo;
  resolution.operands.push_back(BringTo(own, own.mesh, repeats ? BroadcastOperand(own, *output) : own.placements));
  resolution.outputs.push_back(*std::move(output));
  return resolution;
}

absl::StatusOr<ViewLayout> ResolveView(const OpCall& call, const TensorSpec& operand,
                                       absl::Span<const int64_t> operand_strides) {
  TESSERA_CHECK(operand_strides.size() == operand.shape.size());
  const OperandSpec operands[] = {operand};
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec output, OutputSpec(call, operands));
  ViewLayout layout;
  switch (call.op) {
    case OpId::kTranspose:
      for (const int64_t dim : call.attributes.Get(attribute::dims))
        layout.strides.push_back(operand_strides[static_cast<size_t>(dim)]);
      return layout;
    case OpId::kSlice: return SliceLayout(call, operand, operand_strides);
    case OpId::kRelabel:
    case OpId::kReshape: return ReshapeLayout(operand, operand_strides, output);
    case OpId::kBroadcastTo: layout.strides = BroadcastStrides(operand, operand_strides, output); return layout;
    default: return absl::FailedPreconditionError(StrCat(ToText(call), " is no view"));
  }
}

}  // namespace tessera
