// The memory that a host and its control group leave, on files as the kernel writes them.

#include "schemas/host/available_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace tessera {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string root_ = testing::TempDir() + "/host";
};

TEST_F(AvailableMemory, IsWhatTheKernelSays) {
  Write("/proc/meminfo", "MemTotal:       67108864 kB\nMemFree:  1024 kB\nMemAvailable:   33554432 kB\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "1024\n");
  EXPECT_EQ(HostAvailableBytes(root_), 32 * kGiB);
}

TEST_F(AvailableMemory, IsNoMoreThanTheControlGroupLeaves) {
  Write("/proc/meminfo", "MemAvailable:   33554432 kB\n");
  Write("/sys/fs/cgroup/memory.max", std::to_string(8 * kGiB) + "\n");
  Write("/sys/fs/cgroup/memory.current", std::to_string(3 * kGiB) + "\n");
  EXPECT_EQ(HostAvailableBytes(root_), 5 * kGiB);
  Write("/sys/fs/cgroup/memory.stat", "anon 5\ninactive_file " + std::to_string(kGiB) + "\nactive_file 7\n");
  EXPECT_EQ(HostAvailableBytes(root_), 6 * kGiB);
  Write("/sys/fs/cgroup/memory.current", std::to_string(9 * kGiB) + "\n");
  EXPECT_EQ(HostAvailableBytes(root_), 0);
}

TEST_F(AvailableMemory, IsNoMoreThanAGroupOfVersion1Leaves) {
  Write("/proc/meminfo", "MemAvailable:   33554432 kB\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(8 * kGiB) + "\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(3 * kGiB) + "\n");
  EXPECT_EQ(HostAvailableBytes(root_), 5 * kGiB);
}

TEST_F(AvailableMemory, IsWithoutBoundWhereNothingIsSaid) {
  EXPECT_EQ(HostAvailableBytes(root_), std::numeric_limits<int64_t>::max());
  EXPECT_GT(HostAvailableBytes(), 0);
}

}  // namespace
}  // namespace tessera
