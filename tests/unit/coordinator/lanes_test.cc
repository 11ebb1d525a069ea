// Which lane of its workers an op runs in, and that light ops wait for no batch op.

#include "server/coordinator/lanes.h"

#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

const WorkerIndex kWorker(0);
const Placements kEverywhere = {Placement::Replicate()};
constexpr int64_t kMemoryBytes = int64_t{4} << 30;
constexpr int64_t kLarge = int64_t{1} << 26;  // elements: more than max_light_us, though all of it is filling
constexpr int64_t kLightWindowUs = 100'000;

Mesh OneWorker() { return *Mesh::Make({1}, {}, {}); }
CallRecord Full(int64_t elements, uint64_t handle) { return FullRecord(OneWorker(), {elements}, kEverywhere, handle); }

Lane LaneOf(uint8_t stream) { return LaneOf(static_cast<StreamId>(stream)); }

template <typename Message>
std::vector<Message> SentOf(const SimulatedCluster& cluster) {
  std::vector<Message> sent;
  for (const WorkerMessage& message : cluster.MessagesAt(kWorker)) {
    if (const auto* one = std::get_if<Message>(&message)) sent.push_back(*one);
  }
  return sent;
}

std::vector<Lane> LanesOfInstances(const SimulatedCluster& cluster) {
  std::vector<Lane> lanes;
  for (const Instance& instance : cluster.InstancesAt(kWorker)) lanes.push_back(LaneOf(instance.stream));
  return lanes;
}

// Waits of light messages for streams of the batch lane.
int CountWaitsAcross(const SimulatedCluster& cluster) {
  int count = 0;
  const auto add = [&](uint8_t stream, const std::vector<InstanceWait>& waits) {
    if (LaneOf(stream) == Lane::kBatch) return;
    for (const InstanceWait& wait : waits) count += LaneOf(wait.stream) == Lane::kBatch ? 1 : 0;
  };
  for (const auto& m : SentOf<Instance>(cluster)) add(m.stream, m.waits);
  for (const auto& m : SentOf<InlineRead>(cluster)) add(m.stream, m.waits);
  for (const auto& m : SentOf<InlineWrite>(cluster)) add(m.stream, m.waits);
  for (const auto& m : SentOf<TransferWindow>(cluster)) add(m.stream, m.waits);
  return count;
}

void Report(SimulatedCluster& cluster, Ordinal ordinal, int64_t busy_us) {
  CompletionReport done;
  done.ordinal = ordinal;
  done.times = {1, 1 + busy_us * 1000, busy_us * 1000, busy_us * 1000};
  cluster.Apply(WorkerReportEvent{kWorker, 1, {done}, {}});
}

TEST(LanesTest, ASmallOpAndItsValueAreLight) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId session = cluster.Open();
  cluster.Submit(session,
                 {Full(8, 1), OpRecord(OpId::kNeg, {1}, 2), DownloadRecord{9, HandleId(2), true},
                  UploadRecord{0,
                               {{HandleId(3), *TensorSpec::Make("t", DType::kF32, {8}, OneWorker(), kEverywhere)}},
                               std::string(32, 'x')}});
  EXPECT_EQ(LanesOfInstances(cluster), (std::vector<Lane>{Lane::kLight, Lane::kLight}));
  ASSERT_EQ(SentOf<InlineRead>(cluster).size(), 1u);
  EXPECT_EQ(SentOf<InlineRead>(cluster)[0].stream, NumberOf(StreamId::kIoLight));
  ASSERT_EQ(SentOf<InlineWrite>(cluster).size(), 1u);
  EXPECT_EQ(SentOf<InlineWrite>(cluster)[0].stream, NumberOf(StreamId::kIoLight));
}

TEST(LanesTest, WhatReadsALongOpIsInTheBatchLaneUntilThatIsDone) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId session = cluster.Open();
  const SessionId other = cluster.Open();
  cluster.Submit(session, {Full(kLarge, 1), DownloadRecord{9, HandleId(1)}});
  cluster.Submit(other, {Full(8, 1)});
  EXPECT_EQ(LanesOfInstances(cluster), (std::vector<Lane>{Lane::kBatch, Lane::kLight}));
  ASSERT_EQ(SentOf<TransferWindow>(cluster).size(), 1u);
  EXPECT_EQ(SentOf<TransferWindow>(cluster)[0].stream, NumberOf(StreamId::kIo));
  cluster.CompleteAll();
  cluster.Advance(2 * kLightWindowUs);  // or the session had too much of late
  cluster.Submit(session, {DownloadRecord{10, HandleId(1)}});
  EXPECT_EQ(SentOf<TransferWindow>(cluster)[0].stream, NumberOf(StreamId::kIoLight));
}

TEST(LanesTest, ASessionThatHadMuchOfLateIsHeavyForAWhile) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {Full(kLarge, 1)});
  cluster.CompleteAll();
  cluster.Submit(session, {Full(8, 2)});
  EXPECT_EQ(LanesOfInstances(cluster), std::vector<Lane>{Lane::kBatch});
  cluster.CompleteAll();
  cluster.Advance(2 * kLightWindowUs);
  cluster.Submit(session, {Full(8, 3)});
  EXPECT_EQ(LanesOfInstances(cluster), std::vector<Lane>{Lane::kLight});
}

TEST(LanesTest, AFullBatchLaneHoldsUpNoLightOp) {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.max_outstanding_us_per_worker = 1'000;
  SimulatedCluster cluster(1, kMemoryBytes, config);
  const SessionId flood = cluster.Open();
  const SessionId other = cluster.Open();
  cluster.Submit(flood, {Full(kLarge, 1), Full(kLarge, 2)});
  EXPECT_EQ(cluster.InstancesAt(kWorker).size(), 1u);  // the other one waits for room
  cluster.Submit(other, {Full(8, 1), DownloadRecord{9, HandleId(1), true}});
  EXPECT_EQ(LanesOfInstances(cluster), (std::vector<Lane>{Lane::kBatch, Lane::kLight}));
  EXPECT_EQ(SentOf<InlineRead>(cluster).size(), 1u);
}

TEST(LanesTest, ALightOpTakesNoPlaceThatABatchOpHasJustGivenUp) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId flood = cluster.Open();
  const SessionId other = cluster.Open();
  cluster.Submit(flood, {Full(kLarge, 1), DropRecord{{HandleId(1)}}});
  cluster.Submit(other, {Full(8, 1), OpRecord(OpId::kNeg, {1}, 2), DownloadRecord{9, HandleId(2), true}});
  EXPECT_EQ(LanesOfInstances(cluster), (std::vector<Lane>{Lane::kBatch, Lane::kLight, Lane::kLight}));
  EXPECT_EQ(CountWaitsAcross(cluster), 0);
  EXPECT_GE(cluster.InstancesAt(kWorker)[1].buffer_offsets[0], kLarge * 4);
  // When that has ended, the lowest place is free.
  cluster.CompleteAll();
  cluster.Submit(other, {Full(8, 3)});
  EXPECT_EQ(cluster.InstancesAt(kWorker)[0].buffer_offsets[0], 0);
}

TEST(LanesTest, ALightOpThatFindsNoOtherPlaceGoesToTheBatchLane) {
  constexpr int64_t kSmallBytes = kLarge * 4;
  SimulatedCluster cluster(1, kSmallBytes);
  const SessionId flood = cluster.Open();
  const SessionId other = cluster.Open();
  cluster.Submit(flood, {Full(kLarge, 1), DropRecord{{HandleId(1)}}});  // all memory is one place that was given up
  cluster.Submit(other, {Full(8, 1)});
  EXPECT_EQ(LanesOfInstances(cluster), (std::vector<Lane>{Lane::kBatch, Lane::kBatch}));
  EXPECT_EQ(CountWaitsAcross(cluster), 0);
  const LaneWindows& windows = cluster.machine().workers().at(kWorker).windows;
  EXPECT_EQ(windows.of(Lane::kBatch).outstanding, 2);
  EXPECT_EQ(windows.of(Lane::kLight).outstanding, 0);
  cluster.CompleteAll();
  EXPECT_EQ(windows.outstanding(), 0);
  EXPECT_EQ(windows.outstanding_us(), 0);
}

TEST(LanesTest, WhatTookLongIsLightNoMoreWhateverWasPredicted) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {Full(8, 1)});
  ASSERT_EQ(LanesOfInstances(cluster), std::vector<Lane>{Lane::kLight});
  Report(cluster, cluster.InstancesAt(kWorker)[0].ordinal, 5'000);
  cluster.CompleteAll();
  cluster.Submit(session, {Full(8, 2)});
  EXPECT_EQ(LanesOfInstances(cluster), std::vector<Lane>{Lane::kBatch});
}

TEST(LanesTest, UntilARunWasMeasuredFewAreUnderWay) {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.max_unmeasured_instances = 4;
  SimulatedCluster cluster(1, kMemoryBytes, config);
  const SessionId session = cluster.Open();
  std::vector<Record> records;
  for (uint64_t i = 1; i <= 6; ++i) records.push_back(Full(8, i));
  cluster.Submit(session, records);
  EXPECT_EQ(LanesOfInstances(cluster), std::vector<Lane>(4, Lane::kLight));
  EXPECT_EQ(CountWaitsAcross(cluster), 0);
}

TEST(LanesTest, ASessionWhoseOpsTakeLongerThanPredictedIsLightNoMore) {
  SimulatedCluster cluster(1, kMemoryBytes);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {Full(8, 1)});
  Report(cluster, cluster.InstancesAt(kWorker)[0].ordinal, 50'000);
  cluster.CompleteAll();
  cluster.Submit(session, {Full(9, 2)});  // of which nobody has measured anything
  EXPECT_EQ(LanesOfInstances(cluster), std::vector<Lane>{Lane::kBatch});
}

TEST(RecentUse, IsHeavyAboveItsShareAndLightAgainWhenHalfHasLeaked) {
  const CoordinatorConfig config;
  RecentUse use;
  use.Add(0, 9'000, config);
  EXPECT_TRUE(use.IsLight(0, config));
  use.Add(0, 2'000, config);
  EXPECT_FALSE(use.IsLight(0, config));
  EXPECT_FALSE(use.IsLight(50'000, config));  // 6 ms are left, of 10
  EXPECT_TRUE(use.IsLight(60'000, config));
  use.Add(60'000, int64_t{1} << 40, config);  // however long: it is over in twice the window
  EXPECT_TRUE(use.IsLight(60'000 + 2 * kLightWindowUs, config));
}

TEST(RecentUse, AnEvenUseOfALittleStaysLight) {
  const CoordinatorConfig config;
  RecentUse use;
  for (int64_t now_us = 0; now_us < 1'000'000; now_us += 1'000) {
    use.Add(now_us, 99, config);
    ASSERT_TRUE(use.IsLight(now_us, config)) << now_us;
  }
}

}  // namespace
}  // namespace tessera
