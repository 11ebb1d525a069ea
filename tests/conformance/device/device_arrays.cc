#include "tests/conformance/device/device_arrays.h"

#include <future>
#include <utility>

#include "gtest/gtest.h"

#include "server/device/cuda/driver.h"
#include "tests/conformance/device/counter_pages.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

cuda::Gpu Open() {
  EXPECT_EQ(TestDriver::Get().skip(), "");
  return *cuda::Gpu::Open(*cuda::Driver::Load().value(), 0);
}

CopyWork Bytes(const void* from, void* to, int64_t bytes) {
  return {.extents = {bytes},
          .element_bytes = 1,
          .source = from,
          .source_strides = {1},
          .destination = to,
          .destination_strides = {1}};
}

}  // namespace

OneGpu::OneGpu(cuda::CudaDeviceOptions options)
    : gpu_(Open()), page_(MakePage()), memory_(*cuda::MakeMemory(gpu_, kBytes, cuda::Sharing::kPrivate)) {
  auto device = cuda::CudaDevice::Prepare(gpu_);
  EXPECT_TRUE(device.ok()) << device.status();
  options.self = WorkerIndex(0);
  options.counters = page_.get();
  if (!options.lost) options.lost = [](const absl::Status& status) { ADD_FAILURE() << status; };
  const absl::Status begun = (*device)->Begin(options);
  EXPECT_TRUE(begun.ok()) << begun;
  device_ = *std::move(device);
}

std::byte* OneGpu::Take(int64_t bytes) {
  std::byte* at = memory_->data() + taken_;
  taken_ += (bytes + 255) / 256 * 256;
  EXPECT_LE(taken_, kBytes);
  return at;
}

void OneGpu::Upload(const void* from, std::byte* to, int64_t bytes) {
  const absl::Status status = device_->Transfer(Bytes(from, to, bytes), TransferSide::kSourceIsHost);
  EXPECT_TRUE(status.ok()) << status;
}

void OneGpu::Download(const std::byte* from, void* to, int64_t bytes) {
  const absl::Status status = device_->Transfer(Bytes(from, to, bytes), TransferSide::kDestinationIsHost);
  EXPECT_TRUE(status.ok()) << status;
}

absl::Status OneGpu::Report(StreamId stream) {
  std::promise<absl::Status> reported;
  device_->EnqueueReport(stream, [&](absl::Status status, const RunTimes&) { reported.set_value(std::move(status)); });
  return reported.get_future().get();
}

}  // namespace tessera::testing
