// The hub's part of what admins do to a pool, and of its stop: evictions, cordons, drains; the audit's book.

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hub.h"
#include "server/coordinator/rpc/upgrade.h"

namespace tessera {
namespace {

constexpr int64_t kUsageUs = 60'000'000;  // docs/limits.md: usage_every

}  // namespace

absl::StatusOr<uint32_t> Hub::EvictByAdmin(const std::string& tenant, const std::string& reason, SessionId by) {
  const auto& all = machine_.tenants().all();
  const auto is_it = [&tenant](const TenantEntry* entry) { return entry->limits.name == tenant; };
  if (std::none_of(all.begin(), all.end(), is_it)) {
    return absl::NotFoundError(StrCat("evict: no tenant \"", Printable(tenant), "\" is here"));
  }
  const auto is_evicted = [&tenant](const auto& session) {
    return session.second.info.tenant == tenant && session.second.info.role != Role::kAdmin;
  };
  const auto count = std::count_if(machine_.sessions().begin(), machine_.sessions().end(), is_evicted);
  const std::string shown = Printable(reason, kMaxLogChars);
  spdlog::warn("tenant \"{}\": its {} sessions are ended by the admin of session {}{}{}",
               Printable(tenant, kMaxLogChars), count, by.value, shown.empty() ? "" : ": ", shown);
  Apply(TenantEvictedEvent{
      tenant, StrCat("an admin evicted tenant \"", Printable(tenant), "\"", shown.empty() ? "" : ": ", shown)});
  return static_cast<uint32_t>(count);
}

absl::Status Hub::CordonByAdmin(WorkerIndex worker, Admits admits, SessionId by) {
  const std::string_view verb = admits == Admits::kEveryone ? "uncordon" : "cordon";
  const auto found = machine_.workers().find(worker);
  if (found == machine_.workers().end() || found->second.state == WorkerState::kDead) {
    return absl::NotFoundError(StrCat(verb, ": worker ", worker.value, " is not here"));
  }
  if (found->second.admits == Admits::kNobody) {
    return absl::FailedPreconditionError(StrCat(verb, ": worker ", worker.value, " is being drained"));
  }
  spdlog::info("worker {}: {} by the admin of session {}", worker.value, verb, by.value);
  Apply(WorkerAdmitsEvent{worker, admits});
  return absl::OkStatus();
}

absl::StatusOr<DrainState> Hub::DrainByAdmin(WorkerIndex worker, Drains::Losses losses, SessionId by) {
  const auto link = workers_.find(worker);
  const std::string reason = "an admin drained it";
  absl::StatusOr<DrainState> state = drains_.Step(worker, losses, reason, NowUs());
  if (state.ok() && state->phase == DrainState::Phase::kEnding && link != workers_.end() &&
      link->second.ended_by.empty()) {
    spdlog::warn("worker {} is drained by the admin of session {}; {} tensors with {} bytes are lost", worker.value,
                 by.value, state->tensors, state->bytes);
    link->second.ended_by = reason;
  }
  return state;
}

void Hub::Record(AuditEntry entry) {
  if (audit_ != nullptr) audit_->Add(std::move(entry));
}

absl::StatusOr<std::shared_ptr<BookReader::Asked>> Hub::AskBook(const BookQuery& query) {
  if (audit_ != nullptr) return reader_->Ask(query);
  return absl::FailedPreconditionError("this coordinator keeps no audit (tessera-coordinator --audit FILE)");
}

absl::StatusOr<UpgradeState> Hub::UpgradeByAdmin(UpgradeStep step, SessionId by) {
  if (upgrade_ == nullptr) return absl::UnavailableError("upgrade: the coordinator is starting");
  if (step == UpgradeStep::kBegin) {
    spdlog::info("the admin of session {} asks for an upgrade", by.value);
    TESSERA_RETURN_IF_ERROR(upgrade_->Begin());
  }
  UpgradeState state = upgrade_->state();
  state.epoch = epoch();
  state.version = kServerVersion;
  state.pid = getpid();
  return state;
}

void Hub::KeepBook(Audit& audit) {
  audit_ = &audit;
  reader_ = std::make_unique<BookReader>(options_.audit_path);
  book_.Begin(machine_);
  booked_us_ = UptimeUs();
}

void Hub::CloseBook() {
  if (audit_ != nullptr) audit_->AddUsage(book_.Minute(machine_));
  audit_ = nullptr;
}

void Hub::BookUsage() {
  if (audit_ == nullptr || UptimeUs() - booked_us_ < kUsageUs) return;
  booked_us_ = UptimeUs();
  audit_->AddUsage(book_.Minute(machine_));
}

// ---- the stop -------------------------------------------------------------------------------------

void Hub::BeginStop() { is_stopping_ = true; }

bool Hub::IsQuiet() const {
  if (machine_.unsettled_ops() > 0) return false;
  return std::all_of(machine_.sessions().begin(), machine_.sessions().end(), [](const auto& session) {
    return session.second.queue.empty() || session.second.awaits_upload || !session.second.connected;
  });
}

void Hub::TellStopped() {
  has_told_ = true;
  if (!options_.state_folder.empty()) return;  // they wait for the next coordinator
  const auto shutdown = std::make_shared<const WorkerMessage>(Shutdown{"its coordinator was stopped"});
  for (auto& [worker, line] : core_->workers()) line.outbox.Add(shutdown);
  FlushWorkers();
  const absl::Status reason = absl::UnavailableError("the coordinator was stopped, and all sessions with it");
  std::vector<SessionId> sessions;
  for (const auto& [session, link] : sessions_) sessions.push_back(session);
  for (const SessionId session : sessions) {
    FlushSession(session);
    EndLink(session, reason);
  }
}

bool Hub::HasToldAll() const {
  return !options_.state_folder.empty() || std::none_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker.second.link.get() != nullptr;
  });
}

}  // namespace tessera
