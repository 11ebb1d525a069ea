// A state folder of the version before is read, and one of a newer version is refused by name.

#include "server/coordinator/rpc/versions.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/coordinator/rpc/snapshot.h"
#include "server/coordinator/rpc/state_folder.h"
#include "tests/support/coordinator_story.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

struct Versions {
  uint32_t log = kLogVersion;
  uint32_t snapshot = kSnapshotVersion;
};

class VersionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = StrCat(testing::TempDir(), "/versions.", getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  // A snapshot after 40 events, and the log of those behind it, with these numbers in their heads.
  uint64_t Write(const Versions& versions) {
    Core core(StoryConfig(), nullptr);
    size_t told = 0;
    TellStory(3, 80, [&](const ToldEvent& next) {
      Event event = next.event;
      const auto done = core.Apply(next.now_us, event, next.batch);
      ASSERT_TRUE(done.ok()) << done.status();
      for (const EndSession& end : done->ended) core.Drop(end.session);
      if (++told != 40) return;
      std::ofstream file(SnapshotPath(path_, 2), std::ios::binary);
      const Snapshot::Place place{2, core.events(), versions.snapshot};
      ASSERT_TRUE(Snapshot::Save(core, place, [&file](kj::ArrayPtr<const kj::byte> bytes) {
                    file.write(reinterpret_cast<const char*>(bytes.begin()), static_cast<long>(bytes.size()));
                    return absl::OkStatus();
                  }).ok());
      const JournalPlace log{.segment = 2, .events_before = core.events(), .version = versions.log};
      auto journal = JournalWriter::Create(SegmentPath(path_, 2), StoryConfig(), JournalDigest::kNone, log);
      ASSERT_TRUE(journal.ok()) << journal.status();
      core.LogTo(*std::move(journal));
    });
    return Snapshot::Digest(core);
  }
  absl::StatusOr<uint64_t> Load() {
    auto folder = StateFolder::Open(path_);
    if (!folder.ok()) return folder.status();
    auto core = folder->Load(StoryConfig());
    if (!core.ok()) return core.status();
    return Snapshot::Digest(**core);
  }

  std::string path_;
};

TEST_F(VersionsTest, AFolderOfTheVersionBeforeLeadsToTheSame) {
  const uint64_t digest = Write({kOldestLogVersion, kOldestSnapshotVersion});
  const auto loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, digest);
}

TEST_F(VersionsTest, AFolderOfTheVersionBeforeIsTakenToTheLevelDisk) {
  const uint64_t digest = Write({kOldestLogVersion, kOldestSnapshotVersion});
  {
    auto folder = StateFolder::Open(path_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    folder->SetLevel(LogLevel::kDisk);
    auto core = folder->Load(StoryConfig());
    ASSERT_TRUE(core.ok()) << core.status();
    EXPECT_EQ(Snapshot::Digest(**core), digest);
  }
  EXPECT_THAT(DescribeStateFolder(path_).text, HasSubstr("at the level disk"));
  EXPECT_EQ(*Load(), digest);
}

TEST_F(VersionsTest, ANewerLogIsRefusedByName) {
  Write({kLogVersion + 1, kSnapshotVersion});
  const auto loaded = Load();
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("events-00000002.log"), HasSubstr(StrCat("is of version ", kLogVersion + 1)),
                    HasSubstr("start the newer program that wrote it")));
}

TEST_F(VersionsTest, ANewerSnapshotIsRefusedByName) {
  Write({kLogVersion, kSnapshotVersion + 1});
  const auto loaded = Load();
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("snapshot-00000002.bin"), HasSubstr(StrCat("is of version ", kSnapshotVersion + 1))));
}

TEST_F(VersionsTest, ASnapshotOlderThanTheVersionBeforeIsRefusedByName) {
  Write({kLogVersion, kOldestSnapshotVersion - 1});
  const auto loaded = Load();
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("start a program of the version before on it first"));
}

TEST(ProtocolVersionTest, AServerTakesItsOwnVersionAndTheOneBefore) {
  EXPECT_TRUE(CheckVersion("connect", wire::PROTOCOL_VERSION).ok());
  EXPECT_TRUE(CheckVersion("connect", wire::PROTOCOL_VERSION - 1).ok());
  const absl::Status older = CheckVersion("connect", wire::PROTOCOL_VERSION - 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(older));
  EXPECT_THAT(std::string(older.message()), HasSubstr("use the server's release"));
  const absl::Status newer = CheckVersion("join", wire::PROTOCOL_VERSION + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(newer));
  EXPECT_THAT(std::string(newer.message()), AllOf(HasSubstr(StrCat("the other side ", wire::PROTOCOL_VERSION + 1)),
                                                  HasSubstr("upgrade the server first")));
}

TEST(VersionTableTest, TheOverlapIsOneVersion) {
  EXPECT_EQ(kOldestLogVersion + 1, kLogVersion);
  EXPECT_EQ(kOldestSnapshotVersion + 1, kSnapshotVersion);
}

}  // namespace
}  // namespace tessera
