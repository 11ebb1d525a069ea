// A matmul whose temporaries don't fit is issued in parts; a matmul that fits in no way is refused, and nothing is
// lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "server/coordinator/state_machine.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// x f32[64,1024] in rows and y f32[1024,48] in columns, on two workers: 224 KiB on each. Their product takes 6 KiB; y
// is gathered for it, 192 KiB, because its pieces of 24 columns are thin.
constexpr int64_t kOperandBytes = 224 << 10;
constexpr int64_t kProductBytes = 6 << 10;
constexpr int64_t kGatheredBytes = 192 << 10;

struct World {
  explicit World(int64_t free_bytes, const CoordinatorConfig& config = {})
      : cluster(2, kOperandBytes + free_bytes, config), session(cluster.Open()) {
    const Mesh mesh = *Mesh::Make({2}, {}, {});
    cluster.Submit(session, {FullRecord(mesh, {64, 1024}, {Placement::Shard(0)}, 1),
                             FullRecord(mesh, {1024, 48}, {Placement::Shard(1)}, 2)});
    cluster.CompleteAll();
  }
  int64_t UsedBytes() { return cluster.machine().memory().UsedBytes(WorkerIndex(0)); }
  void Multiply(uint64_t result) { cluster.Submit(session, {OpRecord(OpId::kMatmul, {1, 2}, result)}); }
  std::string Grid() { return cluster.PlansAt(WorkerIndex(0)).back()->grid; }
  std::string Explained() {
    OpCall call;
    call.op = OpId::kMatmul;
    const auto plan = cluster.machine().Explain(session, call, {HandleId(1), HandleId(2)});
    return plan.ok() ? plan->plan.grid : std::string(plan.status().message());
  }

  SimulatedCluster cluster;
  SessionId session;
};

TEST(Splitting, AMatmulThatFitsIsWhole) {
  World world(kProductBytes + kGatheredBytes);
  EXPECT_THAT(world.Explained(), ::testing::Not(HasSubstr(" parts over ")));
  world.Multiply(3);
  EXPECT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_THAT(world.Grid(), ::testing::Not(HasSubstr(" parts over ")));
}

TEST(Splitting, AMatmulWhoseTemporariesDoNotFitIsIssuedInParts) {
  World world(kProductBytes + kGatheredBytes - 256);
  EXPECT_THAT(world.Explained(), HasSubstr("; in 2 parts over n, of 24 each: temporaries of 98,304 bytes"));
  world.Multiply(3);
  ASSERT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_EQ(world.cluster.InstancesAt(WorkerIndex(1)).size(), 1u);
  EXPECT_EQ(world.Grid(), world.Explained());
  EXPECT_TRUE(world.cluster.EventsOf<FailedHandleEvent>(world.session).empty());
  EXPECT_EQ(world.UsedBytes(), kOperandBytes + kProductBytes) << "the temporary is free again";
  const Instance instance = world.cluster.InstancesAt(WorkerIndex(0))[0];
  for (const int64_t offset : instance.buffer_offsets) {
    EXPECT_LT(offset, kOperandBytes + kProductBytes + kGatheredBytes - 256);
  }
}

TEST(Splitting, LessMemoryGivesMoreParts) {
  for (const auto& [kib, parts] : std::vector<std::pair<int64_t, const char*>>{
           {97, "in 2 parts"}, {90, "in 4 parts"}, {33, "in 8 parts"}, {17, "in 16 parts"}}) {
    World world(kProductBytes + (kib << 10));
    world.Multiply(3);
    ASSERT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 1u) << kib;
    EXPECT_THAT(world.Grid(), HasSubstr(parts)) << kib;
  }
}

TEST(Splitting, TheSamePlanServesWhatIsAboutAsMuchMemory) {
  World world(kProductBytes + (120 << 10));
  world.Multiply(3);
  EXPECT_EQ(world.cluster.PlansAt(WorkerIndex(0)).size(), 1u);
  world.Multiply(4);  // less by one product
  EXPECT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 2u);
  EXPECT_EQ(world.cluster.PlansAt(WorkerIndex(0)).size(), 1u);
}

TEST(Splitting, WhatFitsInNoPartsIsRefusedAndNothingIsLost) {
  World world(kProductBytes + 2048);
  world.Multiply(3);
  EXPECT_TRUE(world.cluster.InstancesAt(WorkerIndex(0)).empty());
  const auto failed = world.cluster.EventsOf<FailedHandleEvent>(world.session);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed[0].status.message()),
              HasSubstr("matmul: does not fit: 196608 bytes of temporaries wanted on each of 2 workers, 1792 free; "
                        "split into 24 parts over n they would be 8192"));
  EXPECT_EQ(world.UsedBytes(), kOperandBytes);
  world.cluster.Submit(world.session, {FullRecord(*Mesh::Make({2}, {}, {}), {8}, {Placement::Replicate()}, 4)});
  EXPECT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 1u) << "the session goes on";
}

// Rows of both on two hosts of two workers: half of one operand crosses, in parts while others are multiplied, or in
// panels where its columns are cut: which takes more memory than all of it at once.
struct WorldOfHosts {
  explicit WorldOfHosts(int64_t free_bytes) : cluster(8, 3 * kBlockBytes + free_bytes, {}, 2), session(cluster.Open()) {
    const Mesh mesh = *Mesh::Make({4, 2}, {}, {});
    const Placements blocks = {Placement::Shard(0), Placement::Shard(1)};
    cluster.Submit(session,
                   {FullRecord(mesh, {kExtent, kExtent}, blocks, 1), FullRecord(mesh, {kExtent, kExtent}, blocks, 2)});
    cluster.CompleteAll();
    cluster.Submit(session, {OpRecord(OpId::kMatmul, {1, 2}, 3)});
  }
  std::string Grid() {
    const auto plans = cluster.PlansAt(WorkerIndex(0));
    return plans.empty() ? "" : plans.back()->grid;
  }

  static constexpr int64_t kExtent = 1024;
  static constexpr int64_t kBlockBytes = kExtent * kExtent * 4 / 8;

  SimulatedCluster cluster;
  SessionId session;
};

TEST(Splitting, WhatFitsToTheByteIsNotRefusedByRoundedLimits) {
  constexpr int64_t kPart = WorldOfHosts::kBlockBytes;
  EXPECT_THAT(WorldOfHosts(16 * kPart).Grid(), HasSubstr("comes while the one before is multiplied: temporaries of "));
  for (int64_t free_bytes = 16 * kPart; free_bytes > kPart; free_bytes -= kPart / 3) {
    WorldOfHosts world(free_bytes);
    EXPECT_TRUE(world.cluster.EventsOf<FailedHandleEvent>(world.session).empty()) << free_bytes << world.Grid();
    EXPECT_THAT(world.Grid(), HasSubstr(" panels of k, ")) << free_bytes;
  }
}

TEST(Splitting, AProductThatDoesNotFitItselfIsRefusedWithWhatWould) {
  World world(kProductBytes - 256);
  world.Multiply(3);
  EXPECT_TRUE(world.cluster.InstancesAt(WorkerIndex(0)).empty());
  const auto failed = world.cluster.EventsOf<FailedHandleEvent>(world.session);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_THAT(std::string(failed[0].status.message()),
              HasSubstr("6144 bytes wanted on each of 2 workers; worker 0 has 5888 free"));
  EXPECT_THAT(std::string(failed[0].status.message()), HasSubstr(" [S(0)] would fit shortened to f32[60,48]"));
  EXPECT_EQ(world.UsedBytes(), kOperandBytes);
}

TEST(Splitting, ACacheOfOnePlanIsEnough) {
  CoordinatorConfig config;
  config.max_cached_plans = 1;
  World world(kProductBytes + (64 << 10), config);
  world.Multiply(3);
  EXPECT_EQ(world.cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_TRUE(world.cluster.EventsOf<FailedHandleEvent>(world.session).empty());
}

TEST(Splitting, TheSameEventsGiveTheSameEffects) {
  std::vector<std::vector<std::string>> logs;
  for (int run = 0; run < 2; ++run) {
    World world(kProductBytes + (100 << 10));
    for (uint64_t result = 3; result < 9; ++result) world.Multiply(result);
    if (run == 1) world.Explained();  // a question changes nothing
    world.cluster.CompleteAll();
    for (uint64_t result = 9; result < 30; ++result) world.Multiply(result);
    world.cluster.CompleteAll();
    logs.push_back(world.cluster.log());
  }
  EXPECT_EQ(logs[0], logs[1]);
}

}  // namespace
}  // namespace tessera
