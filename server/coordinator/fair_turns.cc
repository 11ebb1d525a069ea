#include "server/coordinator/fair_turns.h"

#include <algorithm>

#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

constexpr int64_t kLookUs = 1'000;  // between looks at who still competes

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

FairTurns::Tenant& FairTurns::TenantOf(int32_t tenant) {
  auto& found = tenants_[tenant];
  if (found == nullptr) {
    found = std::make_unique<Tenant>();
    found->number = static_cast<uint64_t>(tenant);
  }
  return *found;
}

void FairTurns::SetWeight(int32_t tenant, int64_t weight) {
  Tenant& changed = TenantOf(tenant);
  changed.weight = std::max<int64_t>(1, weight);
  changed.rest = 0;
}

void FairTurns::AddSession(SessionId id, int32_t tenant) {
  auto session = std::make_unique<Session>();
  session->number = id.value;
  session->tenant = &TenantOf(tenant);
  TESSERA_CHECK(sessions_.emplace(id, std::move(session)).second);
}

void FairTurns::RemoveSession(SessionId id) {
  SetIdle(id);
  sessions_.erase(id);
}

// ---- ready, blocked, idle -----------------------------------------------------------------------

void FairTurns::Enter(Session& session, int32_t gate) {
  Tenant& tenant = *session.tenant;
  session.gate = gate;
  tenant.waiting[gate].Push(session);
  if (gate != kNoGate) at_[gate].insert(static_cast<int32_t>(tenant.number));
  if (tenant.place == kInNoHeap && !closed_.contains(gate)) ready_.Push(tenant);
}

void FairTurns::Leave(Session& session) {
  Tenant& tenant = *session.tenant;
  const auto waiting = tenant.waiting.find(session.gate);
  waiting->second.Remove(session);
  if (!waiting->second.empty() || session.gate == kNoGate) return;
  tenant.waiting.erase(waiting);
  const auto at = at_.find(session.gate);
  at->second.erase(static_cast<int32_t>(tenant.number));
  if (at->second.empty()) at_.erase(at);
}

void FairTurns::SetReady(SessionId id) {
  Session& session = *sessions_.at(id);
  Tenant& tenant = *session.tenant;
  Touch(tenant);
  if (session.has_work) {
    if (session.gate == kNoGate) return;
    Leave(session);
  } else {
    session.has_work = true;
    if (tenant.backlogged++ == 0) {
      ++backlogged_;
      tenant.key = std::max(tenant.key, present_ - kIdleCredit);
      if (tenant.place != kInNoHeap) ready_.Moved(tenant);
    }
    session.key = std::max(session.key, tenant.present - kIdleCredit);
  }
  Enter(session, kNoGate);
}

void FairTurns::Retry(SessionId id) {
  if (sessions_.at(id)->has_work) SetReady(id);
}

void FairTurns::SetIdle(SessionId id) {
  Session& session = *sessions_.at(id);
  if (!session.has_work) return;
  Leave(session);
  session.has_work = false;
  Tenant& tenant = *session.tenant;
  Touch(tenant);
  if (--tenant.backlogged == 0) --backlogged_;
  EndBusyPeriods(tenant);
}

// When nothing waits and nothing runs, the present is where the last work ended: nobody owes for a time when nobody
// else wanted anything.
void FairTurns::EndBusyPeriods(Tenant& tenant) {
  if (tenant.backlogged == 0 && tenant.under_way == 0) tenant.present = std::max(tenant.present, tenant.latest);
  if (backlogged_ == 0 && under_way_ == 0) present_ = std::max(present_, latest_);
}

void FairTurns::SetBlocked(SessionId id, int32_t gate) {
  Session& session = *sessions_.at(id);
  TESSERA_CHECK(session.has_work);
  Close(gate);
  if (session.gate == gate) return;
  Leave(session);
  Enter(session, gate);
}

void FairTurns::Reopen(const std::function<bool(int32_t)>& is_open) {
  for (auto gate = closed_.begin(); gate != closed_.end();) {
    const auto at = at_.find(*gate);
    if (at != at_.end() && *gate != kAnyChange && !is_open(*gate)) {
      ++gate;
      continue;
    }
    const std::set<int32_t> tenants = at == at_.end() ? std::set<int32_t>() : at->second;
    const int32_t opened = *gate;
    gate = closed_.erase(gate);
    for (const int32_t number : tenants) {
      Tenant& tenant = *tenants_.at(number);
      // One of them that goes on waiting closes the gate again, and the others have had no turn.
      while (opened == kAnyChange && tenant.waiting.contains(kAnyChange)) {
        Session& session = *tenant.waiting.at(kAnyChange).top();
        Leave(session);
        Enter(session, kNoGate);
      }
      if (tenant.place == kInNoHeap) ready_.Push(tenant);
    }
  }
}

// ---- turns --------------------------------------------------------------------------------------

FairTurns::Session* FairTurns::BestOf(const Tenant& tenant) const {
  Session* best = nullptr;
  for (const auto& [gate, waiting] : tenant.waiting) {
    if (waiting.empty() || closed_.contains(gate)) continue;
    Session* const first = waiting.top();
    if (best == nullptr || first->key < best->key || (first->key == best->key && first->number < best->number)) {
      best = first;
    }
  }
  return best;
}

std::optional<SessionId> FairTurns::Next() {
  while (!ready_.empty()) {
    Tenant& tenant = *ready_.top();
    Session* const session = BestOf(tenant);
    if (session == nullptr) {
      ready_.Remove(tenant);
      continue;
    }
    if (tenant.key < present_ - kMaxLag) {
      tenant.key = present_ - kMaxLag;
      ready_.Moved(tenant);
      continue;
    }
    if (session->key < tenant.present - kMaxLag) {
      session->key = tenant.present - kMaxLag;
      tenant.waiting.at(session->gate).Moved(*session);
      continue;
    }
    present_ = std::max(present_, tenant.key);
    tenant.present = std::max(tenant.present, session->key);
    return SessionId(session->number);
  }
  return std::nullopt;
}

int32_t FairTurns::GateOf(SessionId session) const { return sessions_.at(session)->gate; }

// ---- charges ------------------------------------------------------------------------------------

void FairTurns::Charge(Tenant& tenant, Session* session, int64_t ticks) {
  tenant.rest += ticks;
  const int64_t virtual_ticks = FloorDivide(tenant.rest, tenant.weight);
  tenant.rest -= virtual_ticks * tenant.weight;
  tenant.key += virtual_ticks;
  latest_ = std::max(latest_, tenant.key);
  if (tenant.place != kInNoHeap) ready_.Moved(tenant);
  if (session == nullptr) return;
  session->key += ticks;
  tenant.latest = std::max(tenant.latest, session->key);
  if (session->place != kInNoHeap) tenant.waiting.at(session->gate).Moved(*session);
}

void FairTurns::Pay(SessionId id, int64_t ticks) {
  Session& session = *sessions_.at(id);
  Charge(*session.tenant, &session, ticks);
}

TurnCharge FairTurns::Issue(SessionId id, int64_t ticks) {
  Session& session = *sessions_.at(id);
  Charge(*session.tenant, &session, ticks);
  ++session.tenant->under_way;
  ++under_way_;
  return {id, static_cast<int32_t>(session.tenant->number), ticks};
}

void FairTurns::Settle(const TurnCharge& charge, int64_t measured_ticks) {
  Tenant& tenant = *tenants_.at(charge.tenant);
  const auto session = sessions_.find(charge.session);
  if (measured_ticks != charge.ticks) {
    Charge(tenant, session == sessions_.end() ? nullptr : session->second.get(), measured_ticks - charge.ticks);
  }
  --tenant.under_way;
  --under_way_;
  Touch(tenant);
  EndBusyPeriods(tenant);
}

// ---- who competes -------------------------------------------------------------------------------

void FairTurns::Touch(Tenant& tenant) {
  tenant.last_work_us = now_us_;
  if (tenant.is_recent) return;
  tenant.is_recent = true;
  recent_.push_back(&tenant);
}

bool FairTurns::AreCompeting() {
  if (recent_.size() >= 2 && now_us_ >= next_look_us_) {
    next_look_us_ = now_us_ + kLookUs;
    std::erase_if(recent_, [this](Tenant* tenant) {
      const bool has_work = tenant->backlogged > 0 || tenant->under_way > 0;
      tenant->is_recent = has_work || now_us_ - tenant->last_work_us < kCompetingUs;
      return !tenant->is_recent;
    });
  }
  return recent_.size() >= 2;
}

int64_t FairTurns::VirtualTimeOf(int32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found == tenants_.end() ? 0 : found->second->key;
}

bool FairTurns::HasBacklog(int32_t tenant) const {
  const auto found = tenants_.find(tenant);
  return found != tenants_.end() && found->second->backlogged > 0;
}

}  // namespace tessera
