#include <vector>

#include "server/device/fake/hazard_recorder.h"
#include "tests/conformance/device/device_conformance.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute;

class FakeGroup : public DeviceGroup {
 public:
  FakeGroup(int count, uint32_t seed) : recorder_(seed) {
    for (int w = 0; w < count; ++w) devices_.push_back(recorder_.MakeDevice(WorkerIndex(w)));
    for (int w = 0; w < count; ++w) {
      for (int p = 0; p < count; ++p) {
        if (p != w) at(w).MapCounters(WorkerIndex(p), std::make_shared<CounterPage>());
      }
    }
  }
  Device& at(int worker) override { return *devices_[static_cast<size_t>(worker)]; }
  void Advance() override { recorder_.Run(); }
  HazardRecorder& recorder() { return recorder_; }

 private:
  HazardRecorder recorder_;
  std::vector<std::unique_ptr<Device>> devices_;
};

INSTANTIATE_TEST_SUITE_P(Fake, DeviceConformance,
                         ::testing::Values(DeviceFactory{
                             "fake", [](int count) { return std::make_unique<FakeGroup>(count, 1); }}),
                         [](const auto& info) { return info.param.name; });

CopyWork Copy(const std::vector<int64_t>& from, std::vector<int64_t>& to) {
  return {.extents = {static_cast<int64_t>(from.size())},
          .element_bytes = 8,
          .source = from.data(),
          .source_strides = {1},
          .destination = to.data(),
          .destination_strides = {1}};
}

enum class ReaderWait { kPresent, kMissing, kOfAnEarlierPhase };

// Worker 0 writes; worker 1 reads it; worker 0 writes it again after worker 1.
std::vector<std::string> FindHazards(uint32_t seed, ReaderWait wait, bool writer_waits_back) {
  FakeGroup group(2, seed);
  const std::vector<int64_t> first(4, 1), second(4, 2);
  std::vector<int64_t> shared(4, 0), read(4, 0);
  group.at(0).EnqueueSignal(kCompute, CounterValue(Ordinal(1), 1));
  group.at(0).EnqueueRun(kCompute, Copy(first, shared));
  group.at(0).EnqueueSignal(kCompute, DoneValue(Ordinal(1)));
  if (wait == ReaderWait::kPresent)
    group.at(1).EnqueueWait(kCompute, {WorkerIndex(0), kCompute, DoneValue(Ordinal(1))});
  if (wait == ReaderWait::kOfAnEarlierPhase) {
    group.at(1).EnqueueWait(kCompute, {WorkerIndex(0), kCompute, CounterValue(Ordinal(1), 1)});
  }
  group.at(1).EnqueueRun(kCompute, Copy(shared, read));
  group.at(1).EnqueueSignal(kCompute, DoneValue(Ordinal(2)));
  if (writer_waits_back) group.at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, DoneValue(Ordinal(2))});
  group.at(0).EnqueueRun(kCompute, Copy(second, shared));
  group.recorder().Run();
  EXPECT_TRUE(group.recorder().IsDrained());
  return group.recorder().hazards();
}

TEST(HazardRecorder, AnOrderedHandOverHasNoHazard) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(FindHazards(seed, ReaderWait::kPresent, true).empty());
  }
}

TEST(HazardRecorder, AMissingOrTooEarlyWaitIsFoundInEveryOrder) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_FALSE(FindHazards(seed, ReaderWait::kMissing, true).empty()) << seed;
    EXPECT_FALSE(FindHazards(seed, ReaderWait::kOfAnEarlierPhase, true).empty()) << seed;
    const std::vector<std::string> reuse = FindHazards(seed, ReaderWait::kPresent, false);
    ASSERT_EQ(reuse.size(), 1u) << seed;
    EXPECT_NE(reuse[0].find("worker 1 compute copy"), std::string::npos) << reuse[0];
  }
}

TEST(HazardRecorder, DisjointBytesOfInterleavedColumnsAreNoHazard) {
  FakeGroup group(2, 3);
  std::vector<int64_t> matrix(40, 0);
  const std::vector<int64_t> column(10, 1);
  for (int w = 0; w < 2; ++w) {
    group.at(w).EnqueueRun(kCompute, CopyWork{.extents = {10},
                                              .element_bytes = 8,
                                              .source = column.data(),
                                              .source_strides = {1},
                                              .destination = matrix.data() + w,
                                              .destination_strides = {4}});
  }
  group.recorder().Run();
  EXPECT_TRUE(group.recorder().hazards().empty());
}

TEST(HazardRecorder, AParkedStreamIsNotDrained) {
  FakeGroup group(2, 3);
  group.at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, 5});
  group.recorder().Run();
  EXPECT_FALSE(group.recorder().IsDrained());
}

}  // namespace
}  // namespace tessera::testing
