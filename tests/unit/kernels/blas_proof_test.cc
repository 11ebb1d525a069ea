#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "kernels/cpu/blas_core.h"

namespace tessera {
namespace {

// The address space has room for a thread's stack and the test's matrices, and not for what OpenBLAS maps.
[[noreturn]] void ProveWithoutRoom() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) _exit(2);
  std::fclose(file);
  const rlim_t bytes = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (12 << 20);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
  const auto refuse = [](const absl::Status& why) {
    std::fprintf(stderr, "%s\n", std::string(why.message()).c_str());
    _exit(0);
  };
  const absl::Status status = ProveBlas(std::chrono::seconds(2), refuse);
  if (!status.ok()) refuse(status);
  _exit(1);
}

TEST(ProveBlasTest, AWorkerThatCanMultiplyIsTaken) {
  const absl::Status status = ProveBlas(std::chrono::minutes(5), [](const absl::Status& why) { FAIL() << why; });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ProveBlasDeathTest, ALimitOfTheAddressSpaceIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ProveWithoutRoom(), ::testing::ExitedWithCode(0), "ulimit -v");
}

}  // namespace
}  // namespace tessera
