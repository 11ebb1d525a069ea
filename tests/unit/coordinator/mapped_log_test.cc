#include "server/coordinator/rpc/mapped_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/coordinator/config.h"

namespace tessera {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<JournalEnd> Read(const std::string& log) {
  class Nobody final : public JournalVisitor {
   public:
    void OnConfig(const CoordinatorConfig&) override {}
    void OnEvent(int64_t, Event) override {}
    void OnAcknowledged(SessionId, uint64_t) override {}
  };
  std::vector<uint64_t> aligned(log.size() / 8 + 1);
  std::memcpy(aligned.data(), log.data(), log.size());
  Nobody nobody;
  return ReadJournal({reinterpret_cast<const std::byte*>(aligned.data()), log.size()}, nobody);
}

class MappedLogTest : public testing::Test {
 protected:
  MappedLogTest() {
    const auto created = JournalWriter::Create(path_, CoordinatorConfig{}, JournalDigest::kNone);
    EXPECT_TRUE(created.ok()) << created.status();
  }
  ~MappedLogTest() override { unlink(path_.c_str()); }
  size_t FileSize() const {
    struct stat found {};
    EXPECT_EQ(stat(path_.c_str(), &found), 0);
    return static_cast<size_t>(found.st_size);
  }
  std::unique_ptr<JournalWriter> GoOn(size_t bytes) const {
    auto writer = JournalWriter::Continue(path_, bytes);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  const std::string path_ = absl::StrCat(testing::TempDir(), "/mapped_log.", getpid());
};

TEST_F(MappedLogTest, EventsAreThereAtOnceAndTheReserveGoesWithTheWriter) {
  const size_t header = FileSize();
  auto writer = GoOn(header);
  for (int i = 1; i <= 5; ++i) {
    ASSERT_TRUE(writer->Append(i, TickEvent{}, nullptr).ok());
    const auto end = Read(Contents(path_));
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->events, static_cast<uint64_t>(i));
    EXPECT_EQ(end->torn_bytes, 0u);
    EXPECT_GT(FileSize(), end->whole_bytes);
  }
  const size_t whole = Read(Contents(path_))->whole_bytes;
  writer = nullptr;
  EXPECT_EQ(FileSize(), whole);
}

TEST_F(MappedLogTest, ALogLongerThanTheReserveGoesOn) {
  auto writer = GoOn(FileSize());
  const std::string reason(100'000, 'x');
  for (int i = 1; i <= 120; ++i) {
    ASSERT_TRUE(writer->Append(i, WorkerLostEvent{WorkerIndex(0), 1, reason}, nullptr).ok());
  }
  ASSERT_TRUE(writer->Append(121, WorkerLostEvent{WorkerIndex(0), 1, std::string(6 << 20, 'y')}, nullptr).ok());
  const auto end = Read(Contents(path_));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->events, 121u);
}

// The process ends within a copy: any part of the message may be there, but for its first word.
TEST_F(MappedLogTest, AMessageWhoseFirstWordIsNotThereIsTornAndCutOff) {
  const size_t header = FileSize();
  auto writer = GoOn(header);
  ASSERT_TRUE(writer->Append(1, TickEvent{}, nullptr).ok());
  const size_t before = Read(Contents(path_))->whole_bytes;
  ASSERT_TRUE(writer->Append(2, WorkerLostEvent{WorkerIndex(0), 1, "a reason of some length"}, nullptr).ok());
  const size_t after = Read(Contents(path_))->whole_bytes;
  writer = nullptr;
  const std::string whole = Contents(path_);
  for (size_t copied = before + 8; copied <= after; ++copied) {
    std::string torn = whole.substr(0, before) + std::string(8, '\0') + whole.substr(before + 8, copied - before - 8);
    torn.resize(before + 4096, '\0');
    const auto end = Read(torn);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(end->events, 1u);
    EXPECT_EQ(end->whole_bytes, before);
    EXPECT_LE(end->torn_bytes, copied - before + 7);
    std::ofstream(path_, std::ios::binary) << torn;
    ASSERT_TRUE(GoOn(before)->Append(2, TickEvent{}, nullptr).ok());
    EXPECT_EQ(Read(Contents(path_))->events, 2u);
  }
}

TEST_F(MappedLogTest, AZeroWithWholeMessagesBehindItIsDataLoss) {
  auto writer = GoOn(FileSize());
  ASSERT_TRUE(writer->Append(1, TickEvent{}, nullptr).ok());
  const size_t first = Read(Contents(path_))->whole_bytes;
  for (int i = 2; i < 5; ++i) ASSERT_TRUE(writer->Append(i, TickEvent{}, nullptr).ok());
  writer = nullptr;
  std::string log = Contents(path_);
  std::memset(log.data() + first, 0, 8);
  log.resize(log.size() + 4096, '\0');
  EXPECT_TRUE(absl::IsDataLoss(Read(log).status())) << Read(log).status();
}

TEST_F(MappedLogTest, AProcessThatIsKilledLosesNoEventThatWasWritten) {
  const size_t header = FileSize();
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto writer = JournalWriter::Continue(path_, header);
    for (int64_t i = 1;; ++i) {
      if (!writer.ok() || !(*writer)->Append(i, TickEvent{}, nullptr).ok()) _exit(1);
      if (i % 64 == 0 && write(told[1], &i, sizeof(i)) != sizeof(i)) _exit(1);
    }
  }
  int64_t written = 0;
  while (written < 5'000) ASSERT_EQ(read(told[0], &written, sizeof(written)), static_cast<ssize_t>(sizeof(written)));
  kill(child, SIGKILL);
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  close(told[1]);
  int64_t next = 0;
  while (read(told[0], &next, sizeof(next)) == static_cast<ssize_t>(sizeof(next))) written = next;
  close(told[0]);
  const auto end = Read(Contents(path_));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_GE(end->events, static_cast<uint64_t>(written));
}

TEST_F(MappedLogTest, WithoutRoomOnTheDiskNothingIsWrittenAndTheLogStaysAsItWas) {
  const size_t header = FileSize();
  const pid_t child = fork();
  if (child == 0) {  // a limit of the file's size stands in for the disk's end
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{header + 1024, header + 1024};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = JournalWriter::Continue(path_, header);
    _exit(writer.ok() && absl::IsUnavailable((*writer)->Append(1, TickEvent{}, nullptr)) ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(Read(Contents(path_))->events, 0u);
}

TEST(MappedLogOpenTest, AFileThatIsNotThereIsUnavailable) {
  const auto log = MappedLog::Open("/nonexistent/log", 0);
  EXPECT_TRUE(absl::IsUnavailable(log.status())) << log.status();
}

}  // namespace
}  // namespace tessera
