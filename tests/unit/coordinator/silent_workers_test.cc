// Workers that say nothing: what is done about them, and what waits until they are gone.

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/coordinator/state_machine.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};

TEST(SilentWorkersTest, AreSuspectThenKilledAndLostWhenTheyAreGone) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), DropRecord{{HandleId(1)}}});
  cluster.Advance(500'000);
  cluster.Apply(WorkerHeardEvent{WorkerIndex(0)});
  cluster.Advance(600'000);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(0)).state, WorkerState::kAlive);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kSuspect);
  const auto kills = [&]() {
    return std::count_if(cluster.log().begin(), cluster.log().end(),
                         [](const std::string& line) { return line.rfind("kill 1", 0) == 0; });
  };
  cluster.Advance(9'000'000);
  cluster.Advance(100'000);
  EXPECT_EQ(kills(), 1);
  // It may be writing still: nobody is told not to wait for it, and no new work is for it.
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kSuspect);
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 2)});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_EQ(cluster.machine().unsettled_ops(), 1);
  EXPECT_TRUE(cluster.EventsOf<WorkerLostNotice>(session).empty());
  cluster.Advance(10'000'000);
  EXPECT_EQ(kills(), 2);  // in vain, the first time
  cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kDead);
  ASSERT_EQ(cluster.EventsOf<WorkerLostNotice>(session).size(), 1u);
  EXPECT_EQ(cluster.EventsOf<WorkerLostNotice>(session)[0].reason, "silent for 10 s");
}

TEST(SilentWorkersTest, GoOnWhenTheyAreHeardAgain) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Advance(11'000'000);
  cluster.Apply(WorkerHeardEvent{WorkerIndex(0)});
  cluster.Apply(WorkerHeardEvent{WorkerIndex(1)});
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(1)).size(), 1u);
  cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(cluster.EventsOf<WorkerLostNotice>(session)[0].reason, "killed");
}

}  // namespace
}  // namespace tessera
