// Parts on the compute threads.

#include "kernels/cpu/parallel.h"

#include <atomic>
#include <cstdint>
#include <new>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

constexpr int64_t kParts = 4;

TEST(RunParts, RunsEachPartOnce) {
  std::atomic<int> runs[kParts] = {};
  cpu::RunParts(kParts, [&](int64_t part, int64_t parts) {
    EXPECT_EQ(parts, kParts);
    ++runs[part];
  });
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
}

TEST(RunParts, ThrowsWhatAPartThrewWhenAllHaveEnded) {
  for (int64_t thrower = 0; thrower < kParts; ++thrower) {
    std::atomic<int> ended = 0;
    EXPECT_THROW(cpu::RunParts(kParts,
                               [&](int64_t part, int64_t) {
                                 if (part == thrower) throw std::bad_alloc();
                                 ++ended;
                               }),
                 std::bad_alloc);
    EXPECT_EQ(ended, kParts - 1);
  }
  int64_t runs = 0;
  cpu::RunParts(1, [&](int64_t, int64_t) { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace tessera::testing
