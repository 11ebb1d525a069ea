#include "tests/conformance/device/library_tests.h"

#include <chrono>
#include <cstddef>
#include <future>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
constexpr int kCallsOfAWait = 3;

}  // namespace

void ExpectAwaitsStreams(OneGpu& gpu, const std::function<void()>& enqueue) {
  std::promise<Device::Done> started;
  gpu.device().EnqueueAsync(kExchange, [&](Device::Done done) { started.set_value(std::move(done)); });
  Device::Done done = started.get_future().get();
  enqueue();
  std::promise<absl::Status> reported;
  gpu.device().EnqueueReport(kCompute,
                             [&](absl::Status status, const RunTimes&) { reported.set_value(std::move(status)); });
  std::future<absl::Status> report = reported.get_future();
  EXPECT_EQ(report.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  done(absl::OkStatus());
  EXPECT_EQ(report.get(), absl::OkStatus());
}

std::vector<std::string> FindHazards(OneGpu& gpu, const OrderedWrites& writes, LeftOut left_out) {
  const TestDriver& driver = TestDriver::Get();
  gpu.device().Drain();
  gpu.device().Hold();
  writes.read();
  gpu.device().Flush();
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
  gpu.device().Drain();
  const size_t before = driver.Hazards().size();
  driver.Hold();
  gpu.device().Hold();
  gpu.device().EnqueueRun(kExchange, writes.before);
  gpu.device().EnqueueSignal(kExchange, 1);
  if (left_out != LeftOut::kReadersWait) gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
  writes.read();
  gpu.device().EnqueueSignal(kCompute, 1);
  if (left_out != LeftOut::kWritersWait) gpu.device().EnqueueWait(kExchange, {WorkerIndex(0), kCompute, 1});
  gpu.device().EnqueueRun(kExchange, writes.after);
  std::promise<void> done[2];
  size_t reported = 0;
  for (const StreamId stream : {kCompute, kExchange}) {
    gpu.device().EnqueueReport(stream, [&done, n = reported++](absl::Status status, const RunTimes&) {
      EXPECT_EQ(status, absl::OkStatus());
      done[n].set_value();
    });
  }
  gpu.device().Flush();
  const int queued = left_out == LeftOut::kNothing ? writes.queued : writes.queued - kCallsOfAWait;
  while (driver.Queued() < queued) std::this_thread::yield();
  EXPECT_EQ(driver.Queued(), queued);
  driver.Release();
  for (std::promise<void>& one : done) one.get_future().get();
  std::vector<std::string> hazards = driver.Hazards();
  hazards.erase(hazards.begin(), hazards.begin() + static_cast<std::ptrdiff_t>(before));
  return hazards;
}

}  // namespace tessera::testing
