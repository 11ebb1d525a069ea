// The CUDA device on the emulated driver, or on a real one (TESSERA_TEST_GPU=real).

#include "server/device/cuda/cuda_device.h"

#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "schemas/ops/local_op.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"
#include "tests/conformance/device/counter_pages.h"
#include "tests/conformance/device/device_conformance.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute;

class CudaGroup : public DeviceGroup {
 public:
  explicit CudaGroup(int count) : gpu_(*cuda::Gpu::Open(*cuda::Driver::Load().value(), 0)) {
    for (int w = 0; w < count; ++w) {
      pages_.push_back(MakePage());
      auto device = cuda::CudaDevice::Prepare(gpu_);
      EXPECT_TRUE(device.ok()) << device.status();
      const absl::Status started =
          (*device)->Begin({.self = WorkerIndex(w), .counters = pages_.back().get(), .lost = [](const absl::Status& s) {
                              ADD_FAILURE() << s;
                            }});
      EXPECT_TRUE(started.ok()) << started;
      devices_.push_back(*std::move(device));
    }
    for (int w = 0; w < count; ++w) {
      for (int p = 0; p < count; ++p) {
        if (p != w) at(w).MapCounters(WorkerIndex(p), MapAgain(pages_[static_cast<size_t>(p)]));
      }
    }
  }
  ~CudaGroup() override { devices_.clear(); }
  Device& at(int worker) override { return *devices_[static_cast<size_t>(worker)]; }
  void Advance() override {}
  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    void* pinned = nullptr;
    EXPECT_EQ(gpu_.driver->MemHostAlloc(&pinned, std::max<size_t>(bytes, 1), 0), CUDA_SUCCESS);
    std::memset(pinned, 0, bytes);
    return {static_cast<std::byte*>(pinned), [gpu = gpu_](std::byte* at) { gpu.driver->MemFreeHost(at); }};
  }
  std::shared_ptr<CounterPage> MakeCounters() override { return MakePage(); }
  const cuda::Gpu& gpu() const { return gpu_; }
  // Else the host holds what may stand still, and no device ever does.
  bool StreamsMayStandStill() const { return gpu_.use->StreamsOwnQueues(); }

 private:
  const cuda::Gpu gpu_;
  std::vector<std::shared_ptr<CounterPage>> pages_;
  std::vector<std::unique_ptr<Device>> devices_;
};

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance,
                         ::testing::Values(DeviceFactory{"cuda",
                                                         [](int count) { return std::make_unique<CudaGroup>(count); }}),
                         [](const auto& info) { return info.param.name; });

CopyWork Copy(Cells<int64_t>& from, Cells<int64_t>& to) {
  return {.extents = {static_cast<int64_t>(from.size())},
          .element_bytes = 8,
          .source = from.data(),
          .source_strides = {1},
          .destination = to.data(),
          .destination_strides = {1}};
}

enum class LeftOut { kNothing, kReadersWait, kWritersWait };

// Worker 0 writes; worker 1 reads it; worker 0 writes it again after worker 1. All is enqueued before anything runs.
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out) {
  const TestDriver& driver = TestDriver::Get();
  driver.Seed(seed);
  const size_t before = driver.Hazards().size();
  CudaGroup group(2);
  Cells<int64_t> first(group, 4, 1), second(group, 4, 2), shared(group, 4), read(group, 4);
  std::atomic<int> done{0};
  group.at(0).Drain();
  group.at(1).Drain();
  driver.Hold();
  group.at(0).EnqueueRun(kCompute, Copy(first, shared));
  group.at(0).EnqueueSignal(kCompute, DoneValue(Ordinal(1)));
  if (left_out != LeftOut::kReadersWait) {
    group.at(1).EnqueueWait(kCompute, {WorkerIndex(0), kCompute, DoneValue(Ordinal(1))});
  }
  group.at(1).EnqueueRun(kCompute, Copy(shared, read));
  group.at(1).EnqueueSignal(kCompute, DoneValue(Ordinal(2)));
  if (left_out != LeftOut::kWritersWait) {
    group.at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, DoneValue(Ordinal(2))});
  }
  group.at(0).EnqueueRun(kCompute, Copy(second, shared));
  for (int w : {0, 1}) group.at(w).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { ++done; });
  // Three copies, two signals and two reports; and two to a wait, as the host looks before it.
  const int queued = left_out == LeftOut::kNothing ? 11 : 9;
  while (driver.Queued() < queued) std::this_thread::yield();
  driver.Release();
  while (done.load() < 2) std::this_thread::yield();
  std::vector<std::string> hazards = driver.Hazards();
  hazards.erase(hazards.begin(), hazards.begin() + static_cast<std::ptrdiff_t>(before));
  return hazards;
}

TEST(CudaDeviceHazards, AnOrderedHandOverHasNone) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing)) ADD_FAILURE() << seed << ": " << hazard;
  }
}

TEST(CudaDeviceHazards, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_FALSE(FindHazards(seed, LeftOut::kReadersWait).empty()) << seed;
    EXPECT_FALSE(FindHazards(seed, LeftOut::kWritersWait).empty()) << seed;
  }
}

TEST(CudaDevice, AStreamOfManyItemsIsSubmittedBitByBitAndOthersGoOn) {
  CudaGroup group(2);
  Cells<int64_t> chain(group, 3000);
  chain[0] = 5;
  std::atomic<bool> done{false};
  group.at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, 1});
  for (size_t i = 1; i < chain.size(); ++i) {
    group.at(0).EnqueueRun(kCompute, CopyWork{.extents = {1},
                                              .element_bytes = 8,
                                              .source = &chain[i - 1],
                                              .source_strides = {1},
                                              .destination = &chain[i],
                                              .destination_strides = {1}});
  }
  group.at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { done = true; });
  // Meanwhile another stream goes on, up to where it may stand still.
  Cells<int64_t> from(group, 4, 3), to(group, 4), last(group, 4);
  std::atomic<bool> other_done{false}, last_done{false};
  group.at(0).EnqueueWait(StreamId::kExchange, {WorkerIndex(0), kCompute, 0});
  group.at(0).EnqueueRun(StreamId::kExchange, Copy(from, to));
  group.at(0).EnqueueReport(StreamId::kExchange, [&](absl::Status, const RunTimes&) { other_done = true; });
  group.at(0).EnqueueWait(StreamId::kExchange, {WorkerIndex(1), kCompute, 1});
  group.at(0).EnqueueRun(StreamId::kExchange, Copy(to, last));
  group.at(0).EnqueueReport(StreamId::kExchange, [&](absl::Status, const RunTimes&) { last_done = true; });
  while (!other_done.load()) std::this_thread::yield();
  EXPECT_EQ(to.back(), 3);
  EXPECT_FALSE(done.load() || last_done.load());
  group.at(1).EnqueueSignal(kCompute, 1);
  while (!done.load() || !last_done.load()) std::this_thread::yield();
  EXPECT_EQ(chain.back(), 5);
  EXPECT_EQ(last.back(), 3);
}

// A map of one f32.
struct Map {
  Map(std::string_view text, const float* x, float* y) : op(ParseLocalOp(text).value()) {
    input = {.data = x, .dtype = DType::kF32, .extents = {1}, .strides = {1}};
    call = {.op = &op,
            .inputs = {&input, 1},
            .output = y,
            .output_dtype = DType::kF32,
            .output_extents = {1},
            .output_strides = {1},
            .output_box = {{0, 1}}};
  }
  Map(const Map&) = delete;
  const LocalOp op;
  KernelInput input;
  KernelCall call;
};

// A driver may wait for all streams to load it, and what another stream stands at may need the loop.
TEST(CudaDevice, AMapThatIsNewIsLoadedWhenNothingRuns) {
  CudaGroup group(2);
  Cells<float> x(group, 1, 3), y(group, 1), z(group, 1);
  const Map sum("map(add:f32(in0:f32, in0:f32))", x.data(), y.data());
  const Map product("map(mul:f32(in0:f32, in0:f32))", x.data(), z.data());
  std::atomic<int> others{0}, maps{0};
  for (const Map* map : {&sum, &product}) {
    const int before = others.load();
    const uint64_t signal = static_cast<uint64_t>(before) + 1;
    std::atomic<bool> has_started{false};
    group.at(0).EnqueueWait(StreamId::kExchange, {WorkerIndex(1), kCompute, signal});
    group.at(0).EnqueueAsync(StreamId::kExchange, [&](Device::Done done) {
      has_started = true;
      done(absl::OkStatus());
    });
    group.at(0).EnqueueReport(StreamId::kExchange, [&](absl::Status, const RunTimes&) { ++others; });
    group.at(0).EnqueueRun(kCompute, KernelWork{map->call, {}});
    group.at(0).EnqueueReport(kCompute, [&](absl::Status status, const RunTimes&) {
      EXPECT_TRUE(status.ok()) << status;
      ++maps;
    });
    // Transfers go on meanwhile.
    float there = 0;
    Cells<float> here(group, 1, 9);
    const CopyWork download{.extents = {1},
                            .element_bytes = 4,
                            .source = here.data(),
                            .source_strides = {1},
                            .destination = &there,
                            .destination_strides = {1}};
    EXPECT_TRUE(group.at(0).Transfer(download, TransferSide::kDestinationIsHost).ok());
    EXPECT_EQ(there, 9);
    if (group.StreamsMayStandStill()) {
      EXPECT_EQ(maps.load(), before);
    }
    EXPECT_FALSE(has_started.load());
    group.at(1).EnqueueSignal(kCompute, signal);
    while (others.load() == before || maps.load() == before) std::this_thread::yield();
  }
  EXPECT_EQ(y[0], 6);
  EXPECT_EQ(z[0], 9);
}

// Returns when the device has submitted what it can of all that it was given before: a transfer has come back.
void LookAtAll(Device& device, Cells<float>& from) {
  float there = 0;
  const CopyWork download{.extents = {1},
                          .element_bytes = 4,
                          .source = from.data(),
                          .source_strides = {1},
                          .destination = &there,
                          .destination_strides = {1}};
  EXPECT_TRUE(device.Transfer(download, TransferSide::kDestinationIsHost).ok());
}

// Work that takes memory, or makes it known to the driver, when it is used first.
TEST(CudaDevice, MemoryIsTakenWhenNoStreamStandsStill) {
  CudaGroup group(2);
  Cells<float> x(group, 4, 3), sum(group, 4);
  const ReduceTerm terms[] = {{x.data(), {1}}, {x.data(), {1}}};
  const ReduceDestination destinations[] = {{sum.data(), {1}}};
  float there = 0;
  std::atomic<int> reduced{0}, read{0}, waited{0};
  const auto count = [](std::atomic<int>& reports) {
    return [&reports](absl::Status status, const RunTimes&) {
      EXPECT_TRUE(status.ok()) << status;
      ++reports;
    };
  };
  const auto page = MakePage();  // of a peer that comes meanwhile
  page->counters[0] = 7;
  group.at(0).EnqueueWait(StreamId::kExchange, {WorkerIndex(1), kCompute, 1});
  group.at(0).EnqueueRun(kCompute, ReduceWork{.dtype = DType::kF32,
                                              .destination_dtype = DType::kF32,
                                              .extents = {4},
                                              .terms = terms,
                                              .destinations = destinations});
  group.at(0).EnqueueReport(kCompute, count(reduced));
  group.at(0).EnqueueRead(StreamId::kIo, {.extents = {1},
                                          .element_bytes = 4,
                                          .source = x.data(),
                                          .source_strides = {1},
                                          .destination = &there,
                                          .destination_strides = {1}});
  group.at(0).EnqueueReport(StreamId::kIo, count(read));
  while (group.at(0).WasAtWork()) std::this_thread::yield();
  group.at(0).MapCounters(WorkerIndex(5), MapAgain(page));
  group.at(0).EnqueueWait(StreamId::kProbe, {WorkerIndex(5), kCompute, 8});
  group.at(0).EnqueueReport(StreamId::kProbe, count(waited));
  LookAtAll(group.at(0), x);
  if (group.StreamsMayStandStill()) {
    EXPECT_EQ(reduced + read, 0);
  }
  group.at(1).EnqueueSignal(kCompute, 1);
  while (reduced + read < 2) std::this_thread::yield();
  EXPECT_EQ(sum.back(), 6);
  EXPECT_EQ(there, 3);
  EXPECT_EQ(waited.load(), 0);
  page->counters[0] = 8;
  while (waited.load() == 0) std::this_thread::yield();
}

// Worker 0 has to be clear for a map that worker 1 waits for before it signals what worker 0 waits for last.
TEST(CudaDevice, NothingStandsStillAheadOfWhatHasToBeClear) {
  CudaGroup group(2);
  Cells<float> x(group, 1, 4), y(group, 1);
  const Map product("map(mul:f32(in0:f32, in0:f32))", x.data(), y.data());
  std::atomic<int> reports{0};
  const auto report = [&](absl::Status status, const RunTimes&) {
    EXPECT_TRUE(status.ok()) << status;
    ++reports;
  };
  group.at(0).EnqueueWait(StreamId::kExchange, {WorkerIndex(1), StreamId::kExchange, 1});
  group.at(0).EnqueueRun(kCompute, KernelWork{product.call, {}});
  group.at(0).EnqueueSignal(kCompute, 2);
  group.at(0).EnqueueWait(StreamId::kIo, {WorkerIndex(1), kCompute, 3});
  group.at(0).EnqueueReport(StreamId::kIo, report);
  group.at(1).EnqueueWait(kCompute, {WorkerIndex(0), kCompute, 2});
  group.at(1).EnqueueSignal(kCompute, 3);
  group.at(1).EnqueueReport(kCompute, report);
  LookAtAll(group.at(0), x);
  if (group.StreamsMayStandStill()) {
    EXPECT_EQ(reports.load(), 0);
  }
  group.at(1).EnqueueSignal(StreamId::kExchange, 1);
  while (reports.load() < 2) std::this_thread::yield();
  EXPECT_EQ(y[0], 16);
}

// As one of NCCL does.
TEST(CudaDevice, NothingIsLoadedWhileAKernelWaitsForOtherRanks) {
  CudaGroup group(1);
  Cells<float> x(group, 1, 5), y(group, 1);
  const Map difference("map(sub:f32(in0:f32, in0:f32))", x.data(), y.data());
  Cells<int64_t> from(group, 4, 3), to(group, 4);
  std::atomic<bool> mapped{false}, copied{false};
  y[0] = 1;
  auto spinning = group.gpu().use->BeginSpinning();
  group.at(0).EnqueueRun(kCompute, KernelWork{difference.call, {}});
  group.at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { mapped = true; });
  group.at(0).EnqueueRun(StreamId::kIo, Copy(from, to));
  group.at(0).EnqueueReport(StreamId::kIo, [&](absl::Status, const RunTimes&) { copied = true; });
  while (!copied.load()) std::this_thread::yield();
  EXPECT_FALSE(mapped.load());
  spinning = {};
  while (!mapped.load()) std::this_thread::yield();
  EXPECT_EQ(y[0], 0);
}

// A stream that stands still signals behind its wait; another one waits for that, and a third for the second.
TEST(CudaDevice, StreamsWaitForEachOtherBehindAWait) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    TestDriver::Get().Seed(seed);
    const size_t before = TestDriver::Get().Hazards().size();
    CudaGroup group(2);
    Cells<int64_t> a(group, 4, 3), b(group, 4), c(group, 4);
    std::atomic<int> reports{0};
    const auto report = [&](absl::Status, const RunTimes&) { ++reports; };
    Device& device = group.at(0);
    device.EnqueueWait(kCompute, {WorkerIndex(1), kCompute, 1});
    device.EnqueueRun(kCompute, Copy(a, b));
    device.EnqueueSignal(kCompute, 5);
    device.EnqueueWait(StreamId::kExchange, {WorkerIndex(0), kCompute, 5});
    device.EnqueueRun(StreamId::kExchange, Copy(b, c));
    device.EnqueueSignal(StreamId::kExchange, 6);
    device.EnqueueWait(StreamId::kIo, {WorkerIndex(0), StreamId::kExchange, 6});
    device.EnqueueRun(StreamId::kIo, Copy(c, a));
    for (int more = 0; more < 40; ++more) device.EnqueueRun(StreamId::kIo, Copy(a, c));
    device.EnqueueReport(StreamId::kIo, report);
    device.EnqueueSignal(kCompute, 7);
    device.EnqueueReport(kCompute, report);
    std::this_thread::yield();
    group.at(1).EnqueueSignal(kCompute, 1);
    while (reports.load() < 2) std::this_thread::yield();
    EXPECT_EQ(c.back(), 3);
    EXPECT_EQ(TestDriver::Get().Hazards().size(), before) << seed;
  }
}

// A launch, and its words: the counter, and how far the stream has come. Nobody asks the driver for anything else.
TEST(CudaDevice, AnOpIsOneLaunchAndOneCallForItsWords) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver counts its calls";
  constexpr int kOps = 50;
  CudaGroup group(1);
  Cells<int64_t> a(group, 4, 3), b(group, 4);
  uint64_t value = 0;
  for (int time = 0; time < 5; ++time) {
    group.at(0).Drain();
    std::atomic<int> reports{0};
    // While nothing passes for long, the loop asks whether the device still works.
    const auto calls = [&] { return driver.Calls() - driver.Calls("cuStreamQuery"); };
    const int before = calls();
    group.at(0).Hold();
    for (int op = 0; op < kOps; ++op) {
      group.at(0).EnqueueRun(kCompute, op % 2 == 0 ? Copy(a, b) : Copy(b, a));
      group.at(0).EnqueueSignal(kCompute, ++value);
      group.at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { ++reports; });
    }
    group.at(0).Flush();
    while (reports.load() < kOps) std::this_thread::yield();
    if (time == 0) continue;  // the loop begins with a call of its own
    EXPECT_EQ(calls() - before, 2 * kOps);
  }
  EXPECT_EQ(b.back(), 3);
}

// A thread that hands something to a loop that lingers makes no system call, and is heard at once.
TEST(CudaDevice, ALoopThatLingersTakesWhatComes) {
  CudaGroup group(1);
  Cells<int64_t> a(group, 4, 3), b(group, 4);
  for (int op = 0; op < 200; ++op) {
    std::atomic<bool> done{false};
    a.back() = op;
    group.at(0).EnqueueRun(kCompute, Copy(a, b));
    group.at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { done = true; });
    while (!done.load()) std::this_thread::yield();
    ASSERT_EQ(b.back(), op);
    // Some find it lingering, some about to sleep, some asleep.
    for (int pause = 0; op % 4 == 3 && pause < 100 * op; ++pause) std::this_thread::yield();
  }
}

// Also where the two are given to the GPU by one queue of it, the wait first.
TEST(CudaDevice, WhatAWaitIsForComesByWhateverStreams) {
  CudaGroup group(2);
  Cells<float> x(group, 1);
  uint64_t value = 0;
  constexpr StreamId kStreams[] = {kCompute, StreamId::kExchange, StreamId::kProbe, StreamId::kIo};
  for (const StreamId waits : kStreams) {
    for (const StreamId signals : kStreams) {
      ++value;
      std::atomic<bool> done{false};
      group.at(0).EnqueueWait(waits, {WorkerIndex(1), signals, value});
      group.at(0).EnqueueReport(waits, [&](absl::Status, const RunTimes&) { done = true; });
      LookAtAll(group.at(0), x);
      EXPECT_FALSE(done.load());
      group.at(1).EnqueueSignal(signals, value);
      while (!done.load()) std::this_thread::yield();
    }
  }
}

TEST(CudaDevice, WhoWaitsIsNotAtWork) {
  CudaGroup group(2);
  group.at(0).EnqueueWait(kCompute, {WorkerIndex(1), kCompute, 1});
  Cells<int64_t> from(group, 4, 1), to(group, 4);
  std::atomic<bool> done{false};
  group.at(0).EnqueueRun(kCompute, Copy(from, to));
  group.at(0).EnqueueReport(kCompute, [&](absl::Status, const RunTimes&) { done = true; });
  while (group.at(0).WasAtWork()) std::this_thread::yield();
  EXPECT_FALSE(done.load());
  group.at(1).EnqueueSignal(kCompute, 1);
  while (!done.load()) std::this_thread::yield();
}

}  // namespace
}  // namespace tessera::testing
