#pragma once

// A client of the wire, for tests of what a client may try that does not play by the rules: it speaks the schemas over
// sockets and uses nothing of the client library but the start of a cluster.
//
//   class HostileTest : public WireTest {};
//   TEST_F(HostileTest, ...) { Opened opened = Open(); Submit(opened, 1, [](unsigned, wire::Record::Builder record)
//   {...}); }
//
// Each test ends with a client that plays by the rules, for which everything still works.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <capnp/dynamic.h>
#include <capnp/pretty-print.h>
#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "client/cluster.h"
#include "client/session.h"
#include "schemas/codec/values.h"
#include "schemas/link/dialer.h"
#include "schemas/link/exception.h"
#include "schemas/link/message_link.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/session.capnp.h"
#include "schemas/worker.capnp.h"
#include "tests/support/deaf_stream.h"

namespace tessera {

inline kj::Own<kj::AsyncIoStream> ConnectTo(kj::AsyncIoContext& io, const std::string& address) {
  return io.provider->getNetwork().parseAddress(address.c_str()).wait(io.waitScope)->connect().wait(io.waitScope);
}

template <typename Interface, typename Rpc>
typename Interface::Client RootOf(Rpc& rpc) {
  capnp::MallocMessageBuilder message(4);
  auto id = message.getRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(capnp::rpc::twoparty::Side::SERVER);
  return rpc.bootstrap(id).template castAs<Interface>();
}

// One connection to a unix socket, as its client.
struct Wire {
  Wire(kj::AsyncIoContext& io, const std::string& address)
      : stream(ConnectTo(io, address)),
        network(static_cast<kj::AsyncCapabilityStream&>(*stream), 2, capnp::rpc::twoparty::Side::CLIENT),
        rpc(capnp::makeRpcClient(network)) {}
  template <typename Interface>
  typename Interface::Client Root() {
    return RootOf<Interface>(rpc);
  }
  kj::Own<kj::AsyncIoStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

// One whose client reads nothing of what comes.
struct DeafWire {
  DeafWire(kj::AsyncIoContext& io, const std::string& address)
      : stream(ConnectTo(io, address)),
        network(stream, capnp::rpc::twoparty::Side::CLIENT),
        rpc(capnp::makeRpcClient(network)) {}
  template <typename Interface>
  typename Interface::Client Root() {
    return RootOf<Interface>(rpc);
  }
  DeafStream stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

// A connection that begins as a link.
inline kj::AutoCloseFd OpenLink(const std::string& address, uint64_t key) {
  auto fd = ConnectUnixSocket("link", address.substr(5));
  EXPECT_TRUE(fd.ok()) << fd.status();
  std::string begin(kLinkMagic, kLinkMagicBytes);
  begin.append(reinterpret_cast<const char*>(&key), sizeof(key));
  EXPECT_EQ(send(fd->get(), begin.data(), begin.size(), MSG_NOSIGNAL), static_cast<ssize_t>(begin.size()));
  return kj::mv(*fd);
}

// The client's end of a session's link. Keeps the tickets and the end it is told of; or never reads.
struct Client {
  enum class Ears { kOpen, kDeaf };
  Client(kj::UnixEventPort& port, kj::AutoCloseFd fd, Ears ears) : link(MakeSocketStream(port, kj::mv(fd))) {
    if (ears == Ears::kDeaf) return;
    link.Start({[this](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                  Take(message.getRoot<wire::ToClient>());
                  return nullptr;
                },
                [this](absl::Status status) {
                  if (ended.ok()) ended = status.ok() ? absl::UnavailableError("the link closed") : status;
                },
                nullptr});
  }
  void Take(wire::ToClient::Reader message) {
    if (message.isEnded()) {
      ended = DecodeStatus(message.getEnded());
      return;
    }
    for (auto event : message.getEvents()) {
      events.push_back(event.getNumber());
      if (keeps_texts) texts += capnp::prettyPrint(capnp::DynamicStruct::Reader(event)).flatten().cStr();
      if (event.isBatchDone()) batches_done = event.getBatchDone();
      if (event.isSettled()) settled = event.getSettled().getRequest();
      if (event.isTicket()) tickets.emplace_back(event.getTicket().getTicket(), event.getTicket().getSecret());
    }
  }
  MessageLink link;
  std::vector<uint64_t> events;  // their numbers
  bool keeps_texts = false;
  std::string texts;                                   // of all events since
  uint64_t batches_done = 0;                           // the newest batch that was taken up
  uint64_t settled = 0;                                // the newest watch that was answered, by its request
  std::vector<std::pair<uint64_t, uint64_t>> tickets;  // number, secret
  absl::Status ended;
};

// Bytes of a process that are in memory.
inline int64_t ResidentBytesOf(int pid) {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class NoWorker final : public wire::Worker::Server {};

class AnsweringWorker final : public wire::Worker::Server {
 public:
  kj::Promise<void> ping(PingContext) override { return kj::READY_NOW; }
};

// The token of a cluster, from the command by which another worker joins.
inline std::string JoinTokenOf(const LocalCluster& cluster) {
  const std::string command = cluster.JoinCommand(0), name = "TESSERA_JOIN_TOKEN=";
  const size_t at = command.find(name) + name.size();
  return command.substr(at, command.find(' ', at) - at);
}

class Memory final : public wire::SharedMemory::Server {
 public:
  Memory(size_t bytes, unsigned seals) : fd_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (posix_fallocate(fd_, 0, static_cast<off_t>(bytes)) != 0 || fcntl(fd_, F_ADD_SEALS, seals) != 0) ADD_FAILURE();
  }
  ~Memory() { close(fd_); }
  kj::Maybe<int> getFd() override { return fd_; }

 private:
  int fd_;
};

// Where a session that is opened comes from.
struct Former {
  uint64_t id = 0;
  uint64_t secret = 0;
  uint64_t last_event = 0;
};

// A WireClient needs no test around it: it has sessions of a coordinator at an address, and sends to them.
class WireClient {
 protected:
  WireClient() : io_own_(new kj::AsyncIoContext(kj::setupAsyncIo())), io_(*io_own_) {}

  // `address` with the token behind it, as a cluster tells it.
  void UseAddress(const std::string& address) {
    const std::string mark = "#token=";
    const size_t at = address.find(mark);
    address_ = address.substr(0, at);
    token_ = address.substr(at + mark.size());
  }

  absl::Status StatusOf(std::function<void()> call) {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { call(); })) {
      return FromException(*exception);
    }
    return absl::OkStatus();
  }

  struct Opened {
    std::unique_ptr<Wire> wire;
    wire::Session::Client session;
    std::unique_ptr<Client> client;
    uint64_t epoch;
    uint64_t connection;
    uint64_t id = 0;
    uint64_t secret = 0;
    uint64_t last_batch = 0;
    std::vector<std::string> data_addresses = {};
    int pid = 0;  // of the coordinator
    uint64_t next_batch = 1;
  };

  capnp::Request<wire::Gateway::OpenParams, wire::Gateway::OpenResults> RequestOpen(wire::Gateway::Client gateway,
                                                                                    uint32_t version,
                                                                                    const std::string& token,
                                                                                    const Former& former) const {
    auto request = gateway.openRequest();
    request.getHello().setProtocolVersion(version);
    request.getHello().setToken(token.c_str());
    request.getHello().setLeaseS(lease_s_);
    if (former.id != 0) {
      auto resume = request.getHello().initResume();
      resume.setSessionId(former.id);
      resume.setSecret(former.secret);
      resume.setLastEvent(former.last_event);
    }
    return request;
  }
  capnp::Response<wire::Gateway::OpenResults> Open(Wire& wire, uint32_t version, const std::string& token,
                                                   const Former& former = {}) {
    return RequestOpen(wire.Root<wire::Gateway>(), version, token, former).send().wait(io_.waitScope);
  }

  Opened Open(Client::Ears ears = Client::Ears::kOpen, const Former& former = {}) {
    auto wire = std::make_unique<Wire>(io_, address_);
    auto response = Open(*wire, wire::PROTOCOL_VERSION, token_, former);
    auto link = OpenLink(address_, response.getLinkKey());
    Opened opened{std::move(wire),
                  response.getSession(),
                  std::make_unique<Client>(io_.unixEventPort, kj::mv(link), ears),
                  response.getWelcome().getEpoch(),
                  response.getWelcome().getConnection(),
                  response.getWelcome().getSessionId(),
                  response.getWelcome().getSecret(),
                  response.getWelcome().getLastBatch()};
    opened.pid = response.getWelcome().getPid();
    for (auto worker : response.getWelcome().getWorkers())
      opened.data_addresses.push_back(worker.getDataAddress().cStr());
    return opened;
  }

  void Submit(Opened& opened, unsigned records, const std::function<void(unsigned, wire::Record::Builder)>& fill) {
    capnp::MallocMessageBuilder message;
    auto batch = message.initRoot<wire::ToCoordinator>().initBatch();
    batch.setNumber(opened.next_batch++);
    batch.setEpoch(opened.epoch);
    batch.setConnection(opened.connection);
    auto list = batch.initRecords(records);
    for (unsigned i = 0; i < records; ++i) fill(i, list[i]);
    opened.client->link.Send(message);
  }
  void Pause(int64_t ms) { io_.provider->getTimer().afterDelay(ms * kj::MILLISECONDS).wait(io_.waitScope); }

  absl::Status Redeem(Wire& wire, uint64_t ticket, uint64_t secret) {
    return StatusOf([&]() {
      auto request = wire.Root<wire::BulkServer>().transferRequest();
      request.setTicket(ticket);
      request.setSecret(secret);
      held_.push_back(request.send().wait(io_.waitScope).getTransfer());
    });
  }

  std::unique_ptr<kj::AsyncIoContext> io_own_;
  kj::AsyncIoContext& io_;
  std::string address_;
  std::string token_;
  double lease_s_ = 60;  // of the sessions that it opens
  std::vector<wire::Transfer::Client> held_;
};

// The tokens of two tenants "a" and "b" in a tenants file, "a-token" and "b-token".
inline constexpr char kTokensOfTenants[] = R"(
[[token]]
id = "a"
sha256 = "1f6076e3a47ba1ded08025ffe06e57af217c14f9407f33fba50f99b1c7019387"
tenant = "a"
[[token]]
id = "b"
sha256 = "c033d6825ce303906a2a8cfc0f933e8380fefc8e039ef2bd3dabb97b1a27c875"
tenant = "b"
)";

class WireTest : public testing::Test, protected WireClient {
 protected:
  void SetUp() override {
    ClusterOptions options;
    options.workers = 2;
    options.memory_bytes = 16 << 20;
    options.binary_dir = ".";
    options.coordinator_flags = coordinator_flags_;
    auto cluster = LocalCluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = std::make_unique<LocalCluster>(*std::move(cluster));
    UseAddress(cluster_->address());
  }
  // Everything still works for a client that plays by the rules.
  void TearDown() override {
    auto session = cluster_->Connect();
    ASSERT_TRUE(session.ok()) << session.status();
    const auto status = session->Status();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->workers.size(), workers_);
  }

  // Why the session has ended; ok if it has not within 5 seconds.
  absl::Status AwaitEnd(Opened& opened) {
    for (int i = 0; i < 500 && opened.client->ended.ok(); ++i) Pause(10);
    return opened.client->ended;
  }

  // An upload of f64[8] in two shards, whose ticket is known when this returns.
  Opened OpenUpload() {
    Opened opened = Open();
    Submit(opened, 1, [](unsigned, wire::Record::Builder record) {
      auto upload = record.initUpload();
      upload.setRequest(1);
      upload.setResult(1);
      EncodeTensorSpec(*ParseTensorSpec("f64[8] @ mesh(2) [S(0)]"), upload.initSpec());
    });
    for (int i = 0; i < 500 && opened.client->tickets.empty(); ++i) Pause(10);
    EXPECT_EQ(opened.client->tickets.size(), 1u);
    return opened;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::vector<std::string> coordinator_flags_;  // for those who set them before SetUp
  size_t workers_ = 2;                          // that ever were there
};

// A call of full on copies: the whole shape on each worker of the mesh.
inline void Full(wire::Record::Builder record, uint64_t result, const Mesh& mesh, const Shape& shape) {
  OpCall call;
  call.op = OpId::kFull;
  call.attributes.Set(attribute::dtype, DType::kF32);
  call.attributes.Set(attribute::shape, shape);
  call.attributes.Set(attribute::mesh, mesh);
  call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
  call.scalars = {Scalar::Float(1)};
  auto out = record.initCall();
  EncodeOpCall(call, out.initCall());
  out.initResults(1).set(0, result);
}

}  // namespace tessera
