// Tenants of the state machine: limits that change, memory by tenant, sessions and records beyond what one may have.

#include <algorithm>
#include <utility>

#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

constexpr size_t kHoldersNamed = 3;

// The sessions of the tenant that have the most, and its publications: of others nothing is told.
std::string HoldersOf(const std::map<SessionId, SessionEntry>& sessions, const PublicationTable& publications,
                      const TenantEntry& tenant) {
  const int64_t published = publications.BytesOf(tenant);
  const std::string also = published == 0 ? "" : StrCat("; its publications have ", published, " bytes");
  std::vector<const SessionEntry*> holders;
  for (const auto& [id, session] : sessions) {
    if (session.tenant == &tenant && session.bytes > 0) holders.push_back(&session);
  }
  if (holders.empty()) return also;
  const size_t named = std::min(kHoldersNamed, holders.size());
  std::partial_sort(holders.begin(), holders.begin() + static_cast<ptrdiff_t>(named), holders.end(),
                    [](const SessionEntry* a, const SessionEntry* b) {
                      return a->bytes != b->bytes ? a->bytes > b->bytes : a->info.session < b->info.session;
                    });
  std::string text = "; most is held by";
  for (size_t i = 0; i < named; ++i) {
    const SessionEntry& holder = *holders[i];
    const std::string& name = holder.info.name;
    StrAppend(&text, i == 0 ? " " : ", ", "session ", holder.info.session.value,
              name.empty() ? "" : StrCat(" \"", Printable(name), "\""), " (", holder.bytes, " bytes)");
  }
  return text + also;
}

// Bytes of each worker that the tenant's sessions without a client have.
int64_t DetachedBytes(const std::map<SessionId, SessionEntry>& sessions, const TenantEntry& tenant) {
  int64_t bytes = 0;
  for (const auto& [id, session] : sessions)
    bytes += session.tenant == &tenant && !session.connected ? session.bytes : 0;
  return bytes;
}

}  // namespace

void StateMachine::On(const TenantsChangedEvent& event) {
  tenants_.Change(event.tenants);
  for (const TenantEntry* tenant : tenants_.all()) turns_.SetWeight(tenant->number, tenant->limits.weight);
  TurnDesk(*this).Pump();
}

void StateMachine::On(const TenantEvictedEvent& event) {
  std::vector<SessionId> evicted;
  for (const auto& [id, session] : sessions_) {
    if (session.info.tenant == event.tenant && session.info.role != Role::kAdmin) evicted.push_back(id);
  }
  for (const SessionId session : evicted) CloseSession(session, absl::CancelledError(event.reason));
}

void StateMachine::EndBeyondDetached(const TenantEntry& tenant) {
  const int64_t limit = tenant.limits.max_detached_bytes;
  if (limit == kUnlimited) return;
  std::vector<std::pair<int64_t, SessionId>> detached;  // by the end of their leases
  for (const auto& [id, session] : sessions_) {
    const bool counts = session.tenant == &tenant && !session.connected && session.bytes > 0;
    if (counts) detached.emplace_back(session.lease_deadline_us, id);
  }
  std::sort(detached.begin(), detached.end());
  int64_t held = DetachedBytes(sessions_, tenant);
  for (const auto& [deadline_us, id] : detached) {
    if (held <= limit) return;
    const int64_t bytes = sessions_.at(id).bytes;
    CloseSession(id, absl::ResourceExhaustedError(StrCat("the session had no client, and the sessions of tenant \"",
                                                         Printable(tenant.limits.name), "\" without one had ", held,
                                                         " bytes of each worker; its detached is ", limit)));
    held -= bytes;
  }
}

absl::StatusOr<TenantEntry*> StateMachine::ChargeMemory(SessionId owner, absl::Span<const WorkerIndex> workers,
                                                        int64_t bytes, std::string_view op) {
  // Memory that is of no session alone, as what a collective takes while it runs, is of who has the turn.
  auto session = sessions_.find(owner);
  if (session == sessions_.end()) session = sessions_.find(turn_);
  if (session == sessions_.end()) return nullptr;
  TenantEntry* const tenant = session->second.tenant;
  if (!session->second.connected && tenant->limits.max_detached_bytes != kUnlimited) {
    const int64_t held = DetachedBytes(sessions_, *tenant);
    if (bytes > tenant->limits.max_detached_bytes - held) {
      return absl::ResourceExhaustedError(
          StrCat(op, ": is above the tenant's detached: ", bytes, " bytes wanted on each of ", workers.size(),
                 " workers; sessions of tenant \"", Printable(tenant->limits.name), "\" without a client have ", held,
                 " bytes of each worker, its detached is ", tenant->limits.max_detached_bytes));
    }
  }
  if (absl::Status status = tenants_.Charge(*tenant, workers, bytes, memory_, op); !status.ok()) {
    return WithMessage(status, StrCat(StdView(status.message()), HoldersOf(sessions_, publications_, *tenant)));
  }
  return tenant;
}

absl::Status StateMachine::Unplaced(SessionId owner, TenantEntry* tenant, absl::Span<const WorkerIndex> workers,
                                    int64_t bytes, const absl::Status& why) {
  std::string failed;
  for (const WorkerIndex worker : workers) {
    const auto found = workers_.find(worker);
    if (found == workers_.end() || found->second.spill_failed_us == 0 || !failed.empty()) continue;
    if (now_us_ - found->second.spill_failed_us >= config_.spill_retry_us) continue;
    failed =
        StrCat("; worker ", worker.value, " could not write a file for others' tensors (--spill), as its log says");
  }
  if (tenant == nullptr) return why;
  tenants_.Return(*tenant, workers, bytes, memory_);
  if (!absl::IsResourceExhausted(why)) return why;
  const auto session = sessions_.find(owner);
  const std::string own =
      session == sessions_.end() ? "" : StrCat("; this session has ", session->second.bytes, " bytes");
  return WithMessage(why, StrCat(StdView(why.message()), failed, own, HoldersOf(sessions_, publications_, *tenant)));
}

int64_t StateMachine::QueuedBy(const TenantEntry& tenant) const {
  int64_t queued = 0;
  for (const auto& [id, session] : sessions_) {
    if (session.tenant == &tenant) queued += session.queue_weight + session.parked_weight;
  }
  return queued;
}

// The session goes on: its requests fail by name, and records that give back are taken.
void StateMachine::RefuseBeyondQueue(const SessionEntry& session, int64_t weight, std::vector<Record>& records) const {
  const TenantEntry& tenant = *session.tenant;
  if (tenant.limits.max_queued_records == kUnlimited) return;
  const int64_t queued = QueuedBy(tenant);
  if (queued + weight <= tenant.limits.max_queued_records) return;
  const std::string why =
      StrCat("tenant \"", Printable(tenant.limits.name), "\" has ", queued, " records in its queues and sent ", weight,
             " more; its queued is ", tenant.limits.max_queued_records);
  for (Record& record : records) RefuseRecord(record, absl::StatusCode::kResourceExhausted, why);
}

}  // namespace tessera
