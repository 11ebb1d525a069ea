#include "server/coordinator/rpc/drains.h"

#include <algorithm>
#include <utility>

#include "schemas/types/living_mesh.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kTensorsAStep = 2000;  // some hundred microseconds

}  // namespace

bool IsLostWith(const TensorEntry& tensor, WorkerIndex worker) {
  if (!tensor.status.ok() || !tensor.buffer) return false;
  TensorSpec whole = tensor.spec();
  std::vector<WorkerIndex> gone;
  if (tensor.former != nullptr) {
    whole.mesh = tensor.former->mesh;
    gone = tensor.former->lost;
  }
  if (!whole.mesh.FindWorker(worker) || std::find(gone.begin(), gone.end(), worker) != gone.end()) return false;
  gone.push_back(worker);
  return !LivingMesh(whole, [&gone](WorkerIndex w) {
            return std::find(gone.begin(), gone.end(), w) != gone.end();
          }).has_value();
}

void Drains::LookThrough(WorkerIndex worker, Drain& drain) {
  size_t left = kTensorsAStep;
  auto session = machine_.sessions().lower_bound(drain.at_session);
  if (session != machine_.sessions().end() && session->first != drain.at_session) drain.at_handle = HandleId();
  for (; !drain.at_publication.has_value() && session != machine_.sessions().end();
       ++session, drain.at_handle = HandleId()) {
    const SessionEntry& entry = session->second;
    for (auto at = entry.tensors.upper_bound(drain.at_handle); at != entry.tensors.end(); ++at) {
      if (left-- == 0) {
        drain.at_session = session->first;
        return;
      }
      drain.at_handle = at->first;
      if (!IsLostWith(*at->second, worker)) continue;
      DrainState::Loss& loss = drain.losses[{session->first, ""}];
      loss.session = session->first;
      loss.tenant = entry.info.tenant;
      loss.name = entry.info.name;
      ++loss.tensors;
      loss.bytes += at->second->buffer->bytes;
    }
  }
  const auto& publications = machine_.publications().all();
  for (auto at = publications.upper_bound(drain.at_publication.value_or("")); at != publications.end(); ++at) {
    if (left < at->second.tensors.size() && left < kTensorsAStep) return;  // a step looks at one at least
    left -= std::min(left, at->second.tensors.size());
    drain.at_publication = at->first;
    for (const PublishedEntry::Tensor& one : at->second.tensors) {
      if (!IsLostWith(*one.tensor, worker)) continue;
      DrainState::Loss& loss = drain.losses[{SessionId(), at->first}];
      loss.tenant = at->second.tenant->limits.name;
      loss.name = at->first;
      ++loss.tensors;
      loss.bytes += one.tensor->buffer->bytes;
    }
  }
  drain.is_looked_through = true;
}

DrainState Drains::Describe(WorkerIndex worker, const Drain& drain) const {
  DrainState state;
  for (const auto& [owner, loss] : drain.losses) {
    state.losses.push_back(loss);
    state.tensors += loss.tensors;
    state.bytes += loss.bytes;
  }
  std::stable_sort(state.losses.begin(), state.losses.end(),
                   [](const DrainState::Loss& a, const DrainState::Loss& b) { return a.bytes > b.bytes; });
  if (state.losses.size() > kMaxDrainOwners) state.losses.resize(kMaxDrainOwners);
  const auto entry = machine_.workers().find(worker);
  if (entry != machine_.workers().end()) state.outstanding = entry->second.windows.outstanding();
  return state;
}

void Drains::Release(WorkerIndex worker, Drain& drain) {
  if (std::exchange(drain.is_held, false)) apply_(WorkerAdmitsEvent{worker, drain.before});
}

DrainState Drains::Refuse(WorkerIndex worker, std::string why) {
  Drain& drain = drains_.at(worker);
  DrainState state = Describe(worker, drain);
  state.phase = DrainState::Phase::kRefused;
  state.why = std::move(why);
  Release(worker, drain);
  drains_.erase(worker);
  return state;
}

absl::StatusOr<DrainState> Drains::Step(WorkerIndex worker, Losses losses, const std::string& reason, int64_t now_us) {
  const auto entry = machine_.workers().find(worker);
  const bool is_here = entry != machine_.workers().end() && entry->second.state != WorkerState::kDead;
  auto found = drains_.find(worker);
  const bool is_gone =
      found != drains_.end() && (!is_here || entry->second.info.incarnation != found->second.incarnation);
  if (is_gone) {
    const bool was_told = found->second.is_told;
    drains_.erase(found);
    DrainState done;
    done.phase = DrainState::Phase::kDone;
    if (was_told) return done;
    return absl::UnavailableError(StrCat("drain: worker ", worker.value, " was lost before it was drained"));
  }
  if (!is_here) return absl::NotFoundError(StrCat("drain: worker ", worker.value, " is not here"));
  if (found == drains_.end()) found = drains_.try_emplace(worker).first;
  Drain& drain = found->second;
  if (drain.incarnation == 0) {
    drain.incarnation = entry->second.info.incarnation;
    drain.before = entry->second.admits;
  }
  drain.asked_us = now_us;
  if (!drain.is_told && !drain.is_looked_through) LookThrough(worker, drain);
  if (!drain.is_told && drain.is_looked_through) {
    if (losses == Losses::kRefused && !drain.losses.empty()) {
      return Refuse(worker, StrCat("worker ", worker.value, " alone has tensors that would be lost"));
    }
    if (!drain.is_held) {
      apply_(WorkerAdmitsEvent{worker, Admits::kNobody});
      drain.is_held = true;
      drain.held_us = now_us;
      // Once more: since it was looked for, ops may have left something there.
      drain.is_looked_through = false;
      drain.at_session = SessionId();
      drain.at_handle = HandleId();
      drain.at_publication.reset();
      drain.losses.clear();
    } else if (entry->second.windows.outstanding() == 0) {
      drain.is_told = true;
      apply_(WorkerDrainedEvent{worker, drain.incarnation, reason});
    } else if (now_us - drain.held_us > patience_us_) {
      return Refuse(worker, StrCat("worker ", worker.value, " has ", entry->second.windows.outstanding(),
                                   " instructions that it has not ended in ", patience_us_ / 1'000'000,
                                   " s (--stop-timeout); kill-worker ends it at once"));
    }
  }
  DrainState state = Describe(worker, drain);
  state.phase = drain.is_told   ? DrainState::Phase::kEnding
                : drain.is_held ? DrainState::Phase::kWaiting
                                : DrainState::Phase::kLooking;
  return state;
}

void Drains::Look(int64_t now_us) {
  for (auto at = drains_.begin(); at != drains_.end();) {
    Drain& drain = at->second;
    if (now_us - drain.asked_us <= kForgottenUs) {
      ++at;
      continue;
    }
    if (!drain.is_told) Release(at->first, drain);
    at = drains_.erase(at);
  }
}

void Drains::GiveUpFormer() {
  std::vector<WorkerIndex> held;
  for (const auto& [index, worker] : machine_.workers()) {
    if (worker.state != WorkerState::kDead && worker.admits == Admits::kNobody) held.push_back(index);
  }
  for (const WorkerIndex worker : held) {
    const bool is_cordoned = machine_.workers().at(worker).newest_admitted != SessionId();
    apply_(WorkerAdmitsEvent{worker, is_cordoned ? Admits::kFormerSessions : Admits::kEveryone});
  }
}

}  // namespace tessera
