#include "server/coordinator/rpc/gateway.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/codec/descriptor.h"
#include "schemas/codec/exception.h"
#include "schemas/codec/values.h"
#include "schemas/types/mesh.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/describe.h"

namespace tessera {
namespace {

// Takes as long for every wrong token of one length.
bool SameToken(const std::string& wanted, const std::string& shown) {
  unsigned char difference = wanted.size() == shown.size() ? 0 : 1;
  for (size_t i = 0; i < shown.size(); ++i) {
    difference |= static_cast<unsigned char>(shown[i] ^ wanted[i % std::max<size_t>(1, wanted.size())]);
  }
  return difference == 0 && !wanted.empty();
}

// Everybody's status answers have it.
absl::Status CheckName(std::string_view what, capnp::Text::Reader text) {
  constexpr size_t kMaxNameBytes = 1024;  // docs/limits.md: max_name_bytes
  if (text.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("connect: the name of the ", what, " has ", text.size(), " bytes; max_name_bytes is ", kMaxNameBytes));
}

absl::Status CheckVersion(std::string_view who, uint32_t version) {
  if (version == wire::PROTOCOL_VERSION) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(who, ": this server speaks protocol version ", wire::PROTOCOL_VERSION,
                                              ", the other side ", version, "; use the same release on both"));
}

class SessionServer final : public wire::Session::Server {
 public:
  SessionServer(Hub& hub, SessionId id, uint64_t connection) : hub_(hub), id_(id), connection_(connection) {}
  ~SessionServer() { hub_.ConnectionGone(id_, connection_); }

  void End(absl::Status reason) { ended_ = std::move(reason); }

  kj::Promise<void> status(StatusContext context) override {
    Check();
    DescribeCluster(hub_, id_, context.getResults().initStatus());
    return kj::READY_NOW;
  }
  kj::Promise<void> explain(ExplainContext context) override {
    Check();
    ThrowIfError(DescribePlan(hub_, id_, context.getParams(), context.getResults().initPlan()));
    return kj::READY_NOW;
  }
  kj::Promise<void> close(CloseContext) override {
    Check();
    hub_.Apply(SessionClosedEvent{id_});
    return kj::READY_NOW;
  }

 private:
  void Check() {
    ThrowIfError(ended_);
    if (!hub_.IsCurrent(id_, connection_)) ThrowIfError(absl::FailedPreconditionError("the session is closed"));
  }

  Hub& hub_;
  SessionId id_;
  uint64_t connection_;
  absl::Status ended_;
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
                   params.getStatus().getMessage().cStr());
    }
    return kj::READY_NOW;
  }

 private:
  Hub& hub_;
  WorkerIndex worker_;
  uint64_t incarnation_;
};

class GatewayServer final : public wire::Gateway::Server {
 public:
  GatewayServer(Hub& hub, pid_t peer_pid, Acceptor::Admit admit)
      : hub_(hub), peer_pid_(peer_pid), admit_(std::move(admit)) {}
  ~GatewayServer() {
    if (!taken_) spdlog::warn("the connection of pid {} ended without a session", peer_pid_);
  }

  kj::Promise<void> open(OpenContext context) override {
    auto params = context.getParams();
    auto hello = params.getHello();
    TakeConnection();
    ThrowIfError(CheckVersion("connect", hello.getProtocolVersion()));
    if (!SameToken(hub_.options().token, TextOf(hello.getToken()))) {
      ThrowIfError(absl::UnauthenticatedError("connect: the token is wrong"));
    }
    ThrowIfError(CheckName("client", hello.getClient()));
    ThrowIfError(CheckName("tenant", hello.getTenant()));
    admit_();
    const double lease_s = hello.getLeaseS() < 0 ? hub_.options().lease_s : std::min(hello.getLeaseS(), 86'400.0);
    // The server lives as long as the client holds it; ended sessions answer with their reason.
    auto ended = std::make_shared<SessionServer*>(nullptr);
    auto on_end = [ended](absl::Status reason) {
      if (*ended != nullptr) (*ended)->End(std::move(reason));
    };
    Hub::Opened opened;
    if (hello.hasResume()) {
      auto resumed = hub_.ResumeSession(SessionId(hello.getResume().getSessionId()), hello.getResume().getSecret(),
                                        hello.getResume().getLastEvent(), on_end);
      ThrowIfError(resumed.status());
      opened = *std::move(resumed);
    } else {
      opened = hub_.OpenSession(TextOf(hello.getTenant()), TextOf(hello.getClient()),
                                static_cast<int64_t>(lease_s * 1e6), on_end);
      if (!hub_.machine().sessions().contains(opened.session)) {
        ThrowIfError(absl::ResourceExhaustedError("connect: the server has as many sessions as max_sessions lets it"));
      }
    }
    auto server = kj::heap<SessionServer>(hub_, opened.session, opened.connection);
    *ended = server.get();
    auto results = context.getResults();
    results.setSession(kj::mv(server));
    results.setLink(LendDescriptor<wire::LinkSocket>(kj::mv(opened.link)));
    DescribeWelcome(hub_, opened, lease_s, results.initWelcome());
    return kj::READY_NOW;
  }

  kj::Promise<void> join(JoinContext context) override {
    auto params = context.getParams();
    auto hello = params.getHello();
    TakeConnection();
    ThrowIfError(CheckVersion("join", hello.getProtocolVersion()));
    if (!SameToken(hub_.options().join_token, TextOf(hello.getJoinToken()))) {
      ThrowIfError(absl::UnauthenticatedError("join: the join token is wrong"));
    }
    admit_();
    WorkerJoinedEvent event;
    event.worker = WorkerIndex(hello.getIndex());
    event.host = TextOf(hello.getHost());
    event.memory_bytes = hello.getMemoryBytes();
    event.data_address = TextOf(hello.getDataAddress());
    event.message_address.assign(hello.getMessageAddress().asChars().begin(), hello.getMessageAddress().size());
    event.device = TextOf(hello.getDevice());
    // What the worker says of itself may be a number of another PID namespace, and somebody else's here.
    event.pid = peer_pid_;
    if (peer_pid_ == 0) spdlog::info("a worker joins from another PID namespace, as pid {} there", hello.getPid());
    event.map_peers = hello.getMapPeers();
    event.reaches_hosts = hello.getReachesHosts();
    if (event.memory_bytes < 0 || event.worker.value >= kMaxMeshSize) {
      ThrowIfError(absl::InvalidArgumentError("join: a worker number or a memory size out of range"));
    }
    auto joined = hub_.JoinWorker(std::move(event), params.getWorker());
    ThrowIfError(joined.status());
    auto results = context.getResults();
    auto welcome = results.initWelcome();
    welcome.setIndex(joined->worker.value);
    welcome.setIncarnation(joined->incarnation);
    welcome.setEpoch(hub_.epoch());
    welcome.setHeartbeatS(hub_.options().heartbeat_s);
    welcome.setPeerKey(hub_.peer_key());
    results.setMembership(kj::heap<MembershipServer>(hub_, joined->worker, joined->incarnation));
    results.setLink(LendDescriptor<wire::LinkSocket>(kj::mv(joined->link)));
    return kj::READY_NOW;
  }

 private:
  void TakeConnection() {
    if (taken_) ThrowIfError(absl::FailedPreconditionError("this connection has a session or a worker already"));
    taken_ = true;
  }

  Hub& hub_;
  pid_t peer_pid_;
  Acceptor::Admit admit_;
  bool taken_ = false;
};

}  // namespace

wire::Gateway::Client MakeGateway(Hub& hub, pid_t peer_pid, Acceptor::Admit admit) {
  return kj::heap<GatewayServer>(hub, peer_pid, std::move(admit));
}

}  // namespace tessera
