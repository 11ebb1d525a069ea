#include "server/coordinator/rpc/hub.h"

#include <sys/random.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/values.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/link/refusals.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/state_folder.h"

namespace tessera {
namespace {

constexpr uint64_t kWordsPerMessage = 40;
constexpr auto kTick = 50 * kj::MILLISECONDS;
constexpr int64_t kMaxFailureBytes = 1024;  // of a tensor's event that says why it failed, about
constexpr int64_t kRestUs = 1'000'000;
constexpr int64_t kMaxPauseUs = 1'000'000;  // docs/limits.md: max_pause

void SendEnded(MessageLink& link, const absl::Status& reason) {
  capnp::MallocMessageBuilder message(FirstSegmentWords(1, kWordsPerMessage));
  EncodeStatus(reason, message.initRoot<wire::ToClient>().initEnded());
  link.Send(message);
}

}  // namespace

uint64_t RandomSecret() {
  uint64_t secret = 0;
  while (secret == 0) TESSERA_CHECK(getrandom(&secret, sizeof(secret), 0) == sizeof(secret));
  return secret;
}

Hub::Hub(const CoordinatorOptions& options, kj::Timer& timer, kj::UnixEventPort& port, std::unique_ptr<Core> core,
         const ServerManager& manager)
    : options_(options),
      manager_(manager),
      timer_(timer),
      port_(port),
      linger_(port),
      started_(timer.now()),
      core_(std::move(core)),
      machine_(core_->machine()),
      began_us_(core_->now_us()),
      tenants_edge_(options),
      drains_(machine_, static_cast<int64_t>(options.stop_timeout_s * 1e6),
              [this](Event event) { Apply(std::move(event)); }),
      tasks_(*this) {
  const bool is_recovered = core_->is_recovered();
  Apply(StartedEvent{is_recovered ? machine_.given().epoch + 1 : options.epoch,
                     is_recovered ? core_->peer_key() : RandomSecret()});
  if (!is_recovered) return;
  GoOnWithSessions();
  GoOnWithWorkers();
  drains_.GiveUpFormer();
}

// All connections went with the former process: leases begin.
void Hub::GoOnWithSessions() {
  std::vector<std::pair<SessionId, uint64_t>> connected;
  for (const auto& [id, session] : machine_.sessions()) {
    SessionLink& link = sessions_[id];
    link.secret = session.info.secret;
    link.outbox = &core_->outbox(id);
    if (session.connected) connected.emplace_back(id, session.connection);
  }
  for (const auto& [session, connection] : connected) Apply(ConnectionLostEvent{session, connection});
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
  return began_us_ + uptime_us - paused_us_;
}

void Hub::Apply(Event event, const wire::Batch::Reader* batch, JournalWriter::Words came) {
  AwaitSlowSync();
  const int64_t began_ns = MonotonicNs();
  KJ_DEFER(loop_ns_ += MonotonicNs() - began_ns);
  absl::StatusOr<Core::Consequences> consequences = core_->Apply(NowUs(), event, batch, came);
  while (!consequences.ok()) {
    AwaitLog(consequences.status());
    consequences = core_->Apply(NowUs(), event, batch, came);
  }
  if (state_ != nullptr) state_->Spent(MonotonicNs() - began_ns);
  Carry(*std::move(consequences));
  BeginSync();
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

void Hub::Carry(Core::Consequences consequences) {
  for (const EndSession& end : consequences.ended) {
    if (audit_ != nullptr && !end.tenant.empty()) {
      audit_->AddUsage(book_.Last(end));
      Record({"end", end.tenant, "", end.session.value, end.name, "allowed", std::string(end.reason.message())});
    }
    FlushSession(end.session);
    const auto link = sessions_.find(end.session);
    const bool is_refused = link != sessions_.end() && !link->second.refusal.ok();
    EndLink(end.session, is_refused ? link->second.refusal : end.reason);
    core_->Drop(end.session);
  }
  Flush();
  for (const KillWorker& victim : consequences.victims) Kill(victim);  // which may be an event of its own
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
                                               sessions_.at(*largest).outbox->bytes(), " bytes")));
  }
}

void Hub::Refuse(SessionId session, const absl::Status& reason) {
  LogRefusal(StrCat("session ", session.value), StdView(reason.message()));
  CloseFor(session, reason);
}

// Its client hears why when the event is committed.
void Hub::CloseFor(SessionId session, const absl::Status& reason) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || !found->second.refusal.ok()) return;
  if (!machine_.sessions().contains(session)) return EndLink(session, reason);
  found->second.refusal = reason;
  Apply(SessionClosedEvent{session});
}

void Hub::Retire(kj::Own<MessageLink> link) {
  if (link.get() == nullptr) return;
  link->Stop();
  tasks_.add(kj::evalLater([]() {}).attach(kj::mv(link)));
}

// Each tensor may fail once, all of them at a time.
bool Hub::IsFlooded(SessionId session, const SessionLink& link) const {
  const SessionOutbox& outbox = *link.outbox;
  const int64_t events = static_cast<int64_t>(outbox.size());
  const int64_t bytes = outbox.bytes();
  if (events <= options_.config.max_pending_events && bytes <= options_.config.max_pending_event_bytes) return false;
  auto found = machine_.sessions().find(session);
  const auto tensors = found == machine_.sessions().end() ? 0 : static_cast<int64_t>(found->second.tensors.size());
  return events > options_.config.max_pending_events + tensors ||
         bytes > options_.config.max_pending_event_bytes + tensors * kMaxFailureBytes;
}

int64_t Hub::EventBytesOf(SessionId session, const SessionLink& link) const {
  const auto found = machine_.sessions().find(session);
  const auto tensors = found == machine_.sessions().end() ? 0 : static_cast<int64_t>(found->second.tensors.size());
  return std::max<int64_t>(0, link.outbox->bytes() - tensors * kMaxFailureBytes);
}

std::optional<SessionId> Hub::LargestOutbox() const {
  int64_t bytes = 0;
  for (const auto& [session, link] : sessions_) bytes += link.outbox->bytes();
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
  if (is_stopping_) return false;
  auto found = machine_.sessions().find(session);
  return found == machine_.sessions().end() || found->second.queue_weight < static_cast<int64_t>(kSubmitHighWater);
}

// ---- sessions -----------------------------------------------------------------------------------

void Hub::FlushSession(SessionId session) {
  auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.link.get() == nullptr) return;
  SessionLink& link = found->second;
  // Events that wait since the last tick have waited enough.
  const auto quiet = ticking_ ? SessionOutbox::Quiet::kNow : SessionOutbox::Quiet::kMayWait;
  std::optional<capnp::MallocMessageBuilder> message;
  while (link.link->is_clear() && link.outbox->NextMessage(quiet, message)) link.link->Send(*message);
}

// Events that were sent and not acknowledged are to be sent again.
void Hub::Disconnect(SessionLink& link) {
  Retire(kj::mv(link.link));
  expected_links_.erase(link.link_key);
  link.is_connected = false;
  link.outbox->Disconnected();
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
  link.link->Start({[this, session](capnp::MessageReader& message) { return TakeFromClient(session, message); },
                    [this, session, connection](absl::Status status) {
                      const bool is_cut = status.ok() || absl::IsUnavailable(status);
                      if (!is_cut && IsCurrent(session, connection)) return Refuse(session, status);
                      ConnectionGone(session, connection);
                    },
                    [this, session]() { FlushSession(session); }});
  FlushSession(session);
}

kj::Maybe<kj::Promise<void>> Hub::TakeFromClient(SessionId session, capnp::MessageReader& came) {
  const auto message = came.getRoot<wire::ToCoordinator>();
  SessionLink& link = sessions_.at(session);
  if (!link.refusal.ok()) return nullptr;  // it is over, and its client hears so soon
  link.heard_us = began_us_ + last_uptime_us_ - paused_us_;
  if (message.isAcknowledge()) {
    if (const absl::Status status = core_->Acknowledge(session, message.getAcknowledge()); !status.ok()) {
      spdlog::error("{}", std::string(status.message()));
    }
    return nullptr;
  }
  // A batch that comes while the process stops is not taken: with --state its client sends it to the next one.
  const bool is_held = is_stopping_ && message.isBatch();
  const absl::Status status = is_held             ? absl::OkStatus()
                              : message.isBatch() ? TakeBatch(session, message.getBatch(), came)
                                                  : absl::InvalidArgumentError("a message of an unknown kind");
  if (!status.ok()) Refuse(session, status);
  auto found = sessions_.find(session);
  if (found == sessions_.end() || HasRoom(session)) return nullptr;
  auto room = kj::newPromiseAndFulfiller<void>();
  found->second.room = kj::mv(room.fulfiller);
  return kj::mv(room.promise);
}

absl::Status Hub::TakeBatch(SessionId session, wire::Batch::Reader batch, capnp::MessageReader& came) {
  if (batch.getEpoch() != epoch()) {
    return absl::FailedPreconditionError(StrCat("batch ", batch.getNumber(), " is for epoch ", batch.getEpoch(),
                                                " of the coordinator; this is ", epoch()));
  }
  TESSERA_ASSIGN_OR_RETURN(auto records, DecodeRecords(batch));
  linger_.Begin();
  const bool is_one = came.getSegment(1) == nullptr;
  Apply(BatchEvent{session, batch.getNumber(), std::move(records)}, &batch, is_one ? came.getSegment(0) : nullptr);
  return absl::OkStatus();
}

absl::StatusOr<Hub::Opened> Hub::OpenSession(SessionOpenedEvent event, std::function<void(absl::Status)> on_end) {
  if (is_stopping_) return absl::UnavailableError("connect: the coordinator is being stopped");
  event.session = SessionId(machine_.given().session + 1);
  event.secret = RandomSecret();
  absl::Status refused;
  SessionLink& link = sessions_[event.session];
  link.secret = event.secret;
  link.outbox = &core_->outbox(event.session);
  link.on_end = [&refused](absl::Status status) { refused = std::move(status); };
  event.connection = ConnectSession(event.session, link);
  Opened opened{event.session, link.secret, event.connection, link.link_key};
  Apply(event);
  if (const std::optional<EndSession> refusal = core_->TakeRefusal(event.session); refusal.has_value()) {
    EndLink(event.session, refusal->reason);
    core_->Drop(event.session);
  }
  TESSERA_RETURN_IF_ERROR(refused);
  sessions_.at(opened.session).on_end = std::move(on_end);
  return opened;
}

absl::StatusOr<Hub::Opened> Hub::ResumeSession(const ResumeRequest& resume, const Holder& holder,
                                               std::function<void(absl::Status)> on_end) {
  const SessionId session = resume.session;
  auto found = sessions_.find(session);
  const auto entry = machine_.sessions().find(session);
  if (found == sessions_.end() || entry == machine_.sessions().end() || found->second.secret != resume.secret ||
      entry->second.info.role != holder.role || entry->second.info.tenant != holder.tenant) {
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
  link.outbox->Resume(resume.last_event);
  Apply(SessionResumedEvent{session, resume.who, connection});
  return opened;
}

absl::Status Hub::CloseByAdmin(SessionId session, SessionId by) {
  if (!sessions_.contains(session)) {
    return absl::NotFoundError(StrCat("close: session ", session.value, " is not here"));
  }
  spdlog::info("session {} is closed by the admin of session {}", session.value, by.value);
  CloseFor(session, absl::CancelledError("an admin closed the session"));
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
    const auto entry = machine_.sessions().find(session);
    if (!link.is_connected || now_us - link.heard_us <= limit_us || entry == machine_.sessions().end()) continue;
    silent.emplace_back(session, entry->second.connection);
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

// Each tick stands in the log of --state: while nobody waits for time one a second is enough.
bool Hub::MayRest() {
  if (options_.state_folder.empty() || machine_.unsettled_ops() > 0 || machine_.process_groups().size() > 0) {
    return false;
  }
  const auto is_away = [](const auto& session) { return !session.second.connected; };
  if (std::any_of(machine_.sessions().begin(), machine_.sessions().end(), is_away)) return false;
  return NowUs() - machine_.now_us() < kRestUs;
}

kj::Promise<void> Hub::RunTicks() {
  return timer_.afterDelay(kTick).then([this]() {
    ticking_ = true;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this]() {
                   LoseSilent();
                   drains_.Look(NowUs());
                   BookUsage();
                   if (manager_.watchdog_us() > 0 && UptimeUs() - alive_us_ >= manager_.watchdog_us() / 4) {
                     alive_us_ = UptimeUs();
                     manager_.Alive();
                   }
                   MayRest() ? Flush() : Apply(TickEvent{});
                   SnapshotWhenDue();
                 })) {
      spdlog::error("tick failed: {}", exception->getDescription().cStr());
    }
    ticking_ = false;
    return RunTicks();
  });
}

void Hub::taskFailed(kj::Exception&& exception) { spdlog::error("task failed: {}", exception.getDescription().cStr()); }

}  // namespace tessera
