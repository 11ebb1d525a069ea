#include "schemas/host/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK;

int MakeMemfd(unsigned flags, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (fd >= 0 && (ftruncate(fd, 2 << 20) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0)) ADD_FAILURE();
  return fd;
}

TEST(MemoryFile, ASealedMemfdIsOne) {
  const int fd = MakeMemfd(0, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_TRUE(CheckMemoryFile(fd, kSeals).ok());
  EXPECT_TRUE(CheckMemoryFile(fd, F_SEAL_SHRINK | F_SEAL_GROW).ok());
  close(fd);
}

TEST(MemoryFile, WithoutTheSealsItIsNot) {
  const int fd = MakeMemfd(0, F_SEAL_GROW);
  const absl::Status status = CheckMemoryFile(fd, kSeals);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("F_SEAL_SHRINK"), absl::string_view::npos) << status;
  close(fd);
}

TEST(MemoryFile, HugePagesAreRefusedWhateverTheirSeals) {
  const int fd = MakeMemfd(MFD_HUGETLB, F_SEAL_SHRINK | F_SEAL_GROW);
  if (fd < 0) GTEST_SKIP() << "this kernel has no hugetlb memfd";
  const absl::Status status = CheckMemoryFile(fd, kSeals);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("hugetlb"), absl::string_view::npos) << status;
  close(fd);
}

TEST(MemoryFile, NothingElseIsOne) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::FILE* const file = std::tmpfile();
  for (const int fd : {-1, ends[0], fileno(file)}) {
    EXPECT_EQ(CheckMemoryFile(fd, kSeals).code(), absl::StatusCode::kInvalidArgument);
  }
  std::fclose(file);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tessera
