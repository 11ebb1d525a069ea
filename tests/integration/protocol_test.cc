// Attempts of a client that does not play by the rules, against real processes: Cap'n Proto by hand.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "client/cluster.h"
#include "client/session.h"
#include "client/tensor.h"
#include "schemas/codec/values.h"
#include "schemas/host/host_identity.h"
#include "schemas/link/dialer.h"
#include "schemas/link/exception.h"
#include "schemas/link/message_link.h"
#include "schemas/session.capnp.h"
#include "schemas/worker.capnp.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class ProtocolTest : public WireTest {};

TEST_F(ProtocolTest, AnotherVersionOrAWrongTokenIsRefused) {
  Wire old(io_, address_), wrong(io_, address_);
  const absl::Status version = StatusOf([&]() { Open(old, wire::PROTOCOL_VERSION + 1, token_); });
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(version.message()), HasSubstr("protocol version"));
  const absl::Status token = StatusOf([&]() { Open(wrong, wire::PROTOCOL_VERSION, token_ + "0"); });
  EXPECT_EQ(token.code(), absl::StatusCode::kUnauthenticated);
  // A connection has one try.
  EXPECT_EQ(StatusOf([&]() { Open(wrong, wire::PROTOCOL_VERSION, token_); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProtocolTest, AWorkerNeedsTheJoinToken) {
  for (const std::string& token : {std::string(), std::string("wrong"), token_}) {
    Wire wire(io_, address_);
    const absl::Status status = StatusOf([&]() {
      auto request = wire.Root<wire::Gateway>().joinRequest();
      request.getHello().setProtocolVersion(wire::PROTOCOL_VERSION);
      request.getHello().setJoinToken(token.c_str());
      request.getHello().setIndex(-1);
      request.setWorker(kj::heap<NoWorker>());
      request.send().wait(io_.waitScope);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  }
}

TEST_F(ProtocolTest, APeerThatShowsNobodyItsMemoryHoldsNobodyBack) {
  workers_ = 3;
  const Session session = *cluster_->Connect();
  const Mesh two = *session.InitDeviceMesh({2}, {}, {});
  const std::vector<float> ones(64, 1);
  const Tensor x =
      *session.DistributeTensor(MakeHostView(DType::kF32, {8, 8}, ones.data()), two, {Placement::Shard(0)});
  ASSERT_TRUE(x.Wait(5).ok());
  // Its socket takes connections, and nobody answers there. (A test's own folder may be too long a name for a socket.)
  const std::string socket = "unix:/tmp/tessera-silent-" + std::to_string(getpid());
  auto receiver = io_.provider->getNetwork().parseAddress(socket.c_str()).wait(io_.waitScope)->listen();
  Wire wire(io_, address_);
  auto request = wire.Root<wire::Gateway>().joinRequest();
  auto hello = request.initHello();
  hello.setProtocolVersion(wire::PROTOCOL_VERSION);
  hello.setJoinToken(JoinTokenOf(*cluster_).c_str());
  hello.setIndex(-1);
  hello.setHost(HostIdentity().c_str());
  hello.setMemoryBytes(1 << 20);
  hello.setDevice("cpu");
  hello.setDataAddress(socket.c_str());
  hello.setMapPeers(true);
  request.setWorker(kj::heap<AnsweringWorker>());
  auto joined = request.send().wait(io_.waitScope);
  const kj::AutoCloseFd link = OpenLink(address_, joined.getLinkKey());
  for (int i = 0; i < 500 && session.Status()->workers.size() < 3; ++i)
    Pause(10);  // it takes part when its link is there
  const absl::Status between_others = x.Redistribute({Placement::Shard(1)})->Wait(8);
  EXPECT_TRUE(between_others.ok()) << between_others;
  const Session later = *cluster_->Connect();
  const Tensor y = *later.DistributeTensor(MakeHostView(DType::kF32, {8, 8}, ones.data()), two, {Placement::Shard(0)});
  Pause(600);  // its heart beats
  const Mesh three = *later.InitDeviceMesh({3}, {}, {});
  const absl::Status with_it = y.Redistribute(three, {Placement::Replicate()})->Wait(5);
  EXPECT_EQ(with_it.code(), absl::StatusCode::kUnavailable) << with_it;
  EXPECT_THAT(std::string(with_it.message()), HasSubstr("worker 2: worker"));
  EXPECT_THAT(cluster_->LogTail(-1), HasSubstr("can't map worker 2"));
  unlink(socket.substr(5).c_str());
}

TEST_F(ProtocolTest, ATicketIsUsedOnceWithItsSecret) {
  Opened opened = OpenUpload();
  const auto [ticket, secret] = opened.client->tickets[0];
  Wire data(io_, opened.data_addresses[0]);
  EXPECT_EQ(Redeem(data, ticket, secret + 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Redeem(data, ticket + 1, secret).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Redeem(data, ticket, secret).ok());
  EXPECT_EQ(Redeem(data, ticket, secret).code(), absl::StatusCode::kFailedPrecondition);
  Wire other(io_, opened.data_addresses[1]);
  EXPECT_TRUE(Redeem(other, ticket, secret).ok());
}

TEST_F(ProtocolTest, ATransferRefusesWhatItCannotCopy) {
  Opened opened = OpenUpload();
  Wire data(io_, opened.data_addresses[0]);
  ASSERT_TRUE(Redeem(data, opened.client->tickets[0].first, opened.client->tickets[0].second).ok());
  const auto attach = [&](wire::Transfer::Client transfer, size_t bytes, unsigned seals) {
    return StatusOf([&]() {
      auto request = transfer.attachRequest();
      request.setMemory(kj::heap<Memory>(bytes, seals));
      request.send().wait(io_.waitScope);
    });
  };
  // A memory that may shrink would kill the worker that reads it.
  EXPECT_THAT(std::string(attach(held_[0], 64, 0).message()), HasSubstr("F_SEAL_SHRINK"));

  Opened too = OpenUpload();
  ASSERT_TRUE(Redeem(data, too.client->tickets[0].first, too.client->tickets[0].second).ok());
  const absl::Status sealed = attach(held_[1], 64, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(sealed.ok()) << sealed;
  const absl::Status outside = StatusOf([&]() {
    auto request = held_[1].copyRequest();
    request.initBox().initStarts(1).set(0, 0);
    request.getBox().initStops(1).set(0, 8);
    request.setOffset(8);  // the last element is beyond the memory
    request.send().wait(io_.waitScope);
  });
  EXPECT_EQ(outside.code(), absl::StatusCode::kInvalidArgument) << outside;
}

// A call that waited for it would keep those behind it, and their descriptors, waiting.
TEST_F(ProtocolTest, ADescriptorThatIsStillPromisedIsNotWaitedFor) {
  Opened opened = OpenUpload();
  Wire data(io_, opened.data_addresses[0]);
  ASSERT_TRUE(Redeem(data, opened.client->tickets[0].first, opened.client->tickets[0].second).ok());
  auto never = kj::newPromiseAndFulfiller<wire::SharedMemory::Client>();
  auto promised = held_[0].attachRequest();
  promised.setMemory(kj::mv(never.promise));
  auto answer = promised.send();
  auto behind = held_[0].attachRequest();
  behind.setMemory(kj::heap<Memory>(64, F_SEAL_SHRINK | F_SEAL_GROW));
  auto second = behind.send();
  const absl::Status first_status = StatusOf([&]() { answer.wait(io_.waitScope); });
  EXPECT_EQ(first_status.code(), absl::StatusCode::kInvalidArgument) << first_status;
  EXPECT_THAT(std::string(first_status.message()), HasSubstr("without a file descriptor"));
  const absl::Status second_status = StatusOf([&]() { second.wait(io_.waitScope); });
  EXPECT_EQ(second_status.code(), absl::StatusCode::kFailedPrecondition) << second_status;
}

// Files that the process has open.
size_t OpenFiles(int pid) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    ++count;
  }
  return count;
}

TEST_F(ProtocolTest, DescriptorsOfCallsThatWaitForNothingAreNotKept) {
  Opened opened = OpenUpload();
  Wire data(io_, opened.data_addresses[0]);
  ASSERT_TRUE(Redeem(data, opened.client->tickets[0].first, opened.client->tickets[0].second).ok());
  const int pid = cluster_->worker_pids()[0];
  const size_t before = OpenFiles(pid);
  auto never = kj::newPromiseAndFulfiller<wire::SharedMemory::Client>();
  kj::Vector<kj::Promise<void>> answers;
  for (int i = 0; i < 200; ++i) {
    auto request = held_[0].attachRequest();
    if (i == 0) {
      request.setMemory(kj::mv(never.promise));
    } else {
      request.setMemory(kj::heap<Memory>(64, F_SEAL_SHRINK | F_SEAL_GROW));
    }
    answers.add(request.send().ignoreResult().catch_([](kj::Exception&&) {}));
  }
  for (auto& answer : answers) answer.wait(io_.waitScope);
  Pause(100);
  EXPECT_LE(OpenFiles(pid), before + 8);
}

TEST_F(ProtocolTest, AForeignKeyGetsNoArena) {
  Opened opened = Open();
  Wire data(io_, opened.data_addresses[0]);
  const absl::Status status = StatusOf([&]() {
    auto request = data.Root<wire::BulkServer>().arenaRequest();
    request.setPeerKey(opened.epoch);
    request.send().wait(io_.waitScope);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
}

void DropNothing(unsigned, wire::Record::Builder record) { record.initDrop(0); }

TEST_F(ProtocolTest, ARelayPassesOnTicketsAndNothingElse) {
  Opened opened = OpenUpload();
  const auto [ticket, secret] = opened.client->tickets[0];
  Wire data(io_, opened.data_addresses[0]);
  const auto relayed = [&](int32_t worker) {
    auto request = data.Root<wire::BulkServer>().relayRequest();
    request.setIndex(worker);
    return request.send().wait(io_.waitScope).getServer();
  };
  EXPECT_EQ(StatusOf([&]() { relayed(77); }).code(), absl::StatusCode::kNotFound);
  wire::BulkServer::Client bulk = relayed(1);
  const auto redeem = [&](uint64_t shown) {
    return StatusOf([&]() {
      auto request = bulk.transferRequest();
      request.setTicket(ticket);
      request.setSecret(shown);
      request.send().wait(io_.waitScope);
    });
  };
  EXPECT_EQ(redeem(secret + 1).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(redeem(secret).ok());
  EXPECT_EQ(redeem(secret).code(), absl::StatusCode::kFailedPrecondition);  // used
  const absl::Status arena = StatusOf([&]() { bulk.arenaRequest().send().wait(io_.waitScope); });
  EXPECT_EQ(arena.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(StatusOf([&]() { bulk.relayRequest().send().wait(io_.waitScope); }).ok());
  const absl::Status key =
      StatusOf([&]() { data.Root<wire::BulkServer>().forRelayRequest().send().wait(io_.waitScope); });
  EXPECT_EQ(key.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ProtocolTest, BatchesOfAnotherEpochAreRefused) {
  Opened opened = Open();
  ++opened.epoch;
  Submit(opened, 1, DropNothing);
  const absl::Status stale = AwaitEnd(opened);
  EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition) << stale;
  EXPECT_THAT(std::string(stale.message()), HasSubstr("epoch"));
}

TEST_F(ProtocolTest, AGapBetweenBatchesEndsTheSession) {
  Opened opened = Open();
  opened.next_batch = 5;
  Submit(opened, 1, DropNothing);
  EXPECT_EQ(AwaitEnd(opened).code(), absl::StatusCode::kFailedPrecondition) << opened.client->ended;
  EXPECT_EQ(StatusOf([&]() { opened.session.statusRequest().send().wait(io_.waitScope); }).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ProtocolTest, ABatchBeyondTheLimitEndsTheSession) {
  Opened opened = Open();
  Submit(opened, 5000, DropNothing);
  const absl::Status refused = AwaitEnd(opened);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("max_records_per_batch"));
}

// Watches of handles that nobody knows: answered at once.
void WatchNothing(unsigned i, wire::Record::Builder record) { record.initWatch().setRequest(i + 1); }

TEST_F(ProtocolTest, AResumedSessionGetsTheEventsThatItHadNotSeen) {
  Former former;
  {
    Opened opened = Open();
    Submit(opened, 4, WatchNothing);
    for (int i = 0; i < 500 && opened.client->events.size() < 4; ++i) Pause(10);
    ASSERT_GE(opened.client->events.size(), 4u);
    capnp::MallocMessageBuilder message;
    message.initRoot<wire::ToCoordinator>().setAcknowledge(1);
    opened.client->link.Send(message);
    Pause(20);
    former = {opened.id, opened.secret, 2};
  }
  EXPECT_EQ(StatusOf([&]() {
              Open(Client::Ears::kOpen, {former.id, former.secret + 1, 0});
            }).code(),
            absl::StatusCode::kNotFound);
  Opened resumed = Open(Client::Ears::kOpen, former);
  EXPECT_EQ(resumed.last_batch, 1u);
  resumed.next_batch = 2;
  Submit(resumed, 1, WatchNothing);
  for (int i = 0; i < 500 && resumed.client->events.size() < 4; ++i) Pause(10);
  ASSERT_GE(resumed.client->events.size(), 4u);
  for (size_t i = 0; i < resumed.client->events.size(); ++i) EXPECT_EQ(resumed.client->events[i], i + 3);
  EXPECT_TRUE(resumed.client->ended.ok()) << resumed.client->ended;
}

TEST_F(ProtocolTest, WhoResumesASessionTakesItFromItsConnection) {
  Opened first = Open();
  Opened second = Open(Client::Ears::kOpen, {first.id, first.secret, 0});
  EXPECT_EQ(AwaitEnd(first).code(), absl::StatusCode::kCancelled) << first.client->ended;
  // Whatever the former one still says is not heard.
  first.next_batch = 7;
  Submit(first, 1, DropNothing);
  Pause(20);
  Submit(second, 1, WatchNothing);
  for (int i = 0; i < 500 && second.client->events.empty(); ++i) Pause(10);
  EXPECT_FALSE(second.client->events.empty());
  EXPECT_TRUE(second.client->ended.ok()) << second.client->ended;
}

TEST_F(ProtocolTest, GarbageOnALinkEndsItsSessionAlone) {
  auto wire = std::make_unique<Wire>(io_, address_);
  auto response = Open(*wire, wire::PROTOCOL_VERSION, token_);
  wire::Session::Client session = response.getSession();
  const kj::AutoCloseFd link = OpenLink(address_, response.getLinkKey());
  const std::vector<unsigned char> garbage(64, 0xff);
  ASSERT_EQ(send(link.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 64);
  absl::Status status;
  for (int i = 0; i < 500 && status.ok(); ++i, Pause(10)) {
    status = StatusOf([&]() { session.statusRequest().send().wait(io_.waitScope); });
  }
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_segments"));
}

// True when the other side has closed the connection, within 5 seconds.
bool IsClosed(const kj::AutoCloseFd& fd) {
  const timeval patience{5, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char byte = 0;
  return recv(fd.get(), &byte, 1, 0) == 0;
}

TEST_F(ProtocolTest, ALinkKeyIsGoodOnce) {
  EXPECT_TRUE(IsClosed(OpenLink(address_, 12345)));
  Opened opened = Open();
  auto wire = std::make_unique<Wire>(io_, address_);
  const auto response = Open(*wire, wire::PROTOCOL_VERSION, token_);
  const kj::AutoCloseFd first = OpenLink(address_, response.getLinkKey());
  Pause(50);
  EXPECT_TRUE(IsClosed(OpenLink(address_, response.getLinkKey())));
  Submit(opened, 1, WatchNothing);
  for (int i = 0; i < 500 && opened.client->events.empty(); ++i) Pause(10);
  EXPECT_FALSE(opened.client->events.empty());
}

TEST_F(ProtocolTest, ACutWithinAMessageLeavesTheSession) {
  auto wire = std::make_unique<Wire>(io_, address_);
  const auto response = Open(*wire, wire::PROTOCOL_VERSION, token_);
  const Former former{response.getWelcome().getSessionId(), response.getWelcome().getSecret(), 0};
  {
    const kj::AutoCloseFd link = OpenLink(address_, response.getLinkKey());
    const uint32_t half_a_table[] = {0, 1000};  // a message of 8,000 bytes begins
    ASSERT_EQ(send(link.get(), half_a_table, sizeof(half_a_table), MSG_NOSIGNAL), ssize_t{sizeof(half_a_table)});
  }
  Pause(50);
  Opened resumed = Open(Client::Ears::kOpen, former);
  Submit(resumed, 1, WatchNothing);
  for (int i = 0; i < 500 && resumed.client->events.empty(); ++i) Pause(10);
  EXPECT_FALSE(resumed.client->events.empty()) << resumed.client->ended;
}

TEST_F(ProtocolTest, AClientThatNeverTakesItsEventsLosesItsSession) {
  Opened opened = Open(Client::Ears::kDeaf);
  for (int batch = 0; batch < 300; ++batch) {
    Submit(opened, 1000, [](unsigned i, wire::Record::Builder record) {
      record.initWatch().setRequest(i + 1);  // of an unknown handle: answered at once
    });
  }
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i, Pause(10)) {
    status = StatusOf([&]() { opened.session.statusRequest().send().wait(io_.waitScope); });
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_pending_events"));
}

}  // namespace
}  // namespace tessera
