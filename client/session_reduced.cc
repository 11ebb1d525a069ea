// The results to which ops reduce a pending value, remembered with it.

#include <algorithm>
#include <utility>

#include "client/recording.h"
#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
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

// A result without elements needs nothing.
bool HasElements(const SpecEntry& entry) {
  return std::any_of(entry.outputs.begin(), entry.outputs.end(),
                     [](const SpecPtr& output) { return NumElements(output->shape) > 0; });
}

}  // namespace

// A value that was reduced to what is wanted; null where it wasn't, or that failed.
HandlePtr SessionImpl::FindReduced(HandleState& pending, const TensorSpec& wanted) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const HandlePtr& one) { return one->failure.ok() && *one->spec == wanted; };
  const auto found = std::find_if(pending.reduced.begin(), pending.reduced.end(), is_it);
  return found == pending.reduced.end() ? nullptr : *found;
}

absl::StatusOr<HandlePtr> SessionImpl::Reduce(const HandlePtr& pending, const TensorSpec& wanted) {
  if (HandlePtr found = FindReduced(*pending, wanted)) return found;
  OpCall call{OpId::kRedistribute, {}, {}};
  call.attributes.Set(attribute::mesh, wanted.mesh);
  call.attributes.Set(attribute::placements, wanted.placements);
  TESSERA_ASSIGN_OR_RETURN(HandlePtr reduced, Call(call, {{&pending, Scalar(), false}}));
  std::vector<HandlePtr> failed;  // let go of without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  const auto gone = std::partition(pending->reduced.begin(), pending->reduced.end(),
                                   [](const HandlePtr& one) { return one->failure.ok(); });
  failed.assign(std::make_move_iterator(gone), std::make_move_iterator(pending->reduced.end()));
  pending->reduced.erase(gone, pending->reduced.end());
  pending->reduced.push_back(reduced);
  return reduced;
}

// Law: the results have the specs that the call says, whatever was reduced before: a call that would give others with
// reduced operands (it keeps terms pending beside them) reduces for itself.
//
// A contraction reduces for itself, too: its plan brings operands in parts while others are multiplied, and where the
// whole of one doesn't fit.
absl::StatusOr<std::vector<HandlePtr>> SessionImpl::ReduceOnce(const OpCall& call, const SpecEntry& entry,
                                                               absl::Span<const SpecOperand> operand_specs,
                                                               absl::Span<const CallOperand> operands) {
  // A recorded call is asked for again with other values, and must hold all that it needs.
  if (Recording::Current() != nullptr) return std::vector<HandlePtr>();
  if (const absl::StatusOr<const OpRow*> row = FindOp(call.op); row.ok() && (*row)->family == OpFamily::kContraction) {
    return std::vector<HandlePtr>();
  }
  absl::InlinedVector<SpecOperand, kInlineOperands> specs(operand_specs.begin(), operand_specs.end());
  std::vector<SpecPtr> wanted(operands.size());
  bool is_any = false, is_new = false;
  for (const ImplicitMove& move : entry.implicit) {
    const size_t i = static_cast<size_t>(move.operand);
    if (!Reduces(move, operands[i])) continue;
    wanted[i] = specs_.Intern(move.destination);
    specs[i].spec = &wanted[i];
    is_any = true;
    is_new = is_new || FindReduced(**operands[i].tensor, move.destination) == nullptr;
  }
  if (!is_any) return std::vector<HandlePtr>();
  const absl::StatusOr<std::shared_ptr<const SpecEntry>> reduced = specs_.Resolve(call, specs);
  if (!reduced.ok() || !HaveSameOutputs(entry, **reduced) || !HasElements(entry)) return std::vector<HandlePtr>();
  if (is_new) TESSERA_RETURN_IF_ERROR(CheckImplicit(entry));
  std::vector<HandlePtr> handles(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (wanted[i] == nullptr) continue;
    TESSERA_ASSIGN_OR_RETURN(handles[i], Reduce(*operands[i].tensor, *wanted[i]));
  }
  return handles;
}

}  // namespace tessera
