#include "server/device/cpu/cpu_device.h"

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

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
  while (own.sleeping.load() == 0) std::this_thread::yield();
  std::atomic<int64_t> reports{0};
  device.Hold();
  for (int64_t i = 0; i < kMaxHeldItems; ++i)
    device.EnqueueReport(StreamId::kCompute, [&](absl::Status, const RunTimes&) { ++reports; });
  while (reports.load() < kMaxHeldItems) std::this_thread::yield();
  device.Flush();
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
