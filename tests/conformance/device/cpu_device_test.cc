#include "server/device/cpu/cpu_device.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "schemas/host/monotonic_clock.h"
#include "schemas/host/thread_clock.h"
#include "schemas/ops/scalar_ops.h"
#include "server/device/cpu/thread_cpu_clock.h"
#include "tests/conformance/device/device_conformance.h"

namespace tessera::testing {
namespace {

class CpuGroup : public DeviceGroup {
 public:
  CpuGroup(int count, int threads, int spin_pauses)
      : pages_(std::make_shared<std::vector<CounterPage>>(static_cast<size_t>(count))) {
    for (int w = 0; w < count; ++w) {
      devices_.push_back(std::make_unique<CpuDevice>(CpuDeviceOptions{.self = WorkerIndex(w),
                                                                      .counters = &page(w),
                                                                      .threads = threads,
                                                                      .spin_pauses = spin_pauses,
                                                                      .linger_ns = spin_pauses == 0 ? 0 : kLingerNs}));
    }
    for (int w = 0; w < count; ++w) {
      for (int p = 0; p < count; ++p) {
        if (p != w) at(w).MapCounters(WorkerIndex(p), std::shared_ptr<CounterPage>(pages_, &page(p)));
      }
    }
  }
  Device& at(int worker) override { return *devices_[static_cast<size_t>(worker)]; }
  void Advance() override {}

 private:
  CounterPage& page(int worker) { return (*pages_)[static_cast<size_t>(worker)]; }
  std::shared_ptr<std::vector<CounterPage>> pages_;
  std::vector<std::unique_ptr<CpuDevice>> devices_;
};

DeviceFactory Factory(std::string name, int threads, int spin_pauses) {
  return {std::move(name), [=](int count) { return std::make_unique<CpuGroup>(count, threads, spin_pauses); }};
}

// No spinning, and no lingering, at all makes every wait a sleep: the wake-ups are what is tested.
INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
                         ::testing::Values(Factory("one_thread", 1, 200), Factory("three_threads", 3, 200),
                                           Factory("never_spins", 1, 0), Factory("two_threads_never_spin", 2, 0)),
                         [](const auto& info) { return info.param.name; });

TEST(CpuDevice, ManyHeldItemsStartBeforeTheFlush) {
  CounterPage own;
  CpuDevice device({.self = WorkerIndex(0), .counters = &own});
  while (own.bell(Lane::kBatch).sleeping.load() == 0) std::this_thread::yield();
  std::atomic<int64_t> reports{0};
  device.Hold();
  for (int64_t i = 0; i < kMaxHeldItems; ++i)
    device.EnqueueReport(StreamId::kCompute, [&](absl::Status, const RunTimes&) { ++reports; });
  while (reports.load() < kMaxHeldItems) std::this_thread::yield();
  device.Flush();
}

// While a thread of the batch lane is in a report, that is, in its work.
TEST(CpuDevice, LightStreamsAndReadsGoOnBesideWorkOfTheBatchLane) {
  for (const int threads : {1, 2}) {
    CounterPage own;
    CpuDevice device({.self = WorkerIndex(0), .counters = &own, .threads = threads});
    std::atomic<int> batch{0}, light{0};
    std::atomic<bool> goes_on{false};
    for (const StreamId stream : {StreamId::kCompute, StreamId::kExchange, StreamId::kProbe}) {
      device.EnqueueReport(stream, [&](absl::Status, const RunTimes&) {
        while (!goes_on.load()) std::this_thread::yield();
        ++batch;
      });
    }
    for (const StreamId stream :
         {StreamId::kIo, StreamId::kComputeLight, StreamId::kExchangeLight, StreamId::kIoLight}) {
      device.EnqueueReport(stream, [&](absl::Status, const RunTimes&) { ++light; });
    }
    while (light.load() < 4) std::this_thread::yield();
    EXPECT_EQ(batch.load(), 0);
    goes_on = true;
    device.Drain();
    EXPECT_EQ(batch.load(), 3);
  }
}

TEST(CpuDevice, ALaneWaitsForTheOthersCounters) {
  CounterPage own;
  CpuDevice device({.self = WorkerIndex(0), .counters = &own, .spin_pauses = 0, .linger_ns = 0});
  for (uint64_t round = 1; round <= 200; ++round) {
    device.EnqueueWait(StreamId::kComputeLight, {WorkerIndex(0), StreamId::kCompute, round});
    device.EnqueueSignal(StreamId::kComputeLight, round);
    device.EnqueueWait(StreamId::kExchange, {WorkerIndex(0), StreamId::kComputeLight, round});
    device.EnqueueSignal(StreamId::kExchange, round);
    device.EnqueueSignal(StreamId::kCompute, round);
    if (round % 20 == 0) device.Drain();  // both sleep
  }
  EXPECT_EQ(own.counters[static_cast<size_t>(StreamId::kExchange)].load(), 200u);
}

TEST(CpuDevice, ThreadsOfTheBatchLaneAreNicer) {
  CounterPage own;
  CpuDevice device({.self = WorkerIndex(0), .counters = &own, .nice = 5});
  const auto nice_of = [&](StreamId stream) {
    int nice = 0;
    device.EnqueueReport(stream, [&](absl::Status, const RunTimes&) { nice = getpriority(PRIO_PROCESS, 0); });
    device.Drain();
    return nice;
  };
  const int usual = nice_of(StreamId::kComputeLight);
  EXPECT_EQ(usual, getpriority(PRIO_PROCESS, 0));
  EXPECT_EQ(nice_of(StreamId::kIo), usual);
  EXPECT_EQ(nice_of(StreamId::kCompute), std::min(19, usual + 5));
}

TEST(ThreadCpuClock, CountsNoTimeInWhichTheThreadHadNoCore) {
  const auto work_for = [](int64_t cpu_ns) {
    const int64_t until_ns = ThreadCpuNs() + cpu_ns;
    while (ThreadCpuNs() < until_ns) continue;
  };
  ThreadCpuClock clock;
  clock.Wake();
  const int64_t began_ns = MonotonicNs();
  std::thread([&] { work_for(30'000'000); }).join();  // another one has it meanwhile
  const int64_t ended_ns = MonotonicNs();
  EXPECT_LT(clock.BusyNs(began_ns, ended_ns), 10'000'000);
  const int64_t works_since_ns = MonotonicNs();
  work_for(20'000'000);  // however long that takes
  const int64_t busy_ns = clock.BusyNs(works_since_ns, MonotonicNs());
  EXPECT_GT(busy_ns, 19'000'000);
  EXPECT_LT(busy_ns, 22'000'000);
  EXPECT_EQ(clock.BusyNs(1'000, 1'000 + ThreadCpuClock::kShortItemNs - 1), ThreadCpuClock::kShortItemNs - 1);
}

// Large maps of one stream that share operands run in one pass; the results and the errors are those of one by one.
TEST(CpuDevice, MapsThatFollowEachOtherGiveWhatTheyGiveOneByOne) {
  constexpr int64_t kElements = 1 << 17;
  const LocalOp blend = MapOp{{{{ScalarOp::kInput, DType::kF32, 0},
                                {ScalarOp::kInput, DType::kF32, 1},
                                {ScalarOp::kMul, DType::kF32, 0, 1},
                                {ScalarOp::kAdd, DType::kF32, 2, 0}}}};
  std::vector<float> memory(3 * kElements);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<float>(i % 1013) / 1013.0f;
  std::vector<float> expected = memory;
  struct Places {
    size_t a, b, to;
  };
  // The last but one reads what others wrote, shifted.
  const std::vector<Places> steps = {{0, kElements, 0},
                                     {kElements, 0, kElements},
                                     {0, kElements, 2 * kElements},
                                     {1, kElements, 2 * kElements},
                                     {2 * kElements, 2 * kElements, 0}};
  const auto calls_on = [&](std::vector<float>& in, std::vector<std::vector<KernelInput>>& inputs) {
    std::vector<KernelCall> calls;
    inputs.reserve(steps.size());
    for (const Places& step : steps) {
      inputs.push_back({{&in[step.a], DType::kF32, {kElements}, {1}}, {&in[step.b], DType::kF32, {kElements}, {1}}});
      calls.push_back({.op = &blend,
                       .inputs = inputs.back(),
                       .output = &in[step.to],
                       .output_extents = {kElements},
                       .output_strides = {1}});
    }
    return calls;
  };
  std::vector<std::vector<KernelInput>> expected_inputs, inputs;
  for (const KernelCall& call : calls_on(expected, expected_inputs)) ASSERT_TRUE(RunKernel(call).ok());

  CounterPage own;
  CpuDevice device({.self = WorkerIndex(0), .counters = &own});
  std::vector<absl::Status> reports(3, absl::UnknownError("none"));
  const auto report = [&](size_t which) {
    device.EnqueueReport(StreamId::kCompute,
                         [&reports, which](absl::Status s, const RunTimes&) { reports[which] = s; });
  };
  device.Hold();
  for (const KernelCall& call : calls_on(memory, inputs)) device.EnqueueRun(StreamId::kCompute, KernelWork{call, {}});
  report(0);
  std::vector<KernelInput> wrong = {inputs[0][0], inputs[0][0]};
  wrong[1].dtype = DType::kF64;
  std::vector<float> elsewhere(kElements);
  const KernelCall good = {.op = &blend,
                           .inputs = inputs[0],
                           .output = elsewhere.data(),
                           .output_extents = {kElements},
                           .output_strides = {1}};
  KernelCall bad = good;
  bad.inputs = wrong;
  for (const KernelCall& call : {good, bad, good}) device.EnqueueRun(StreamId::kCompute, KernelWork{call, {}});
  report(1);
  device.EnqueueRun(StreamId::kCompute, KernelWork{good, {}});
  report(2);
  device.Flush();
  device.Drain();
  EXPECT_TRUE(reports[0].ok()) << reports[0];
  EXPECT_EQ(reports[1], RunKernel(bad));
  EXPECT_TRUE(reports[2].ok()) << reports[2];
  EXPECT_TRUE(memory == expected);
}

TEST(CpuDevice, DestructionDropsWhatIsParked) {
  CounterPage own;
  std::atomic<bool> ran{false};
  {
    CpuDevice device({.self = WorkerIndex(0), .counters = &own});
    device.MapCounters(WorkerIndex(1), std::make_shared<CounterPage>());
    device.EnqueueWait(StreamId::kCompute, {WorkerIndex(1), StreamId::kCompute, 1});
    device.EnqueueReport(StreamId::kCompute, [&](absl::Status, const RunTimes&) { ran = true; });
  }
  EXPECT_FALSE(ran.load());
}

TEST(CpuDevice, DoneMayComeAfterTheDeviceIsGone) {
  CounterPage own;
  Device::Done late;
  {
    CpuDevice device({.self = WorkerIndex(0), .counters = &own});
    std::atomic<bool> started{false};
    device.EnqueueAsync(StreamId::kCompute, [&](Device::Done done) {
      late = std::move(done);
      started = true;
    });
    while (!started.load()) std::this_thread::yield();
  }
  late(absl::OkStatus());
}

TEST(CpuDevice, ThreadsAndSpinsFollowTheHost) {
  EXPECT_GE(DefaultDeviceThreads(1), 1);
  EXPECT_EQ(DefaultDeviceThreads(1 << 20), 1);
  EXPECT_EQ(DefaultSpinPauses(1 << 20), 10);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_EQ(DefaultSpinPauses(cores), 200);
  if (cores > 1) {
    EXPECT_EQ(DefaultSpinPauses(cores / 2), 2000);
  }
}

}  // namespace
}  // namespace tessera::testing
