// Which records become one instruction, and what stays as if each call had been issued by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};

DropRecord Drop(uint64_t handle) { return DropRecord{{HandleId(handle)}}; }
CallRecord AddNumber(uint64_t operand, Scalar number, uint64_t result) {
  CallRecord record = OpRecord(OpId::kAdd, {operand}, result);
  record.operands.push_back({number, false});
  return record;
}
// Handles first + 1 ... first + count, each made of the one before, which is dropped.
std::vector<Record> Chain(uint64_t first, uint64_t count) {
  std::vector<Record> records;
  for (uint64_t i = first; i < first + count; ++i) {
    records.push_back(AddNumber(i, Scalar::Float(static_cast<double>(i)), i + 1));
    records.push_back(Drop(i));
  }
  return records;
}

class SegmentsTest : public ::testing::Test {
 protected:
  explicit SegmentsTest(int64_t max_segment_ops = 32) : cluster_(2, 1 << 20, Config(max_segment_ops)) {
    session_ = cluster_.Open();
    cluster_.Submit(session_, {FullRecord(MeshOf(2), {8}, kRows, 1)});
    cluster_.CompleteAll();
  }
  static CoordinatorConfig Config(int64_t max_segment_ops) {
    CoordinatorConfig config = SimulatedCluster::RoomyConfig();
    config.max_segment_ops = max_segment_ops;
    return config;
  }
  std::vector<Instance> Submitted(std::vector<Record> records) {
    cluster_.Submit(session_, std::move(records));
    return cluster_.InstancesAt(WorkerIndex(0));
  }
  std::vector<uint64_t> Handles() const {
    std::vector<uint64_t> handles;
    for (const auto& [handle, tensor] : cluster_.machine().sessions().at(session_).tensors) {
      handles.push_back(handle.value);
    }
    std::sort(handles.begin(), handles.end());
    return handles;
  }
  mutable SimulatedCluster cluster_;
  SessionId session_;
};

TEST_F(SegmentsTest, AChainOfDroppedResultsIsOneInstructionInTheMemoryOfItsOperand) {
  const auto instances = Submitted(Chain(1, 6));
  ASSERT_EQ(instances.size(), 1u);
  EXPECT_THAT(instances[0].buffer_offsets, ElementsAre(0, 0));
  EXPECT_EQ(instances[0].scalars.size(), 6u);
  EXPECT_THAT(Handles(), ElementsAre(7));
}

TEST_F(SegmentsTest, ASecondOneOfOtherNumbersIsOfTheSamePlan) {
  Submitted(Chain(1, 6));
  cluster_.CompleteAll();
  const uint64_t misses = cluster_.machine().plans().misses();
  const auto instances = Submitted(Chain(7, 6));
  ASSERT_EQ(instances.size(), 1u);
  EXPECT_EQ(cluster_.machine().plans().misses(), misses);
  std::vector<double> numbers;
  for (const Scalar& scalar : instances[0].scalars) numbers.push_back(scalar.AsDouble());
  EXPECT_THAT(numbers, ::testing::UnorderedElementsAre(7, 8, 9, 10, 11, 12));
}

TEST_F(SegmentsTest, WhatIsKeptIsThere) {
  const auto instances = Submitted({AddNumber(1, Scalar::Float(1), 2), AddNumber(2, Scalar::Float(2), 3), Drop(2),
                                    AddNumber(3, Scalar::Float(3), 4)});
  ASSERT_EQ(instances.size(), 1u);
  EXPECT_THAT(Handles(), ElementsAre(1, 3, 4));
}

TEST_F(SegmentsTest, WhereNothingIsDroppedEachCallIsIssuedByItself) {
  EXPECT_EQ(Submitted({AddNumber(1, Scalar::Float(1), 2), AddNumber(2, Scalar::Float(2), 3),
                       AddNumber(3, Scalar::Float(3), 4)})
                .size(),
            3u);
  EXPECT_THAT(Handles(), ElementsAre(1, 2, 3, 4));
}

TEST_F(SegmentsTest, AResultThatIsWatchedBeforeItIsDroppedIsNoInternalOne) {
  cluster_.Submit(session_, {AddNumber(1, Scalar::Float(1), 2), WatchRecord{9, HandleId(2)},
                             AddNumber(2, Scalar::Float(2), 3), Drop(2)});
  EXPECT_EQ(cluster_.InstancesAt(WorkerIndex(0)).size(), 2u);
  cluster_.CompleteAll();
  EXPECT_EQ(cluster_.EventsOf<SettledEvent>(session_).size(), 1u);
}

TEST_F(SegmentsTest, AnOpThatIsRefusedIsNamedAndWhatIsBeforeItIsIssued) {
  CallRecord wrong = OpRecord(OpId::kBitwiseInvert, {3}, 4);
  Submitted({AddNumber(1, Scalar::Float(1), 2), AddNumber(2, Scalar::Float(2), 3), Drop(2), wrong, Drop(3)});
  const auto failed = cluster_.EventsOf<FailedHandleEvent>(session_);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].handle.value, 4u);
  EXPECT_THAT(std::string(failed[0].status.message()), HasSubstr("bitwise_invert: "));
}

TEST_F(SegmentsTest, AFailureTellsTheOpsOnTheWayThroughTheSegment) {
  cluster_.Submit(session_, {FullRecord(MeshOf(2), {8}, kRows, 100)});
  std::vector<Record> records = {AddNumber(100, Scalar::Float(1), 101), OpRecord(OpId::kExp, {101}, 102), Drop(101)};
  cluster_.Submit(session_, records);
  const auto instances = cluster_.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 2u);
  cluster_.CompleteAll(instances[0].ordinal, absl::InternalError("full: broken"));
  std::map<uint64_t, std::string> failed;
  for (const auto& event : cluster_.EventsOf<FailedHandleEvent>(session_)) {
    failed[event.handle.value] = std::string(event.status.message());
  }
  EXPECT_EQ(failed[102], "full: broken; on the way here: add f32[8], exp f32[8]");
  EXPECT_FALSE(failed.contains(101));
}

TEST_F(SegmentsTest, OfAChainThatTheBatchCutsAPowerOfTwoIsOnePlan) {
  const auto instances = Submitted(Chain(1, 30));
  std::vector<size_t> calls;
  for (const Instance& instance : instances) calls.push_back(instance.scalars.size());
  EXPECT_THAT(calls, ElementsAre(16, 8, 6));
}

class NoSegmentsTest : public SegmentsTest {
 protected:
  NoSegmentsTest() : SegmentsTest(1) {}
};

TEST_F(NoSegmentsTest, WithALimitOfOneEachCallIsIssuedByItselfInTheMemoryOfItsOperand) {
  const auto instances = Submitted(Chain(1, 6));
  ASSERT_EQ(instances.size(), 6u);
  for (const Instance& instance : instances) EXPECT_THAT(instance.buffer_offsets, ElementsAre(0, 0));
  EXPECT_THAT(Handles(), ElementsAre(7));
}

}  // namespace
}  // namespace tessera
