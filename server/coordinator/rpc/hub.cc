#include "server/coordinator/rpc/hub.h"

#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/exception.h"
#include "schemas/codec/host_identity.h"
#include "schemas/codec/monotonic_clock.h"
#include "schemas/codec/refusals.h"
#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/reach.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

// The number may be another process's by the time that it is used; a descriptor stays that of the one that joined. None
// where the kernel gives none. By the system call: glibc 2.35, which docs/install.md promises, has no function for it.
kj::AutoCloseFd OpenProcess(int32_t pid) {
  const int fd = pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1;
  return fd < 0 ? kj::AutoCloseFd() : kj::AutoCloseFd(fd);
}

// OK when the process is being ended, NotFound when it is gone already, else why it can't be ended from here.
absl::Status End(const kj::AutoCloseFd& process, int32_t pid) {
  if (pid <= 0) return absl::FailedPreconditionError("it is of another PID namespace");
  const int failed = process.get() < 0
                         ? kill(pid, SIGKILL)
                         : static_cast<int>(syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0));
  if (failed == 0) return absl::OkStatus();
  return errno == ESRCH ? absl::NotFoundError("its process is gone") : absl::FailedPreconditionError(strerror(errno));
}

constexpr size_t kMaxMessagesPerSend = 256;
constexpr uint64_t kWordsPerMessage = 40;
constexpr auto kTick = 50 * kj::MILLISECONDS;
constexpr int64_t kMaxFailureBytes = 1024;  // of a tensor's event that says why it failed, about
constexpr int64_t kMaxPauseUs = 1'000'000;  // docs/limits.md: max_pause

void SendEnded(MessageLink& link, const absl::Status& reason) {
  capnp::MallocMessageBuilder message(FirstSegmentWords(1, kWordsPerMessage));
  EncodeStatus(reason, message.initRoot<wire::ToClient>().initEnded());
  link.Send(message);
}

// What the state machine lets by, workers read.
static_assert(CoordinatorConfig{}.max_plan_text_bytes <= static_cast<int64_t>(kMaxPlanTextBytes));
static_assert(2 * kFullSendBytes < kMaxMessageBytes && kMaxPlanTextBytes <= kFullSendBytes);

}  // namespace

uint64_t RandomSecret() {
  uint64_t secret = 0;
  while (secret == 0) TESSERA_CHECK(getrandom(&secret, sizeof(secret), 0) == sizeof(secret));
  return secret;
}

Hub::Hub(const CoordinatorOptions& options, kj::Timer& timer, kj::UnixEventPort& port,
         std::unique_ptr<JournalWriter> journal)
    : options_(options),
      timer_(timer),
      linger_(port),
      started_(timer.now()),
      journal_(std::move(journal)),
      machine_(options.config),
      peer_key_(RandomSecret()),
      tasks_(*this) {
  Apply(StartedEvent{options.epoch});
}

int64_t Hub::UptimeUs() const { return (timer_.now() - started_) / kj::MICROSECONDS; }
double Hub::uptime_s() const { return static_cast<double>(UptimeUs()) * 1e-6; }

// Ticks come far more often than this: a process that was held up longer has heard nobody meanwhile, and that counts
// against no worker and no lease.
int64_t Hub::NowUs() {
  const int64_t uptime_us = UptimeUs();
  if (uptime_us - last_uptime_us_ > kMaxPauseUs) {
    spdlog::warn("this process was held up for {:.1f} s", static_cast<double>(uptime_us - last_uptime_us_) * 1e-6);
    paused_us_ += uptime_us - last_uptime_us_;
  }
  last_uptime_us_ = uptime_us;
  return uptime_us - paused_us_;
}

void Hub::Apply(Event event, const wire::Batch::Reader* batch) {
  const int64_t now_us = NowUs();
  if (journal_) {
    if (absl::Status status = journal_->Append(now_us, event, batch); !status.ok()) {
      spdlog::error("{}; going on without a journal", std::string(status.message()));
      journal_.reset();
    }
  }
  Effects effects = machine_.Apply(now_us, std::move(event));
  if (journal_) journal_->Add(effects);
  Carry(std::move(effects));
  if (machine_.has_more()) GoOn();
}

// By the timer: sockets are looked at before it fires.
void Hub::GoOn() {
  if (std::exchange(going_on_, true)) return;
  tasks_.add(timer_.afterDelay(0 * kj::NANOSECONDS).then([this]() {
    going_on_ = false;
    Apply(ContinuedEvent{});
  }));
}

uint64_t Hub::ActivityOf(WorkerIndex worker) const {
  auto link = workers_.find(worker);
  return link == workers_.end() ? 0 : link->second.activity;
}

void Hub::Carry(Effects effects) {
  std::vector<KillWorker> victims;
  for (Effect& effect : effects) {
    if (auto* to_workers = std::get_if<ToWorkers>(&effect)) {
      auto message = std::make_shared<const WorkerMessage>(std::move(to_workers->message));
      for (WorkerIndex worker : *to_workers->workers) {
        if (auto link = workers_.find(worker); link != workers_.end()) link->second.outbox.push_back(message);
      }
    } else if (auto* to_client = std::get_if<ToClient>(&effect)) {
      auto link = sessions_.find(to_client->session);
      if (link == sessions_.end()) continue;
      link->second.outbox.Add(std::move(to_client->event));
    } else if (auto* end = std::get_if<EndSession>(&effect)) {
      FlushSession(end->session);
      EndLink(end->session, end->reason);
    } else if (auto* victim = std::get_if<KillWorker>(&effect)) {
      victims.push_back(*victim);
    }
  }
  Flush();
  for (const KillWorker& victim : victims) Kill(victim);  // which may be an event of its own
}

// Its link ends when the process is gone, and with it what it mapped.
void Hub::Kill(const KillWorker& victim) {
  const auto found = workers_.find(victim.worker);
  if (found == workers_.end() || found->second.info.incarnation != victim.incarnation) return;
  spdlog::warn("worker {} (pid {}) {}: killing it", victim.worker.value, victim.pid, victim.reason);
  const absl::Status ended = End(found->second.process, victim.pid);
  if (ended.ok()) return;
  const std::string why(ended.message());
  if (absl::IsNotFound(ended)) return WorkerGone(victim.worker, victim.incarnation, why);
  if (!machine_.IsMappedByPeers(victim.worker)) {
    return WorkerGone(victim.worker, victim.incarnation, StrCat("it ", victim.reason, ", and can't be killed: ", why));
  }
  spdlog::error(
      "worker {} can't be killed from here ({}). It may still write to the memory of its peers: what waits for it goes "
      "on waiting until it is heard again or its process ends",
      victim.worker.value, why);
}

void Hub::Flush() {
  FlushWorkers();
  std::vector<SessionId> flooded;
  for (auto& [session, link] : sessions_) {
    FlushSession(session);
    if (IsFlooded(session, link)) flooded.push_back(session);
    KJ_IF_MAYBE (room, link.room) {
      if (HasRoom(session)) {
        (*room)->fulfill();
        link.room = nullptr;
      }
    }
  }
  for (SessionId session : flooded) {
    Refuse(session, absl::ResourceExhaustedError("the client does not take its events; max_pending_events, or "
                                                 "max_pending_event_bytes, is exceeded"));
  }
  if (const std::optional<SessionId> largest = LargestOutbox(); largest.has_value()) {
    Refuse(*largest,
           absl::ResourceExhaustedError(StrCat("the clients of all sessions together take too few of their events "
                                               "(max_all_event_bytes is ",
                                               options_.config.max_all_event_bytes, "); this session has the most, ",
                                               sessions_.at(*largest).outbox.bytes(), " bytes")));
  }
}

void Hub::Refuse(SessionId session, const absl::Status& reason) {
  LogRefusal(StrCat("session ", session.value), StdView(reason.message()));
  EndLink(session, reason);
  Apply(SessionClosedEvent{session});
}

void Hub::Retire(kj::Own<MessageLink> link) {
  if (link.get() == nullptr) return;
  link->Stop();
  tasks_.add(kj::evalLater([]() {}).attach(kj::mv(link)));
}

// Each tensor may fail once, all of them at a time.
bool Hub::IsFlooded(SessionId session, const SessionLink& link) const {
  const int64_t events = static_cast<int64_t>(link.outbox.size());
  const int64_t bytes = link.outbox.bytes();
  if (events <= options_.config.max_pending_events && bytes <= options_.config.max_pending_event_bytes) return false;
  auto found = machine_.sessions().find(session);
  const auto tensors = found == machine_.sessions().end() ? 0 : static_cast<int64_t>(found->second.tensors.size());
  return events > options_.config.max_pending_events + tensors ||
         bytes > options_.config.max_pending_event_bytes + tensors * kMaxFailureBytes;
}

int64_t Hub::EventBytesOf(SessionId session, const SessionLink& link) const {
  const auto found = machine_.sessions().find(session);
  const auto tensors = found == machine_.sessions().end() ? 0 : static_cast<int64_t>(found->second.tensors.size());
  return std::max<int64_t>(0, link.outbox.bytes() - tensors * kMaxFailureBytes);
}

std::optional<SessionId> Hub::LargestOutbox() const {
  int64_t bytes = 0;
  for (const auto& [session, link] : sessions_) bytes += link.outbox.bytes();
  if (bytes <= options_.config.max_all_event_bytes) return std::nullopt;
  bytes = 0;
  std::optional<SessionId> largest;
  int64_t most = -1;
  for (const auto& [session, link] : sessions_) {
    const int64_t own = EventBytesOf(session, link);
    bytes += own;
    if (own > most) std::tie(largest, most) = std::pair(session, own);
  }
  return bytes > options_.config.max_all_event_bytes ? largest : std::nullopt;
}

bool Hub::HasRoom(SessionId session) const {
  auto found = machine_.sessions().find(session);
  return found == machine_.sessions().end() || found->second.queue_weight < static_cast<int64_t>(kSubmitHighWater);
}

// ---- workers ------------------------------------------------------------------------------------

void Hub::FlushWorkers() {
  // Workers of one mesh get the same messages: what was encoded for one is sent to the next, too.
  std::vector<std::shared_ptr<const WorkerMessage>> waiting;
  size_t encoded = 0;  // of them: what a message holds
  std::optional<capnp::MallocMessageBuilder> message;
  for (auto& [worker, link] : workers_) {
    while (!link.outbox.empty() && link.link.get() != nullptr && link.link->is_clear()) {
      const auto begin = link.outbox.begin();
      const auto end = begin + static_cast<ptrdiff_t>(std::min(link.outbox.size(), kMaxMessagesPerSend));
      if (!std::equal(waiting.begin(), waiting.end(), begin, end)) {
        waiting.assign(begin, end);
        message.emplace(FirstSegmentWords(waiting.size(), kWordsPerMessage));
        encoded = EncodeWorkerMessages(waiting, epoch(), *message);
      }
      link.outbox.erase(begin, begin + static_cast<ptrdiff_t>(encoded));
      link.link->Send(*message);
    }
  }
}

absl::Status Hub::TakeReported(WorkerIndex worker, uint64_t incarnation, wire::Reported::Reader reported) {
  if (reported.getEpoch() != epoch() || reported.getIncarnation() != incarnation) {
    return absl::FailedPreconditionError("a report of another epoch or incarnation");
  }
  linger_.Begin();
  TESSERA_ASSIGN_OR_RETURN(WorkerReportEvent event,
                           DecodeReport(worker, incarnation, reported.getCompletions(), reported.getTransfers()));
  const int64_t offset_ns = clocks_.at(worker).offset_ns();
  const auto convert = [offset_ns](RunTimes& times) {
    if (!times.has_run()) return;
    times.started_ns += offset_ns;
    times.ended_ns += offset_ns;
  };
  for (CompletionReport& completion : event.completions) convert(completion.times);
  for (TransferReport& transfer : event.transfers) convert(transfer.times);
  Apply(std::move(event));
  return absl::OkStatus();
}

// ---- sessions -----------------------------------------------------------------------------------

void Hub::FlushSession(SessionId session) {
  auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.link.get() == nullptr) return;
  SessionLink& link = found->second;
  // What waited since the last tick has waited enough.
  const auto quiet = ticking_ ? SessionOutbox::Quiet::kNow : SessionOutbox::Quiet::kMayWait;
  std::optional<capnp::MallocMessageBuilder> message;
  while (link.link->is_clear() && link.outbox.NextMessage(quiet, message)) link.link->Send(*message);
}

// What was sent and not acknowledged is to be sent again.
void Hub::Disconnect(SessionLink& link) {
  Retire(kj::mv(link.link));
  expected_links_.erase(link.link_key);
  link.is_connected = false;
  link.outbox.Disconnected();
  link.room = nullptr;
}

uint64_t Hub::ExpectLink(TakeStream take) {
  const uint64_t key = RandomSecret();
  expected_links_[key] = std::move(take);
  return key;
}

bool Hub::TakeLink(uint64_t key, kj::Own<LinkStream> stream) {
  auto expected = expected_links_.extract(key);
  if (expected.empty()) return false;
  expected.mapped()(kj::mv(stream));
  return true;
}

// Messages on the former one are not heard any more.
uint64_t Hub::ConnectSession(SessionId session, SessionLink& link) {
  Disconnect(link);
  const uint64_t connection = machine_.given().connection + 1;
  link.is_connected = true;
  link.heard_us = NowUs();
  link.link_key = ExpectLink(
      [this, session, connection](kj::Own<LinkStream> stream) { StartLink(session, connection, kj::mv(stream)); });
  return connection;
}

// A link that breaks leaves the session; one whose client breaks a rule ends it.
void Hub::StartLink(SessionId session, uint64_t connection, kj::Own<LinkStream> stream) {
  if (!IsCurrent(session, connection)) return;
  SessionLink& link = sessions_.at(session);
  link.link = kj::heap<MessageLink>(kj::mv(stream), &unfinished_);
  link.link->Start({[this, session](capnp::MessageReader& message) {
                      return TakeFromClient(session, message.getRoot<wire::ToCoordinator>());
                    },
                    [this, session, connection](absl::Status status) {
                      const bool is_cut = status.ok() || absl::IsUnavailable(status);
                      if (!is_cut && IsCurrent(session, connection)) return Refuse(session, status);
                      ConnectionGone(session, connection);
                    },
                    [this, session]() { FlushSession(session); }});
  FlushSession(session);
}

kj::Maybe<kj::Promise<void>> Hub::TakeFromClient(SessionId session, wire::ToCoordinator::Reader message) {
  SessionLink& link = sessions_.at(session);
  link.heard_us = last_uptime_us_ - paused_us_;
  if (message.isAcknowledge()) {
    link.outbox.Acknowledge(message.getAcknowledge());
    return nullptr;
  }
  const absl::Status status = message.isBatch() ? TakeBatch(session, message.getBatch())
                                                : absl::InvalidArgumentError("a message of an unknown kind");
  if (!status.ok()) Refuse(session, status);
  auto found = sessions_.find(session);
  if (found == sessions_.end() || HasRoom(session)) return nullptr;
  auto room = kj::newPromiseAndFulfiller<void>();
  found->second.room = kj::mv(room.fulfiller);
  return kj::mv(room.promise);
}

absl::Status Hub::TakeBatch(SessionId session, wire::Batch::Reader batch) {
  if (batch.getEpoch() != epoch()) {
    return absl::FailedPreconditionError(StrCat("batch ", batch.getNumber(), " is for epoch ", batch.getEpoch(),
                                                " of the coordinator; this is ", epoch()));
  }
  TESSERA_ASSIGN_OR_RETURN(auto records, DecodeRecords(batch));
  linger_.Begin();
  Apply(BatchEvent{session, batch.getNumber(), std::move(records)}, &batch);
  return absl::OkStatus();
}

absl::StatusOr<Hub::Opened> Hub::OpenSession(SessionOpenedEvent event, std::function<void(absl::Status)> on_end) {
  event.session = SessionId(machine_.given().session + 1);
  event.secret = RandomSecret();
  absl::Status refused;
  SessionLink& link = sessions_[event.session];
  link.secret = event.secret;
  link.on_end = [&refused](absl::Status status) { refused = std::move(status); };
  event.connection = ConnectSession(event.session, link);
  Opened opened{event.session, link.secret, event.connection, link.link_key};
  Apply(event);
  TESSERA_RETURN_IF_ERROR(refused);
  sessions_.at(opened.session).on_end = std::move(on_end);
  return opened;
}

absl::StatusOr<Hub::Opened> Hub::ResumeSession(const ResumeRequest& resume, Role role,
                                               std::function<void(absl::Status)> on_end) {
  const SessionId session = resume.session;
  auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.secret != resume.secret ||
      machine_.sessions().at(session).info.role != role) {
    return absl::NotFoundError(
        StrCat("connect: no session ", session.value, " with this secret is here; its lease may be over"));
  }
  SessionLink& link = found->second;
  const absl::Status taken = absl::CancelledError("another connection took the session");
  if (link.link.get() != nullptr) SendEnded(*link.link, taken);
  if (link.on_end) link.on_end(taken);
  link.on_end = std::move(on_end);
  const uint64_t connection = ConnectSession(session, link);
  Opened opened{session, resume.secret, connection, link.link_key};
  link.outbox.Resume(resume.last_event);
  Apply(SessionResumedEvent{session, resume.who, connection});
  return opened;
}

absl::Status Hub::CloseByAdmin(SessionId session, SessionId by) {
  if (!sessions_.contains(session)) {
    return absl::NotFoundError(StrCat("close: session ", session.value, " is not here"));
  }
  spdlog::info("session {} is closed by the admin of session {}", session.value, by.value);
  EndLink(session, absl::CancelledError("an admin closed the session"));
  Apply(SessionClosedEvent{session});
  return absl::OkStatus();
}

absl::Status Hub::KillByAdmin(WorkerIndex worker, const std::string& reason, SessionId by) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.link.get() == nullptr) {
    return absl::NotFoundError(StrCat("kill-worker: worker ", worker.value, " is not here"));
  }
  const std::string shown = Printable(reason, kMaxLogChars);
  spdlog::warn("worker {} is ended by the admin of session {}{}{}", worker.value, by.value, shown.empty() ? "" : ": ",
               shown);
  WorkerLink& link = found->second;
  link.ended_by = shown.empty() ? "an admin ended it" : StrCat("an admin ended it: ", shown);
  const uint64_t incarnation = link.info.incarnation;
  const absl::Status ended = End(link.process, link.info.pid);
  if (ended.ok()) return ended;
  const std::string why(ended.message());
  if (!absl::IsNotFound(ended) && machine_.IsMappedByPeers(worker)) {
    link.ended_by.clear();
    return absl::FailedPreconditionError(
        StrCat("kill-worker: worker ", worker.value, " can't be ended from here (", why,
               "), and others map its memory, which it may still write to; end its process on its own host"));
  }
  WorkerGone(worker, incarnation, why);  // it ends when its line does
  return absl::OkStatus();
}

bool Hub::IsCurrent(SessionId session, uint64_t connection) const {
  auto found = machine_.sessions().find(session);
  return sessions_.contains(session) && found != machine_.sessions().end() && found->second.connection == connection;
}

void Hub::ConnectionGone(SessionId session, uint64_t connection) {
  if (!IsCurrent(session, connection)) return;
  SessionLink& link = sessions_.at(session);
  if (!link.is_connected) return;
  Disconnect(link);
  link.on_end = nullptr;
  Apply(ConnectionLostEvent{session, connection});
}

void Hub::LoseSilent() {
  const int64_t limit_us = static_cast<int64_t>(options_.session_silence_s * 1e6);
  if (limit_us <= 0) return;
  const int64_t now_us = NowUs();
  std::vector<std::pair<SessionId, uint64_t>> silent;
  for (const auto& [session, link] : sessions_) {
    if (!link.is_connected || now_us - link.heard_us <= limit_us) continue;
    silent.emplace_back(session, machine_.sessions().at(session).connection);
  }
  for (const auto& [session, connection] : silent) {
    spdlog::warn("session {}: its client has said nothing for {} s (session_silence)", session.value,
                 options_.session_silence_s);
    ConnectionGone(session, connection);
  }
}

void Hub::EndLink(SessionId session, const absl::Status& reason) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  auto on_end = std::move(found->second.on_end);
  if (found->second.link.get() != nullptr) {
    SendEnded(*found->second.link, reason);
    Retire(kj::mv(found->second.link));
  }
  expected_links_.erase(found->second.link_key);
  sessions_.erase(found);
  if (on_end) on_end(reason);
}

// The machine hears of a worker when its link is there: those whose links are on their way have numbers, too.
uint64_t Hub::NextIncarnation() const {
  uint64_t newest = machine_.given().incarnation;
  for (const auto& [index, link] : workers_) newest = std::max(newest, link.info.incarnation);
  return newest + 1;
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
  // Those whose links are on their way, too.
  for (const auto& [index, other] : workers_) TESSERA_RETURN_IF_ERROR(CheckReach(event, other.info));
  event.incarnation = NextIncarnation();
  const WorkerIndex worker = event.worker;
  const uint64_t key = ExpectLink([this, event](kj::Own<LinkStream> stream) { StartWorker(event, kj::mv(stream)); });
  const auto joined = workers_.emplace(worker, WorkerLink{kj::mv(client), event, key, {}}).first;
  joined->second.process = OpenProcess(event.pid);
  return Joined{worker, event.incarnation, key};
}

void Hub::StartWorker(const WorkerJoinedEvent& event, kj::Own<LinkStream> stream) {
  const WorkerIndex worker = event.worker;
  const uint64_t incarnation = event.incarnation;
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return;
  clocks_[worker] = ClockOffset(event.host == HostIdentity() ? ClockOffset::Host::kOwn : ClockOffset::Host::kOther);
  found->second.link = kj::heap<MessageLink>(kj::mv(stream));
  found->second.link->Start(
      {[this, worker, incarnation](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
         const absl::Status status = TakeReported(worker, incarnation, message.getRoot<wire::Reported>());
         if (!status.ok()) WorkerGone(worker, incarnation, std::string(status.message()));
         return nullptr;
       },
       [this, worker, incarnation](absl::Status status) {
         WorkerGone(worker, incarnation, status.ok() ? "its link closed" : std::string(status.message()));
       },
       [this]() { FlushWorkers(); }});
  spdlog::info("worker {} joined: pid {}, {} bytes, {}{}{}", worker.value, event.pid, event.memory_bytes,
               Printable(event.data_address, kMaxLogChars), event.remote_address.empty() ? "" : " and ",
               Printable(event.remote_address, kMaxLogChars));
  Apply(event);
  tasks_.add(Ping(worker, incarnation));
}

void Hub::Stop() { workers_.clear(); }

void Hub::WorkerGone(WorkerIndex worker, uint64_t incarnation, const std::string& reason) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return;
  spdlog::warn("worker {} is gone: {}", worker.value, Printable(reason, kMaxLogChars));
  const bool has_joined = found->second.link.get() != nullptr;
  const std::string cause = found->second.ended_by.empty() ? reason : found->second.ended_by;
  Retire(kj::mv(found->second.link));
  expected_links_.erase(found->second.link_key);
  workers_.erase(found);
  if (!has_joined) return;
  Apply(WorkerLostEvent{worker, incarnation, cause});
}

kj::Promise<void> Hub::Ping(WorkerIndex worker, uint64_t incarnation) {
  auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.info.incarnation != incarnation) return kj::READY_NOW;
  const int64_t sent_ns = MonotonicNs();
  return found->second.client.pingRequest().send().then(
      [this, worker, incarnation, sent_ns](auto&& answer) -> kj::Promise<void> {
        auto alive = workers_.find(worker);
        if (alive == workers_.end() || alive->second.info.incarnation != incarnation) return kj::READY_NOW;
        clocks_.at(worker).Add(sent_ns, answer.getNowNs(), MonotonicNs());
        if (answer.getIsAtWork()) ++alive->second.activity;
        Apply(WorkerHeardEvent{worker, answer.getIsAtWork()});
        return PingLater(worker, incarnation);
      },
      [this, worker, incarnation](kj::Exception&& exception) -> kj::Promise<void> {
        const absl::Status status = FromException(exception);
        WorkerGone(worker, incarnation, std::string(status.message()));
        return kj::READY_NOW;
      });
}

kj::Promise<void> Hub::PingLater(WorkerIndex worker, uint64_t incarnation) {
  const auto pause = static_cast<int64_t>(options_.heartbeat_s * 1e6) * kj::MICROSECONDS;
  return timer_.afterDelay(pause).then([this, worker, incarnation]() { return Ping(worker, incarnation); });
}

kj::Promise<void> Hub::RunTicks() {
  return timer_.afterDelay(kTick).then([this]() {
    ticking_ = true;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this]() {
                   LoseSilent();
                   Apply(TickEvent{});
                 })) {
      spdlog::error("tick failed: {}", exception->getDescription().cStr());
    }
    ticking_ = false;
    return RunTicks();
  });
}

void Hub::taskFailed(kj::Exception&& exception) { spdlog::error("task failed: {}", exception.getDescription().cStr()); }

}  // namespace tessera
