#include "server/coordinator/rpc/gateway.h"

#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/book.capnp.h"
#include "schemas/codec/book_codec.h"
#include "schemas/codec/values.h"
#include "schemas/enroll.capnp.h"
#include "schemas/host/monotonic_clock.h"
#include "schemas/link/exception.h"
#include "schemas/link/refusals.h"
#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/describe.h"
#include "server/coordinator/rpc/hello_codec.h"

namespace tessera {
namespace {

// Work that the coordinator did for a session on its own time, which the session pays for.
class ChargedWork {
 public:
  ChargedWork(Hub& hub, SessionId session) : hub_(hub), session_(session), began_ns_(MonotonicNs()) {}
  ~ChargedWork() { hub_.Apply(SessionChargedEvent{session_, (MonotonicNs() - began_ns_) / 1000}); }

 private:
  Hub& hub_;
  SessionId session_;
  int64_t began_ns_;
};

// Every answer is made in the turn in which its call is read, and the stream reads no call while an answer is being
// written (GuardMode::kReadWhenWritesEnded): a connection holds one answer that its client doesn't read. An answer that
// is made later takes room in the connection's AnswerWindow first, as a worker's does.
class SessionServer final : public wire::Session::Server, public wire::Administration::Server {
 public:
  SessionServer(Hub& hub, const Hub::Opened& opened, TokenEntry token, Acceptor::Admission admission,
                TenantsEdge::Place place)
      : hub_(hub),
        id_(opened.session),
        connection_(opened.connection),
        token_(std::move(token)),
        role_(token_.role == TokenRole::kAdmin ? Role::kAdmin : Role::kClient),
        admission_(std::move(admission)),
        place_(std::move(place)) {}
  ~SessionServer() {
    hub_.ConnectionGone(id_, connection_);
    admission_.Dismiss();
  }

  // Where effects are held back an answer waits for the commit of what it tells, and the next call for the answer: a
  // session holds one that can't be sent.
  DispatchCallResult dispatchCall(uint64_t interface, uint16_t method,
                                  capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override {
    if (!hub_.holds_back()) return Dispatch(interface, method, context);
    auto done =
        turn_.addBranch()
            .then([this, interface, method, context]() mutable { return Dispatch(interface, method, context).promise; })
            .then([this]() { return hub_.WhenCommitted(); })
            .fork();
    turn_ = done.addBranch().catch_([](kj::Exception&&) {}).fork();
    return {done.addBranch(), false};
  }

  DispatchCallResult Dispatch(uint64_t interface, uint16_t method,
                              capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) {
    if (interface == capnp::typeId<wire::Administration>()) {
      return wire::Administration::Server::dispatchCall(interface, method, context);
    }
    return wire::Session::Server::dispatchCall(interface, method, context);
  }

  void End(absl::Status reason) {
    ended_ = std::move(reason);
    place_ = nullptr;
    admission_.Dismiss();
  }

  kj::Promise<void> status(StatusContext context) override {
    Check();
    const auto params = context.getParams();
    const StatusView view{id_, role_, params.getMaxTensors(), HandleId(params.getAfterHandle())};
    DescribeCluster(hub_, view, context.getResults().initStatus());
    return kj::READY_NOW;
  }
  kj::Promise<void> explain(ExplainContext context) override {
    Check();
    const ChargedWork charged(hub_, id_);
    ThrowIfError(DescribePlan(hub_.machine(), id_, context.getParams(), context.getResults().initPlan()));
    return kj::READY_NOW;
  }
  kj::Promise<void> profile(ProfileContext context) override {
    Check();
    const ChargedWork charged(hub_, id_);
    const auto params = context.getParams();
    DescribeProfile(hub_, {id_, params.getFirstOp(), params.getEndOp()}, context.getResults().initProfile());
    return kj::READY_NOW;
  }
  kj::Promise<void> groupStatus(GroupStatusContext context) override {
    Check();
    ThrowIfError(DescribeFlight(hub_, id_, context.getParams(), context.getResults().initRecord()));
    return kj::READY_NOW;
  }
  kj::Promise<void> close(CloseContext) override {
    Check();
    hub_.Apply(SessionClosedEvent{id_});
    return kj::READY_NOW;
  }
  kj::Promise<void> killWorker(KillWorkerContext context) override {
    const WorkerIndex worker(context.getParams().getWorker());
    AsAdmin("kill-worker", StrCat("worker ", worker.value),
            [&]() { return hub_.KillByAdmin(worker, TextOf(context.getParams().getReason()), id_); });
    return kj::READY_NOW;
  }
  kj::Promise<void> closeOther(CloseOtherContext context) override {
    const SessionId other(context.getParams().getSession());
    AsAdmin("close", StrCat("session ", other.value), [&]() { return hub_.CloseByAdmin(other, id_); });
    return kj::READY_NOW;
  }
  kj::Promise<void> evictTenant(EvictTenantContext context) override {
    const std::string tenant = TextOf(context.getParams().getTenant());
    AsAdmin("evict", StrCat("tenant \"", Printable(tenant), "\""), [&]() {
      const absl::StatusOr<uint32_t> count = hub_.EvictByAdmin(tenant, TextOf(context.getParams().getReason()), id_);
      if (count.ok()) context.getResults().setSessions(*count);
      return count.status();
    });
    return kj::READY_NOW;
  }
  kj::Promise<void> cordonWorker(CordonWorkerContext context) override {
    const WorkerIndex worker(context.getParams().getWorker());
    const bool is_cordon = context.getParams().getCordoned();
    AsAdmin(is_cordon ? "cordon" : "uncordon", StrCat("worker ", worker.value),
            [&]() { return hub_.CordonByAdmin(worker, is_cordon ? Admits::kFormerSessions : Admits::kEveryone, id_); });
    return kj::READY_NOW;
  }
  // The audit has its end, not each step.
  kj::Promise<void> drainWorker(DrainWorkerContext context) override {
    const WorkerIndex worker(context.getParams().getWorker());
    const auto losses = context.getParams().getLose() ? Drains::Losses::kTaken : Drains::Losses::kRefused;
    const std::string object = StrCat("worker ", worker.value);
    const absl::Status allowed = CheckAdmin("drain", object);
    const absl::StatusOr<DrainState> state =
        allowed.ok() ? hub_.DrainByAdmin(worker, losses, id_) : absl::StatusOr<DrainState>(allowed);
    if (!state.ok()) Audited("drain", object, state.status());
    if (state->phase == DrainState::Phase::kRefused) {
      Record("drain", object, "refused",
             StrCat(state->why, ": ", state->tensors, " tensors, ", state->bytes, " bytes"));
    } else if (state->phase == DrainState::Phase::kDone) {
      Record("drain", object, "allowed", losses == Drains::Losses::kTaken ? "what was there alone is lost" : "");
    }
    DescribeDrain(*state, context.getResults().initDrain());
    return kj::READY_NOW;
  }

  // The audit has who began to read, not each step and page.
  kj::Promise<void> readBook(ReadBookContext context) override {
    const BookQuery query = DecodeBookQuery(context.getParams().getQuery());
    const bool is_audit = query.table == BookTable::kAudit;
    const char* const verb = is_audit ? "audit" : "usage";
    const absl::Status allowed = CheckAdmin(verb, "the pool's book");
    const bool is_asked_again = allowed.ok() && book_ != nullptr && query == book_query_;
    if (!is_asked_again) {
      auto asked = allowed.ok() ? hub_.AskBook(query) : absl::StatusOr<std::shared_ptr<BookReader::Asked>>(allowed);
      if (!asked.ok() || query.after == BookCursor()) Audited(verb, "the pool's book", asked.status());
      book_ = *std::move(asked);
      book_query_ = query;
    }
    const std::optional<absl::StatusOr<BookPage>> page = book_->Take();
    auto results = context.getResults();
    results.setIsRead(page.has_value());
    if (!page.has_value()) return kj::READY_NOW;
    book_.reset();
    ThrowIfError(page->status());
    EncodeBookPage(**page, results.initPage());
    return kj::READY_NOW;
  }
  kj::Promise<void> upgrade(UpgradeContext context) override {
    const bool begins = context.getParams().getBegin();
    const absl::Status allowed = CheckAdmin("upgrade", "the coordinator");
    const auto step = begins ? Hub::UpgradeStep::kBegin : Hub::UpgradeStep::kLook;
    const absl::StatusOr<UpgradeState> state =
        allowed.ok() ? hub_.UpgradeByAdmin(step, id_) : absl::StatusOr<UpgradeState>(allowed);
    if (begins || !state.ok()) Audited("upgrade", "the coordinator", state.status());
    EncodeUpgradeState(*state, context.getResults().initState());
    return kj::READY_NOW;
  }

  kj::Promise<void> tenants(TenantsContext context) override {
    Check();
    DescribeTenants(hub_, {.asking = id_, .role = role_, .max_tensors = 0, .after = {}}, context.getResults());
    return kj::READY_NOW;
  }
  kj::Promise<void> setLimit(SetLimitContext context) override {
    const auto params = context.getParams();
    const std::string tenant = TextOf(params.getTenant()), key = TextOf(params.getKey());
    const std::string value = TextOf(params.getValue());
    AsAdmin("limit", StrCat("tenant \"", Printable(tenant), "\": ", Printable(key), " = ", Printable(value)),
            [&]() { return hub_.SetLimitByAdmin(tenant, key, value, id_); });
    return kj::READY_NOW;
  }

 private:
  void Check() {
    ThrowIfError(ended_);
    if (!hub_.IsCurrent(id_, connection_)) ThrowIfError(absl::FailedPreconditionError("the session is closed"));
  }

  absl::Status CheckAdmin(const char* verb, const std::string& object) {
    Check();
    if (role_ == Role::kAdmin) return absl::OkStatus();
    return absl::PermissionDeniedError(StrCat(verb, ": ", object, ": an admin's token alone may do that"));
  }
  void Record(const char* verb, const std::string& object, const char* decision, const std::string& why) {
    hub_.Record({verb, token_.tenant, token_.id, id_.value, object, decision, why});
  }
  void Audited(const char* verb, const std::string& object, const absl::Status& status) {
    Record(verb, object, status.ok() ? "allowed" : "refused", std::string(status.message()));
    ThrowIfError(status);
  }
  template <typename Act>
  void AsAdmin(const char* verb, const std::string& object, const Act& act) {
    absl::Status status = CheckAdmin(verb, object);
    if (status.ok()) status = act();
    Audited(verb, object, status);
  }

  Hub& hub_;
  SessionId id_;
  uint64_t connection_;
  const TokenEntry token_;
  const Role role_;
  Acceptor::Admission admission_;
  TenantsEdge::Place place_;
  absl::Status ended_;
  std::shared_ptr<BookReader::Asked> book_;  // while a page of it is read
  BookQuery book_query_;
  kj::ForkedPromise<void> turn_ = kj::Promise<void>(kj::READY_NOW).fork();
};

class MembershipServer final : public wire::Membership::Server {
 public:
  MembershipServer(Hub& hub, WorkerIndex worker, uint64_t incarnation)
      : hub_(hub), worker_(worker), incarnation_(incarnation) {}
  ~MembershipServer() { hub_.WorkerGone(worker_, incarnation_, "its connection closed"); }

  kj::Promise<void> peerMapped(PeerMappedContext context) override {
    auto params = context.getParams();
    if (params.hasStatus() && params.getStatus().getCode() != 0) {
      spdlog::warn("worker {} can't map worker {} or send to it: {}", worker_.value, params.getIndex(),
                   Printable(TextOf(params.getStatus().getMessage()), kMaxLogChars));
    }
    return kj::READY_NOW;
  }

 private:
  Hub& hub_;
  WorkerIndex worker_;
  uint64_t incarnation_;
};

class GatewayServer final : public wire::Gateway::Server, public wire::Enrolment::Server {
 public:
  GatewayServer(Hub& hub, Door door, PeerName peer, Acceptor::Admission admission, Enroller* enroller)
      : hub_(hub), door_(door), peer_(std::move(peer)), admission_(std::move(admission)), enroller_(enroller) {}
  ~GatewayServer() {
    if (!taken_ && !tried_) LogRefusal(peer_.text, "its connection ended without a session");
  }

  DispatchCallResult dispatchCall(uint64_t interface, uint16_t method,
                                  capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override {
    if (interface == capnp::typeId<wire::Enrolment>()) {
      return wire::Enrolment::Server::dispatchCall(interface, method, context);
    }
    return wire::Gateway::Server::dispatchCall(interface, method, context);
  }

  kj::Promise<void> open(OpenContext context) override {
    const auto reader = context.getParams().getHello();
    TakeTry();
    if (door_ == Door::kWorkers) Forbid("connect: this address is for workers; clients have another one (--listen)");
    Require(CheckVersion("connect", reader.getProtocolVersion()));
    const TokenEntry token = HolderOf("connect", hub_.tenants_edge().ClientOf(TextOf(reader.getToken())));
    const Role role = token.role == TokenRole::kAdmin ? Role::kAdmin : Role::kClient;
    auto decoded = DecodeClientHello(reader, token.tenant, hub_.options().max_lease_s);
    Require(decoded.status());
    ClientHello& hello = *decoded;
    // The server lives as long as the client holds it; ended sessions answer with their reason.
    auto ended = std::make_shared<SessionServer*>(nullptr);
    auto on_end = [ended](absl::Status reason) {
      if (*ended != nullptr) (*ended)->End(std::move(reason));
    };
    const bool is_to_come_back = door_ != Door::kAll || !hello.name.empty();
    const double lease_s =
        hello.lease_s.value_or(is_to_come_back ? hub_.options().long_lease_s : hub_.options().lease_s);
    auto place = hub_.tenants_edge().Connect(token, hub_.LimitsOf(token.tenant));
    Require(place.status());
    Hub::Opened opened;
    if (hello.resume.has_value()) {
      auto resumed = hub_.ResumeSession(*hello.resume, {token.tenant, role}, on_end);
      Require(resumed.status());
      opened = *std::move(resumed);
    } else {
      auto made = hub_.OpenSession({SessionId(), 0, token.tenant, std::move(hello.client),
                                    static_cast<int64_t>(lease_s * 1e6), role, std::move(hello.name), 0, peer_.uid},
                                   on_end);
      Require(made.status());
      opened = *std::move(made);
    }
    Admit();
    hub_.Record({"connect", token.tenant, token.id, opened.session.value, peer_.text, "allowed",
                 hello.resume.has_value() ? "went on with its session" : ""});
    auto server = kj::heap<SessionServer>(hub_, opened, token, admission_, *std::move(place));
    *ended = server.get();
    auto results = context.getResults();
    results.setSession(kj::mv(server));
    results.setLinkKey(opened.link_key);
    DescribeWelcome(hub_, opened, results.initWelcome());
    return hub_.WhenCommitted();
  }

  kj::Promise<void> join(JoinContext context) override {
    auto params = context.getParams();
    const auto hello = params.getHello();
    verb_ = "join";
    TakeTry();
    if (door_ == Door::kClients)
      Forbid("join: this address is for clients; workers have another one (--listen-workers)");
    Require(CheckVersion("join", hello.getProtocolVersion()));
    // A worker that goes on is known by its number, its process and how far it has come.
    const TokenEnd end = hello.hasAgain() ? TokenEnd::kIsNoMatter : TokenEnd::kCounts;
    const TokenEntry token = HolderOf("join", hub_.tenants_edge().WorkerOf(TextOf(hello.getJoinToken()), end));
    auto event = DecodeWorkerHello(hello);
    Require(event.status());
    if (!hello.hasAgain()) {
      if (event->worker.value < 0) event->worker = hub_.FreeNumberFor(token);
      Require(Prefixed("join: ", hub_.CheckJoinToken(token, event->worker)));
    }
    // The pid in the worker's hello may be a number of another PID namespace, and somebody else's here.
    if (peer_.pid == 0) spdlog::info("a worker joins from elsewhere ({}), as pid {} there", peer_.text, event->pid);
    event->pid = peer_.pid;
    const auto again = hello.getAgain();
    auto joined = hello.hasAgain()
                      ? hub_.RejoinWorker(
                            *event, {again.getIncarnation(), again.getEpoch(), again.getTaken(), again.getReported()},
                            params.getWorker())
                      : hub_.JoinWorker(*std::move(event), params.getWorker());
    Require(joined.status());
    if (!hello.hasAgain()) hub_.UseJoinToken(token, joined->worker);
    if (enroller_ != nullptr) enroller_->Joined(joined->worker);
    Admit();
    hub_.Record(
        {"join", holder_.tenant, holder_.id, 0, StrCat("worker ", joined->worker.value), "allowed", peer_.text});
    auto results = context.getResults();
    auto welcome = results.initWelcome();
    welcome.setIndex(joined->worker.value);
    welcome.setIncarnation(joined->incarnation);
    welcome.setEpoch(hub_.epoch());
    welcome.setHeartbeatS(hub_.options().heartbeat_s);
    welcome.setPeerKey(hub_.peer_key());
    welcome.setReported(joined->reported);
    results.setMembership(kj::heap<MembershipServer>(hub_, joined->worker, joined->incarnation));
    results.setLinkKey(joined->link_key);
    return hub_.WhenCommitted();
  }

  kj::Promise<void> enroll(EnrollContext context) override {
    const auto asked = context.getParams().getRequest();
    verb_ = "enroll";
    TakeTry();
    Require(CheckVersion("enroll", asked.getProtocolVersion()));
    const bool has_proof = asked.getRenews() && enroller_ != nullptr &&
                           enroller_->IsProof(WorkerIndex(asked.getIndex()), asked.getFormerEndsAtS(),
                                              TextOf(asked.getProof()), std::time(nullptr));
    const TokenEntry token =
        HolderOf("enroll", hub_.tenants_edge().WorkerOf(TextOf(asked.getJoinToken()),
                                                        has_proof ? TokenEnd::kIsNoMatter : TokenEnd::kCounts));
    if (enroller_ == nullptr) {
      Require(absl::FailedPreconditionError(
          "enroll: this coordinator signs no certificates: it needs --ca-key (tessera up --listen tls://... has it); "
          "else the worker takes --coordinator, --tls-cert, --tls-key and --tls-ca"));
    }
    Enroller::Request request{asked.getIndex(), TextOf(asked.getKeyRequest()), {}, asked.getRenews()};
    for (const auto host : asked.getHosts()) request.hosts.push_back(TextOf(host));
    const Enroller::Numbers numbers{
        .is_here = [this](WorkerIndex index) { return hub_.IsHere(index); },
        .former = hub_.JoinTokenUsesOf(token),
        .check = [&](WorkerIndex index) { return has_proof ? absl::OkStatus() : hub_.CheckJoinToken(token, index); }};
    auto enrolled = enroller_->Enroll(numbers, request, MonotonicNs() / 1'000'000);
    Require(enrolled.status());
    if (!has_proof) hub_.UseJoinToken(token, enrolled->index);
    hub_.Record(
        {"enroll", holder_.tenant, holder_.id, 0, StrCat("worker ", enrolled->index.value), "allowed", peer_.text});
    spdlog::info("worker {} {} from {}", enrolled->index.value,
                 request.renews ? "has a new certificate, asked for" : "enrols", peer_.text);
    auto answer = context.getResults().initAnswer();
    answer.setCertificate(enrolled->certificate.c_str());
    answer.setEndsAtS(enrolled->ends_at);
    answer.setNowS(std::time(nullptr));
    answer.setIndex(enrolled->index.value);
    answer.setWorkersPort(static_cast<uint16_t>(enroller_->workers_port()));
    answer.setProof(enrolled->proof.c_str());
    return hub_.WhenCommitted();
  }

 private:
  // A connection has one: a stranger who guesses tokens connects for each.
  void TakeTry() {
    if (taken_) Require(absl::FailedPreconditionError("this connection has a session or a worker already"));
    if (tried_) Require(absl::FailedPreconditionError("this connection was refused; connect again"));
    tried_ = true;
  }
  // The connection stays, and has what it came for.
  void Admit() {
    taken_ = true;
    admission_();
  }
  void Require(const absl::Status& status) {
    if (!status.ok()) {
      LogRefusal(peer_.text, StdView(status.message()));
      hub_.Record({verb_, holder_.tenant, holder_.id, 0, peer_.text, "refused", std::string(status.message())});
    }
    ThrowIfError(status);
  }
  static absl::Status Prefixed(std::string_view what, const absl::Status& status) {
    return status.ok() ? status : WithMessage(status, StrCat(what, StdView(status.message())));
  }
  void Forbid(const char* why) { Require(absl::PermissionDeniedError(why)); }
  TokenEntry HolderOf(std::string_view what, absl::StatusOr<TokenEntry> token) {
    if (!token.ok()) Require(WithMessage(token.status(), StrCat(what, ": ", StdView(token.status().message()))));
    holder_ = *token;
    return holder_;
  }

  Hub& hub_;
  const Door door_;
  const PeerName peer_;
  Acceptor::Admission admission_;
  Enroller* const enroller_;  // null: nobody enrols
  const char* verb_ = "connect";
  TokenEntry holder_;  // once its token is known
  bool tried_ = false;
  bool taken_ = false;  // it has a session or a worker
};

}  // namespace

wire::Gateway::Client MakeGateway(Hub& hub, Door door, const PeerName& peer, Acceptor::Admission admission,
                                  Enroller* enroller) {
  return wire::Gateway::Client(kj::heap<GatewayServer>(hub, door, peer, std::move(admission), enroller));
}

}  // namespace tessera
