// Which memory of a client the device is given, and for how long it stays.

#include "server/worker/rpc/kept_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "server/device/cpu/cpu_device.h"

namespace tessera {
namespace {

constexpr int64_t kBytes = 8192;

// Memory is not the host's; keeps what it is given.
class KeepingDevice : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  bool IsHostMemory() const override { return is_host_memory; }
  void KeepReachable(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper) override {
    EXPECT_EQ(bytes, kBytes);
    kept[base] = std::move(keeper);
  }
  void LetGoOf(const std::byte* base) override { EXPECT_EQ(kept.erase(base), 1u); }

  bool is_host_memory = false;
  std::map<const std::byte*, std::shared_ptr<void>> kept;
};

class ClientFile {
 public:
  ClientFile() : fd_(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    EXPECT_EQ(posix_fallocate(fd_, 0, kBytes), 0);
    EXPECT_EQ(fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  }
  ~ClientFile() { close(fd_); }
  ClientFile(const ClientFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

class KeptMemoryTest : public ::testing::Test {
 protected:
  std::shared_ptr<ClientMemory> Map(const ClientFile& file, TransferDirection direction = TransferDirection::kUpload) {
    auto memory = kept_->Map(file.fd(), direction);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }

  std::shared_ptr<CounterPage> page_ = std::make_shared<CounterPage>();
  KeepingDevice device_{CpuDeviceOptions{.self = WorkerIndex(0), .counters = page_.get()}};
  std::optional<AttachedMemory> attached_{AttachedMemory::Limits{.count = 100, .bytes = 1 << 20}};
  std::optional<KeptMemory> kept_{std::in_place, device_, *attached_};
};

TEST_F(KeptMemoryTest, WhatComesOnceIsMappedForItsTransfer) {
  const ClientFile files[2];
  for (const ClientFile& file : files) {
    const std::weak_ptr<ClientMemory> memory = Map(file);
    EXPECT_TRUE(memory.expired());
  }
  EXPECT_TRUE(device_.kept.empty());
}

TEST_F(KeptMemoryTest, WhatComesAgainIsGivenToTheDeviceOnce) {
  const ClientFile file, other;
  Map(file);
  Map(other);
  std::byte* const base = Map(file)->base();
  EXPECT_TRUE(device_.kept.contains(base));
  EXPECT_EQ(device_.kept.size(), 1u);
  const std::shared_ptr<ClientMemory> third = Map(file, TransferDirection::kDownload);
  EXPECT_EQ(third->base(), base);
  *third->base() = std::byte{7};  // it may be written, though it came for an upload
  EXPECT_EQ(device_.kept.size(), 1u);
}

TEST_F(KeptMemoryTest, WhatTheDeviceLetGoOfIsMappedAgain) {
  const ClientFile file;
  Map(file);
  Map(file);
  device_.kept.clear();
  EXPECT_TRUE(device_.kept.contains(Map(file)->base()));
}

TEST_F(KeptMemoryTest, TheDeviceLetsGoWhenTheConnectionHasEnded) {
  const ClientFile file;
  Map(file);
  Map(file);
  ASSERT_EQ(device_.kept.size(), 1u);
  const std::shared_ptr<void> used = device_.kept.begin()->second;
  kept_.reset();
  EXPECT_TRUE(device_.kept.empty());
  attached_.reset();  // a transfer may still use the memory
}

TEST_F(KeptMemoryTest, ADeviceInTheHostsMemoryIsGivenNone) {
  device_.is_host_memory = true;
  const ClientFile file;
  for (int time = 0; time < 3; ++time) Map(file);
  EXPECT_TRUE(device_.kept.empty());
}

}  // namespace
}  // namespace tessera
