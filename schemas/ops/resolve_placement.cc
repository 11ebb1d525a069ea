// Where the result of an elementwise op lies, and how its operands get there.
//
// Per mesh dim, left to right: a placement on which the operands agree is kept; pending terms stay pending where the
// row's partial rule allows it; else the operands' own placements (as dims of the output, left to right) and then
// Replicate are priced by the bytes that must be received, ties to the earlier. Operands on several meshes: the result
// is placed so on each of them, and the mesh on which all operands together receive the fewest bytes is taken, ties to
// the earlier operand's. A call that says where its result is to be (an in-place op) decides the mesh, or all of it.

#include <algorithm>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

enum class PendingPolicy : uint8_t { kKeepWhereLegal, kReduceAll };

struct Participant {
  const TensorSpec* own = nullptr;
  TensorSpec current;        // aligned: earlier mesh dims already as decided, on the output's mesh
  bool aligned = true;       // its mesh has the output's arrangement
  int dim_offset = 0;        // output dim of its dim 0
  size_t operand_index = 0;  // in the call
};

class ElementwisePlacer {
 public:
  // The result is on `mesh`, and has the call's placements where it gives some.
  ElementwisePlacer(const ResolveInput& input, const Shape& shape, DType compute_dtype, const Mesh& mesh,
                    PendingPolicy policy)
      : input_(input), shape_(shape), compute_dtype_(compute_dtype), policy_(policy), mesh_(mesh) {
    for (size_t i = 0; i < input.operands.size(); ++i) {
      const auto* spec = std::get_if<TensorSpec>(&input.operands[i]);
      if (spec == nullptr) continue;
      Participant p;
      p.own = spec;
      p.current = *spec;
      p.aligned = HaveSameArrangement(spec->mesh, mesh_);
      if (p.aligned) p.current.mesh = mesh_;
      p.dim_offset = static_cast<int>(shape.size()) - spec->rank();
      p.operand_index = i;
      participants_.push_back(std::move(p));
    }
  }

  absl::StatusOr<ElementwisePlacement> Place() {
    ElementwisePlacement result;
    result.mesh = mesh_;
    for (int i = 0; i < mesh_.ndim(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const Placement placement, Decide(i));
      output_.push_back(placement);
      for (Participant& p : participants_) {
        if (p.aligned) p.current.placements[static_cast<size_t>(i)] = Need(p, i, placement);
      }
    }
    for (const Participant& p : participants_) result.operands.push_back(Resolve(p));
    if (participants_.size() < input_.operands.size()) result.scalar_counted_once = CountedOnce();
    result.output = output_;
    return result;
  }

  bool HasMixedPartials() const {
    std::optional<ReduceOp> kind;
    for (const Placement& placement : output_) {
      if (!placement.is_partial()) continue;
      if (kind.has_value() && *kind != placement.reduce_op()) return true;
      kind = placement.reduce_op();
    }
    return false;
  }

 private:
  // The operand's placement on the mesh dim, in dims of the output. A shard of a broadcast dim says
  // nothing: it must become a Replicate whatever the output is.
  Placement Says(const Participant& p, int mesh_dim) const {
    const Placement placement = p.current.placements[static_cast<size_t>(mesh_dim)];
    if (!placement.is_shard()) return placement;
    const int output_dim = placement.dim() + p.dim_offset;
    return ExtentOf(p, output_dim) == shape_[static_cast<size_t>(output_dim)] ? placement.OnDim(output_dim)
                                                                              : Placement::Replicate();
  }

  // The operand's extent along an output dim; 1 where it is missing.
  int64_t ExtentOf(const Participant& p, int output_dim) const {
    return output_dim < p.dim_offset ? 1 : p.own->shape[static_cast<size_t>(output_dim - p.dim_offset)];
  }

  // The placement that the operand must have on the mesh dim when the output is `output` there.
  Placement Need(const Participant& p, int mesh_dim, const Placement& output) const {
    if (output.is_replicate()) return output;
    if (output.is_partial()) {
      const Placement* own = p.aligned ? &p.own->placements[static_cast<size_t>(mesh_dim)] : nullptr;
      return own != nullptr && own->is_partial() ? *own : Placement::Replicate();
    }
    if (output.dim() < p.dim_offset || ExtentOf(p, output.dim()) != shape_[static_cast<size_t>(output.dim())]) {
      return Placement::Replicate();
    }
    return output.OnDim(output.dim() - p.dim_offset);
  }

  absl::StatusOr<Placement> Decide(int mesh_dim) const {
    const Placements* wanted = input_.call.attributes.Get(attribute::placements);
    if (wanted != nullptr) return (*wanted)[static_cast<size_t>(mesh_dim)];
    bool partial = false;
    bool agree = true;
    std::optional<Placement> first;
    for (const Participant& p : participants_) {
      if (!p.aligned) continue;
      const Placement says = Says(p, mesh_dim);
      partial = partial || says.is_partial();
      if (first.has_value() && !(says == *first)) agree = false;
      if (!first.has_value()) first = says;
    }
    if (partial) {
      if (const std::optional<Placement> kept = KeepPending(mesh_dim); kept.has_value()) return *kept;
      return Cheapest(mesh_dim);
    }
    if (agree) return *first;
    if (const std::optional<Placement> shard = OneShardBesideReplicas(mesh_dim); shard.has_value()) return *shard;
    return Cheapest(mesh_dim);
  }

  // A replica is sliced in place, without bytes, unless a later mesh dim splits the same dim again.
  std::optional<Placement> OneShardBesideReplicas(int mesh_dim) const {
    std::optional<Placement> shard;
    for (const Participant& p : participants_) {
      if (!p.aligned) continue;
      const Placement says = Says(p, mesh_dim);
      if (says.is_replicate()) continue;
      if (shard.has_value() && !(says == *shard)) return std::nullopt;
      shard = says;
    }
    for (const Participant& p : participants_) {
      if (!p.aligned || !Says(p, mesh_dim).is_replicate()) continue;
      for (int later = mesh_dim + 1; later < mesh_.ndim(); ++later) {
        if (Says(p, later) == *shard) return std::nullopt;
      }
    }
    return shard;
  }

  // The pending placement of the output, if the row lets the terms pass (DESIGN: Partial).
  std::optional<Placement> KeepPending(int mesh_dim) const {
    if (policy_ == PendingPolicy::kReduceAll) return std::nullopt;
    std::optional<Placement> kind;
    size_t pending = 0;
    size_t pending_operand = 0;
    for (const Participant& p : participants_) {
      const Placement says = p.aligned ? Says(p, mesh_dim) : Placement::Replicate();
      if (says.is_shard() || (p.aligned && p.own->placements[static_cast<size_t>(mesh_dim)].is_shard())) {
        return std::nullopt;
      }
      if (!says.is_partial()) continue;
      if (kind.has_value() && !(says == *kind)) return std::nullopt;
      kind = says;
      ++pending;
      pending_operand = p.operand_index;
    }
    const bool all_pending = pending == input_.operands.size();
    const ReduceOp op = kind->reduce_op();
    if (RowKeeps(op, pending, pending_operand, all_pending)) return kind;
    if (!RowSwaps(op, pending, pending_operand)) return std::nullopt;
    return Placement::Partial(op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax);
  }

  static bool IsExtreme(ReduceOp kind) { return kind == ReduceOp::kMax || kind == ReduceOp::kMin; }
  bool IsFloat() const {
    return Kind(compute_dtype_) == DTypeKind::kFloat || Kind(compute_dtype_) == DTypeKind::kComplex;
  }

  // A row that decreases with its pending operand makes the least of terms of the greatest, and the other way round:
  // -x, c - x, and x times or divided by a finite number below 0. This holds for floats: where integers wrap nothing
  // decreases.
  bool RowSwaps(ReduceOp kind, size_t pending, size_t pending_operand) const {
    if (!IsExtreme(kind) || !IsFloat() || pending != 1) return false;
    switch (*input_.row.scalar_op) {
      case ScalarOp::kNeg: return true;
      case ScalarOp::kSub: return pending_operand == 1 && !IsBesideSpecials(pending_operand);
      case ScalarOp::kMul:
      case ScalarOp::kDiv: return Factor(pending_operand) < 0;
      default: return false;
    }
  }

  // The finite number by which the pending operand is multiplied or divided; 0 if there is none.
  double Factor(size_t pending_operand) const {
    if (input_.operands.size() != 2 || (*input_.row.scalar_op == ScalarOp::kDiv && pending_operand != 0)) return 0;
    const auto* scalar = std::get_if<Scalar>(&input_.operands[1 - pending_operand]);
    return scalar == nullptr || scalar->IsSpecialAs(compute_dtype_) ? 0 : scalar->As(compute_dtype_).AsDouble();
  }

  // A row keeps terms pending where reducing them later gives the same as the reduced value, whatever the operands
  // have.
  bool RowKeeps(ReduceOp kind, size_t pending, size_t pending_operand, bool all_pending) const {
    const bool is_sum = kind == ReduceOp::kSum || kind == ReduceOp::kAvg;
    const bool is_extreme = IsExtreme(kind);
    const bool is_float = IsFloat();
    const ScalarOp op = *input_.row.scalar_op;
    switch (input_.row.partial_rule) {
      case PartialRule::kNone: return false;
      case PartialRule::kLinear:
        if (op == ScalarOp::kNeg || op == ScalarOp::kReal || op == ScalarOp::kImag || op == ScalarOp::kConj)
          return is_sum;
        if (op == ScalarOp::kCast) return is_sum || is_extreme;
        // x + c and x - c increase with x, c - x does not; where integers wrap none does. An infinite term, as that of
        // an empty shard is, would make a NaN of the other infinity.
        return is_sum || (is_extreme && is_float && pending == 1 && !IsBesideSpecials(pending_operand) &&
                          (op == ScalarOp::kAdd || pending_operand == 0));
      case PartialRule::kScale:
        if (op == ScalarOp::kMul && kind == ReduceOp::kProduct) return all_pending;
        if (is_extreme) return is_float && pending == 1 && Factor(pending_operand) > 0;
        return is_sum && pending == 1 && (op == ScalarOp::kMul || pending_operand == 0) &&
               (!is_float || !IsBesideSpecials(pending_operand));
      case PartialRule::kMonotone: return is_extreme;
      case PartialRule::kExtreme: return kind == (op == ScalarOp::kMaximum ? ReduceOp::kMax : ReduceOp::kMin);
      case PartialRule::kMove: return true;
    }
    return false;
  }

  // Whether the other operand is, or may have, a number that makes a NaN of a term where it makes none of the reduced
  // value: infinity beside a term of 0 or of the other sign, and 0 as a divisor of terms of both signs. Nobody knows
  // what a tensor of floats has; one of integers is finite, and may have zeros.
  bool IsBesideSpecials(size_t pending_operand) const {
    for (size_t i = 0; i < input_.operands.size(); ++i) {
      if (i == pending_operand) continue;
      if (const auto* scalar = std::get_if<Scalar>(&input_.operands[i])) return scalar->IsSpecialAs(compute_dtype_);
      const DTypeKind kind = Kind(std::get<TensorSpec>(input_.operands[i]).dtype);
      const bool is_float = kind == DTypeKind::kFloat || kind == DTypeKind::kComplex;
      return is_float || *input_.row.scalar_op == ScalarOp::kDiv;
    }
    return false;
  }

  std::vector<Placement> Candidates(int mesh_dim) const {
    std::vector<Placement> candidates;
    const auto add = [&](const Placement& candidate) {
      if (std::find(candidates.begin(), candidates.end(), candidate) == candidates.end()) {
        candidates.push_back(candidate);
      }
    };
    for (const Participant& p : participants_) {
      if (!p.aligned) continue;
      Placement says = Says(p, mesh_dim);
      if (says.is_partial()) {
        says = ShardOrReplicate(p.current, mesh_dim, -1);
        if (says.is_shard()) says = says.OnDim(says.dim() + p.dim_offset);
        // Its dim is broadcast: the output is larger there and may be sharded, the operand may not.
        if (says.is_shard() && ExtentOf(p, says.dim()) != shape_[static_cast<size_t>(says.dim())]) continue;
      }
      if (!says.is_replicate() || !p.own->placements[static_cast<size_t>(mesh_dim)].is_partial()) add(says);
    }
    add(Placement::Replicate());
    return candidates;
  }

  absl::StatusOr<Placement> Cheapest(int mesh_dim) const {
    std::optional<Placement> best;
    double best_bytes = 0;
    for (const Placement& candidate : Candidates(mesh_dim)) {
      double bytes = 0;
      for (const Participant& p : participants_) {
        TESSERA_ASSIGN_OR_RETURN(const double part, Price(p, mesh_dim, candidate));
        bytes += part;
      }
      if (best.has_value() && bytes >= best_bytes) continue;
      best = candidate;
      best_bytes = bytes;
    }
    return *best;
  }

  absl::StatusOr<double> Price(const Participant& p, int mesh_dim, const Placement& candidate) const {
    if (p.aligned)
      return RedistributeBytes(p.current, WithPlacement(p.current, mesh_dim, Need(p, mesh_dim, candidate)));
    TensorSpec destination = *p.own;
    destination.mesh = mesh_;
    destination.placements.assign(static_cast<size_t>(mesh_.ndim()), Placement::Replicate());
    for (int i = 0; i < mesh_dim; ++i) {
      destination.placements[static_cast<size_t>(i)] = Need(p, i, output_[static_cast<size_t>(i)]);
    }
    destination.placements[static_cast<size_t>(mesh_dim)] = Need(p, mesh_dim, candidate);
    return RedistributeBytes(*p.own, destination);
  }

  // Mesh dims on which a value that isn't pending counts once beside pending sums.
  std::vector<int> CountedOnce() const {
    std::vector<int> dims;
    const ScalarOp op = *input_.row.scalar_op;
    if (op != ScalarOp::kAdd && op != ScalarOp::kSub) return dims;
    for (size_t i = 0; i < output_.size(); ++i) {
      if (output_[i] == Placement::Partial(ReduceOp::kSum)) dims.push_back(static_cast<int>(i));
    }
    return dims;
  }

  ResolvedOperand Resolve(const Participant& p) const {
    Placements placements(output_.size());
    for (size_t i = 0; i < output_.size(); ++i) placements[i] = Need(p, static_cast<int>(i), output_[i]);
    ResolvedOperand operand = BringTo(*p.own, mesh_, placements);
    for (const int dim : CountedOnce()) {
      if (!placements[static_cast<size_t>(dim)].is_partial()) operand.counted_once.push_back(dim);
    }
    return operand;
  }

  const ResolveInput& input_;
  const Shape& shape_;
  const DType compute_dtype_;
  const PendingPolicy policy_;
  const Mesh& mesh_;
  absl::InlinedVector<Participant, 3> participants_;
  Placements output_;
};

// All operands are on one mesh with equal shapes and placements and nothing pending, and nothing else is asked for.
bool IsUniform(const ResolveInput& input) {
  const TensorSpec& first = *input.tensors[0];
  const Attributes& attributes = input.call.attributes;
  if (first.has_partial() || attributes.Get(attribute::mesh) != nullptr ||
      attributes.Get(attribute::placements) != nullptr)
    return false;
  return std::all_of(input.tensors.begin() + 1, input.tensors.end(), [&](const TensorSpec* other) {
    return other->mesh == first.mesh && other->placements == first.placements && other->shape == first.shape;
  });
}

// Where the call says that its result is to be.
absl::Status CheckWantedLayout(const ResolveInput& input, const Shape& shape, DType dtype) {
  const Attributes& attributes = input.call.attributes;
  const TensorSpec& first = *input.tensors[0];
  const Mesh& mesh = attributes.Get(attribute::mesh) == nullptr ? first.mesh : *attributes.Get(attribute::mesh);
  if (!(mesh == first.mesh) && !HaveSameWorkers(mesh, first.mesh)) {
    return OperandError(input, StrCat("the result can't be on ", ToText(mesh), ", the operands live on other workers"));
  }
  if (attributes.Get(attribute::placements) == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec wanted, TensorSpec::Make(input.row.name, dtype, shape, mesh,
                                                                     *attributes.Get(attribute::placements)));
  if (wanted.placements == *attributes.Get(attribute::placements) && !wanted.has_partial()) return absl::OkStatus();
  return OperandError(input,
                      StrCat("the result can't be asked to be ", ToText(*attributes.Get(attribute::placements))));
}

// The operands' meshes, without one that another has with other names; or the one that is asked for.
absl::InlinedVector<const Mesh*, 3> CandidateMeshes(const ResolveInput& input) {
  const Attributes& attributes = input.call.attributes;
  if (attributes.Get(attribute::mesh) != nullptr) return {attributes.Get(attribute::mesh)};
  absl::InlinedVector<const Mesh*, 3> meshes = {&input.tensors[0]->mesh};
  if (attributes.Get(attribute::placements) != nullptr) return meshes;
  for (const TensorSpec* spec : input.tensors) {
    const bool is_known = std::any_of(meshes.begin(), meshes.end(),
                                      [&](const Mesh* known) { return HaveSameArrangement(*known, spec->mesh); });
    if (!is_known) meshes.push_back(&spec->mesh);
  }
  return meshes;
}

absl::StatusOr<double> OperandBytes(const ResolveInput& input, const ElementwisePlacement& placed) {
  double bytes = 0;
  for (size_t i = 0; i < placed.operands.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const double part, RedistributeBytes(*input.tensors[i], placed.operands[i].spec));
    bytes += part;
  }
  return bytes;
}

absl::StatusOr<ElementwisePlacement> PlaceOn(const ResolveInput& input, const Shape& shape, DType compute_dtype,
                                             const Mesh& mesh, PendingPolicy policy) {
  ElementwisePlacer placer(input, shape, compute_dtype, mesh, policy);
  TESSERA_ASSIGN_OR_RETURN(ElementwisePlacement placed, placer.Place());
  if (!placer.HasMixedPartials()) return placed;
  return ElementwisePlacer(input, shape, compute_dtype, mesh, PendingPolicy::kReduceAll).Place();
}

}  // namespace

absl::StatusOr<ElementwisePlacement> PlaceElementwise(const ResolveInput& input, const Shape& output_shape,
                                                      const ResolvedDTypes& dtypes) {
  if (IsUniform(input)) {
    ElementwisePlacement result;
    result.mesh = input.tensors[0]->mesh;
    result.output = input.tensors[0]->placements;
    for (const TensorSpec* spec : input.tensors) result.operands.push_back({*spec, false, {}});
    return result;
  }
  TESSERA_RETURN_IF_ERROR(CheckWantedLayout(input, output_shape, dtypes.result));
  PendingPolicy policy = PendingPolicy::kKeepWhereLegal;
  for (const TensorSpec* spec : input.tensors) {
    if (spec->has_partial() && !MayConvertTerms(*spec, dtypes.compute)) policy = PendingPolicy::kReduceAll;
  }
  const absl::InlinedVector<const Mesh*, 3> meshes = CandidateMeshes(input);
  TESSERA_ASSIGN_OR_RETURN(ElementwisePlacement best, PlaceOn(input, output_shape, dtypes.compute, *meshes[0], policy));
  if (meshes.size() == 1) return best;
  TESSERA_ASSIGN_OR_RETURN(double best_bytes, OperandBytes(input, best));
  for (size_t i = 1; i < meshes.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(ElementwisePlacement placed,
                             PlaceOn(input, output_shape, dtypes.compute, *meshes[i], policy));
    TESSERA_ASSIGN_OR_RETURN(const double bytes, OperandBytes(input, placed));
    if (bytes >= best_bytes) continue;
    best = std::move(placed);
    best_bytes = bytes;
  }
  return best;
}

}  // namespace tessera
