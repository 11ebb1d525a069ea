#include "tests/simulation/simulation.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "schemas/session.capnp.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/session_outbox.h"
#include "server/coordinator/state_machine.h"
#include "tests/simulation/drawn_limits.h"
#include "tests/simulation/generator.h"
#include "tests/simulation/machine_laws.h"
#include "tests/simulation/publication_laws.h"
#include "tests/simulation/schedule.h"
#include "tests/simulation/simulated_config.h"
#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_session.h"
#include "tests/simulation/simulated_workers.h"
#include "tests/simulation/tenant_laws.h"
#include "tests/simulation/texts.h"

namespace tessera {
namespace {

constexpr uint64_t kFirstEpoch = 7;
constexpr uint64_t kPeerKey = 99;
constexpr int64_t kTearOneIn = 150;  // of events that may be torn
constexpr int kWorkers = kSimulatedWorkers;
constexpr int kSessions = 3;
constexpr int kRanks = 2;  // sessions that are members of a process group
constexpr int64_t kLeaseUs = 30'000;
constexpr int64_t kTickUs = 10'000;
constexpr int64_t kSilenceUs = 40'000;
// Longer than any lease, pause and queue.
constexpr int64_t kSettlingUs = 2'000'000;  // a worker that stalls is probed after 100 times what it has to do

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed),
        coordinator_(SimulatedConfig(options.seed), LogOf(options),
                     options.fault == Fault::kEffectBeforeSync ? SimulatedCoordinator::Holds::kNothing
                                                               : SimulatedCoordinator::Holds::kEffects),
        workers_(schedule_, random_,
                 {[this](Event event) { Apply(std::move(event)); }, [this](absl::Status status) { Broken(status); },
                  [this](std::string text) { Trace(text); }, [this]() { return is_up_ ? epoch() : 0; },
                  [this]() { return machine().given().incarnation + 1; },
                  [this](const SimulatedWorkers::Rejoin& worker) { return Rejoin(worker); },
                  [this](uint64_t number, WorkerReportEvent report) { TakeReport(number, std::move(report)); }},
                 kWorkers, options.seed % 2 == 0 ? kSpillBytes : 0) {
    coordinator_.Observe([this](const Effects& effects) { See(effects); });
  }

  SimulationResult Run() {
    if (options_.fault == Fault::kAnswerProbes) workers_.AnswerProbes();
    if (options_.fault == Fault::kForgetTaken) workers_.ForgetTaken();
    if (options_.fault == Fault::kLoseSpilled) workers_.LoseFiles();
    if (options_.fault == Fault::kSkipBehindSnapshot) coordinator_.LoseFirstBehindSnapshot();
    Apply(StartedEvent{kFirstEpoch, kPeerKey});
    workers_.JoinAll();
    for (int i = 0; i < kSessions; ++i) {
      Session& session = sessions_[static_cast<size_t>(i)];
      session.id = SessionId(static_cast<uint64_t>(i) + 1);
      if (i < kRanks) session.client.BeRank(i, kRanks);
      session.client.BeOf(TenantOf(i), TenantOf(i < kRanks ? kRanks : 0));
      session.is_connected = true;
      session.connection = NextConnection();
      Apply(SessionOpenedEvent{session.id, 77, OpenedAs(i), "simulation", kLeaseUs, Role::kClient, "",
                               session.connection});
      laws_.Opened(session.id, TenantOf(i));
      Dial(i, session.process);
    }
    SyncNow();
    Tick();
    Act(options_.acts);
    while (!schedule_.empty() && result_.status.ok()) {
      schedule_.Step();
      if (++result_.steps > kMaxSimulatedSteps) Broken(absl::InternalError("the run does not end"));
      Broken(CheckBuffers(machine()));
      Broken(laws_.Check(machine()));
    }
    if (result_.status.ok()) Broken(CheckNothingIsLeft(machine()));
    if (result_.status.ok() && options_.replays) {
      Broken(CheckReplay(SimulatedConfig(options_.seed), events_, texts_));
    }
    if (result_.status.ok() && options_.torn_records > 0) Broken(coordinator_.CheckEveryEnd(options_.torn_records));
    result_.instances = workers_.instances();
    result_.spills = workers_.spills();
    for (const Session& session : sessions_) result_.collectives += session.client.matched_calls();
    for (const Session& session : sessions_) result_.attached += session.client.attached();
    result_.publications = static_cast<int64_t>(machine().publications().all().size());
    return std::move(result_);
  }

 private:
  static SimulatedCoordinator::Log LogOf(const SimulationOptions& options) {
    if (options.ends_machine) return SimulatedCoordinator::Log::kSynced;
    return options.kills_coordinator ? SimulatedCoordinator::Log::kKept : SimulatedCoordinator::Log::kNone;
  }
  void Trace(const std::string& text) { result_.trace.push_back(StrCat(schedule_.now_us(), " us: ", text)); }
  void Broken(const absl::Status& status) {
    if (!result_.status.ok() || status.ok()) return;
    result_.status = status;
    Trace(StrCat("BROKEN: ", status.ToString()));
  }
  void Broken(const std::string& text) { Broken(absl::InternalError(text)); }
  Session& At(int index) { return sessions_[static_cast<size_t>(index)]; }
  const StateMachine& machine() const { return coordinator_.machine(); }
  uint64_t epoch() const { return machine().given().epoch; }
  Core& core() { return coordinator_.core(); }
  SessionOutbox& OutboxOf(const Session& session) { return core().outbox(session.id); }
  // The machine's time: a coordinator that was away counts against nobody.
  int64_t NowUs() const { return schedule_.now_us() - paused_us_; }
  uint64_t NextConnection() {
    const uint64_t next = machine().given().connection + 1;
    if (next <= newest_connection_) Broken(StrCat("connection ", next, " is given again"));
    newest_connection_ = next;
    return next;
  }

  // ---- the coordinator ----------------------------------------------------------------------------

  static std::string TenantOf(int session) { return session < kRanks ? "ranks" : "other"; }
  std::string OpenedAs(int session) const {
    return TenantOf(options_.fault == Fault::kChargeAnother && session >= kRanks ? 0 : session);
  }

  void ChangeLimits() {
    std::vector<TenantLimits> tenants;
    for (const int session : {0, kRanks}) tenants.push_back(DrawLimits(TenantOf(session), random_));
    if (random_.OneIn(8)) tenants.pop_back();  // it goes on without new memory
    ++result_.changed_limits;
    Trace(StrCat("limits of ", tenants.size(), " tenants change"));
    laws_.Changed(machine(), tenants);
    limits_ = tenants;
    is_replayed_ = options_.fault != Fault::kLimitsByTheEdge;
    if (options_.fault != Fault::kForgetLowering) Apply(TenantsChangedEvent{std::move(tenants)});
    is_replayed_ = true;
  }

  // False: the coordinator is not there, or was killed as it wrote the event.
  bool Apply(Event event, const wire::Batch::Reader* batch = nullptr) {
    if (!is_up_) return false;
    if (options_.kills_coordinator && !is_settling_ && ComesAgain(event) && random_.OneIn(kTearOneIn)) {
      coordinator_.TearNext(static_cast<uint64_t>(random_.Below(1 << 20)));
    }
    const bool is_kept = options_.replays && is_replayed_;
    if (is_kept) events_.emplace_back(NowUs(), event);
    absl::StatusOr<Core::Consequences> done = coordinator_.Apply(NowUs(), event, batch);
    if (!done.ok()) {
      if (is_kept) events_.pop_back();
      ++result_.torn_events;
      KillCoordinator("as it writes an event");
      return false;
    }
    Carry(*done);
    BeginSync();
    if (machine().has_more() && !std::exchange(going_on_, true)) {
      schedule_.In(0, [this, coordinator = coordinators_]() {
        if (coordinator != coordinators_) return;
        going_on_ = false;
        Apply(ContinuedEvent{});
      });
    }
    return true;
  }

  // ---- the level `disk` ---------------------------------------------------------------------------

  void BeginSync() {
    if (!options_.ends_machine || is_syncing_ || (core().holds_back() && !core().has_held())) return;
    is_syncing_ = true;
    coordinator_.BeginSync();
    schedule_.In(random_.Between(20, random_.OneIn(20) ? 20'000 : 800), [this, coordinator = coordinators_]() {
      if (coordinator != coordinators_) return;
      is_syncing_ = false;
      ++result_.syncs;
      Carry(core().Commit(coordinator_.EndSync()));
      BeginSync();
    });
  }

  void SyncNow() {
    while (core().holds_back() && core().committed() < core().events()) {
      coordinator_.BeginSync();
      Carry(core().Commit(coordinator_.EndSync()));
    }
  }

  // Others hear of the effects of the events up to this one.
  void TellUpTo(uint64_t event) {
    for (; !untold_.empty() && untold_.front().event <= event; untold_.pop_front()) Tell(untold_.front());
  }

  void Carry(const Core::Consequences& done) {
    TellUpTo(core().committed());
    for (const EndSession& end : done.ended) {
      OnEnd(end);
      core().Drop(end.session);
    }
    for (const KillWorker& victim : done.victims) {
      if (workers_.incarnation(victim.worker) != victim.incarnation) continue;
      if (!workers_.is_stalled(victim.worker)) {
        Broken(StrCat("worker ", victim.worker.value, " works, and is ended: it ", victim.reason));
      }
      workers_.Kill(victim.worker);
    }
    FlushWorkers();
    Flush(SessionOutbox::Quiet::kMayWait);
  }

  // Events that the process had applied and told nobody are there again, or the machine's end has lost them.
  void GoOnFromDisk() {
    for (const UntoldEffects& untold : untold_) {
      if (untold.event > core().events()) break;
      Tell(untold);
      for (const Effect& effect : untold.effects) {
        if (const auto* end = std::get_if<EndSession>(&effect)) OnEnd(*end);
      }
    }
    untold_.clear();
    is_syncing_ = false;
    if (!ends_machine_) return;
    lacks_ = true;
    newest_connection_ = machine().given().connection;
    workers_.GivenUpTo(machine().given().incarnation);
    publication_laws_.ComesFromBefore(machine());
    for (const auto& [id, entry] : machine().sessions()) {
      Session& session = At(static_cast<int>(id.value) - 1);
      session.taken = entry.last_batch;
      if (session.is_closed) schedule_.In(1000, [this, &session]() { Close(session); });
    }
  }

  // Their file is read again, and workers whose processes have gone are found so.
  void FindWhatTheLogLacks() {
    if (!limits_.empty()) {
      laws_.Changed(machine(), limits_);
      Apply(TenantsChangedEvent{limits_});
    }
    std::vector<std::pair<WorkerIndex, uint64_t>> gone;
    for (const auto& [index, worker] : machine().workers()) {
      const bool is_other = workers_.incarnation(index) != worker.info.incarnation;
      if (worker.state != WorkerState::kDead && is_other) gone.emplace_back(index, worker.info.incarnation);
    }
    for (const auto& [index, incarnation] : gone) Apply(WorkerLostEvent{index, incarnation, "its process is gone"});
    lacks_ = !is_up_;
  }

  void See(const Effects& effects) {
    if (options_.replays) AddTexts(effects, texts_);
    publication_laws_.See(machine());
    for (const Effect& effect : effects) {
      const auto* told = std::get_if<ToWorkers>(&effect);
      if (told == nullptr) continue;
      ToWorkers looked_at = *told;
      if (options_.fault == Fault::kWritePublished) publication_laws_.Misplace(machine(), random_, looked_at);
      Broken(publication_laws_.Check(machine(), looked_at));
    }
    const UntoldEffects untold{core().events(), effects, workers_.Processes()};
    core().holds_back() ? untold_.push_back(untold) : Tell(untold);
  }

  void Tell(const UntoldEffects& untold) {
    for (const Effect& effect : untold.effects) {
      if (const auto* told = std::get_if<ToWorkers>(&effect)) {
        workers_.Issued(*told, untold.processes);
        if (const auto* window = std::get_if<TransferWindow>(&told->message)) {
          if (!tickets_.insert(window->ticket).second)
            Broken(StrCat("ticket ", window->ticket.value, " is given again"));
        }
      } else if (const auto* to_client = std::get_if<ToClient>(&effect)) {
        Session& session = At(static_cast<int>(to_client->session.value) - 1);
        Broken(CheckAwaited(to_client->event));
        if (std::string text = TextOf(to_client->event); !text.empty()) {
          session.sent.push_back({to_client->event.number, std::move(text)});
        }
        ++result_.events;
      }
    }
  }

  void FlushWorkers() {
    for (auto& [index, line] : core().workers()) {
      while (line.outbox.unsent() > 0 && workers_.is_connected(index)) {
        const std::shared_ptr<const WorkerMessage> message = *line.outbox.next();
        const uint64_t number = line.outbox.next_number();
        if (options_.kills_coordinator) CheckMessage(index, line.incarnation, number, *message);
        line.outbox.Sent(1);
        workers_.Tell(index, number, message, line.committed_reports());
      }
    }
  }

  // A message is the same whichever coordinator sends it.
  void CheckMessage(WorkerIndex worker, uint64_t incarnation, uint64_t number, const WorkerMessage& message) {
    std::string text = ToText(Effect(ToWorkers{MakeGroup({worker}), message}));
    const auto [known, is_new] = messages_.try_emplace({incarnation, number}, text);
    if (is_new) return;
    ++result_.messages_again;
    if (known->second == text) return;
    Broken(StrCat("message ", number, " of worker ", worker.value, " was ", known->second, " and is now ", text));
  }

  void TakeReport(uint64_t number, WorkerReportEvent report) {
    const Core::WorkerLine* const line = core().FindWorker(report.worker);
    if (!is_up_ || line == nullptr || line->incarnation != report.incarnation) return;
    if (number <= line->reports) return;  // it is here already
    if (number > line->reports + 1) return Broken(StrCat("report ", number, " came after report ", line->reports));
    Apply(std::move(report));
  }

  // ---- the coordinator's end and its successor --------------------------------------------------

  void KillCoordinator(const std::string& when) {
    if (!is_up_) return;
    ends_machine_ = options_.ends_machine && random_.OneIn(2);
    Trace(StrCat(ends_machine_ ? "the coordinator's machine ends " : "the coordinator is killed ", when));
    is_up_ = false;
    ++coordinators_;
    publication_laws_.Goes(machine());
    going_on_ = false;
    killed_us_ = schedule_.now_us();
    workers_.LoseCoordinator();
    for (Session& session : sessions_) {
      session.at_server = nullptr;
      session.is_connected = false;
      if (session.at_client) EndWithCoordinator(session.at_client);
    }
    schedule_.In(random_.Between(100, random_.OneIn(3) ? 30'000 : 2000), [this]() { RestartCoordinator(); });
  }

  // Bytes that the process has sent come up to some byte; bytes on their way to it are lost.
  void EndWithCoordinator(const LinkPointer& link) {
    if (link->is_cut || link->is_silent) return;
    link->is_cut = true;
    link->to_server.pieces.clear();
    KeepSome(link->to_client, random_);
    schedule_.At(std::max(schedule_.now_us(), link->to_client.last_arrival_us) + random_.Between(1, 3000),
                 [this, link]() { LostAtClient(link); });
  }

  void RestartCoordinator() {
    if (options_.fault == Fault::kEffectBeforeLog) coordinator_.LoseTail();
    const uint64_t events = core().events();
    Broken(ends_machine_ ? coordinator_.RestartMachine(random_) : coordinator_.Restart());
    if (!result_.status.ok()) return;
    publication_laws_.Comes(machine());
    if (options_.ends_machine) GoOnFromDisk();
    result_.machine_ends += ends_machine_ ? 1 : 0;
    result_.lost_events += static_cast<int64_t>(events - core().events());
    ++result_.restarts;
    is_up_ = true;
    paused_us_ += schedule_.now_us() - killed_us_;
    const uint64_t next_epoch = epoch() + (options_.fault == Fault::kKeepEpoch ? 0 : 1);
    Trace(StrCat("a coordinator of epoch ", next_epoch, " goes on"));
    Apply(StartedEvent{next_epoch, core().peer_key()});
    std::vector<std::pair<SessionId, uint64_t>> connected;
    for (const auto& [id, entry] : machine().sessions()) {
      Session& session = At(static_cast<int>(id.value) - 1);
      session.was_welcomed = true;
      session.acknowledged = entry.last_event - OutboxOf(session).size();
      if (entry.connected) connected.emplace_back(id, entry.connection);
    }
    for (const auto& [id, connection] : connected) Apply(ConnectionLostEvent{id, connection});
    if (lacks_ && is_up_) FindWhatTheLogLacks();
    for (int32_t i = 0; i < kWorkers; ++i) {
      if (machine().workers().at(WorkerIndex(i)).state != WorkerState::kDead) Apply(WorkerHeardEvent{WorkerIndex(i)});
    }
    if (!is_up_) return;
    SyncNow();
    workers_.FindCoordinator();
  }

  void TakeSnapshot() {
    ++result_.snapshots;
    SyncNow();
    Broken(coordinator_.TakeSnapshot());
  }

  std::optional<uint64_t> Rejoin(const SimulatedWorkers::Rejoin& worker) {
    Core::WorkerLine* const line = core().FindWorker(worker.worker);
    if (line == nullptr || line->incarnation != worker.incarnation) return std::nullopt;
    if (worker.reported < line->reports && options_.fault != Fault::kForgetTaken) {
      Broken(StrCat("worker ", worker.worker.value, " has sent ", worker.reported, " reports, and more are here"));
    }
    Broken(line->outbox.Resume(worker.taken));
    result_.reports_again += static_cast<int64_t>(worker.reported - line->reports);
    return options_.fault == Fault::kForgetReports ? 0 : line->committed_reports();
  }

  void OnEnd(const EndSession& end) {
    Session& session = At(static_cast<int>(end.session.value) - 1);
    Trace(StrCat("session ", end.session.value, " ends: ", end.reason.ToString()));
    session.is_over = true;
    if (session.at_server) Cut(session.at_server);
    const bool is_lease = absl::IsDeadlineExceeded(end.reason);
    if (is_lease) ++result_.ended_leases;
    if (is_lease && session.is_connected) Broken("the lease of a connected session ran out");
    const bool is_detached = end.reason.message().find("its detached is") != absl::string_view::npos;
    if (is_detached) ++result_.ended_detached;
    if (is_detached && session.is_connected) Broken("a connected session was ended by its tenant's detached");
    if (is_lease || is_detached || session.is_closed) return;
    Broken(StrCat("a session ended by itself: ", end.reason.ToString()));
  }

  void Flush(SessionOutbox::Quiet quiet) {
    std::optional<capnp::MallocMessageBuilder> message;
    for (Session& session : sessions_) {
      while (session.at_server && !session.is_over && OutboxOf(session).NextMessage(quiet, message)) {
        Send(session.at_server, &Link::to_client, BytesOf(*message));
      }
    }
  }

  void Tick() {
    LoseSilent();
    Apply(TickEvent{});
    workers_.Beat();
    if (is_up_) Flush(SessionOutbox::Quiet::kNow);
    // Signs of life.
    for (Session& session : sessions_) {
      if (session.at_client) Send(session.at_client, &Link::to_server, session.client.Acknowledgement());
    }
    if (!is_over_) schedule_.In(kTickUs, [this]() { Tick(); });
  }

  void LoseSilent() {
    if (options_.fault == Fault::kNeverLoseSilent || !is_up_) return;
    for (Session& session : sessions_) {
      if (session.is_over || !session.is_connected || schedule_.now_us() - session.heard_us <= kSilenceUs) continue;
      Trace(StrCat("session ", session.id.value, " says nothing"));
      Disconnect(session);
    }
  }

  void Disconnect(Session& session) {
    session.at_server = nullptr;
    session.is_connected = false;
    if (!session.is_over) OutboxOf(session).Disconnected();
    Apply(ConnectionLostEvent{session.id, session.connection});
  }

  void TakeFromClient(const LinkPointer& link, const std::string& bytes) {
    Session& session = At(link->session);
    if (session.connection != link->connection || session.is_over || !session.is_connected) return;
    session.heard_us = schedule_.now_us();
    session.at_server = link;
    link->at_server.Add(bytes);
    while (auto words = link->at_server.Next()) {
      capnp::FlatArrayMessageReader reader(*words);
      const auto message = reader.getRoot<wire::ToCoordinator>();
      if (message.isAcknowledge()) {
        session.acknowledged = std::max(session.acknowledged, message.getAcknowledge());
        Broken(core().Acknowledge(session.id, message.getAcknowledge()));
      } else {
        TakeBatch(session, message.getBatch());
      }
      if (session.is_over || !is_up_ || !result_.status.ok()) return;
    }
    Flush(SessionOutbox::Quiet::kMayWait);
  }

  void TakeBatch(Session& session, wire::Batch::Reader batch) {
    auto records = DecodeRecords(batch);
    if (!records.ok()) return Broken(records.status());
    const std::string text = TextOf(*records);
    const uint64_t number = batch.getNumber();
    if (batch.getEpoch() != epoch()) return Broken(StrCat("batch ", number, " is for epoch ", batch.getEpoch()));
    const auto entry = machine().sessions().find(session.id);
    if (entry == machine().sessions().end()) return;  // its end is not committed yet
    const uint64_t before = entry->second.last_batch;
    if (!Apply(BatchEvent{session.id, number, *std::move(records)}, &batch)) return;
    ++result_.batches;
    Trace(StrCat("session ", session.id.value, " batch ", number, ": ", text));
    const auto found = machine().sessions().find(session.id);
    if (found == machine().sessions().end()) return;
    if (found->second.last_batch == before) {
      ++result_.resent_batches;
      if (number > before) Broken(StrCat("batch ", number, " was not taken"));
      return;
    }
    if (number != ++session.taken) return Broken(StrCat("batch ", number, " was taken as number ", session.taken));
    const std::string& made = session.client.batches().at(number - 1);
    if (text != made) Broken(StrCat("batch ", number, " came as ", text, " and was made as ", made));
  }

  // ---- links --------------------------------------------------------------------------------------

  void Send(const LinkPointer& link, Pipe Link::*way, std::string bytes) {
    if (link->is_cut || link->is_silent) return;
    Pipe& pipe = (*link).*way;
    pipe.last_arrival_us = std::max(pipe.last_arrival_us, schedule_.now_us() + random_.Between(10, 2000));
    pipe.pieces.push_back(std::move(bytes));
    schedule_.At(pipe.last_arrival_us, [this, link, way]() { Arrive(link, way); });
  }

  void Arrive(const LinkPointer& link, Pipe Link::*way) {
    Pipe& pipe = (*link).*way;
    if (pipe.pieces.empty() || link->is_silent) return;  // it was cut away, or is lost
    const std::string bytes = std::move(pipe.pieces.front());
    pipe.pieces.pop_front();
    if (way == &Link::to_server) {
      if (link->coordinator == coordinators_) TakeFromClient(link, bytes);
      return;
    }
    Session& session = At(link->session);
    if (session.at_client != link) return;
    Broken(session.client.Take(bytes));
    if (options_.fault == Fault::kRepeatEvent && random_.OneIn(20)) session.client.RepeatEvent();
    Broken(CompareEvents(session));
    BringUploads(session, link->session);
    SendBatches(session);  // for which credit may have come
    if (is_settling_ || random_.OneIn(3)) Send(link, &Link::to_server, session.client.Acknowledgement());
  }

  // By other connections than the coordinator's.
  void BringUploads(Session& session, int index) {
    for (const uint64_t ticket : session.client.TakeTickets()) {
      if (options_.fault == Fault::kForgetUpload && random_.OneIn(3)) workers_.ForgetUpload();
      if (!is_settling_ && random_.OneIn(8)) {
        ++result_.given_up_uploads;
        session.client.GiveUp(ticket);
        continue;
      }
      // Some take long: calls that need them wait.
      const int64_t after_us = random_.Between(10, random_.OneIn(3) ? 60'000 : 2000);
      schedule_.In(after_us, [this, index, ticket, process = session.process]() {
        const Session& bringing = At(index);
        if (bringing.process != process || bringing.has_stopped) return;
        ++result_.uploads;
        workers_.Bring(TicketId(ticket));
      });
    }
  }

  // After any byte of what is on its way, in each direction.
  void Cut(const LinkPointer& link) {
    if (link->is_cut) return;
    link->is_cut = true;
    for (Pipe Link::*way : {&Link::to_server, &Link::to_client}) {
      Pipe& pipe = (*link).*way;
      KeepSome(pipe, random_);
      // Each end hears of it by itself, after what came.
      const int64_t heard_us = std::max(schedule_.now_us(), pipe.last_arrival_us) + random_.Between(1, 8000);
      schedule_.At(heard_us,
                   [this, link, way]() { way == &Link::to_server ? LostAtServer(link) : LostAtClient(link); });
    }
  }

  void LostAtServer(const LinkPointer& link) {
    Session& session = At(link->session);
    if (session.is_over || link->coordinator != coordinators_) return;
    if (session.connection == link->connection) {
      if (!session.is_connected) return;
      Trace(StrCat("session ", session.id.value, " has lost connection ", link->connection));
      return Disconnect(session);
    }
    // The machine knows that it has a newer one.
    const bool is_taken = options_.fault == Fault::kTakeStaleLoss && session.is_connected;
    Apply(ConnectionLostEvent{session.id, is_taken ? session.connection : link->connection});
  }

  void LostAtClient(const LinkPointer& link) {
    Session& session = At(link->session);
    if (session.at_client != link) return;
    session.at_client = nullptr;
    session.client.Lost();
    DialIn(random_.Between(0, 15'000), link->session);
  }

  void DialIn(int64_t us, int index) {
    schedule_.In(us, [this, index, process = At(index).process]() { Dial(index, process); });
  }

  void Dial(int index, int process) {
    Session& session = At(index);
    if (session.has_stopped || session.is_over || session.process != process) return;
    // It may be told of what it has: then that is dropped when it comes again.
    uint64_t last_event = session.client.last_event();
    if (random_.OneIn(3)) last_event -= std::min(last_event, static_cast<uint64_t>(random_.Below(4)));
    if (options_.fault == Fault::kSkipResend && session.was_welcomed) ++last_event;
    if (!is_settling_ && random_.OneIn(6)) return DialIn(random_.Between(100, 9000), index);
    schedule_.In(random_.Between(10, 2000),
                 [this, index, process, last_event]() { Welcome(index, process, last_event); });
  }

  void Welcome(int index, int process, uint64_t last_event) {
    Session& session = At(index);
    if (session.is_over || session.process != process) return;
    if (!is_up_ || !machine().sessions().contains(session.id)) return DialIn(random_.Between(100, 3000), index);
    const bool is_first = !std::exchange(session.was_welcomed, true);
    if (session.at_server) Cut(std::exchange(session.at_server, nullptr));
    auto link = std::make_shared<Link>();
    link->session = index;
    link->coordinator = coordinators_;
    link->epoch = epoch();
    if (!is_first) session.connection = NextConnection();
    link->connection = session.connection;
    session.is_connected = true;
    session.heard_us = schedule_.now_us();
    OutboxOf(session).Resume(last_event);
    session.acknowledged = std::max(session.acknowledged, last_event);
    if (session.client.events().empty()) BeginBehind(session);
    const Returning who = options_.fault == Fault::kTakeForTheSame ? Returning::kSameClient : session.returning;
    if (!is_first) Apply(SessionResumedEvent{session.id, who, link->connection});
    uint64_t last_batch = machine().sessions().at(session.id).last_batch;
    Trace(StrCat("session ", session.id.value, " has connection ", link->connection, " after batch ", last_batch,
                 " and event ", last_event));
    // As of a while ago: then what it has since comes again, and is dropped.
    if (!session.client.is_fresh() && random_.OneIn(3))
      last_batch -= std::min(last_batch, static_cast<uint64_t>(random_.Below(4)));
    if (!is_settling_ && random_.OneIn(8)) {
      link->is_cut = true;
      schedule_.In(random_.Between(1, 5000), [this, link]() { LostAtServer(link); });
      return DialIn(random_.Between(100, 9000), index);
    }
    schedule_.In(random_.Between(10, 2000), [this, link, process, last_batch, event = core().events()]() {
      ConnectedAfter(event, link, process, last_batch);
    });
  }

  // The answer tells of the events up to this one.
  void ConnectedAfter(uint64_t event, const LinkPointer& link, int process, uint64_t last_batch) {
    if (!core().holds_back() || link->coordinator != coordinators_ || core().committed() >= event) {
      return Connected(link, process, last_batch);
    }
    core().Want();
    BeginSync();
    schedule_.In(100, [=, this]() { ConnectedAfter(event, link, process, last_batch); });
  }

  void Connected(const LinkPointer& link, int process, uint64_t last_batch) {
    Session& session = At(link->session);
    if (session.is_over || session.has_stopped || session.process != process) return Cut(link);
    if (link->coordinator != coordinators_) return DialIn(random_.Between(100, 3000), link->session);
    session.at_client = link;
    session.returning = Returning::kSameClient;
    session.client.ForgetBytes();
    session.client.Connected(link->epoch, link->connection, last_batch);
    Send(link, &Link::to_server, "");
    SendBatches(session);
  }

  void SendBatches(Session& session) {
    while (session.at_client) {
      std::optional<std::string> message = session.client.NextMessage();
      if (!message.has_value()) return;
      if (options_.fault == Fault::kLoseBatch && random_.OneIn(10)) continue;
      const size_t half = random_.OneIn(2) ? message->size() / 2 + 3 : message->size();
      Send(session.at_client, &Link::to_server, message->substr(0, half));
      if (half < message->size()) Send(session.at_client, &Link::to_server, message->substr(half));
    }
  }

  // ---- what happens -------------------------------------------------------------------------------

  void Act(int left) {
    if (left == 0) return Settle();
    if (random_.OneIn(10) && is_up_) ChangeLimits();
    if (options_.kills_coordinator && random_.OneIn(60)) KillCoordinator("between two events");
    if (options_.takes_snapshots && is_up_ && random_.OneIn(20)) TakeSnapshot();
    const int index = static_cast<int>(random_.Below(kSessions));
    Session& session = At(index);
    const bool is_clients = !session.has_stopped && !session.is_closed && !session.is_over;
    const int64_t what = random_.Below(100);
    if (what < 75) {
      if (is_clients) Ask(session);
    } else if (what < 77) {
      if (session.at_client) FallSilent(session.at_client);
    } else if (what < 78) {
      if (is_clients) StartAgain(session, index);
    } else if (what < 92) {
      if (session.at_client && !session.at_client->is_cut) {
        Trace(StrCat("the link of session ", session.id.value, " is cut"));
        ++result_.cuts;
        Cut(session.at_client);
      }
    } else if (what < 96) {
      const WorkerIndex worker(static_cast<int32_t>(random_.Below(kWorkers)));
      if (workers_.lives(worker)) ++result_.lost_workers;
      workers_.Kill(worker);
    } else if (what < 97) {
      Stop(session);
    } else if (what < 98) {
      Close(session);
    } else if (what < 99) {
      const WorkerIndex worker(static_cast<int32_t>(random_.Below(kWorkers)));
      if (workers_.lives(worker)) ++result_.stalled_workers;
      workers_.Stall(worker);
    } else if (options_.fault == Fault::kLoseReport) {
      workers_.LoseReport();
    }
    schedule_.In(random_.Between(0, 1500), [this, left]() { Act(left - 1); });
  }

  void Ask(Session& session) {
    if (session.returning == Returning::kNewClient) return;  // it has not been welcomed
    if (!session.client.has_credit() && options_.fault != Fault::kIgnoreCredit) {
      ++result_.waits_for_credit;
      return;
    }
    session.client.AddBatch(random_);
    SendBatches(session);
  }

  void FallSilent(const LinkPointer& link) {
    if (link->is_cut || link->is_silent) return;
    Trace(StrCat("the link of session ", At(link->session).id.value, " falls silent"));
    ++result_.silences;
    link->is_silent = true;
    schedule_.In(random_.Between(10'000, 90'000), [this, link]() { LostAtClient(link); });
  }

  // The client's process ends; another one resumes its session.
  void StartAgain(Session& session, int index) {
    Trace(StrCat("another process takes session ", session.id.value));
    ++result_.new_processes;
    if (session.at_client) Cut(std::exchange(session.at_client, nullptr));
    ++session.process;
    session.returning = Returning::kNewClient;
    // The event that it was told may be of a while ago.
    const uint64_t last_event = session.client.last_event();
    session.client.StartAgain(last_event - std::min(last_event, static_cast<uint64_t>(random_.Below(4))));
    BeginBehind(session);
    DialIn(random_.Between(0, 15'000), index);
  }

  // For good, without a word.
  void Stop(Session& session) {
    if (session.has_stopped || session.is_over) return;
    Trace(StrCat("the client of session ", session.id.value, " stops"));
    session.has_stopped = true;
    session.client.Lost();
    if (session.at_client) random_.OneIn(2) ? FallSilent(session.at_client) : Cut(session.at_client);
    if (session.was_welcomed) return;
    Disconnect(session);  // the connection that opened it ends before its link has come
  }

  void Close(Session& session) {
    if (session.is_over) return;
    if (!std::exchange(session.is_closed, true)) Trace(StrCat("session ", session.id.value, " is closed"));
    if (Apply(SessionClosedEvent{session.id})) return;
    schedule_.In(1000, [this, &session]() { Close(session); });
  }

  // Nothing new happens; work under way comes to its end.
  void Settle() {
    Trace("nothing new from here on");
    is_settling_ = true;
    schedule_.In(kSettlingUs, [this]() {
      for (Session& session : sessions_) Broken(CheckSettled(session, machine(), OutboxOf(session)));
      for (Session& session : sessions_) Close(session);
      schedule_.In(kSettlingUs, [this]() { is_over_ = true; });
    });
  }

  // ---- laws ---------------------------------------------------------------------------------------

  SimulationOptions options_;
  Generator random_;
  Schedule schedule_;
  SimulatedCoordinator coordinator_;
  SimulationResult result_;
  std::array<Session, kSessions> sessions_;
  SimulatedWorkers workers_;
  uint64_t newest_connection_ = 0;
  bool is_up_ = true;  // the coordinator is there
  bool is_syncing_ = false, lacks_ = false;
  bool ends_machine_ = false;  // the coordinator that went, with its machine
  std::deque<UntoldEffects> untold_;
  std::vector<TenantLimits> limits_;  // the newest
  int coordinators_ = 0;              // those before it
  int64_t killed_us_ = 0;
  int64_t paused_us_ = 0;       // without a coordinator
  std::set<TicketId> tickets_;  // that were given
  // To a worker's process, by its incarnation and number.
  std::map<std::pair<uint64_t, uint64_t>, std::string> messages_;
  TenantLaws laws_;
  PublicationLaws publication_laws_;
  std::vector<std::pair<int64_t, Event>> events_;  // to be replayed
  std::vector<std::string> texts_;                 // of all effects
  bool is_replayed_ = true;
  bool going_on_ = false, is_settling_ = false, is_over_ = false;
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace tessera
