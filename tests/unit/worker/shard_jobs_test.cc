// Copies of a shard in pieces: to a client's memory, and to a file by way of the host's memory, as of a GPU.

#include "server/worker/rpc/shard_jobs.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/tensor_spec.h"
#include "server/device/cpu/cpu_device.h"
#include "server/device/shared_arena.h"
#include "server/worker/files/tensor_file.h"
#include "server/worker/window_copy.h"

namespace tessera {
namespace {

constexpr int64_t kRows = 300, kColumns = 40'000;  // of 48 MB: several pieces

std::vector<Box> Pieces(const Box& box, int64_t max_bytes) { return PiecesOf(box, 1, max_bytes); }

TEST(PiecesOf, AreRowsThatFit) {
  const Box box = {{0, 6}, {0, 4}};
  EXPECT_EQ(Pieces(box, 24), (std::vector<Box>{box}));
  EXPECT_EQ(Pieces(box, 9), (std::vector<Box>{{{0, 2}, {0, 4}}, {{2, 4}, {0, 4}}, {{4, 6}, {0, 4}}}));
  EXPECT_EQ(Pieces({{0, 1}, {0, 4}}, 3), (std::vector<Box>{{{0, 1}, {0, 3}}, {{0, 1}, {3, 4}}}));
  EXPECT_TRUE(Pieces({{0, 0}, {0, 4}}, 3).empty());
  EXPECT_EQ(PiecesOf({}, 8, 4), (std::vector<Box>{Box{}}));  // one element, however large
}

class ShardJobs : public ::testing::Test {
 protected:
  TransferRange RangeOf(TransferDirection direction) const {
    return {direction, *ParseTensorSpec("i32[300,40000] @ mesh(1) [R]"), 0, RowMajorStrides(Shape{kRows, kColumns})};
  }
  ShardPlace PlaceOf(const TransferRange& range) {
    return {device_, range, box_, box_, reinterpret_cast<std::byte*>(shard_.data())};
  }
  // As one that has no time.
  static int TurnsOf(ShardCopy& copy) {
    int turns = 1;
    while (true) {
      const absl::StatusOr<CopyProgress> progress = copy.Go(std::chrono::steady_clock::time_point::min());
      EXPECT_TRUE(progress.ok()) << progress.status();
      if (!progress.ok() || *progress == CopyProgress::kDone) return turns;
      ++turns;
    }
  }
  static std::shared_ptr<TensorFile> FileOf(const std::vector<int32_t>& numbers) {
    FileDescriptor file(memfd_create("test", MFD_CLOEXEC));
    const auto bytes = static_cast<ssize_t>(numbers.size() * sizeof(int32_t));
    EXPECT_EQ(pwrite(file.get(), numbers.data(), static_cast<size_t>(bytes), 0), bytes);
    return *TensorFile::Make(*OpenedFile::Make(std::move(file)), *ParseTensorSpec("i32[300,40000] @ mesh(1) [R]"),
                             {0, {kColumns * 4, 4}, ByteOrder::kOwn});
  }

  SharedArena arena_ = *SharedArena::Create(4096);
  CpuDevice device_{{.self = WorkerIndex(0), .counters = arena_.counters()}};
  const Box box_ = {{0, kRows}, {0, kColumns}};
  std::vector<int32_t> shard_ = std::vector<int32_t>(kRows * kColumns);
  std::vector<int32_t> numbers_ = [] {
    std::vector<int32_t> counting(kRows * kColumns);
    std::iota(counting.begin(), counting.end(), 0);
    return counting;
  }();
};

TEST_F(ShardJobs, ALargeSlabIsCopiedInPieces) {
  const TransferRange range = RangeOf(TransferDirection::kUpload);
  const auto copy = BeginMemoryCopy(PlaceOf(range), reinterpret_cast<std::byte*>(numbers_.data()));
  EXPECT_EQ(TurnsOf(*copy), 2);
  EXPECT_EQ(shard_, numbers_);
}

TEST_F(ShardJobs, AFileComesAndGoesByWayOfTheHostsMemory) {
  const TransferRange up = RangeOf(TransferDirection::kUpload), down = RangeOf(TransferDirection::kDownload);
  const auto file = FileOf(numbers_);
  EXPECT_GE(TurnsOf(*BeginFileCopy(PlaceOf(up), DeviceKind::kCuda, *file)), 1);
  EXPECT_EQ(shard_, numbers_);
  const auto other = FileOf(std::vector<int32_t>(kRows * kColumns));
  EXPECT_GE(TurnsOf(*BeginFileCopy(PlaceOf(down), DeviceKind::kCuda, *other)), 1);
  std::fill(shard_.begin(), shard_.end(), -1);
  TurnsOf(*BeginFileCopy(PlaceOf(up), DeviceKind::kCpu, *other));
  EXPECT_EQ(shard_, numbers_);
}

}  // namespace
}  // namespace tessera
