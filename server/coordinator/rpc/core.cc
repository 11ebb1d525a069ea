#include "server/coordinator/rpc/core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

constexpr uint64_t kEventsPerLoggedAcknowledgement = 4096;

class Recoverer final : public JournalVisitor {
 public:
  explicit Recoverer(std::unique_ptr<Core> before) : core_(std::move(before)) {}
  void OnConfig(const CoordinatorConfig& config) override {
    if (core_ == nullptr) core_ = std::make_unique<Core>(config, nullptr);
  }
  void OnEvent(int64_t now_us, Event event) override { core_->Replay(now_us, std::move(event)); }
  void OnAcknowledged(SessionId session, uint64_t event) override { core_->Forget(session, event); }
  std::unique_ptr<Core> Take() { return std::move(core_); }

 private:
  std::unique_ptr<Core> core_;
};

}  // namespace

absl::StatusOr<Core::Recovered> Core::Recover(const std::string& path) {
  Recoverer recoverer(nullptr);
  TESSERA_ASSIGN_OR_RETURN(const JournalEnd end, ReadJournal(path, recoverer));
  Recovered recovered{recoverer.Take(), end};
  recovered.core->is_recovered_ = true;
  TESSERA_ASSIGN_OR_RETURN(recovered.core->journal_, JournalWriter::Continue(path, end.whole_bytes));
  return recovered;
}

absl::StatusOr<Core::Recovered> Core::RecoverFrom(absl::Span<const std::byte> log, std::unique_ptr<Core> before) {
  Recoverer recoverer(std::move(before));
  TESSERA_ASSIGN_OR_RETURN(const JournalEnd end, ReadJournal(log, recoverer));
  Recovered recovered{recoverer.Take(), end};
  recovered.core->is_recovered_ = true;
  return recovered;
}

Core::Core(const CoordinatorConfig& config, std::unique_ptr<JournalWriter> journal)
    : machine_(config), journal_(std::move(journal)) {}

Core::WorkerLine* Core::FindWorker(WorkerIndex worker) {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? nullptr : &found->second;
}

absl::StatusOr<Core::Consequences> Core::Apply(int64_t now_us, Event& event, const wire::Batch::Reader* batch,
                                               JournalWriter::Words came) {
  if (journal_ && committed_ > marked_) {
    TESSERA_RETURN_IF_ERROR(journal_->AppendCommitted(now_us, committed_));
    marked_ = committed_;
  }
  if (journal_) TESSERA_RETURN_IF_ERROR(journal_->Append(now_us, event, batch, came));
  const bool is_report = std::holds_alternative<WorkerReportEvent>(event);
  Consequences consequences;
  Effects effects = Enter(now_us, std::move(event));
  if (see_) see_(effects);
  if (holds_back_ && (is_report || !effects.empty())) wanted_ = events_;
  Route(std::move(effects), consequences);
  if (!holds_back_ || consequences.is_empty()) return consequences;
  held_.emplace_back(events_, std::move(consequences));
  return Consequences{};
}

void Core::HoldBack() {
  holds_back_ = true;
  committed_ = wanted_ = marked_ = events_;
}

Core::Consequences Core::Commit(uint64_t events) {
  committed_ = std::max(committed_, std::min(events, events_));
  for (auto& [id, session] : sessions_) session.outbox.Commit(committed_);
  for (auto& [index, worker] : workers_) {
    worker.outbox.Commit(committed_);
    worker.held_reports.Commit(committed_);
  }
  Consequences due;
  for (; !held_.empty() && held_.front().first <= committed_; held_.pop_front()) {
    Consequences& freed = held_.front().second;
    std::move(freed.ended.begin(), freed.ended.end(), std::back_inserter(due.ended));
    std::move(freed.victims.begin(), freed.victims.end(), std::back_inserter(due.victims));
  }
  return due;
}

std::optional<EndSession> Core::TakeRefusal(SessionId session) {
  if (held_.empty() || held_.back().first != events_) return std::nullopt;
  std::vector<EndSession>& ended = held_.back().second.ended;
  const auto found =
      std::find_if(ended.begin(), ended.end(), [session](const EndSession& end) { return end.session == session; });
  if (found == ended.end()) return std::nullopt;
  EndSession refusal = std::move(*found);
  ended.erase(found);
  return refusal;
}

void Core::Replay(int64_t now_us, Event event) {
  const auto* report = std::get_if<WorkerReportEvent>(&event);
  WorkerLine* const reporter = report == nullptr ? nullptr : FindWorker(report->worker);
  if (reporter != nullptr) reporter->outbox.Sent(reporter->outbox.unsent());  // all that it may say to have was sent
  Consequences consequences;
  Route(Enter(now_us, std::move(event)), consequences);
  if (reporter != nullptr) reporter->outbox.Disconnected();
  for (const EndSession& end : consequences.ended) Drop(end.session);
}

void Core::Forget(SessionId session, uint64_t number) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  found->second.outbox.Resume(number);
  found->second.logged = number;
}

absl::Status Core::Acknowledge(SessionId session, uint64_t number) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return absl::OkStatus();
  found->second.outbox.Acknowledge(number);
  // Now and then: a client says by itself what it has when it comes back.
  if (!journal_ || number < found->second.logged + kEventsPerLoggedAcknowledgement) return absl::OkStatus();
  found->second.logged = number;
  return journal_->AppendAcknowledged(now_us_, session, number);
}

// The lines that the event begins and ends, and its effects.
Effects Core::Enter(int64_t now_us, Event event) {
  now_us_ = now_us;
  ++events_;
  if (const auto* started = std::get_if<StartedEvent>(&event)) peer_key_ = started->peer_key;
  if (const auto* joined = std::get_if<WorkerJoinedEvent>(&event)) {
    WorkerLine& line = workers_[joined->worker];
    line = WorkerLine{};
    line.incarnation = joined->incarnation;
    line.epoch = machine_.given().epoch;
  } else if (const auto* lost = std::get_if<WorkerLostEvent>(&event)) {
    const WorkerLine* line = FindWorker(lost->worker);
    if (line != nullptr && line->incarnation == lost->incarnation) workers_.erase(lost->worker);
  } else if (const auto* report = std::get_if<WorkerReportEvent>(&event)) {
    WorkerLine* line = FindWorker(report->worker);
    if (line != nullptr && line->incarnation == report->incarnation) {
      ++line->reports;
      line->held_reports.Add(HeldEvent());
      line->outbox.Taken(report->taken);
    }
  }
  Effects effects = machine_.Apply(now_us, std::move(event));
  if (journal_) journal_->AddToDigest(effects);
  return effects;
}

void Core::Route(Effects effects, Consequences& consequences) {
  for (Effect& effect : effects) {
    if (auto* to_workers = std::get_if<ToWorkers>(&effect)) {
      const auto message = std::make_shared<const WorkerMessage>(std::move(to_workers->message));
      for (const WorkerIndex worker : *to_workers->workers) {
        if (WorkerLine* line = FindWorker(worker)) line->outbox.Add(message, HeldEvent());
      }
    } else if (auto* to_client = std::get_if<ToClient>(&effect)) {
      sessions_[to_client->session].outbox.Add(std::move(to_client->event), HeldEvent());
    } else if (auto* end = std::get_if<EndSession>(&effect)) {
      consequences.ended.push_back(std::move(*end));
    } else if (auto* victim = std::get_if<KillWorker>(&effect)) {
      consequences.victims.push_back(std::move(*victim));
    }
  }
}

}  // namespace tessera
