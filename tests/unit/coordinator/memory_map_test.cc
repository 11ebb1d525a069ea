#include "server/coordinator/memory_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/support/allocation_counter.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::vector<WorkerIndex> Workers(std::initializer_list<int> indexes) {
  std::vector<WorkerIndex> workers;
  for (int i : indexes) workers.emplace_back(i);
  return workers;
}

MemoryMap FourWorkers(int64_t bytes) {
  MemoryMap map(256);
  for (int i = 0; i < 4; ++i) map.AddWorker(WorkerIndex(i), bytes);
  return map;
}

TEST(MemoryMapTest, GivesTheLowestOffsetThatIsFree) {
  MemoryMap map = FourWorkers(4096);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 1000, "t"), 0);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 1, "t"), 1024);
  map.Free(Workers({0, 1, 2, 3}), 0, 1000);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 1024, "t"), 0);
}

TEST(MemoryMapTest, AGroupGetsOneOffsetThatIsFreeOnAllOfThem) {
  MemoryMap map = FourWorkers(4096);
  EXPECT_EQ(*map.Allocate(Workers({0}), 512, "t"), 0);
  EXPECT_EQ(*map.Allocate(Workers({1}), 256, "t"), 0);
  EXPECT_EQ(*map.Allocate(Workers({0, 1}), 256, "t"), 512);
  EXPECT_EQ(*map.Allocate(Workers({1}), 256, "t"), 256);
  EXPECT_EQ(*map.Allocate(Workers({2, 3}), 256, "t"), 0);
}

TEST(MemoryMapTest, WorkersOfOneHistoryAreOneClass) {
  MemoryMap map = FourWorkers(4096);
  EXPECT_EQ(map.class_count(), 1);
  ASSERT_TRUE(map.Allocate(Workers({0, 1}), 256, "t").ok());
  EXPECT_EQ(map.class_count(), 2);
  map.Free(Workers({0, 1}), 0, 256);
  EXPECT_EQ(map.class_count(), 1);
}

TEST(MemoryMapTest, RefusesWhatDoesNotFitWithTheNumbers) {
  MemoryMap map = FourWorkers(1 << 20);
  ASSERT_TRUE(map.Allocate(Workers({2}), 1 << 19, "zeros").ok());
  const absl::Status status = map.Allocate(Workers({0, 1, 2, 3}), 600'000, "zeros").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("zeros: does not fit in memory: 600000 bytes wanted on each of 4 workers; worker 2 has 524288 "
                        "free of 1048576"));
  EXPECT_EQ(map.UsedBytes(WorkerIndex(0)), 0);
}

TEST(MemoryMapTest, TellsTheLargestPieceThatWouldFit) {
  MemoryMap map = FourWorkers(4096);
  EXPECT_EQ(map.LargestFit(Workers({0, 1, 2, 3})), 4096);
  EXPECT_EQ(*map.Allocate(Workers({2}), 1024, "t"), 0);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 1024, "t"), 1024);
  map.Free(Workers({2}), 0, 1024);
  EXPECT_EQ(map.LargestFit(Workers({0, 1, 2, 3})), 2048);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 2048, "t"), 2048);
  EXPECT_EQ(map.LargestFit(Workers({0, 3})), 1024);
  EXPECT_EQ(map.LargestFit(Workers({9})), 0);
}

TEST(MemoryMapTest, HugeAndZeroSizes) {
  MemoryMap map = FourWorkers(4096);
  EXPECT_EQ(map.Allocate(Workers({0}), int64_t{1} << 62, "t").status().code(), absl::StatusCode::kResourceExhausted);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(map.Allocate(Workers({0}), most, "t").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(map.LargestFitAfter({{{WorkerIndex(0)}, most}}, Workers({0})).has_value());
  EXPECT_EQ(*map.Allocate(Workers({0}), 0, "t"), 0);
  EXPECT_EQ(map.UsedBytes(WorkerIndex(0)), 0);
}

TEST(MemoryMapTest, AWorkerThatLeftIsPassedOverAndAFreshOneIsAllFree) {
  MemoryMap map = FourWorkers(4096);
  ASSERT_TRUE(map.Allocate(Workers({0, 1}), 1024, "t").ok());
  map.RemoveWorker(WorkerIndex(1));
  EXPECT_EQ(map.Allocate(Workers({1}), 1, "t").status().code(), absl::StatusCode::kNotFound);
  map.AddWorker(WorkerIndex(1), 4096);
  EXPECT_EQ(map.UsedBytes(WorkerIndex(1)), 0);
}

// Against a reference that keeps one bit per block and worker.
TEST(MemoryMapTest, AgreesWithABitmapOverRandomHistories) {
  constexpr int kBlocks = 24;
  std::mt19937 random(7);
  MemoryMap map(256);
  for (int i = 0; i < 4; ++i) map.AddWorker(WorkerIndex(i), kBlocks * 256);
  bool taken[4][kBlocks] = {};
  struct Live {
    std::vector<WorkerIndex> workers;
    int64_t offset;
    int64_t bytes;
  };
  std::vector<Live> live;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0 && !live.empty()) {
      const size_t at = random() % live.size();
      map.Free(live[at].workers, live[at].offset, live[at].bytes);
      for (WorkerIndex w : live[at].workers) {
        for (int64_t b = live[at].offset / 256; b < (live[at].offset + live[at].bytes) / 256; ++b)
          taken[w.value][b] = false;
      }
      live.erase(live.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    std::vector<WorkerIndex> workers;
    for (int w = 0; w < 4; ++w) {
      if (random() % 2 == 0) workers.emplace_back(w);
    }
    if (workers.empty()) continue;
    int run = 0, longest = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const bool free = std::none_of(workers.begin(), workers.end(), [&](WorkerIndex w) { return taken[w.value][b]; });
      run = free ? run + 1 : 0;
      longest = std::max(longest, run);
    }
    ASSERT_EQ(map.LargestFit(workers), longest * 256) << "step " << step;
    const int blocks = 1 + static_cast<int>(random() % 6);
    int64_t expected = -1;
    for (int start = 0; start + blocks <= kBlocks && expected < 0; ++start) {
      bool free = true;
      for (WorkerIndex w : workers) {
        for (int b = start; b < start + blocks; ++b) free = free && !taken[w.value][b];
      }
      if (free) expected = start * 256;
    }
    auto offset = map.Allocate(workers, blocks * 256, "t");
    ASSERT_EQ(offset.ok(), expected >= 0) << "step " << step;
    if (!offset.ok()) continue;
    ASSERT_EQ(*offset, expected) << "step " << step;
    for (WorkerIndex w : workers) {
      for (int b = 0; b < blocks; ++b) taken[w.value][*offset / 256 + b] = true;
    }
    live.push_back({workers, *offset, blocks * 256});
  }
}

TEST(MemoryMapTest, WorkOnSomeWorkersOfAFragmentedClassCopiesNoHoles) {
  constexpr int kHoles = 10'000;
  MemoryMap map = FourWorkers(int64_t{1} << 30);
  for (int i = 0; i < 2 * kHoles; ++i) ASSERT_TRUE(map.Allocate(Workers({0, 1, 2, 3}), 256, "t").ok());
  for (int i = 0; i < kHoles; ++i) map.Free(Workers({0, 1, 2, 3}), i * 512, 256);
  constexpr int64_t kBehind = int64_t{2} * kHoles * 256;
  const int64_t before = testing::AllocationCount();
  EXPECT_EQ(*map.Allocate(Workers({0, 1}), 1024, "t"), kBehind);
  EXPECT_EQ(*map.Allocate(Workers({0, 1, 2, 3}), 512, "t"), kBehind + 1024);
  EXPECT_EQ(map.class_count(), 2);
  map.Free(Workers({0, 1, 2, 3}), kBehind + 1024, 512);
  map.Free(Workers({0, 1}), kBehind, 1024);
  EXPECT_LT(testing::AllocationCount() - before, 200);
  EXPECT_EQ(map.class_count(), 1);
}

TEST(MemoryMapTest, WhatWouldBeLeftAfterRequestsIsAskedWithoutMakingThem) {
  MemoryMap map(256);
  const std::vector<WorkerIndex> both = {WorkerIndex(0), WorkerIndex(1)}, first = {WorkerIndex(0)};
  map.AddWorker(WorkerIndex(0), 4096);
  map.AddWorker(WorkerIndex(1), 4096);
  ASSERT_EQ(*map.Allocate(first, 1024, "test"), 0);
  EXPECT_EQ(map.LargestFitAfter({}, both), 3072);
  const MemoryMap::Request requests[] = {{both, 1000}, {first, 0}, {both, 512}};
  EXPECT_EQ(map.LargestFitAfter(requests, both), 3072 - 1024 - 512);
  const MemoryMap::Request large[] = {{both, 2048}, {both, 2048}};
  EXPECT_EQ(map.LargestFitAfter(large, both), std::nullopt);
  const std::vector<WorkerIndex> unknown = {WorkerIndex(7)};
  const MemoryMap::Request nowhere[] = {{unknown, 8}};
  EXPECT_EQ(map.LargestFitAfter(nowhere, both), std::nullopt);
  EXPECT_EQ(map.UsedBytes(WorkerIndex(1)), 0);
  EXPECT_EQ(map.LargestFit(both), 3072);
}

}  // namespace
}  // namespace tessera
