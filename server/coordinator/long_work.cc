// Long work: what is to be done with each tensor when a worker dies, or when a session ends.

#include "server/coordinator/long_work.h"

#include <algorithm>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/living_mesh.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/loss_desk.h"

namespace tessera {
namespace {

// In looks at tensors (CoordinatorConfig::max_slice_looks): a lost one costs its message.
constexpr int64_t kLookCost = 1;
constexpr int64_t kDropCost = 12;
constexpr int64_t kLossCost = 12;

// Whether a failed tensor has memory on the worker that was lost.
bool WasThere(const TensorEntry& tensor, const WorkerLoss& loss) {
  if (!tensor.buffer || tensor.buffer->born > loss.joins) return false;
  const std::vector<WorkerIndex>& workers = *tensor.buffer->workers;
  return std::find(workers.begin(), workers.end(), loss.worker) != workers.end();
}

}  // namespace

bool StateMachine::HasLongWork() const { return !long_work_.given_up.empty() || !long_work_.is_seen; }

// The one with the fewest tensors first, which waits for the others least.
std::optional<SessionId> StateMachine::LossDesk::NextToSweep() const {
  if (long_work_.sweep.has_value()) return long_work_.sweep->session;
  std::optional<SessionId> next;
  size_t fewest = 0;
  for (const auto& [id, session] : machine_.sessions_) {
    if (IsSwept(session) || (next.has_value() && session.tensors.size() >= fewest)) continue;
    next = id;
    fewest = session.tensors.size();
  }
  return next;
}

bool StateMachine::LossDesk::IsSwept(const SessionEntry& session) const {
  return session.seen_losses == long_work_.losses.size();
}

void StateMachine::LossDesk::GoOnWithLongWork() {
  int64_t cost_left = machine_.config_.max_slice_looks;
  while (cost_left > 0 && !long_work_.is_seen) {
    const std::optional<SessionId> next = NextToSweep();
    if (next.has_value()) cost_left -= Sweep(*next, cost_left);
    long_work_.is_seen = !next.has_value();
  }
  while (cost_left > 0 && !long_work_.given_up.empty()) {
    auto& tensors = long_work_.given_up.front();
    // By their handles, so that memory is given back in the same order on every replay.
    for (; cost_left > 0 && !tensors.empty(); cost_left -= kDropCost) tensors.erase(tensors.begin());
    if (!tensors.empty()) continue;
    long_work_.given_up.pop_front();
    ++machine_.closed_windows_;  // whose memory somebody may wait for
  }
}

// Returns what it cost.
int64_t StateMachine::LossDesk::Sweep(SessionId id, int64_t max_cost) {
  const auto found = machine_.sessions_.find(id);
  std::optional<LossSweep>& sweep = long_work_.sweep;
  if (found == machine_.sessions_.end()) {
    sweep.reset();
    return kLookCost;
  }
  SessionEntry& session = found->second;
  if (!sweep.has_value()) sweep = LossSweep{id, HandleId(0), long_work_.losses.size()};
  int64_t cost = kLookCost;
  auto at = session.tensors.lower_bound(sweep->next);
  for (; at != session.tensors.end() && cost < max_cost; ++at) {
    cost += kLookCost;
    TensorEntry& tensor = *at->second;
    for (size_t i = session.seen_losses; i < sweep->end_loss; ++i) {
      if (LoseShard(tensor, long_work_.losses[i])) cost += kLossCost;
      if (tensor.status.ok() || !WasThere(tensor, long_work_.losses[i])) continue;
      machine_.GiveUpRest(tensor);
      cost += kDropCost + static_cast<int64_t>(machine_.tickets_.size());
    }
  }
  if (at != session.tensors.end()) {
    sweep->next = at->first;
    return cost;
  }
  session.seen_losses = sweep->end_loss;
  sweep.reset();
  return cost;
}

void MachineTables::GiveUpRest(TensorEntry& tensor) const {
  if (!tensor.buffer || tensor.is_awaited() || tensor.buffer->spill_slot != 0) return;
  const auto has = [&tensor](const auto& ticket) {
    const std::vector<TensorPointer>& pinned = ticket.second.tensors;
    return std::any_of(pinned.begin(), pinned.end(), [&](const TensorPointer& one) { return &*one == &tensor; });
  };
  if (std::any_of(tickets_.begin(), tickets_.end(), has)) return;
  tensor.buffer = {};
}

bool StateMachine::LossDesk::LoseShard(TensorEntry& tensor, const WorkerLoss& loss) {
  if (!tensor.status.ok() || (tensor.buffer && tensor.buffer->born > loss.joins)) return false;
  TensorSpec whole = tensor.spec();
  if (tensor.former != nullptr) whole.mesh = tensor.former->mesh;
  const auto position = whole.mesh.FindWorker(loss.worker);
  if (!position) return false;
  if (tensor.former == nullptr) tensor.former = std::make_unique<FormerMesh>(FormerMesh{whole.mesh, {}});
  std::vector<WorkerIndex>& gone = tensor.former->lost;
  if (std::find(gone.begin(), gone.end(), loss.worker) != gone.end()) return false;
  gone.push_back(loss.worker);
  const auto living = LivingMesh(
      whole, [&gone](WorkerIndex worker) { return std::find(gone.begin(), gone.end(), worker) != gone.end(); });
  if (living.has_value()) {
    TensorSpec left = whole;
    left.mesh = *living;
    tensor.layout = machine_.layouts_.Of(left, tensor.strides());
    return true;
  }
  const Box box = LocalBox(whole, whole.mesh.PositionAt(*position));
  CompletionDesk(machine_).PoisonTensor(
      tensor, absl::UnavailableError(
                  StrCat(StdView(loss.cause.message()), "; with it went ", ToText(box), " of ", ToText(whole))));
  return true;
}

}  // namespace tessera
