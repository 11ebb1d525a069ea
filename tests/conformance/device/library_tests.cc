#include "tests/conformance/device/library_tests.h"

#include <chrono>
#include <cstddef>
#include <future>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/local_op.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
constexpr int kCallsOfAWait = 3;

}  // namespace

void ExpectAwaitsStreams(OneGpu& gpu, const std::function<void()>& enqueue, const char* function) {
  std::promise<Device::Done> started;
  gpu.device().EnqueueAsync(kExchange, [&](Device::Done done) { started.set_value(std::move(done)); });
  Device::Done done = started.get_future().get();
  const int calls = TestDriver::Get().Calls(function);
  enqueue();
  std::promise<absl::Status> reported;
  gpu.device().EnqueueReport(kCompute,
                             [&](absl::Status status, const RunTimes&) { reported.set_value(std::move(status)); });
  std::future<absl::Status> report = reported.get_future();
  EXPECT_EQ(report.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(TestDriver::Get().Calls(function), calls);
  done(absl::OkStatus());
  EXPECT_EQ(report.get(), absl::OkStatus());
}

void ExpectHoldsUpNoLightOp(OneGpu& gpu, const char* function, const std::function<void()>& enqueue) {
  constexpr std::chrono::seconds kLongEnough(30);  // else it comes when the call is let go of
  const TestDriver& driver = TestDriver::Get();
  const float* ones = gpu.Put(std::vector<float>(4, 1));
  float* const products = gpu.Put(std::vector<float>(4));
  const LocalOp op = MatmulOp{};
  const KernelInput square = {.data = ones, .dtype = DType::kF32, .extents = {2, 2}, .strides = {2, 1}};
  const KernelInput inputs[] = {square, square};
  const KernelCall product{.op = &op,
                           .inputs = inputs,
                           .output = products,
                           .output_dtype = DType::kF32,
                           .output_extents = {2, 2},
                           .output_strides = {2, 1}};
  const double* diagonal = gpu.Put<double>({4, 0, 0, 9});
  double* const values = gpu.Put<double>({0, 0, 0, 0});  // two complex numbers
  const LocalOp eigenvalues = *ParseLocalOp("linalg(eigvals)");
  const KernelInput matrix[] = {{.data = diagonal, .dtype = DType::kF64, .extents = {2, 2}, .strides = {2, 1}}};
  const KernelCall of_host{.op = &eigenvalues,
                           .inputs = matrix,
                           .output = values,
                           .output_dtype = DType::kC128,
                           .output_extents = {2},
                           .output_strides = {1}};
  const int products_before = driver.Calls("cublasLtMatmul");
  std::promise<absl::Status> of_batch, of_light;
  driver.HoldCall(function);
  enqueue();
  gpu.device().EnqueueReport(kCompute,
                             [&](absl::Status status, const RunTimes&) { of_batch.set_value(std::move(status)); });
  driver.AwaitCall();
  gpu.device().EnqueueRun(StreamId::kComputeLight, KernelWork{product, {}});
  gpu.device().EnqueueRun(StreamId::kComputeLight, KernelWork{of_host, {}});
  gpu.device().EnqueueReport(StreamId::kComputeLight,
                             [&](absl::Status status, const RunTimes&) { of_light.set_value(std::move(status)); });
  std::future<absl::Status> batch = of_batch.get_future(), light = of_light.get_future();
  EXPECT_EQ(light.wait_for(kLongEnough), std::future_status::ready);
  EXPECT_EQ(batch.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  driver.ReleaseCall();
  EXPECT_EQ(light.get(), absl::OkStatus());
  EXPECT_EQ(batch.get(), absl::OkStatus());
  EXPECT_EQ(gpu.Get(products, 4), std::vector<float>(4, 2));
  EXPECT_THAT(gpu.Get(values, 4), ::testing::UnorderedElementsAre(4, 0, 9, 0));
  EXPECT_EQ(driver.Calls("cublasLtMatmul") - products_before, 1);
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
