#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "server/coordinator/profile_log.h"
#include "server/coordinator/rpc/clock_offset.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};
const Placements kColumns = {Placement::Shard(1)};

ProfiledOp OpOfRuns(ProfileLog& log, int runs) {
  ProfiledOp op{.number = log.TakeNumber(), .name = "add"};
  for (int w = 0; w < runs; ++w) op.runs.push_back({.worker = WorkerIndex(w), .times = {1, 2, 1}});
  return op;
}

std::vector<uint64_t> NumbersOf(const ProfileLog& log) {
  std::vector<uint64_t> numbers;
  for (const ProfiledOp& op : log.ops()) numbers.push_back(op.number);
  return numbers;
}

TEST(ProfileLogTest, KeepsTheLastOnesAsFarAsRunsGo) {
  ProfileLog log;
  for (int i = 0; i < 4; ++i) log.Add(OpOfRuns(log, 2), /*max_runs=*/6);
  EXPECT_EQ(NumbersOf(log), (std::vector<uint64_t>{1, 2, 3}));
  log.Add(OpOfRuns(log, 5), 6);
  EXPECT_EQ(NumbersOf(log), std::vector<uint64_t>{4});
  // One without any counts, too: nothing grows without end.
  for (int i = 0; i < 100; ++i) log.Add(OpOfRuns(log, 0), 6);
  EXPECT_EQ(NumbersOf(log), (std::vector<uint64_t>{99, 100, 101, 102, 103, 104}));
  log.Add(OpOfRuns(log, 7), 6);
  EXPECT_TRUE(log.ops().empty());
  EXPECT_EQ(log.next_number(), 106u);
}

TEST(ClockOffsetTest, BelievesTheQuickestAnswer) {
  ClockOffset clock(ClockOffset::Host::kOther);
  EXPECT_EQ(clock.offset_ns(), 0);
  clock.Add(1'000, 51'040, 1'100);
  EXPECT_EQ(clock.offset_ns(), -49'990);
  EXPECT_EQ(clock.error_ns(), 50);
  clock.Add(2'000, 52'900, 4'000);  // held up on one of the ways
  EXPECT_EQ(clock.offset_ns(), -49'990);
  for (int64_t at = 10'000; at < 30'000; at += 1'000)
    clock.Add(at, at + 60'100, at + 200);  // it drifts, and the old one goes
  EXPECT_EQ(clock.offset_ns(), -60'000);
  EXPECT_EQ(clock.error_ns(), 100);
}

TEST(ClockOffsetTest, OfTheOwnHostIsNoneWhereAnswersAllowIt) {
  ClockOffset clock(ClockOffset::Host::kOwn);
  clock.Add(1'000, 1'070, 1'100);
  EXPECT_EQ(clock.offset_ns(), 0);
  EXPECT_EQ(clock.error_ns(), 0);
  ClockOffset other_namespace(ClockOffset::Host::kOwn);
  other_namespace.Add(1'000, 900'000, 1'100);
  EXPECT_EQ(other_namespace.offset_ns(), -898'950);
}

// Reports an instance as done by a worker, with the times.
void Report(SimulatedCluster& cluster, Ordinal ordinal, int worker, RunTimes times, absl::Status status = {}) {
  CompletionReport done;
  done.ordinal = ordinal;
  done.status = std::move(status);
  done.times = times;
  done.received_bytes = {{WorkerIndex(1 - worker), 100}};
  cluster.Apply(WorkerReportEvent{WorkerIndex(worker), static_cast<uint64_t>(worker) + 1, {done}, {}});
}

TEST(ProfileTest, SaysWhatWorkersReportedOfASessionsOwnOps) {
  SimulatedCluster cluster(2);
  const SessionId mine = cluster.Open(), other = cluster.Open();
  cluster.Submit(mine, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), CommBeginRecord{1}, RedistributeRecord(1, kColumns, 2),
                        CommEndRecord{6, 1}});
  cluster.Submit(other, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  const std::vector<Instance> instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 3u);
  EXPECT_EQ(cluster.machine().CountUnderWay(mine, 0, 100), 2u);
  for (int w = 0; w < 2; ++w) {
    Report(cluster, instances[0].ordinal, w, {1'000, 2'000, 900});
    Report(cluster, instances[1].ordinal, w, {3'000 + w, 5'000, 500});
  }
  EXPECT_EQ(cluster.machine().CountUnderWay(mine, 0, 100), 0u);
  const auto& ops = cluster.machine().sessions().at(mine).profile.ops();
  ASSERT_EQ(ops.size(), 2u);
  EXPECT_EQ(ops[1].name, "redistribute");
  ASSERT_EQ(ops[1].runs.size(), 2u);
  EXPECT_EQ(ops[1].runs[1].times, (RunTimes{3'001, 5'000, 500}));
  EXPECT_EQ(ops[1].runs[1].received_bytes, 100);
  EXPECT_GT(ops[1].predicted_us, 0);
  EXPECT_TRUE(cluster.machine().sessions().at(other).profile.ops().empty());
  const auto reports = cluster.EventsOf<CommReportEvent>(mine);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].first_op, 1u);
  EXPECT_EQ(reports[0].end_op, 2u);
}

TEST(ProfileTest, AnOpOfALostWorkerHasTheOthersRunsAndItsFailure) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  Report(cluster, cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal, 0, {1'000, 2'000, 900});
  cluster.Kill(WorkerIndex(1));
  const auto& ops = cluster.machine().sessions().at(session).profile.ops();
  ASSERT_EQ(ops.size(), 1u);
  EXPECT_EQ(ops[0].code, absl::StatusCode::kUnavailable);
  ASSERT_EQ(ops[0].runs.size(), 1u);
  EXPECT_EQ(ops[0].runs[0].worker, WorkerIndex(0));
}

TEST(ProfileTest, RemembersNoMoreThanItsLimit) {
  CoordinatorConfig config;
  config.max_profiled_runs = 10;
  SimulatedCluster cluster(2, 1 << 20, config);
  const SessionId session = cluster.Open();
  for (uint64_t h = 1; h <= 50; ++h) {
    cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, h), DropRecord{{HandleId(h)}}});
    const std::vector<Instance> instances = cluster.InstancesAt(WorkerIndex(0));
    for (int w = 0; w < 2; ++w) Report(cluster, instances.back().ordinal, w, {1'000, 2'000, 900});
  }
  const ProfileLog& log = cluster.machine().sessions().at(session).profile;
  EXPECT_EQ(log.ops().size(), 5u);
  EXPECT_EQ(log.ops().back().number, 49u);
}

}  // namespace
}  // namespace tessera
