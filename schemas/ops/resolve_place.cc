// place: pieces written over a base, or side by side. The output lies where the base does, or where its pieces take the
// fewest bytes; each piece is brought, cut where the output is cut, to the workers that want it (explicit shard sizes),
// so that every worker writes its own shard alone.

#include <algorithm>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Pieces and where they go, from the call: attributes mode (none, input, scalar), starts (of all pieces, one after the
// other), step, and shape where there is no base.
struct PlaceCall {
  PlaceOp op;
  size_t first_piece = 0;  // among the tensors
  Shape shape;
};

absl::StatusOr<PlaceCall> ReadCall(const ResolveInput& input) {
  const Attributes& attributes = input.call.attributes;
  PlaceCall call;
  const std::string& mode = attributes.Get(attribute::mode);
  if (mode != "none" && mode != "input" && mode != "scalar") return OperandError(input, StrCat("unknown mode ", mode));
  call.op.base = mode == "none" ? PlaceBase::kNone : mode == "input" ? PlaceBase::kInput : PlaceBase::kScalar;
  call.first_piece = call.op.base == PlaceBase::kInput ? 1 : 0;
  if (call.first_piece == 0 && attributes.Get(attribute::shape) == nullptr) return OperandError(input, "needs a shape");
  call.shape = call.first_piece == 1 ? input.tensors[0]->shape : *attributes.Get(attribute::shape);
  const size_t rank = call.shape.size();
  const size_t pieces = input.tensors.size() - call.first_piece;
  if (attributes.Get(attribute::starts).size() != pieces * rank || attributes.Get(attribute::step).size() != rank) {
    return OperandError(
        input, StrCat(attributes.Get(attribute::starts).size(), " starts for ", pieces, " pieces of rank ", rank));
  }
  call.op.step.assign(attributes.Get(attribute::step).begin(), attributes.Get(attribute::step).end());
  for (size_t p = 0; p < pieces; ++p) {
    const auto first = attributes.Get(attribute::starts).begin() + static_cast<ptrdiff_t>(p * rank);
    call.op.starts.emplace_back(first, first + static_cast<ptrdiff_t>(rank));
    const TensorSpec& piece = *input.tensors[call.first_piece + p];
    if (piece.shape.size() != rank) return OperandError(input, StrCat("piece ", p, " has another rank"));
    for (size_t d = 0; d < rank; ++d) {
      const int64_t start = call.op.starts[p][d], step = call.op.step[d], extent = piece.shape[d];
      if (start < 0 || step < 1 || start > call.shape[d] ||
          (extent > 0 && (extent - 1) > (call.shape[d] - 1 - start) / step)) {
        return OperandError(input, StrCat("piece ", p, " doesn't lie in dim ", d, " of ", ToText(call.shape)));
      }
    }
  }
  if (input.call.scalars.size() != (call.op.base == PlaceBase::kScalar ? 1u : 0u)) {
    return OperandError(input, StrCat(input.call.scalars.size(), " numbers"));
  }
  return call;
}

// The piece cut where the output is cut.
Placements PlacementsOfPiece(const TensorSpec& piece, const TensorSpec& output, const Shape& start, const Shape& step) {
  Placements placements = output.placements;
  for (int d = 0; d < output.rank(); ++d) {
    const std::vector<int> mesh_dims = ShardingMeshDims(output, d);
    if (mesh_dims.empty()) continue;
    const size_t dim = static_cast<size_t>(d);
    std::vector<int64_t> sizes;
    for (const Interval& interval : DimIntervals(output, d)) {
      sizes.push_back(PiecesInBox(interval, start[dim], step[dim], piece.shape[dim]).size());
    }
    for (const int mesh_dim : mesh_dims) placements[static_cast<size_t>(mesh_dim)] = Placement::Shard(d);
    placements[static_cast<size_t>(mesh_dims.back())] = Placement::Shard(d, std::move(sizes));
  }
  return placements;
}

class Placer {
 public:
  Placer(const ResolveInput& input, const PlaceCall& call, TensorSpec output)
      : input_(input), call_(call), output_(std::move(output)) {}

  // Mesh dim by mesh dim: the placement that all have, else the cheapest of theirs and Replicate, ties to the earlier.
  absl::StatusOr<TensorSpec> Place() {
    for (int i = 0; i < output_.mesh.ndim(); ++i) {
      if (StaysPending(i))
        output_.placements[static_cast<size_t>(i)] = input_.tensors[0]->placements[static_cast<size_t>(i)];
    }
    for (int i = 0; i < output_.mesh.ndim(); ++i) {
      if (output_.placements[static_cast<size_t>(i)].is_partial()) continue;
      std::vector<Placement> candidates;
      for (size_t p = call_.first_piece == 1 ? 0 : call_.first_piece; p < input_.tensors.size(); ++p) {
        const TensorSpec& tensor = *input_.tensors[p];
        Placement says = HaveSameArrangement(tensor.mesh, output_.mesh) ? tensor.placements[static_cast<size_t>(i)]
                                                                        : Placement::Replicate();
        if (says.is_partial()) says = ShardOrReplicate(WithPlacement(output_, i, Placement::Replicate()), i, -1);
        if (says.is_shard()) says = Placement::Shard(says.dim());
        if (std::find(candidates.begin(), candidates.end(), says) == candidates.end()) candidates.push_back(says);
        if (call_.first_piece == 1) break;  // the base alone says
      }
      if (candidates.size() > 1) candidates.push_back(Placement::Replicate());
      TESSERA_ASSIGN_OR_RETURN(output_.placements[static_cast<size_t>(i)], Cheapest(i, candidates));
    }
    return output_;
  }

 private:
  // Terms lie side by side, and over those of a base, as their reduced values do, where all are pending alike; and in a
  // number that is what its terms, it itself at every coordinate, reduce to.
  bool StaysPending(int mesh_dim) const {
    const Placement& pending = input_.tensors[0]->placements[static_cast<size_t>(mesh_dim)];
    if (!pending.is_partial()) return false;
    for (const TensorSpec* tensor : input_.tensors) {
      if (!HaveSameArrangement(tensor->mesh, output_.mesh)) return false;
      if (!(tensor->placements[static_cast<size_t>(mesh_dim)] == pending)) return false;
    }
    if (call_.op.base != PlaceBase::kScalar) return true;
    const ReduceOp op = pending.reduce_op();
    const Scalar number = input_.call.scalars[0].As(output_.dtype);
    return op == ReduceOp::kMax || op == ReduceOp::kMin ||
           (op != ReduceOp::kProduct && op != ReduceOp::kBand && !number.AsBool());
  }

  absl::StatusOr<Placement> Cheapest(int mesh_dim, const std::vector<Placement>& candidates) const {
    if (candidates.size() == 1) return candidates[0];
    size_t best = 0;
    double best_bytes = 0;
    for (size_t c = 0; c < candidates.size(); ++c) {
      const TensorSpec output = WithPlacement(output_, mesh_dim, candidates[c]);
      double bytes = 0;
      for (size_t p = 0; p < call_.op.starts.size(); ++p) {
        const TensorSpec& piece = *input_.tensors[call_.first_piece + p];
        TensorSpec wanted = piece;
        wanted.mesh = output.mesh;
        wanted.placements = PlacementsOfPiece(piece, output, call_.op.starts[p], call_.op.step);
        TESSERA_ASSIGN_OR_RETURN(const double part, RedistributeBytes(piece, wanted));
        bytes += part;
      }
      if (c > 0 && bytes >= best_bytes) continue;
      best = c;
      best_bytes = bytes;
    }
    return candidates[best];
  }

  const ResolveInput& input_;
  const PlaceCall& call_;
  TensorSpec output_;
};

}  // namespace

absl::StatusOr<OpResolution> ResolvePlace(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(PlaceCall call, ReadCall(input));
  const TensorSpec& first = *input.tensors[0];
  for (const TensorSpec* tensor : input.tensors) {
    if (tensor->dtype != first.dtype) return OperandDTypeError(input, "dtypes differ");
  }
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, call.shape, SizeBytes(first.dtype)));
  TensorSpec output{first.dtype, call.shape, first.mesh, Placements(static_cast<size_t>(first.mesh.ndim()))};
  if (call.first_piece == 1 && !first.has_partial()) {
    output.placements = first.placements;
  } else {
    TESSERA_ASSIGN_OR_RETURN(output, Placer(input, call, std::move(output)).Place());
  }
  OpResolution resolution;
  if (call.first_piece == 1) resolution.operands.push_back(BringTo(first, output.mesh, output.placements));
  for (size_t p = 0; p < call.op.starts.size(); ++p) {
    const TensorSpec& piece = *input.tensors[call.first_piece + p];
    ResolvedOperand wanted =
        BringTo(piece, output.mesh, PlacementsOfPiece(piece, output, call.op.starts[p], call.op.step));
    DropIdleSizes(wanted.spec);
    resolution.operands.push_back(BringTo(piece, output.mesh, wanted.spec.placements));
  }
  for (const Scalar& scalar : input.call.scalars) {
    TESSERA_RETURN_IF_ERROR(CheckMayCast(input, scalar.dtype(), output.dtype));
  }
  for (const Scalar& scalar : input.call.scalars) resolution.scalars.push_back(scalar.As(output.dtype));
  resolution.flops = 0;
  resolution.local = std::move(call.op);
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
