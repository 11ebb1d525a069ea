// Admins' acts on workers and tenants: cordons, drains and evictions, in the real state machine.

#include "server/coordinator/rpc/drains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/usage_book.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using Phase = DrainState::Phase;

const Placements kCopies = {Placement::Replicate()};
const Placements kRows = {Placement::Shard(0)};
const WorkerIndex kDrained(1);
constexpr int64_t kPatienceUs = 2'000'000;

Mesh MeshOf(int64_t size) { return *Mesh::Make({size}, {}, {}); }

class Drained : public ::testing::Test {
 protected:
  explicit Drained(int workers = 3) : cluster_(workers) {}
  DrainState Step(Drains::Losses losses = Drains::Losses::kRefused) {
    auto state = drains_.Step(kDrained, losses, "drained", now_us_);
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? *state : DrainState{};
  }
  bool IsTold() const {
    const auto messages = cluster_.MessagesAt(kDrained);
    return !messages.empty() && std::holds_alternative<Shutdown>(messages.back());
  }
  absl::Status StatusOf(SessionId session, uint64_t handle) {
    return cluster_.machine().sessions().at(session).tensors.at(HandleId(handle))->status;
  }

  SimulatedCluster cluster_;
  int64_t now_us_ = 1'000'000;
  Drains drains_{cluster_.machine(), kPatienceUs, [this](Event event) { cluster_.Apply(event); }};
};

TEST_F(Drained, AWorkerWithCopiesAloneEndsWhenItHasReported) {
  const SessionId session = cluster_.Open();
  cluster_.Submit(session, {FullRecord(MeshOf(3), {8}, kCopies, 1)});
  EXPECT_EQ(Step().phase, Phase::kWaiting);
  EXPECT_EQ(Step().phase, Phase::kWaiting);  // it has not reported the tensor
  EXPECT_FALSE(IsTold());
  cluster_.CompleteAll();
  EXPECT_EQ(Step().phase, Phase::kEnding);
  EXPECT_TRUE(IsTold());
  cluster_.Kill(kDrained);
  EXPECT_EQ(Step().phase, Phase::kDone);
  EXPECT_TRUE(StatusOf(session, 1).ok());
  EXPECT_TRUE(absl::IsNotFound(drains_.Step(kDrained, Drains::Losses::kRefused, "", now_us_).status()));
}

TEST_F(Drained, WhatIsThereAloneRefusesItByOwnerAndBytes) {
  const SessionId session = cluster_.Open(), other = cluster_.Open();
  cluster_.Submit(session, {FullRecord(MeshOf(3), {12}, kRows, 1), FullRecord(MeshOf(3), {8}, kCopies, 2)});
  cluster_.Submit(other, {FullRecord(MeshOf(1), {8}, kCopies, 1)});  // on worker 0
  cluster_.CompleteAll();
  const DrainState state = Step();
  EXPECT_EQ(state.phase, Phase::kRefused);
  EXPECT_EQ(state.tensors, 1u);
  ASSERT_EQ(state.losses.size(), 1u);
  EXPECT_EQ(state.losses[0].session, session);
  EXPECT_EQ(state.losses[0].tenant, "tenant");
  EXPECT_EQ(state.losses[0].bytes, 16);
  EXPECT_EQ(cluster_.machine().workers().at(kDrained).admits, Admits::kEveryone);
  EXPECT_EQ(Step(Drains::Losses::kTaken).phase, Phase::kWaiting);
  EXPECT_EQ(Step(Drains::Losses::kTaken).phase, Phase::kEnding);
}

TEST_F(Drained, WorkWaitsMeanwhileAndFailsNobody) {
  const SessionId session = cluster_.Open();
  cluster_.Submit(session, {FullRecord(MeshOf(3), {8}, kCopies, 1)});
  EXPECT_EQ(Step().phase, Phase::kWaiting);
  cluster_.Submit(session, {OpRecord(OpId::kExp, {1}, 2)});
  const size_t issued = cluster_.InstancesAt(kDrained).size();
  EXPECT_EQ(issued, 1u);
  now_us_ += kPatienceUs + 1;
  const DrainState late = Step();
  EXPECT_EQ(late.phase, Phase::kRefused);
  EXPECT_THAT(late.why, HasSubstr("has 1 instructions that it has not ended in 2 s"));
  EXPECT_EQ(cluster_.InstancesAt(kDrained).size(), 2u);  // it goes on
  cluster_.CompleteAll();
  EXPECT_TRUE(StatusOf(session, 2).ok());
}

TEST_F(Drained, ADrainThatNobodyAsksAboutIsGivenUp) {
  const SessionId session = cluster_.Open();
  cluster_.Submit(session, {FullRecord(MeshOf(3), {8}, kCopies, 1)});
  cluster_.Apply(WorkerAdmitsEvent{kDrained, Admits::kFormerSessions});
  EXPECT_EQ(Step().phase, Phase::kWaiting);
  drains_.Look(now_us_ + kForgottenUs);
  EXPECT_EQ(cluster_.machine().workers().at(kDrained).admits, Admits::kNobody);
  drains_.Look(now_us_ + kForgottenUs + 1);
  EXPECT_EQ(cluster_.machine().workers().at(kDrained).admits, Admits::kFormerSessions);  // as it was
  EXPECT_EQ(cluster_.machine().workers().at(kDrained).newest_admitted, session);
}

TEST_F(Drained, OneThatAFormerProcessBeganIsGivenUp) {
  cluster_.Apply(WorkerAdmitsEvent{kDrained, Admits::kNobody});
  drains_.GiveUpFormer();
  EXPECT_EQ(cluster_.machine().workers().at(kDrained).admits, Admits::kEveryone);
}

TEST_F(Drained, ManyTensorsTakeManySteps) {
  const SessionId session = cluster_.Open();
  std::vector<Record> records;
  for (uint64_t handle = 1; handle <= 4'500; ++handle) {
    records.push_back(FullRecord(MeshOf(1), {1}, kCopies, handle));
    if (records.size() == 500) {
      cluster_.Submit(session, std::exchange(records, {}));
      cluster_.CompleteAll();
    }
  }
  EXPECT_EQ(Step().phase, Phase::kLooking);
  EXPECT_EQ(Step().phase, Phase::kLooking);
  EXPECT_EQ(Step().phase, Phase::kWaiting);  // worker 1 has none of them
}

TEST_F(Drained, ACordonedWorkerIsForSessionsThatWereThere) {
  const SessionId former = cluster_.Open();
  cluster_.Apply(WorkerAdmitsEvent{kDrained, Admits::kFormerSessions});
  const SessionId later = cluster_.Open();
  cluster_.Submit(former, {FullRecord(MeshOf(3), {8}, kCopies, 1)});
  cluster_.Submit(later, {FullRecord(MeshOf(3), {8}, kCopies, 1), FullRecord(MeshOf(1), {8}, kCopies, 2)});
  cluster_.CompleteAll();
  EXPECT_TRUE(StatusOf(former, 1).ok());
  EXPECT_THAT(std::string(StatusOf(later, 1).message()), HasSubstr("worker 1 is cordoned"));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(later, 1)));
  EXPECT_TRUE(StatusOf(later, 2).ok());
  cluster_.Apply(WorkerAdmitsEvent{kDrained, Admits::kEveryone});
  cluster_.Submit(later, {FullRecord(MeshOf(3), {8}, kCopies, 3)});
  cluster_.CompleteAll();
  EXPECT_TRUE(StatusOf(later, 3).ok());
}

TEST_F(Drained, AnEvictionEndsATenantsSessionsButNoAdmins) {
  cluster_.Open();
  cluster_.Open();
  cluster_.Apply(SessionOpenedEvent{SessionId(70), 1, "tenant", "admin", 0, Role::kAdmin});
  cluster_.Apply(SessionOpenedEvent{SessionId(71), 1, "other", "test", 0});
  cluster_.Apply(TenantEvictedEvent{"tenant", "no reason"});
  ASSERT_EQ(cluster_.machine().sessions().size(), 2u);
  EXPECT_TRUE(cluster_.machine().sessions().contains(SessionId(70)));
  EXPECT_TRUE(cluster_.machine().sessions().contains(SessionId(71)));
}

TEST(AdminEventsTest, TheJournalHasThemWhole) {
  const auto again = [](const Event& event) {
    capnp::MallocMessageBuilder message;
    auto builder = message.initRoot<wire::JournalEvent>();
    EncodeEvent(5, event, nullptr, builder);
    return *DecodeEvent(builder.asReader());
  };
  const auto evicted = std::get<TenantEvictedEvent>(again(TenantEvictedEvent{"a\"b\n", "why"}));
  EXPECT_EQ(evicted.tenant, "a\"b\n");
  EXPECT_EQ(evicted.reason, "why");
  const auto admits = std::get<WorkerAdmitsEvent>(again(WorkerAdmitsEvent{kDrained, Admits::kNobody}));
  EXPECT_EQ(admits.worker, kDrained);
  EXPECT_EQ(admits.admits, Admits::kNobody);
  const auto drained = std::get<WorkerDrainedEvent>(again(WorkerDrainedEvent{kDrained, 7, "why"}));
  EXPECT_EQ(drained.incarnation, 7u);
  EXPECT_EQ(drained.reason, "why");
}

TEST(UsageBookTest, RowsOfASessionAddUpToWhatItUsed) {
  SimulatedCluster cluster(1);
  UsageBook book;
  const SessionId session = cluster.Open();
  const auto run = [&](uint64_t handle) {
    cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kCopies, handle)});
    CompletionReport done;
    done.ordinal = cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal;
    done.times = {1, 3'000'001, 3'000'000, 2'000'000};
    cluster.Apply(WorkerReportEvent{WorkerIndex(0), 1, {done}, {}});
    cluster.CompleteAll();
  };
  run(1);
  auto rows = book.Minute(cluster.machine());
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].device_ns, 2'000'000);
  EXPECT_EQ(rows[0].held_bytes, 32);
  EXPECT_EQ(book.Minute(cluster.machine())[0].device_ns, 0);  // it holds its bytes
  cluster.Submit(session, {OpRecord(OpId::kNeg, {99}, 2)});
  run(3);
  for (const Effect& effect : cluster.Apply(SessionClosedEvent{session})) {
    const auto* end = std::get_if<EndSession>(&effect);
    if (end == nullptr) continue;
    rows = book.Last(*end);
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].device_ns, 2'000'000);
    EXPECT_EQ(rows[0].refused, 1);
    EXPECT_EQ(rows[0].tenant, "tenant");
  }
  EXPECT_TRUE(book.Minute(cluster.machine()).empty());
}

}  // namespace
}  // namespace tessera
