// Places in the host's memory for buffers that leave a GPU.

#include "server/worker/spill_memory.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "server/device/cpu/cpu_device.h"
#include "server/device/shared_arena.h"

namespace tessera {
namespace {

class SpillMemoryTest : public ::testing::Test {
 protected:
  static int64_t BytesOf(const SpillMemory::Kept& kept) {
    int64_t bytes = 0;
    for (const SpillMemory::Run& run : kept.runs()) bytes += run.bytes;
    return bytes;
  }
  SharedArena arena_ = *SharedArena::Create(1 << 20);
  CpuDevice device_{CpuDeviceOptions{.self = WorkerIndex(0), .counters = arena_.counters()}};
};

TEST_F(SpillMemoryTest, ABufferHasItsBytesInOneRunWhereThatIsFree) {
  SpillMemory memory(device_, 8 * kSpillPieceBytes);
  const auto kept = memory.Create(1, 3 * kSpillPieceBytes + 5);
  ASSERT_NE(kept, nullptr);
  ASSERT_EQ(kept->runs().size(), 1u);
  EXPECT_EQ(kept->runs()[0].bytes, 3 * kSpillPieceBytes + 5);
  EXPECT_EQ(memory.used_bytes(), 4 * kSpillPieceBytes);
  EXPECT_EQ(memory.Find(1), kept);
  EXPECT_EQ(memory.Find(2), nullptr);
}

TEST_F(SpillMemoryTest, NoTwoBuffersShareAByteAndGapsAreUsed) {
  SpillMemory memory(device_, 8 * kSpillPieceBytes);
  for (uint64_t number = 1; number <= 8; ++number) ASSERT_NE(memory.Create(number, kSpillPieceBytes), nullptr);
  for (const uint64_t number : {2, 4, 6}) memory.Forget(number);
  const auto kept = memory.Create(9, 2 * kSpillPieceBytes + 1);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->runs().size(), 3u);
  EXPECT_EQ(BytesOf(*kept), 2 * kSpillPieceBytes + 1);
  for (const uint64_t number : {1, 3, 5, 7, 8}) {
    std::memset(memory.Find(number)->runs()[0].memory, static_cast<int>(number), kSpillPieceBytes);
  }
  for (const SpillMemory::Run& run : kept->runs()) std::memset(run.memory, 99, static_cast<size_t>(run.bytes));
  for (const uint64_t number : {1, 3, 5, 7, 8}) {
    const std::byte* const at = memory.Find(number)->runs()[0].memory;
    EXPECT_TRUE(std::all_of(at, at + kSpillPieceBytes, [&](std::byte b) { return b == std::byte(number); }));
  }
}

TEST_F(SpillMemoryTest, ItEndsAtItsBoundAndAtSlabs) {
  const int64_t pieces = kSpillSlabBytes / kSpillPieceBytes + 2;  // a slab, and a smaller one
  SpillMemory memory(device_, pieces * kSpillPieceBytes + kSpillPieceBytes / 2);
  EXPECT_EQ(memory.Create(1, (pieces + 1) * kSpillPieceBytes), nullptr);
  EXPECT_EQ(memory.used_bytes(), 0);
  const auto kept = memory.Create(2, pieces * kSpillPieceBytes);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(BytesOf(*kept), pieces * kSpillPieceBytes);
  EXPECT_EQ(kept->runs().size(), 2u);
  EXPECT_EQ(memory.Create(3, 1), nullptr);
  SpillMemory none(device_, 0);
  EXPECT_EQ(none.Create(1, 1), nullptr);
}

TEST_F(SpillMemoryTest, WhatIsForgottenIsFreeWhenNobodyHasItAnyMore) {
  SpillMemory memory(device_, kSpillPieceBytes);
  auto copied = memory.Create(1, 10);
  ASSERT_NE(copied, nullptr);
  memory.Forget(1);
  EXPECT_EQ(memory.Create(2, 10), nullptr);
  copied = nullptr;
  EXPECT_NE(memory.Create(2, 10), nullptr);
  memory.Forget(7);  // of nobody
}

}  // namespace
}  // namespace tessera
