// Transfers of a CUDA device: by the host's pinned memory, or by the GPU alone where the memory is registered.

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/device/cuda/registered_memory.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// As memory of a client is: shared pages.
std::shared_ptr<std::byte> Pages(int64_t bytes) {
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(at, MAP_FAILED);
  return {static_cast<std::byte*>(at), [bytes](std::byte* base) { munmap(base, static_cast<size_t>(bytes)); }};
}

class CudaTransfers : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 4096;

  void Open(cuda::CudaDeviceOptions options = {}) { gpu_ = std::make_unique<OneGpu>(std::move(options)); }
  // Bytes that the host copied as these moved from `at` on.
  int64_t HostCopied(std::byte* at, int64_t bytes = kBytes) {
    const int64_t before = gpu_->device().transfer_counts().host_copied_bytes;
    gpu_->Reset();
    gpu_->Upload(at, gpu_->Take(bytes), bytes);
    return gpu_->device().transfer_counts().host_copied_bytes - before;
  }
  void AwaitReachable(std::byte* at) {
    while (HostCopied(at) != 0) std::this_thread::yield();
  }
  static void AwaitGone(const std::weak_ptr<std::byte>& pages) {
    while (!pages.expired()) std::this_thread::yield();
  }

  std::unique_ptr<OneGpu> gpu_;
};

TEST_F(CudaTransfers, TheHostCopiesEachByteOfOtherMemoryOnce) {
  Open();
  const std::shared_ptr<std::byte> pages = Pages(kBytes);
  EXPECT_EQ(HostCopied(pages.get()), kBytes);
  EXPECT_EQ(HostCopied(pages.get()), kBytes);
}

TEST_F(CudaTransfers, TheHostCopiesNothingOfRegisteredMemory) {
  Open();
  // Over the end of a piece, too.
  constexpr int64_t kAll = cuda::kRegisteredPieceBytes + 64 * kBytes;
  const std::shared_ptr<std::byte> pages = Pages(kAll);
  gpu_->device().KeepReachable(pages.get(), kAll, pages);
  AwaitReachable(pages.get() + kAll - kBytes);
  std::byte* const from = pages.get() + cuda::kRegisteredPieceBytes - kBytes;
  std::byte* const to = pages.get() + kBytes;
  for (int64_t i = 0; i < 2 * kBytes; ++i) from[i] = static_cast<std::byte>(i * 7 % 251);
  const cuda::TransferCounts before = gpu_->device().transfer_counts();
  gpu_->Reset();
  std::byte* const there = gpu_->Take(2 * kBytes);
  gpu_->Upload(from, there, 2 * kBytes);
  gpu_->Download(there, to, 2 * kBytes);
  const cuda::TransferCounts after = gpu_->device().transfer_counts();
  EXPECT_EQ(after.host_copied_bytes, before.host_copied_bytes);
  EXPECT_EQ(after.moved_bytes - before.moved_bytes, 4 * kBytes);
  EXPECT_TRUE(std::equal(from, from + 2 * kBytes, to));
}

// A driver may wait for all streams as it registers memory.
TEST_F(CudaTransfers, MemoryIsRegisteredWhenNoStreamStandsStill) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver counts its calls";
  Open();
  Device::Done done;
  std::atomic<bool> has_started = false;
  gpu_->device().EnqueueAsync(StreamId::kExchange, [&](Device::Done given) {
    done = std::move(given);
    has_started = true;
  });
  while (!has_started) std::this_thread::yield();
  const int before = driver.Calls("cuMemHostRegister");
  const std::shared_ptr<std::byte> pages = Pages(kBytes);
  gpu_->device().KeepReachable(pages.get(), kBytes, pages);
  for (int time = 0; time < 100; ++time) EXPECT_EQ(HostCopied(pages.get()), kBytes);
  EXPECT_EQ(driver.Calls("cuMemHostRegister"), before);
  done(absl::OkStatus());
  AwaitReachable(pages.get());
  EXPECT_EQ(driver.Calls("cuMemHostRegister"), before + 1);
  EXPECT_EQ(gpu_->Report(StreamId::kExchange), absl::OkStatus());
}

TEST_F(CudaTransfers, MemoryThatTheDriverRefusesIsCopiedByTheHostAndWarnedOfOnce) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "refuses what it is told to";
  Warnings warnings;
  Open(warnings.Options());
  for (int time = 0; time < 2; ++time) {
    std::shared_ptr<std::byte> pages = Pages(kBytes);
    driver.Fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
    gpu_->device().KeepReachable(pages.get(), kBytes, pages);
    EXPECT_EQ(HostCopied(pages.get()), kBytes);
    const std::weak_ptr<std::byte> refused = pages;
    pages = nullptr;
    AwaitGone(refused);
  }
  const std::shared_ptr<std::byte> pages = Pages(kBytes);
  gpu_->device().KeepReachable(pages.get(), kBytes, pages);
  AwaitReachable(pages.get());
  gpu_ = nullptr;
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuMemHostRegister of 4096 bytes")));
}

// The client is gone, and the GPU still reads what it lent.
TEST_F(CudaTransfers, MemoryStaysRegisteredUntilItsCopiesHaveEnded) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver holds copies";
  Open();
  std::shared_ptr<std::byte> pages = Pages(kBytes);
  std::byte* const base = pages.get();
  gpu_->device().KeepReachable(base, kBytes, pages);
  AwaitReachable(base);
  driver.Hold();
  std::thread upload([&] { EXPECT_EQ(HostCopied(base), 0); });
  driver.AwaitQueued(1);
  const int before = driver.Calls("cuMemHostUnregister");
  gpu_->device().LetGoOf(base);
  const std::weak_ptr<std::byte> lent = pages;
  pages = nullptr;
  const std::shared_ptr<std::byte> others = Pages(kBytes);
  const int registered = driver.Calls("cuMemHostRegister");
  gpu_->device().KeepReachable(others.get(), kBytes, others);
  while (driver.Calls("cuMemHostRegister") == registered) std::this_thread::yield();
  EXPECT_EQ(driver.Calls("cuMemHostUnregister"), before);
  EXPECT_FALSE(lent.expired());
  driver.Release();
  upload.join();
  AwaitGone(lent);
  EXPECT_EQ(driver.Calls("cuMemHostUnregister"), before + 1);
}

TEST_F(CudaTransfers, MemoryThatNoTransferUsesIsLetGoOf) {
  Open({.registered_idle_ns = 20'000'000});
  std::shared_ptr<std::byte> pages = Pages(kBytes);
  gpu_->device().KeepReachable(pages.get(), kBytes, pages);
  const std::weak_ptr<std::byte> idle = pages;
  pages = nullptr;
  AwaitGone(idle);
}

TEST_F(CudaTransfers, BothDirectionsAndSeveralOfOneAreUnderWayAtOnce) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver holds copies";
  Open();
  constexpr int64_t kTransfers = 4;
  const std::shared_ptr<std::byte> pages = Pages(kTransfers * kBytes);
  gpu_->device().KeepReachable(pages.get(), kTransfers * kBytes, pages);
  AwaitReachable(pages.get());
  gpu_->Reset();
  std::byte* const there = gpu_->Take(kTransfers * kBytes);
  driver.Hold();
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kTransfers; ++i) {
    threads.emplace_back([&, i] {
      std::byte *const host = pages.get() + i * kBytes, *const device = there + i * kBytes;
      if (i % 2 == 0) return gpu_->Upload(host, device, kBytes);
      gpu_->Download(device, host, kBytes);
    });
  }
  driver.AwaitQueued(kTransfers);
  driver.Release();
  for (std::thread& thread : threads) thread.join();
}

// A GPU copies in both directions at once: no stream orders an upload before a download, or after it.
TEST_F(CudaTransfers, TheTwoDirectionsAreInNoOrder) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver names bytes that two streams use in no order";
  Open();
  gpu_->Reset();
  std::byte* const there = gpu_->Take(kBytes);
  std::vector<std::byte> sent(kBytes), received(kBytes);
  driver.Hold();
  std::thread upload([&] { gpu_->Upload(sent.data(), there, kBytes); });
  std::thread download([&] { gpu_->Download(there, received.data(), kBytes); });
  driver.AwaitQueued(4);  // each with its mark
  driver.Release();
  upload.join();
  download.join();
  EXPECT_THAT(driver.Hazards(), ElementsAre(HasSubstr("copy")));
}

// The client's memory outlives a device that ends.
TEST_F(CudaTransfers, ADeviceThatEndsLetsGoOfAll) {
  Open();
  std::shared_ptr<std::byte> pages = Pages(kBytes);
  gpu_->device().KeepReachable(pages.get(), kBytes, pages);
  AwaitReachable(pages.get());
  gpu_ = nullptr;
  EXPECT_EQ(pages.use_count(), 1);
}

}  // namespace
}  // namespace tessera::testing
