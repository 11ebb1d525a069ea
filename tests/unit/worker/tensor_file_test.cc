#include "server/worker/files/tensor_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {
namespace {

TensorSpec SpecOf(const Shape& shape, DType dtype = DType::kI32) {
  const WorkerIndex workers[] = {WorkerIndex(0)};
  return *TensorSpec::Make("test", dtype, shape, *Mesh::Make({1}, {}, workers), {Placement::Replicate()});
}

std::shared_ptr<const OpenedFile> Opened(FileDescriptor file) { return *OpenedFile::Make(std::move(file)); }

FileDescriptor FileOf(const std::vector<int32_t>& numbers) {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC));
  const size_t bytes = numbers.size() * sizeof(int32_t);
  EXPECT_EQ(pwrite(file.get(), numbers.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return file;
}

std::vector<int32_t> Counting(int64_t count) {
  std::vector<int32_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TransferRange WindowOf(const TensorSpec& spec, TransferDirection direction, const Shape& shard) {
  TransferRange window;
  window.spec = spec;
  window.direction = direction;
  window.strides = RowMajorStrides(shard);
  return window;
}

// Every stride order and sign, whole and in part: the element at i is offset + sum of i times stride.
TEST(TensorFile, ReadsWhatTheStridesSay) {
  const Shape shape = {5, 4, 6};
  const std::vector<std::vector<int64_t>> strides = {{96, 24, 4},   {4, 20, 80}, {24, 120, 4}, {-96, 24, 4},
                                                     {96, -24, -4}, {0, 24, 4},  {4, 4, 4},    {8, 0, 4}};
  for (const std::vector<int64_t>& of_file : strides) {
    int64_t offset = 8;
    for (size_t d = 0; d < 3; ++d) offset += of_file[d] < 0 ? -of_file[d] * (shape[d] - 1) : 0;
    auto file = TensorFile::Make(Opened(FileOf(Counting(200))), SpecOf(shape), {offset, of_file, ByteOrder::kOwn});
    ASSERT_TRUE(file.ok()) << file.status();
    for (const Box& own : {Box{{0, 5}, {0, 4}, {0, 6}}, Box{{1, 4}, {2, 4}, {0, 6}}, Box{{4, 5}, {1, 3}, {5, 6}}}) {
      const Shape extents = BoxShape(own);
      std::vector<int32_t> shard(static_cast<size_t>(NumElements(extents)), -1);
      const TransferRange window = WindowOf(SpecOf(shape), TransferDirection::kUpload, extents);
      const auto copied = (*file)->Copy(window, own, own, reinterpret_cast<std::byte*>(shard.data()));
      ASSERT_TRUE(copied.ok()) << copied.status();
      EXPECT_EQ(*copied, NumElements(extents) * 4);
      size_t at = 0;
      for (int64_t i = own[0].start; i < own[0].stop; ++i) {
        for (int64_t j = own[1].start; j < own[1].stop; ++j) {
          for (int64_t k = own[2].start; k < own[2].stop; ++k) {
            EXPECT_EQ(shard[at++] * 4, offset + i * of_file[0] + j * of_file[1] + k * of_file[2]);
          }
        }
      }
    }
  }
}

// Rows that overlap, of more bytes than a buffer: each call reads fewer of them.
TEST(TensorFile, ReadsRowsThatOverlapAndAreLong) {
  const Shape shape = {3, kFileBufferBytes / 4 + 5};
  auto file = TensorFile::Make(Opened(FileOf(Counting(shape[1] + 2))), SpecOf(shape), {0, {4, 4}, ByteOrder::kOwn});
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> shard(static_cast<size_t>(NumElements(shape)));
  const Box own = WholeBox(shape);
  TransferRange window = WindowOf(SpecOf(shape), TransferDirection::kUpload, shape);
  ASSERT_TRUE((*file)->Copy(window, own, own, reinterpret_cast<std::byte*>(shard.data())).ok());
  EXPECT_EQ(shard[static_cast<size_t>(2 * shape[1] + 7)], 9);
}

TEST(TensorFile, WritesOnlyItsOwn) {
  const Shape shape = {6, 4};
  FileDescriptor file = FileOf(std::vector<int32_t>(24, -1));
  const int seen = dup(file.get());
  auto made = TensorFile::Make(Opened(std::move(file)), SpecOf(shape), {0, {16, 4}, ByteOrder::kOwn});
  ASSERT_TRUE(made.ok()) << made.status();
  const Box own = {{1, 5}, {2, 3}};
  const std::vector<int32_t> shard = {10, 11, 12, 13};
  TransferRange window = WindowOf(SpecOf(shape), TransferDirection::kDownload, BoxShape(own));
  auto* bytes = reinterpret_cast<std::byte*>(const_cast<int32_t*>(shard.data()));
  ASSERT_TRUE((*made)->Copy(window, own, own, bytes).ok());
  std::vector<int32_t> after(24);
  ASSERT_EQ(pread(seen, after.data(), 96, 0), 96);
  close(seen);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(after[static_cast<size_t>(i * 4 + j)], i >= 1 && i < 5 && j == 2 ? 9 + i : -1);
    }
  }
}

TEST(TensorFile, AFileThatIsTooShortIsRefusedAtOnceAndLater) {
  const Shape shape = {10};
  const auto refused = [&](FileLayout layout) {
    return TensorFile::Make(Opened(FileOf(Counting(10))), SpecOf(shape), std::move(layout)).status();
  };
  EXPECT_TRUE(refused({0, {4}, ByteOrder::kOwn}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(refused({4, {4}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({0, {-4}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({0, {INT64_MAX - 3}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({INT64_MAX, {4}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({-8, {4}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({0, {2}, ByteOrder::kOwn})));
  EXPECT_TRUE(absl::IsInvalidArgument(refused({0, {4, 4}, ByteOrder::kOwn})));
  FileDescriptor file = FileOf(Counting(10));
  const int same = dup(file.get());
  auto made = TensorFile::Make(Opened(std::move(file)), SpecOf(shape), {0, {4}, ByteOrder::kOwn});
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(ftruncate(same, 20), 0);
  close(same);
  std::vector<int32_t> shard(10);
  TransferRange window = WindowOf(SpecOf(shape), TransferDirection::kUpload, shape);
  const auto copied =
      (*made)->Copy(window, WholeBox(shape), WholeBox(shape), reinterpret_cast<std::byte*>(shard.data()));
  EXPECT_TRUE(absl::IsFailedPrecondition(copied.status())) << copied.status();
  const absl::Status changed = (*made)->opened().CheckUnchanged("file /data/x.npy");
  EXPECT_TRUE(absl::IsFailedPrecondition(changed));
  EXPECT_THAT(std::string(changed.message()), ::testing::HasSubstr("file /data/x.npy: it changed while it was read"));
}

// Thin reads are a call for each element: others have their turn between them.
TEST(TensorFile, AThinReadGoesOnBitByBit) {
  const Shape shape = {100};
  auto file = TensorFile::Make(Opened(FileOf(Counting(100 * 32))), SpecOf(shape), {0, {128}, ByteOrder::kOwn});
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> shard(100, -1);
  const TransferRange window = WindowOf(SpecOf(shape), TransferDirection::kUpload, shape);
  const auto copy =
      (*file)->Begin(window, WholeBox(shape), WholeBox(shape), reinterpret_cast<std::byte*>(shard.data()));
  int turns = 0;
  while (*copy->Go(std::chrono::steady_clock::time_point::min()) == CopyProgress::kMore) ++turns;
  EXPECT_GE(turns, 10);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(shard[static_cast<size_t>(i)], i * 32);
}

// The kernel's readahead, of 8 MiB on some disks, would hold a processor for 20 ms within one call.
TEST(TensorFile, AThinReadBringsLittleOfTheFileAtATime) {
  const std::string path = ::testing::TempDir() + "/thin";
  FileDescriptor made(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  constexpr size_t kBytes = size_t{64} << 20;
  ASSERT_EQ(ftruncate(made.get(), kBytes), 0);
  void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, made.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const Shape shape = {kBytes / 4096};
  auto file = TensorFile::Make(Opened(std::move(made)), SpecOf(shape), {0, {4096}, ByteOrder::kOwn});
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> shard(static_cast<size_t>(shape[0]), -1);
  const auto copy = (*file)->Begin(WindowOf(SpecOf(shape), TransferDirection::kUpload, shape), WholeBox(shape),
                                   WholeBox(shape), reinterpret_cast<std::byte*>(shard.data()));
  const auto present = [&]() {
    std::vector<unsigned char> pages(kBytes / 4096);
    EXPECT_EQ(mincore(mapped, kBytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  };
  int64_t before = present(), most = 0;
  while (*copy->Go(std::chrono::steady_clock::time_point::min()) == CopyProgress::kMore) {
    const int64_t now = present();
    most = std::max(most, now - before);
    before = now;
  }
  munmap(mapped, kBytes);
  std::filesystem::remove(path);
  EXPECT_LE(most, 128);  // 256 KiB, and once more where a turn has two
  EXPECT_EQ(std::count(shard.begin(), shard.end(), 0), shape[0]);
}

TEST(FileRoots, NamesOfFilesThatAreBeingMade) {
  EXPECT_TRUE(IsNewFileName(".x.npy.tessera-0123456789abcdef"));
  for (const std::string_view name :
       {"", ".", "x.npy", ".x.npy", "x.npy.tessera-0123456789abcdef", ".tessera-0123456789abcdef",
        ".x.tessera-0123456789abcdeg", "./x.tessera-0123456789abcdef", ".x.tessera-0123456789abcde"}) {
    EXPECT_FALSE(IsNewFileName(name)) << name;
  }
}

// HDF5 locks what it opens.
TEST(FileRoots, ASavedFileCanBeLockedAtOnce) {
  const auto roots = FileRoots::Make({::testing::TempDir()});
  ASSERT_TRUE(roots.ok()) << roots.status();
  const auto made = roots->Create("locked.h5", ".locked.h5.tessera-0123456789abcdef", 4, "");
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE((*made)->Commit().ok());
  const FileDescriptor saved = *roots->Open("locked.h5");
  EXPECT_EQ(flock(saved.get(), LOCK_EX | LOCK_NB), 0);
}

// With its last change two days ago.
void Age(const std::string& path) {
  const time_t then = time(nullptr) - 48 * 3600;
  const timespec times[2] = {{then, 0}, {then, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0) << path;
}

TEST(FileRoots, ASaveRemovesWhatKilledOnesLeftADayAgoAndNothingElse) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "leftovers";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder / ".x.zarr.tessera-0123456789abcdef" / "c");
  for (const char* name : {".x.zarr.tessera-0123456789abcdef/c/0", ".x.npy.tessera-0123456789abcdef",
                           ".new.npy.tessera-0123456789abcdef", ".x.npy.tessera-of-mine", "x.npy"}) {
    std::ofstream(folder / name) << "here";
  }
  std::filesystem::create_symlink("x.npy", folder / ".link.tessera-0123456789abcdef");
  const std::string under_way = ".y.npy.tessera-0123456789abcdef";
  const auto roots = FileRoots::Make({folder.string()});
  ASSERT_TRUE(roots.ok()) << roots.status();
  const auto goes_on = roots->Create("y.npy", under_way, 4, "");
  ASSERT_TRUE(goes_on.ok()) << goes_on.status();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() != ".new.npy.tessera-0123456789abcdef") Age(entry.path().string());
  }
  // Another worker's.
  ASSERT_TRUE(FileRoots::Make({folder.string()})->Create("z.npy", ".z.npy.tessera-0123456789abcdef", 4, "").ok());
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{".link.tessera-0123456789abcdef", ".new.npy.tessera-0123456789abcdef",
                                          ".x.npy.tessera-of-mine", under_way, "x.npy"}));
}

}  // namespace
}  // namespace tessera
