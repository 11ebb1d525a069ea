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
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/session_outbox.h"
#include "server/coordinator/state_machine.h"
#include "tests/simulation/client_end.h"
#include "tests/simulation/frames.h"
#include "tests/simulation/generator.h"
#include "tests/simulation/publication_laws.h"
#include "tests/simulation/schedule.h"
#include "tests/simulation/simulated_workers.h"
#include "tests/simulation/tenant_laws.h"
#include "tests/simulation/texts.h"

namespace tessera {
namespace {

constexpr uint64_t kEpoch = 7;
constexpr int kWorkers = 3;
constexpr int kSessions = 3;
constexpr int kRanks = 2;  // sessions that are members of a process group
constexpr int64_t kLeaseUs = 30'000;
constexpr int64_t kTickUs = 10'000;
constexpr int64_t kSilenceUs = 40'000;
constexpr int64_t kWorkTimeoutUs = 60'000;
// Longer than any lease, pause and queue.
constexpr int64_t kSettlingUs = 2'000'000;  // a worker that stalls is probed after 100 times what it has to do

// One way of a link: bytes on their way, in order.
struct Pipe {
  std::deque<std::string> pieces;
  int64_t last_arrival_us = 0;
};

struct Link {
  int session = 0;
  uint64_t connection = 0;
  bool is_cut = false;
  bool is_silent = false;  // nothing arrives, and nobody says so
  Pipe to_server;
  Pipe to_client;
  Frames at_server;
};
using LinkPointer = std::shared_ptr<Link>;

struct Session {
  SessionId id;
  ClientEnd client{kWorkers};
  SessionOutbox outbox;
  struct Sent {
    uint64_t number = 0;
    std::string text;
  };
  std::vector<Sent> sent;  // the events that the machine sent
  size_t begin = 0;        // of them, from which on they come out of this process
  size_t compared = 0;     // behind that, that came out as they were sent
  uint64_t acknowledged = 0;
  size_t taken = 0;         // batches
  uint64_t connection = 0;  // the newest one
  bool was_welcomed = false;
  int process = 0;  // of its client; those before are gone
  Returning returning = Returning::kSameClient;
  int64_t heard_us = 0;
  LinkPointer at_client;      // null: the client has no connection
  LinkPointer at_server;      // null: none has come
  bool is_connected = false;  // as the coordinator has it
  bool is_closed = false;     // by its client
  bool has_stopped = false;   // its client
  bool is_over = false;       // for the coordinator
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options)
      : options_(options),
        random_(options.seed),
        machine_(Config(options.seed)),
        workers_(schedule_, random_,
                 {[this](Event event) { Apply(std::move(event)); }, [this](absl::Status status) { Broken(status); },
                  [this](std::string text) { Trace(text); }},
                 kWorkers) {}

  SimulationResult Run() {
    if (options_.fault == Fault::kAnswerProbes) workers_.AnswerProbes();
    workers_.JoinAll();
    for (int i = 0; i < kSessions; ++i) {
      Session& session = sessions_[static_cast<size_t>(i)];
      session.id = SessionId(static_cast<uint64_t>(i) + 1);
      if (i < kRanks) session.client.BeRank(i, kRanks);
      session.client.BeOf(TenantOf(i), TenantOf(i < kRanks ? kRanks : 0));
      session.is_connected = true;
      session.connection = ++next_connection_;
      Apply(SessionOpenedEvent{session.id, 77, OpenedAs(i), "simulation", kLeaseUs, Role::kClient, "",
                               session.connection});
      laws_.Opened(session.id, TenantOf(i));
      Dial(i, session.process);
    }
    Tick();
    Act(options_.acts);
    while (!schedule_.empty() && result_.status.ok()) {
      schedule_.Step();
      ++result_.steps;
      CheckMemory();
      Broken(laws_.Check(machine_));
    }
    if (result_.status.ok()) CheckEnd();
    if (result_.status.ok() && options_.replays) CheckReplay();
    result_.instances = workers_.instances();
    for (const Session& session : sessions_) result_.collectives += session.client.matched_calls();
    for (const Session& session : sessions_) result_.attached += session.client.attached();
    result_.publications = static_cast<int64_t>(machine_.publications().all().size());
    return std::move(result_);
  }

 private:
  static CoordinatorConfig Config(uint64_t seed) {
    CoordinatorConfig config;
    config.debug_fill = seed % 3 == 0 ? 1 : 0;
    config.max_outstanding_per_worker = 12;
    config.max_cached_plans = 12;
    config.max_segment_ops = 6;
    config.work_timeout_us = kWorkTimeoutUs;
    config.max_queued_records = 96;  // more than three processes with credit have under way
    config.max_slice_looks = 20;     // a death and a close go on for some slices
    return config;
  }

  void Trace(const std::string& text) { result_.trace.push_back(StrCat(schedule_.now_us(), " us: ", text)); }
  void Broken(const absl::Status& status) {
    if (!result_.status.ok() || status.ok()) return;
    result_.status = status;
    Trace(StrCat("BROKEN: ", status.ToString()));
  }
  void Broken(const std::string& text) { Broken(absl::InternalError(text)); }
  Session& At(int index) { return sessions_[static_cast<size_t>(index)]; }

  // ---- the coordinator ----------------------------------------------------------------------------

  static std::string TenantOf(int session) { return session < kRanks ? "ranks" : "other"; }
  std::string OpenedAs(int session) const {
    return TenantOf(options_.fault == Fault::kChargeAnother && session >= kRanks ? 0 : session);
  }

  void ChangeLimits() {
    std::vector<TenantLimits> tenants;
    for (const int session : {0, kRanks}) {
      TenantLimits& limits = tenants.emplace_back(TenantLimits{.name = TenantOf(session)});
      limits.weight = random_.Between(1, 5);
      if (random_.OneIn(2)) limits.max_bytes = random_.Between(1, 96) << 10;
      if (random_.OneIn(3)) limits.guaranteed_bytes = std::min(limits.max_bytes, random_.Between(1, 32) << 10);
      if (random_.OneIn(6)) limits.max_queued_records = random_.Between(4, 100);
    }
    if (random_.OneIn(8)) tenants.pop_back();  // it goes on without new memory
    ++result_.changed_limits;
    Trace(StrCat("limits of ", tenants.size(), " tenants change"));
    laws_.Changed(machine_, tenants);
    is_replayed_ = options_.fault != Fault::kLimitsByTheEdge;
    if (options_.fault != Fault::kForgetLowering) Apply(TenantsChangedEvent{std::move(tenants)});
    is_replayed_ = true;
  }

  void Apply(Event event) {
    if (options_.replays && is_replayed_) events_.emplace_back(schedule_.now_us(), event);
    Effects effects = machine_.Apply(schedule_.now_us(), std::move(event));
    if (options_.replays) AddTexts(effects, texts_);
    publication_laws_.See(machine_);
    for (Effect& effect : effects) {
      if (auto* told = std::get_if<ToWorkers>(&effect)) {
        if (options_.fault == Fault::kWritePublished) publication_laws_.Misplace(machine_, random_, *told);
        Broken(publication_laws_.Check(machine_, *told));
        workers_.Tell(*told);
      } else if (auto* to_client = std::get_if<ToClient>(&effect)) {
        Session& session = At(static_cast<int>(to_client->session.value) - 1);
        if (std::string text = TextOf(to_client->event); !text.empty()) {
          session.sent.push_back({to_client->event.number, std::move(text)});
        }
        session.outbox.Add(std::move(to_client->event));
        ++result_.events;
      } else if (const auto* end = std::get_if<EndSession>(&effect)) {
        OnEnd(*end);
      } else if (const auto* victim = std::get_if<KillWorker>(&effect)) {
        if (!workers_.is_stalled(victim->worker)) {
          Broken(StrCat("worker ", victim->worker.value, " works, and is ended: it ", victim->reason));
        }
        workers_.Kill(victim->worker);
      }
    }
    Flush(SessionOutbox::Quiet::kMayWait);
    if (machine_.has_more() && !std::exchange(going_on_, true)) {
      schedule_.In(0, [this]() {
        going_on_ = false;
        Apply(ContinuedEvent{});
      });
    }
  }

  void OnEnd(const EndSession& end) {
    Session& session = At(static_cast<int>(end.session.value) - 1);
    Trace(StrCat("session ", end.session.value, " ends: ", end.reason.ToString()));
    session.is_over = true;
    if (session.at_server) Cut(session.at_server);
    const bool is_lease = absl::IsDeadlineExceeded(end.reason);
    if (is_lease) ++result_.ended_leases;
    if (is_lease && session.is_connected) Broken("the lease of a connected session ran out");
    if (!is_lease && !session.is_closed) Broken(StrCat("a session ended by itself: ", end.reason.ToString()));
  }

  void Flush(SessionOutbox::Quiet quiet) {
    std::optional<capnp::MallocMessageBuilder> message;
    for (Session& session : sessions_) {
      while (session.at_server && session.outbox.NextMessage(quiet, message)) {
        Send(session.at_server, &Link::to_client, BytesOf(*message));
      }
    }
  }

  void Tick() {
    LoseSilent();
    Apply(TickEvent{});
    workers_.Beat();
    Flush(SessionOutbox::Quiet::kNow);
    // Signs of life.
    for (Session& session : sessions_) {
      if (session.at_client) Send(session.at_client, &Link::to_server, session.client.Acknowledgement());
    }
    if (!is_over_) schedule_.In(kTickUs, [this]() { Tick(); });
  }

  void LoseSilent() {
    if (options_.fault == Fault::kNeverLoseSilent) return;
    for (Session& session : sessions_) {
      if (session.is_over || !session.is_connected || schedule_.now_us() - session.heard_us <= kSilenceUs) continue;
      Trace(StrCat("session ", session.id.value, " says nothing"));
      Disconnect(session);
    }
  }

  void Disconnect(Session& session) {
    session.at_server = nullptr;
    session.is_connected = false;
    session.outbox.Disconnected();
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
        session.outbox.Acknowledge(message.getAcknowledge());
      } else {
        TakeBatch(session, message.getBatch());
      }
      if (session.is_over || !result_.status.ok()) return;
    }
    Flush(SessionOutbox::Quiet::kMayWait);
  }

  void TakeBatch(Session& session, wire::Batch::Reader batch) {
    auto records = DecodeRecords(batch);
    if (!records.ok()) return Broken(records.status());
    const std::string text = TextOf(*records);
    const uint64_t number = batch.getNumber();
    const uint64_t before = machine_.sessions().at(session.id).last_batch;
    Apply(BatchEvent{session.id, number, *std::move(records)});
    ++result_.batches;
    Trace(StrCat("session ", session.id.value, " batch ", number, ": ", text));
    const auto found = machine_.sessions().find(session.id);
    if (found == machine_.sessions().end()) return;
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
    if (way == &Link::to_server) return TakeFromClient(link, bytes);
    Session& session = At(link->session);
    if (session.at_client != link) return;
    Broken(session.client.Take(bytes));
    if (options_.fault == Fault::kRepeatEvent && random_.OneIn(20)) session.client.RepeatEvent();
    CompareEvents(session);
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
      // Some take long: what needs them waits.
      const int64_t after_us = random_.Between(10, random_.OneIn(3) ? 60'000 : 2000);
      schedule_.In(after_us, [this, index, ticket, process = session.process]() {
        const Session& bringing = At(index);
        if (bringing.process != process || bringing.has_stopped) return;
        ++result_.uploads;
        workers_.Bring(TicketId(ticket));
      });
    }
  }

  void CompareEvents(Session& session) {
    const std::vector<std::string>& came = session.client.events();
    for (; session.compared < came.size(); ++session.compared) {
      const size_t at = session.begin + session.compared;
      const std::string sent = at < session.sent.size() ? session.sent[at].text : "nothing";
      if (came[session.compared] == sent) continue;
      return Broken(StrCat("event ", session.compared + 1, " of session ", session.id.value, " came out as ",
                           came[session.compared], " and was sent as ", sent));
    }
  }

  // After any byte of what is on its way, in each direction.
  void Cut(const LinkPointer& link) {
    if (link->is_cut) return;
    link->is_cut = true;
    for (Pipe Link::*way : {&Link::to_server, &Link::to_client}) {
      Pipe& pipe = (*link).*way;
      int64_t bytes = 0;
      for (const std::string& piece : pipe.pieces) bytes += static_cast<int64_t>(piece.size());
      size_t kept = static_cast<size_t>(random_.Below(bytes + 1));
      for (std::string& piece : pipe.pieces) {
        piece.resize(std::min(piece.size(), kept));
        kept -= piece.size();
      }
      // Each end hears of it by itself, after what came.
      const int64_t heard_us = std::max(schedule_.now_us(), pipe.last_arrival_us) + random_.Between(1, 8000);
      schedule_.At(heard_us,
                   [this, link, way]() { way == &Link::to_server ? LostAtServer(link) : LostAtClient(link); });
    }
  }

  void LostAtServer(const LinkPointer& link) {
    Session& session = At(link->session);
    if (session.is_over) return;
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
    const bool is_first = !std::exchange(session.was_welcomed, true);
    if (session.at_server) Cut(std::exchange(session.at_server, nullptr));
    auto link = std::make_shared<Link>();
    link->session = index;
    if (!is_first) session.connection = ++next_connection_;
    link->connection = session.connection;
    session.is_connected = true;
    session.heard_us = schedule_.now_us();
    session.outbox.Resume(last_event);
    session.acknowledged = std::max(session.acknowledged, last_event);
    if (session.client.events().empty()) BeginBehind(session);
    const Returning who = options_.fault == Fault::kTakeForTheSame ? Returning::kSameClient : session.returning;
    if (!is_first) Apply(SessionResumedEvent{session.id, who, link->connection});
    uint64_t last_batch = machine_.sessions().at(session.id).last_batch;
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
    schedule_.In(random_.Between(10, 2000),
                 [this, link, process, last_batch]() { Connected(link, process, last_batch); });
  }

  // What comes out of a process that has seen nothing yet: what nobody has acknowledged, behind the event that it
  // knows.
  void BeginBehind(Session& session) {
    const uint64_t known = std::max(session.acknowledged, session.client.last_event());
    const auto first = std::find_if(session.sent.begin(), session.sent.end(),
                                    [known](const Session::Sent& sent) { return sent.number > known; });
    session.begin = static_cast<size_t>(first - session.sent.begin());
    session.compared = 0;
  }

  void Connected(const LinkPointer& link, int process, uint64_t last_batch) {
    Session& session = At(link->session);
    if (session.is_over || session.has_stopped || session.process != process) return Cut(link);
    session.at_client = link;
    session.returning = Returning::kSameClient;
    session.client.ForgetBytes();
    session.client.Connected(kEpoch, link->connection, last_batch);
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
    if (random_.OneIn(10)) ChangeLimits();
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
    // What it was told may be of a while ago.
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
    Trace(StrCat("session ", session.id.value, " is closed"));
    session.is_closed = true;
    Apply(SessionClosedEvent{session.id});
  }

  // Nothing new happens; what is under way comes to its end.
  void Settle() {
    Trace("nothing new from here on");
    is_settling_ = true;
    schedule_.In(kSettlingUs, [this]() {
      for (Session& session : sessions_) CheckSettled(session);
      for (Session& session : sessions_) Close(session);
      schedule_.In(kSettlingUs, [this]() { is_over_ = true; });
    });
  }

  // ---- laws ---------------------------------------------------------------------------------------

  void CheckSettled(const Session& session) {
    if (session.is_over) return;
    const std::string name = StrCat("session ", session.id.value, ": ");
    if (session.has_stopped) return Broken(name + "its client has stopped, and it is there");
    const size_t made = session.client.batches().size();
    if (session.taken != made) return Broken(StrCat(name, made, " batches were made, ", session.taken, " taken"));
    const size_t came = session.client.events().size();
    if (session.begin + came != session.sent.size()) {
      return Broken(StrCat(name, session.sent.size() - session.begin, " events were sent, ", came, " came out"));
    }
    const std::set<uint64_t> open = session.client.open_requests();
    if (!open.empty()) return Broken(StrCat(name, "request ", *open.begin(), " is not answered"));
    if (session.outbox.size() > 0) return Broken(StrCat(name, session.outbox.size(), " events are not acknowledged"));
    const SessionEntry& entry = machine_.sessions().at(session.id);
    if (!entry.queue.empty()) return Broken(name + "records wait in its queue");
    if (entry.parked_weight > 0) return Broken(name + "reads wait beside its queue");
    if (entry.tickets > 0) return Broken(StrCat(name, entry.tickets, " tickets are open"));
    if (!session.client.has_credit()) return Broken(name + "all is taken up, and its client has no credit");
  }

  void CheckEnd() {
    if (!machine_.sessions().empty()) Broken("a session is left");
    if (machine_.process_groups().size() > 0) Broken("a process group is left");
    if (machine_.unsettled_ops() > 0) Broken(StrCat(machine_.unsettled_ops(), " ops are left"));
    for (const auto& [index, worker] : machine_.workers()) {
      const int64_t used = machine_.memory().UsedBytes(index) - PublicationLaws::BytesOn(machine_, index);
      if (used != 0) Broken(StrCat(used, " bytes of worker ", index.value, " are taken when all is closed"));
      const int64_t outstanding = worker.windows.outstanding();
      if (outstanding != 0) Broken(StrCat("worker ", index.value, " has ", outstanding, " outstanding"));
    }
  }

  static void AddTexts(const Effects& effects, std::vector<std::string>& texts) {
    for (const Effect& effect : effects) texts.push_back(ToText(effect));
  }

  void CheckReplay() {
    StateMachine again(Config(options_.seed));
    std::vector<std::string> texts;
    for (auto& [now_us, event] : events_) AddTexts(again.Apply(now_us, std::move(event)), texts);
    for (size_t i = 0; i < std::max(texts.size(), texts_.size()); ++i) {
      if (i < texts.size() && i < texts_.size() && texts[i] == texts_[i]) continue;
      return Broken(StrCat("a replay's effect ", i, " is ", i < texts.size() ? texts[i] : "not there", ", and was ",
                           i < texts_.size() ? texts_[i] : "not there"));
    }
  }

  // What tensors have that aren't lost: no byte of a worker is in two buffers.
  void CheckMemory() {
    std::map<WorkerIndex, std::map<int64_t, const BufferEntry*>> live;
    const auto add = [&](const TensorEntry& tensor) {
      if (!tensor.status.ok() || !tensor.buffer || tensor.buffer->bytes == 0) return;
      for (int64_t i = 0; i < tensor.spec().mesh.size(); ++i) {
        const Position position = tensor.spec().mesh.PositionAt(i);
        if (IsEmpty(LocalBox(tensor.spec(), position))) continue;
        const WorkerIndex worker = tensor.spec().mesh.workers()[static_cast<size_t>(i)];
        // A publication hears of a loss when it is asked for.
        const WorkerEntry& entry = machine_.workers().at(worker);
        if (entry.state == WorkerState::kDead || entry.join_number > tensor.buffer->born) continue;
        const auto [at, is_new] = live[worker].try_emplace(tensor.buffer->offset_bytes, tensor.buffer.get());
        if (!is_new && at->second != tensor.buffer.get()) {
          return Broken(StrCat("two buffers of worker ", worker.value, " begin at ", at->first));
        }
      }
    };
    for (const auto& [id, session] : machine_.sessions()) {
      for (const auto& [handle, tensor] : session.tensors) add(*tensor);
    }
    for (const auto& [name, publication] : machine_.publications().all()) {
      for (const auto& one : publication.tensors) add(*one.tensor);
    }
    for (const auto& [worker, buffers] : live) {
      int64_t end = 0;
      for (const auto& [offset, buffer] : buffers) {
        if (offset < end) Broken(StrCat("buffers of worker ", worker.value, " overlap at ", offset));
        end = offset + buffer->bytes;
      }
    }
  }

  SimulationOptions options_;
  Generator random_;
  Schedule schedule_;
  StateMachine machine_;
  SimulationResult result_;
  std::array<Session, kSessions> sessions_;
  SimulatedWorkers workers_;
  uint64_t next_connection_ = 0;
  TenantLaws laws_;
  PublicationLaws publication_laws_;
  std::vector<std::pair<int64_t, Event>> events_;  // to be replayed
  std::vector<std::string> texts_;                 // of all effects
  bool is_replayed_ = true;
  bool going_on_ = false;
  bool is_settling_ = false;
  bool is_over_ = false;
};

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace tessera
