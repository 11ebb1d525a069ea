// The results to which ops reduce a pending value, remembered with it.
//
// Law: a pending value of torch's tensors (OnCancel::kSpreads) goes where all who come next can use it: to the shards
// of an operand of its shape that stands beside it, else to every worker. An array's goes where the catalog says that
// this op wants it, so that a program of arrays moves the fewest bytes for each op by itself.
//
//   y = x @ w   f32[8,8] @ mesh(2) [P(sum)], torch's;   gelu(y), y * y, layer_norm(y): y is reduced once, to [R]
//   the same of arrays: gelu(y) reduces y to [S(0)], and what wants y whole brings it together anew

#include <algorithm>
#include <utility>

#include "client/recording.h"
#include "client/session_calls.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

// Whether the call reduces this operand, to use it or another time again.
bool Reduces(const ImplicitMove& move, const CallOperand& operand) {
  return !operand.last_use && move.source.has_partial() && !move.destination.has_partial();
}

bool HaveSameOutputs(const SpecEntry& a, const SpecEntry& b) {
  return std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
                    [](const SpecPtr& x, const SpecPtr& y) { return *x == *y; });
}

bool IsTorchs(const HandleState& handle) { return handle.on_cancel == OnCancel::kSpreads; }

// The value for all who come next: whole, but cut as an operand of its shape beside it is.
TensorSpec ForAll(const TensorSpec& pending, const TensorSpec* beside) {
  const bool is_beside = beside != nullptr && beside->shape == pending.shape && beside->mesh == pending.mesh;
  TensorSpec spec = pending;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (!spec.placements[i].is_partial()) continue;
    spec.placements[i] = Placement::Replicate();
    if (!is_beside || !beside->placements[i].is_shard()) continue;
    if (ShardingMeshDims(pending, beside->placements[i].dim()).empty()) spec.placements[i] = beside->placements[i];
  }
  return spec;
}

// The first other operand that is cut and has the operand's shape; null where none is.
const TensorSpec* Beside(absl::Span<const SpecOperand> operands, size_t at) {
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i == at || operands[i].spec == nullptr) continue;
    const TensorSpec& other = **operands[i].spec;
    const bool is_cut = std::any_of(other.placements.begin(), other.placements.end(),
                                    [](const Placement& placement) { return placement.is_shard(); });
    if (is_cut && other.shape == (*operands[at].spec)->shape) return &other;
  }
  return nullptr;
}

// A result without elements needs nothing.
bool HasElements(const SpecEntry& entry) {
  return std::any_of(entry.outputs.begin(), entry.outputs.end(),
                     [](const SpecPtr& output) { return NumElements(output->shape) > 0; });
}

}  // namespace

// A value that was reduced to what is wanted, or for torch's tensors to anything; null where it wasn't, or that failed.
// While calls are recorded it is one that a recorded call gave.
HandlePtr SessionCalls::FindReduced(HandleState& pending, const TensorSpec& wanted) {
  const Recording* const recording = Recording::Strict();
  std::lock_guard<std::mutex> lock(session_.mutex_);
  const auto is_it = [&](const HandlePtr& one) {
    return one->failure.ok() && (recording == nullptr || recording->Gives(one->id)) &&
           (IsTorchs(pending) ? !one->spec->has_partial() : *one->spec == wanted);
  };
  const auto found = std::find_if(pending.reduced.begin(), pending.reduced.end(), is_it);
  return found == pending.reduced.end() ? nullptr : *found;
}

// Where nothing is pending, the tensor itself.
absl::StatusOr<HandlePtr> SessionCalls::Reduced(const HandlePtr& tensor, const HandlePtr* beside) {
  if (!tensor->spec_known) TESSERA_RETURN_IF_ERROR(session_.AwaitSpec(*tensor));
  const SpecPtr own = tensor->spec;
  if (!own->has_partial()) return tensor;
  const SpecPtr other = beside == nullptr ? nullptr : (*beside)->KnownOrStandIn();
  return Reduce(tensor, ForAll(*own, other.get()));
}

absl::StatusOr<HandlePtr> SessionCalls::Reduce(const HandlePtr& pending, const TensorSpec& wanted) {
  if (HandlePtr found = FindReduced(*pending, wanted)) return found;
  OpCall call{OpId::kRedistribute, {}, {}};
  call.attributes.Set(attribute::mesh, wanted.mesh);
  call.attributes.Set(attribute::placements, wanted.placements);
  TESSERA_ASSIGN_OR_RETURN(HandlePtr reduced, Call(call, {{&pending, Scalar(), false}}));
  std::vector<HandlePtr> failed;  // let go of without the lock
  std::lock_guard<std::mutex> lock(session_.mutex_);
  const auto gone = std::partition(pending->reduced.begin(), pending->reduced.end(),
                                   [](const HandlePtr& one) { return one->failure.ok(); });
  failed.assign(std::make_move_iterator(gone), std::make_move_iterator(pending->reduced.end()));
  pending->reduced.erase(gone, pending->reduced.end());
  pending->reduced.push_back(reduced);
  return reduced;
}

// Law: the results of arrays have the specs that the call says, whatever was reduced before: a call that would give
// others with reduced operands (it keeps terms pending beside them) reduces for itself.
//
// A contraction of arrays reduces for itself, too: its plan brings operands in parts while others are multiplied, and
// where the whole of one doesn't fit. One of torch's tensors takes values, since a result that is pending in its place
// may be larger.
absl::StatusOr<SessionCalls::Results> SessionCalls::ReduceOnce(const OpCall& call, const SpecEntry& entry,
                                                               absl::Span<const SpecOperand> operand_specs,
                                                               absl::Span<const CallOperand> operands) {
  const absl::StatusOr<const OpRow*> row = FindOp(call.op);
  const bool is_product = row.ok() && (*row)->family == OpFamily::kContraction;
  absl::InlinedVector<SpecOperand, kInlineOperands> specs(operand_specs.begin(), operand_specs.end());
  std::vector<SpecPtr> wanted(operands.size());
  bool is_any = false, is_arrays = false, is_new = false;
  const auto reduce = [&](size_t i, const TensorSpec& goal) {
    const HandlePtr found = FindReduced(**operands[i].tensor, goal);
    wanted[i] = specs_.Intern(found == nullptr ? goal : *found->spec);
    specs[i].spec = &wanted[i];
    is_any = true;
    return found == nullptr;
  };
  for (const ImplicitMove& move : entry.implicit) {
    const size_t i = static_cast<size_t>(move.operand);
    // A recorded call is asked for again with other values, and must hold all that it needs.
    if (is_product || Recording::Strict() != nullptr) break;
    if (!Reduces(move, operands[i]) || IsTorchs(**operands[i].tensor)) continue;
    is_new = reduce(i, move.destination) || is_new;
    is_arrays = true;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].tensor == nullptr || !IsTorchs(**operands[i].tensor)) continue;
    const bool is_moved = std::any_of(entry.implicit.begin(), entry.implicit.end(), [&](const ImplicitMove& move) {
      return move.operand == static_cast<int>(i) && Reduces(move, operands[i]);
    });
    const TensorSpec& own = **operand_specs[i].spec;
    if (is_moved || (entry.takes_values && own.has_partial())) reduce(i, ForAll(own, Beside(operand_specs, i)));
  }
  if (!is_any) return Results();
  const absl::StatusOr<std::shared_ptr<const SpecEntry>> reduced = specs_.Resolve(call, specs);
  if (!reduced.ok() || !HasElements(entry)) return Results();
  if (is_arrays && !HaveSameOutputs(entry, **reduced)) return Results();
  if (is_new) TESSERA_RETURN_IF_ERROR(CheckImplicit(entry));
  Results handles(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (wanted[i] == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(handles[i], Reduce(*operands[i].tensor, *wanted[i]));
  }
  return handles;
}

}  // namespace tessera
