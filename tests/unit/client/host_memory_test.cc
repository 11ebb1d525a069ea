#include "client/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(HostMemory, IsSealedAgainstShrinkingAndGrowing) {
  auto memory = *HostMemory::Make(10000);
  EXPECT_EQ(memory->size_bytes(), 10000);
  EXPECT_EQ(fcntl(memory->fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_NE(ftruncate(memory->fd(), 1), 0);
  memory->data()[9999] = 7;
  memory->CloseFd();
  EXPECT_EQ(memory->fd(), -1);
  EXPECT_EQ(memory->data()[9999], 7);
}

TEST(HostMemory, EmptyMemoryIsMemory) { EXPECT_TRUE(HostMemory::Make(0).ok()); }

TEST(HostMemory, WhatTheHostHasNoRoomForIsRefused) {
  EXPECT_EQ(HostMemory::Make(int64_t{1} << 50).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(HostMemory::MakeShared(int64_t{1} << 50).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(HostMemory, SharedMemoryIsFoundByAnyAddressInItAndGoesWithItsLastOwner) {
  constexpr int64_t kBytes = (4 << 20) + 5;
  auto memory = *HostMemory::MakeShared(kBytes);
  EXPECT_EQ(fcntl(memory->fd(), F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
  char* const data = memory->data();
  EXPECT_EQ(std::count(data, data + kBytes, 0), kBytes);
  EXPECT_EQ(HostMemory::FindShared(data, kBytes), memory);
  EXPECT_EQ(HostMemory::FindShared(data + 1234567, 8), memory);
  EXPECT_EQ(HostMemory::FindShared(data + 1, kBytes), nullptr);
  EXPECT_EQ(HostMemory::FindShared(data - 1, 2), nullptr);
  auto other = *HostMemory::Make(kBytes);
  EXPECT_EQ(HostMemory::FindShared(other->data(), 1), nullptr);
  memory.reset();
  EXPECT_EQ(HostMemory::FindShared(data, 1), nullptr);
}

TEST(HostMemory, AllOfSharedMemoryIsReserved) {
  for (const int64_t bytes : {int64_t{1}, int64_t{3 << 20}, int64_t{9 << 20}}) {
    auto memory = *HostMemory::MakeShared(bytes);
    struct stat info = {};
    ASSERT_EQ(fstat(memory->fd(), &info), 0);
    EXPECT_EQ(info.st_size, bytes);
    EXPECT_GE(info.st_blocks * 512, bytes);
  }
}

TEST(HostMemory, WhatIsTakenBackIsWrittenByNobodyElse) {
  constexpr int64_t kBytes = 1 << 20, kStart = 100000, kTaken = 50000;
  auto memory = *HostMemory::MakeShared(kBytes);
  std::fill_n(memory->data(), kBytes, 1);
  char* const other = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0));
  ASSERT_NE(other, MAP_FAILED);
  ASSERT_TRUE(memory->TakeBack(kStart, kTaken).ok());
  EXPECT_EQ(std::count(memory->data(), memory->data() + kBytes, 1), kBytes);
  std::fill_n(other, kBytes, 2);
  EXPECT_EQ(std::count(memory->data() + kStart, memory->data() + kStart + kTaken, 1), kTaken);
  EXPECT_EQ(memory->data()[0], 2);
  EXPECT_EQ(memory->data()[kBytes - 1], 2);
  // No transfer begins with it any more.
  EXPECT_EQ(memory->fd(), -1);
  EXPECT_EQ(HostMemory::FindShared(memory->data(), 1), nullptr);
  munmap(other, kBytes);
}

// Every box of a small array, against index arithmetic one element at a time, for several strides.
TEST(CopyBoxTo, EqualsElementByElementForAnyStrides) {
  std::vector<int32_t> data(1000);
  std::iota(data.begin(), data.end(), 0);
  const Shape shape = {3, 4, 5};
  const std::vector<Strides> layouts = {{20, 5, 1}, {1, 3, 12}, {40, 10, 2}, {20, -5, 1},
                                        {0, 5, 1},  {25, 5, 1}, {20, 5, 0}};
  for (const Strides& strides : layouts) {
    HostView view{DType::kI32, shape, reinterpret_cast<const char*>(data.data() + 100), strides};
    for (int64_t& stride : view.strides_bytes) stride *= 4;
    for (int64_t a = 0; a <= 3; ++a) {
      for (int64_t b = 0; b <= 4; ++b) {
        for (int64_t c = 0; c <= 5; ++c) {
          const Box box = {{a / 2, a}, {b / 3, b}, {c / 2, c}};
          std::vector<int32_t> got(static_cast<size_t>(NumElements(box)) + 1, -1), want;
          CopyBoxTo(view, box, reinterpret_cast<char*>(got.data()));
          for (int64_t i = box[0].start; i < box[0].stop; ++i) {
            for (int64_t j = box[1].start; j < box[1].stop; ++j) {
              for (int64_t k = box[2].start; k < box[2].stop; ++k) {
                want.push_back(static_cast<int32_t>(100 + i * strides[0] + j * strides[1] + k * strides[2]));
              }
            }
          }
          want.push_back(-1);  // nothing is written behind the box
          EXPECT_EQ(got, want) << ToText(box);
        }
      }
    }
  }
}

TEST(CopyBoxTo, RankZeroIsOneElement) {
  const double value = 2.5;
  double got = 0;
  CopyBoxTo(MakeHostView(DType::kF64, {}, &value), {}, reinterpret_cast<char*>(&got));
  EXPECT_EQ(got, 2.5);
}

}  // namespace
}  // namespace tessera
