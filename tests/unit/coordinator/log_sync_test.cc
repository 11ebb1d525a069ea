#include "server/coordinator/rpc/log_sync.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLongNs = 60'000'000'000;

class LogSyncTest : public testing::Test {
 protected:
  LogSyncTest() { close(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)); }
  ~LogSyncTest() override { unlink(path_.c_str()); }
  bool IsReadable(const LogSync& sync) const {
    pollfd look{sync.ended_fd(), POLLIN, 0};
    return poll(&look, 1, 0) == 1;
  }
  const std::string path_ = absl::StrCat(testing::TempDir(), "/log_sync.", getpid());
};

TEST_F(LogSyncTest, ASyncEndsAndSaysWhatItCovers) {
  LogSync sync;
  ASSERT_TRUE(sync.GoOnIn(path_).ok());
  EXPECT_FALSE(IsReadable(sync));
  EXPECT_TRUE(sync.Begin(7));
  ASSERT_TRUE(sync.Await(kLongNs));
  EXPECT_TRUE(IsReadable(sync));
  EXPECT_FALSE(sync.Begin(9)) << "one that has ended is taken first";
  const auto ended = sync.TakeEnded();
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->events, 7u);
  EXPECT_TRUE(ended->status.ok()) << ended->status;
  EXPECT_FALSE(IsReadable(sync));
  EXPECT_FALSE(sync.TakeEnded().has_value());
  EXPECT_TRUE(sync.Begin(9));
  ASSERT_TRUE(sync.Await(kLongNs));
  EXPECT_EQ(sync.TakeEnded()->events, 9u);
}

TEST_F(LogSyncTest, AFileThatCannotBeSyncedIsTold) {
  LogSync sync;
  ASSERT_TRUE(sync.GoOnIn("/dev/null").ok());  // which has no disk
  ASSERT_TRUE(sync.Begin(1));
  ASSERT_TRUE(sync.Await(kLongNs));
  const auto ended = sync.TakeEnded();
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(absl::IsUnavailable(ended->status)) << ended->status;
  EXPECT_THAT(std::string(ended->status.message()), testing::HasSubstr("can't sync /dev/null"));
}

TEST_F(LogSyncTest, AFileThatIsNotThereIsTold) {
  LogSync sync;
  EXPECT_TRUE(absl::IsUnavailable(sync.GoOnIn(path_ + ".none")));
  EXPECT_TRUE(absl::IsUnavailable(SyncPath(path_ + ".none")));
  EXPECT_TRUE(SyncPath(testing::TempDir()).ok());
}

}  // namespace
}  // namespace tessera
