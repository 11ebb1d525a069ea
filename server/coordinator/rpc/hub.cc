#include "server/coordinator/rpc/hub.h"

#include <signal.h>
#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/exception.h"
#include "schemas/codec/message_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

constexpr size_t kMaxMessagesPerCall = 256;
constexpr uint64_t kWordsPerMessage = 40;
constexpr int kMaxOpenCalls = 2;  // a worker answers the first when the second comes
// Fewer answers to batches than this don't make a call of their own: they only bound what is in flight.
constexpr size_t kMaxQuietEvents = 8;
constexpr auto kTick = 50 * kj::MILLISECONDS;

}  // namespace

uint64_t RandomSecret() {
  uint64_t secret = 0;
  while (secret == 0) TESSERA_CHECK(getrandom(&secret, sizeof(secret), 0) == sizeof(secret));
  return secret;
}

Hub::Hub(const CoordinatorOptions& options, kj::Timer& timer, LoopLinger& linger,
         std::unique_ptr<JournalWriter> journal)
    : options_(options),
      timer_(timer),
      linger_(linger),
      started_(timer.now()),
      journal_(std::move(journal)),
      machine_(options.config),
      epoch_(RandomSecret() >> 16),
      peer_key_(RandomSecret()),
      tasks_(*this) {}

int64_t Hub::NowUs() const { return (timer_.now() - started_) / kj::MICROSECONDS; }
double Hub::uptime_s() const { return static_cast<double>(NowUs()) * 1e-6; }

void Hub::Apply(const Event& event, const wire::Batch::Reader* batch) {
  const int64_t now_us = NowUs();
  if (!std::holds_alternative<TickEvent>(event)) linger_.Begin();
  if (journal_) {
    if (absl::Status status = journal_->Append(now_us, event, batch); !status.ok()) {
      spdlog::error("{}; going on without a journal", std::string(status.message()));
      journal_.reset();
    }
  }
  Effects effects = machine_.Apply(now_us, event);
  if (journal_) journal_->digest().Add(effects);
  Carry(std::move(effects));
}

void Hub::Carry(Effects effects) {
  for (Effect& effect : effects) {
    if (auto* to_workers = std::get_if<ToWorkers>(&effect)) {
      auto message = std::make_shared<const WorkerMessage>(std::move(to_workers->message));
      for (WorkerIndex worker : *to_workers->workers) {
        if (auto link = workers_.find(worker); link != workers_.end()) link->second.outbox.push_back(message);
      }
    } else if (auto* to_client = std::get_if<ToClient>(&effect)) {
      auto link = sessions_.find(to_client->session);
      if (link == sessions_.end()) continue;
      link->second.outbox.push_back(std::make_shared<const ClientEvent>(std::move(to_client->event)));
    } else if (auto* end = std::get_if<EndSession>(&effect)) {
      FlushSession(end->session);
      EndLink(end->session, end->reason);
    } else if (auto* victim = std::get_if<KillWorker>(&effect)) {
      spdlog::warn("worker {} (pid {}) is silent: killing it", victim->worker.value, victim->pid);
      if (victim->pid > 1) kill(victim->pid, SIGKILL);
      workers_.erase(victim->worker);
    }
  }
  Flush();
}

void Hub::Flush() {
  for (auto& [worker, link] : workers_) {
    if (!link.outbox.empty()) FlushWorker(worker);
  }
  std::vector<SessionId> flooded;
  for (auto& [session, link] : sessions_) {
    if (!link.outbox.empty() && link.connected) FlushSession(session);
    if (static_cast<int64_t>(link.outbox.size()) > options_.config.max_pending_events) flooded.push_back(session);
    if (!link.room.empty() && HasRoom(session)) {
      for (auto& fulfiller : std::exchange(link.room, {})) fulfiller->fulfill();
    }
  }
  for (SessionId session : flooded) {
    EndLink(session,
            absl::ResourceExhaustedError("the client does not take its events; max_pending_events is exceeded"));
    Apply(SessionClosedEvent{session});
  }
}

bool Hub::HasRoom(SessionId session) const {
  auto found = machine_.sessions().find(session);
  return found == machine_.sessions().end() || found->second.queue.size() < kSubmitHighWater;
}

kj::Promise<void> Hub::WhenRoom(SessionId session) {
  auto link = sessions_.find(session);
  if (link == sessions_.end() || HasRoom(session)) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  link->second.room.push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

void Hub::FlushWorker(WorkerIndex worker) {
  WorkerLink& link = workers_.at(worker);
  if (link.open_calls == kMaxOpenCalls) return;
  const size_t count = std::min(link.outbox.size(), kMaxMessagesPerCall);
  auto request = link.client.deliverRequest(SizeOfMessage(count, kWordsPerMessage));
  auto messages = request.initMessages();
  messages.setEpoch(epoch_);
  auto list = messages.initMessages(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) {
    EncodeWorkerMessage(*link.outbox.front(), list[i]);
    link.outbox.pop_front();
  }
  ++link.open_calls;
  const uint64_t incarnation = link.incarnation;
  tasks_.add(request.send().then(
      [this, worker, incarnation](capnp::Response<wire::Worker::DeliverResults>&& answer) {
        TakeAnswer(worker, incarnation, kj::mv(answer));
      },
      [this, worker, incarnation](kj::Exception&& exception) {
        const absl::Status status = FromException(exception);
        WorkerGone(worker, incarnation, std::string(status.message()));
      }));
  link.answer = nullptr;
}

void Hub::TakeAnswer(WorkerIndex worker, uint64_t incarnation, capnp::Response<wire::Worker::DeliverResults>&& answer) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  --found->second.open_calls;
  const absl::Status status = TakeReported(worker, incarnation, answer.getReported());
  if (!status.ok()) return WorkerGone(worker, incarnation, std::string(status.message()));
  found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  found->second.answer = kj::mv(answer);
  if (!found->second.outbox.empty()) FlushWorker(worker);
}

absl::Status Hub::TakeReported(WorkerIndex worker, uint64_t incarnation, wire::Reported::Reader reported) {
  auto found = workers_.find(worker);
  if (reported.getNumber() == 0 || found == workers_.end() || found->second.incarnation != incarnation) {
    return absl::OkStatus();
  }
  ReportOrder& reports = found->second.reports;
  TESSERA_ASSIGN_OR_RETURN(WorkerReportEvent event,
                           DecodeReport(worker, incarnation, reported.getCompletions(), reported.getTransfers()));
  TESSERA_RETURN_IF_ERROR(reports.Add(reported.getNumber(), std::move(event)));
  std::vector<WorkerReportEvent> due;
  while (std::optional<WorkerReportEvent> next = reports.Take()) due.push_back(*std::move(next));
  for (const WorkerReportEvent& each : due) Apply(each);  // which may end the link
  return absl::OkStatus();
}

bool Hub::CanWait(const SessionLink& link) const {
  if (ticking_ || link.outbox.size() >= kMaxQuietEvents) return false;
  return std::all_of(link.outbox.begin(), link.outbox.end(),
                     [](const auto& event) { return std::holds_alternative<BatchDoneEvent>(event->body); });
}

void Hub::FlushSession(SessionId session) {
  auto found = sessions_.find(session);
  if (found == sessions_.end() || !found->second.connected) return;
  SessionLink& link = found->second;
  if (link.in_flight > 0 || link.outbox.empty() || CanWait(link)) return;
  link.in_flight = std::min(link.outbox.size(), kMaxMessagesPerCall);
  auto request = link.client.deliverRequest(SizeOfMessage(link.in_flight, kWordsPerMessage));
  auto list = request.initEvents(static_cast<unsigned>(link.in_flight));
  for (unsigned i = 0; i < link.in_flight; ++i) EncodeClientEvent(*link.outbox[i], list[i]);
  const uint64_t connection = link.connection;
  tasks_.add(request.send().then(
      [this, session, connection]() {
        auto it = sessions_.find(session);
        if (it == sessions_.end() || it->second.connection != connection) return;
        SessionLink& delivered = it->second;
        delivered.outbox.erase(delivered.outbox.begin(),
                               delivered.outbox.begin() + static_cast<ptrdiff_t>(delivered.in_flight));
        delivered.in_flight = 0;
        FlushSession(session);
      },
      [this, session, connection](kj::Exception&&) { ConnectionGone(session, connection); }));
}

Hub::Opened Hub::OpenSession(const std::string& tenant, const std::string& client, int64_t lease_us,
                             wire::SessionEvents::Client events, std::function<void(absl::Status)> on_end) {
  const Opened opened{SessionId(next_session_++), RandomSecret(), next_connection_++};
  SessionLink& link = sessions_[opened.session];
  link.client = kj::mv(events);
  link.secret = opened.secret;
  link.connection = opened.connection;
  link.connected = true;
  link.on_end = std::move(on_end);
  Apply(SessionOpenedEvent{opened.session, opened.secret, tenant, client, lease_us});
  return opened;
}

absl::StatusOr<Hub::Opened> Hub::ResumeSession(SessionId session, uint64_t secret, uint64_t last_event,
                                               wire::SessionEvents::Client events,
                                               std::function<void(absl::Status)> on_end) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return absl::NotFoundError(StrCat("connect: session ", session.value, " is not here; its lease may be over"));
  }
  SessionLink& link = found->second;
  if (link.secret != secret) return absl::PermissionDeniedError("connect: wrong secret for the session to resume");
  if (link.on_end) link.on_end(absl::CancelledError("another connection took the session"));
  link.client = kj::mv(events);
  link.connection = next_connection_++;
  link.connected = true;
  link.in_flight = 0;
  link.on_end = std::move(on_end);
  while (!link.outbox.empty() && link.outbox.front()->number <= last_event) link.outbox.pop_front();
  Apply(SessionResumedEvent{session});
  return Opened{session, secret, link.connection};
}

bool Hub::IsCurrent(SessionId session, uint64_t connection) const {
  auto found = sessions_.find(session);
  return found != sessions_.end() && found->second.connection == connection;
}

void Hub::ConnectionGone(SessionId session, uint64_t connection) {
  if (!IsCurrent(session, connection)) return;
  SessionLink& link = sessions_.at(session);
  if (!link.connected) return;
  link.connected = false;
  link.in_flight = 0;
  link.on_end = nullptr;
  Apply(ConnectionLostEvent{session});
}

void Hub::EndLink(SessionId session, const absl::Status& reason) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  auto on_end = std::move(found->second.on_end);
  for (auto& fulfiller : found->second.room) fulfiller->fulfill();
  sessions_.erase(found);
  if (on_end) on_end(reason);
}

absl::StatusOr<Hub::Joined> Hub::JoinWorker(WorkerJoinedEvent event, wire::Worker::Client client) {
  if (event.worker.value < 0) {
    event.worker = machine_.FreeWorkerIndex();
    while (workers_.contains(event.worker)) ++event.worker.value;  // joins that are under way
  }
  auto known = machine_.workers().find(event.worker);
  if (workers_.contains(event.worker) ||
      (known != machine_.workers().end() && known->second.state != WorkerState::kDead)) {
    return absl::FailedPreconditionError(StrCat("join: worker ", event.worker.value, " is here already"));
  }
  event.incarnation = next_incarnation_++;
  WorkerLink link{kj::mv(client), event.incarnation};
  workers_.emplace(event.worker, kj::mv(link));
  spdlog::info("worker {} joined: pid {}, {} bytes, {}", event.worker.value, event.pid, event.memory_bytes,
               event.data_address);
  tasks_.add(Ping(event.worker, event.incarnation));
  const Joined joined{event.worker, event.incarnation};
  // After the answer to the join has left: its first message finds a worker that knows its number.
  tasks_.add(kj::evalLast([this, event = std::move(event)]() { Apply(event); }));
  return joined;
}

void Hub::WorkerGone(WorkerIndex worker, uint64_t incarnation, const std::string& reason) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return;
  spdlog::warn("worker {} is gone: {}", worker.value, reason);
  workers_.erase(found);
  Apply(WorkerLostEvent{worker, incarnation, reason});
}

kj::Promise<void> Hub::Ping(WorkerIndex worker, uint64_t incarnation) {
  const auto pause = static_cast<int64_t>(options_.heartbeat_s * 1e6) * kj::MICROSECONDS;
  return timer_.afterDelay(pause).then([this, worker, incarnation]() -> kj::Promise<void> {
    auto found = workers_.find(worker);
    if (found == workers_.end() || found->second.incarnation != incarnation) return kj::READY_NOW;
    return found->second.client.pingRequest().send().ignoreResult().then(
        [this, worker, incarnation]() -> kj::Promise<void> {
          auto alive = workers_.find(worker);
          if (alive == workers_.end() || alive->second.incarnation != incarnation) return kj::READY_NOW;
          Apply(WorkerHeardEvent{worker});
          return Ping(worker, incarnation);
        },
        [this, worker, incarnation](kj::Exception&& exception) -> kj::Promise<void> {
          const absl::Status status = FromException(exception);
          WorkerGone(worker, incarnation, std::string(status.message()));
          return kj::READY_NOW;
        });
  });
}

kj::Promise<void> Hub::RunTicks() {
  return timer_.afterDelay(kTick).then([this]() {
    ticking_ = true;
    Apply(TickEvent{});
    ticking_ = false;
    return RunTicks();
  });
}

void Hub::taskFailed(kj::Exception&& exception) { spdlog::error("task failed: {}", exception.getDescription().cStr()); }

}  // namespace tessera
