// Attacks of a client on a coordinator's memory or its life: each test is one attack, bounded in bytes and not in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <thread>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/system/hostile/wire_client.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

class HostileTest : public WireTest {
 protected:
  // Until the coordinator has taken up what the session sent: it answers what comes behind it.
  void AwaitTakenUp(Opened& opened) {
    for (int i = 0; i < 3000 && opened.client->ended.ok() && !IsTakenUp(opened); ++i) Pause(10);
  }
  bool IsTakenUp(const Opened& opened) { return opened.client->batches_done + 1 >= opened.next_batch; }
};

TEST_F(HostileTest, HugeMeshesInManyCallsTakeNoMemory) {
  Opened opened = Open();
  const int64_t before = ResidentBytesOf(opened.pid);
  const Mesh mesh = *Mesh::Make({65536}, {}, {});
  for (uint64_t batch = 0; batch < 4; ++batch) {
    Submit(opened, 2000,
           [&](unsigned i, wire::Record::Builder record) { Full(record, 1 + batch * 2000 + i, mesh, Shape{8}); });
  }
  AwaitTakenUp(opened);
  EXPECT_TRUE(opened.client->ended.ok()) << opened.client->ended;
  // 8,000 failed handles and their events; a list of the mesh's workers in each would be 2 GiB.
  EXPECT_LT(ResidentBytesOf(opened.pid) - before, 64 * kMiB);
}

TEST_F(HostileTest, AnExplainOfManyOperandsIsRefused) {
  Opened opened = Open();
  const int64_t before = ResidentBytesOf(opened.pid);
  const absl::Status refused = StatusOf([&]() {
    auto request = opened.session.explainRequest();
    OpCall call;
    call.op = OpId::kConcat;
    EncodeOpCall(call, request.initCall());
    auto operands = request.initOperands(8000);
    const TensorSpec spec = *ParseTensorSpec("f32[65536] @ mesh(65536) [S(0)]");
    for (auto operand : operands) EncodeTensorSpec(spec, operand.initSpec());
    request.send().wait(io_.waitScope);
  });
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8000 operands; 64 are allowed (max_operands)"));
  EXPECT_LT(ResidentBytesOf(opened.pid) - before, 32 * kMiB);
}

TEST_F(HostileTest, SessionsThatSayThatMuchIsToComeTakeNoMemory) {
  std::vector<std::unique_ptr<Wire>> wires;
  std::vector<wire::Session::Client> sessions;
  std::vector<kj::AutoCloseFd> links;
  int pid = 0;
  int64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    auto wire = std::make_unique<Wire>(io_, address_);
    auto response = Open(*wire, wire::PROTOCOL_VERSION, token_);
    if (i == 0) {
      pid = response.getWelcome().getPid();
      before = ResidentBytesOf(pid);
    }
    kj::AutoCloseFd link = OpenLink(address_, response.getLinkKey());
    const uint32_t head[] = {0, (60 << 20) / 8, 0, 0, 0, 0};  // one segment of 60 MiB, and two words of it
    EXPECT_EQ(send(link.get(), head, sizeof(head), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(head)));
    sessions.push_back(response.getSession());
    wires.push_back(std::move(wire));
    links.push_back(kj::mv(link));
  }
  Pause(200);
  EXPECT_LT(ResidentBytesOf(pid) - before, 40 * kMiB);
}

TEST_F(HostileTest, ASessionHoldsOneAnswerThatNobodyReads) {
  Opened opened = Open();
  const Mesh mesh = *Mesh::Make({1}, {}, {});
  for (uint64_t batch = 0; batch < 5; ++batch) {
    Submit(opened, 2000,
           [&](unsigned i, wire::Record::Builder record) { Full(record, 1 + batch * 2000 + i, mesh, Shape{8}); });
  }
  AwaitTakenUp(opened);
  DeafWire deaf(io_, address_);
  const Former former{opened.id, opened.secret, 0};
  // The calls go by way of an answer that isn't read either.
  auto session = RequestOpen(deaf.Root<wire::Gateway>(), wire::PROTOCOL_VERSION, token_, former).send().getSession();
  const int64_t before = ResidentBytesOf(opened.pid);
  std::vector<kj::Promise<void>> answers;
  for (int i = 0; i < 300; ++i) {  // some 1.4 MiB each
    auto request = session.statusRequest();
    request.setMaxTensors(10'000);
    answers.push_back(request.send().ignoreResult());
  }
  int64_t grown = 0;
  for (int i = 0; i < 100; ++i) {
    Pause(20);
    grown = std::max(grown, ResidentBytesOf(opened.pid) - before);
  }
  EXPECT_LT(grown, 16 * kMiB);
}

class FewEventsTest : public HostileTest {
 protected:
  FewEventsTest() { coordinator_flags_ = {"--max-all-event-bytes=8388608"}; }
  // So many events, which nobody acknowledges.
  void MakeEvents(Opened& opened, unsigned count) {
    Submit(opened, count, [](unsigned i, wire::Record::Builder record) {
      record.initWatch().setRequest(i + 1);  // of an unknown handle: answered at once
    });
    AwaitTakenUp(opened);
  }
};

TEST_F(FewEventsTest, TheSessionWithMostUnreadEventsEndsWhereAllHaveTooMany) {
  Opened large = Open(), small = Open(), newest = Open();
  for (int i = 0; i < 60 && large.client->ended.ok(); ++i) {
    MakeEvents(large, 1000);
    MakeEvents(small, 400);
    MakeEvents(newest, 400);
  }
  EXPECT_THAT(std::string(large.client->ended.message()), HasSubstr("max_all_event_bytes is 8388608"));
  EXPECT_TRUE(small.client->ended.ok() && newest.client->ended.ok()) << small.client->ended << newest.client->ended;
}

// One thread is enough: each connection is ready when the one before it has been taken.
TEST_F(HostileTest, ConnectionsThatComeWithoutEndHoldUpNobodyWhoIsThere) {
  const auto session = cluster_->Connect();
  ASSERT_TRUE(session.ok()) << session.status();
  std::atomic<bool> is_over = false;
  std::thread flood([&]() {
    std::deque<kj::AutoCloseFd> kept;
    while (!is_over) {
      if (auto fd = ConnectUnixSocket("flood", address_.substr(5)); fd.ok()) kept.push_back(kj::mv(*fd));
      if (kept.size() > 300) kept.pop_front();
    }
  });
  Pause(200);
  const std::vector<float> ones(8, 1);
  for (int i = 0; i < 20; ++i) {
    const auto x = session->DistributeTensor(MakeHostView(DType::kF32, {8}, ones.data()),
                                             *session->InitDeviceMesh({1}, {}, {}), {Placement::Replicate()});
    ASSERT_TRUE(x.ok()) << x.status();
    const absl::Status done = x->Wait(10);
    EXPECT_TRUE(done.ok()) << done;
    if (!done.ok()) break;
  }
  is_over = true;
  flood.join();
}

// A NaN equals nothing: a key with one that the cache doesn't find again was freed under its index.
TEST_F(HostileTest, NansInAttributesEndNothing) {
  Opened opened = Open();
  const Mesh mesh = *Mesh::Make({1}, {}, {});
  Submit(opened, 1, [&](unsigned, wire::Record::Builder record) { Full(record, 1, mesh, Shape{8}); });
  for (uint64_t batch = 0; batch < 10; ++batch) {
    Submit(opened, 2000, [&](unsigned i, wire::Record::Builder record) {
      OpCall call;
      call.op = OpId::kVar;
      call.attributes.Set(attribute::dims, {0});
      call.attributes.Set(attribute::correction, std::numeric_limits<double>::quiet_NaN());
      auto out = record.initCall();
      EncodeOpCall(call, out.initCall());
      out.initOperands(1)[0].setHandle(1);
      out.initResults(1).set(0, 10 + batch * 2000 + i);
    });
    AwaitTakenUp(opened);
  }
  EXPECT_TRUE(opened.client->ended.ok()) << opened.client->ended;
}

}  // namespace
}  // namespace tessera
