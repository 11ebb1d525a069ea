// A state folder's log in segments, and its snapshots.

#include "server/coordinator/rpc/state_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/snapshot.h"
#include "tests/support/coordinator_story.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StateFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = StrCat(testing::TempDir(), "/state.", getpid());
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  // A folder with a story in it: after each of these counts of events a snapshot is taken, and the process ends.
  uint64_t Tell(unsigned seed, const std::vector<size_t>& snapshots) {
    auto folder = StateFolder::Open(path_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    auto core = folder->Load(StoryConfig());
    EXPECT_TRUE(core.ok()) << core.status();
    size_t told = 0;
    TellStory(seed, 120, [&](const ToldEvent& next) {
      Event event = next.event;
      const auto done = (*core)->Apply(next.now_us, event, next.batch);
      ASSERT_TRUE(done.ok()) << done.status();
      for (const EndSession& end : done->ended) (*core)->Drop(end.session);
      ++told;
      if (std::find(snapshots.begin(), snapshots.end(), told) != snapshots.end()) folder->SaveNow(**core);
    });
    return Snapshot::Digest(**core);
  }
  absl::StatusOr<uint64_t> LoadedDigest() {
    auto folder = StateFolder::Open(path_);
    if (!folder.ok()) return folder.status();
    auto core = folder->Load(StoryConfig());
    if (!core.ok()) return core.status();
    return Snapshot::Digest(**core);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().filename() != "lock") names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string At(const std::string& name) const { return path_ + "/" + name; }
  void Flip(const std::string& name, size_t byte) {
    std::fstream file(At(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(byte));
    const char was = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(byte));
    file.put(static_cast<char>(was ^ 8));
  }
  void ExpectDataLoss(const std::string& words) {
    const auto loaded = LoadedDigest();
    EXPECT_TRUE(absl::IsDataLoss(loaded.status())) << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(words));
    EXPECT_EQ(DescribeStateFolder(path_).status, loaded.status());
  }

  std::string path_;
};

TEST_F(StateFolderTest, AStartFromASnapshotAndItsTailHasAllThatThereWas) {
  const uint64_t digest = Tell(3, {40, 80});
  EXPECT_THAT(Files(), ElementsAre("events-00000002.log", "events-00000003.log", "snapshot-00000002.bin",
                                   "snapshot-00000003.bin"));
  EXPECT_EQ(*LoadedDigest(), digest);
}

TEST_F(StateFolderTest, TheLastTwoSnapshotsAndTheirTailsAreKept) {
  const uint64_t digest = Tell(4, {20, 40, 60, 80, 100});
  EXPECT_THAT(Files(), ElementsAre("events-00000005.log", "events-00000006.log", "snapshot-00000005.bin",
                                   "snapshot-00000006.bin"));
  EXPECT_EQ(*LoadedDigest(), digest);
}

TEST_F(StateFolderTest, ADamagedSnapshotIsLeftOutAndTheOneBeforeItLeadsToTheSame) {
  const uint64_t digest = Tell(5, {40, 80});
  Flip("snapshot-00000003.bin", 500);
  EXPECT_EQ(*LoadedDigest(), digest);
  EXPECT_THAT(DescribeStateFolder(path_).text,
              AllOf(HasSubstr("snapshot-00000003.bin: "), HasSubstr("not usable: snapshot: at byte "),
                    HasSubstr("a start reads snapshot 2 and ")));
}

TEST_F(StateFolderTest, WithoutAnyWholeSnapshotAndItsTailNothingBegins) {
  Tell(5, {40, 80});
  Flip("snapshot-00000002.bin", 300);
  Flip("snapshot-00000003.bin", 300);
  ExpectDataLoss("segment 1 of the log is missing");
}

TEST_F(StateFolderTest, AMissingSegmentIsTold) {
  Tell(6, {40, 80});
  std::filesystem::remove(At("events-00000003.log"));
  Flip("snapshot-00000003.bin", 300);
  std::filesystem::copy_file(At("events-00000002.log"), At("events-00000004.log"));
  ExpectDataLoss("segment 3 of the log is missing");
}

TEST_F(StateFolderTest, ASegmentThatIsCutShortBeforeAnotherIsTold) {
  Tell(6, {40, 80});
  Flip("snapshot-00000003.bin", 300);
  const std::string segment = At("events-00000002.log");
  const auto size = std::filesystem::file_size(segment);
  std::filesystem::resize_file(segment, size - 5);
  ExpectDataLoss("another segment follows");
}

TEST_F(StateFolderTest, ASegmentThatLacksWholeEventsIsTold) {
  Tell(6, {40, 80});
  Flip("snapshot-00000003.bin", 300);
  // One segment lies in the places of two.
  std::filesystem::copy_file(At("events-00000003.log"), At("events-00000002.log"),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectDataLoss("it says that it is segment 3, after 80 events; segment 2 follows 40");
}

TEST_F(StateFolderTest, AFlippedBitOfASegmentIsToldWithItsFile) {
  Tell(7, {40});
  Flip("events-00000002.log", std::filesystem::file_size(At("events-00000002.log")) / 2);
  const auto loaded = LoadedDigest();
  EXPECT_TRUE(absl::IsDataLoss(loaded.status())) << loaded.status();
  EXPECT_THAT(
      std::string(loaded.status().message()),
      AllOf(HasSubstr("events-00000002.log: journal: what stands at byte "), HasSubstr("is not what was written")));
}

TEST_F(StateFolderTest, TwoFilesOfOneNumberAreTold) {
  Tell(7, {40});
  std::filesystem::copy_file(At("events-00000002.log"), At("events-2.log"));
  const auto loaded = LoadedDigest();
  EXPECT_TRUE(absl::IsFailedPrecondition(loaded.status())) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("have the same number"));
}

TEST_F(StateFolderTest, ATornEndOfTheLastSegmentIsCutOff) {
  const uint64_t digest = Tell(8, {40});
  const std::string last = At("events-00000002.log");
  const auto whole = std::filesystem::file_size(last);
  std::ofstream(last, std::ios::app | std::ios::binary) << std::string("\1\0\0\0half of an event", 20);
  EXPECT_THAT(DescribeStateFolder(path_).text, HasSubstr("torn bytes, which a start cuts off"));
  EXPECT_EQ(*LoadedDigest(), digest);
  EXPECT_EQ(std::filesystem::file_size(last), whole);
}

TEST_F(StateFolderTest, WhatAKilledProcessHadBegunIsNoFileOfIt) {
  const uint64_t digest = Tell(9, {40});
  std::ofstream(At("snapshot-00000003.bin.begun")) << "a part of one";
  std::ofstream(At("events-00000003.log.begun")) << "";
  EXPECT_EQ(*LoadedDigest(), digest);
  EXPECT_FALSE(std::filesystem::exists(At("snapshot-00000003.bin.begun")));
  EXPECT_FALSE(std::filesystem::exists(At("events-00000003.log.begun")));
}

TEST_F(StateFolderTest, AChildWritesASnapshotWhenTheTailIsLong) {
  auto folder = StateFolder::Open(path_);
  ASSERT_TRUE(folder.ok());
  auto core = folder->Load(StoryConfig());
  ASSERT_TRUE(core.ok());
  folder->SnapshotAfter(1.5);
  uint64_t digest = 0;
  size_t told = 0;
  TellStory(10, 60, [&](const ToldEvent& next) {
    Event event = next.event;
    ASSERT_TRUE((*core)->Apply(next.now_us, event, next.batch).ok());
    if (++told == 30) {
      folder->Spent(1'400'000'000);
      folder->Tick(**core);
      EXPECT_THAT(Files(), ElementsAre("events-00000001.log")) << "it is not long yet";
      folder->Spent(200'000'000);
      folder->Tick(**core);
      EXPECT_TRUE(std::filesystem::exists(At("events-00000002.log")));
    }
  });
  digest = Snapshot::Digest(**core);
  const int64_t deadline_ns = MonotonicNs() + 30'000'000'000;
  while (!std::filesystem::exists(At("snapshot-00000002.bin")) && MonotonicNs() < deadline_ns) folder->Tick(**core);
  ASSERT_TRUE(std::filesystem::exists(At("snapshot-00000002.bin")));
  core->reset();
  *folder = *StateFolder::Open(path_ + "_other");  // lets go of the lock
  std::filesystem::remove_all(path_ + "_other");
  EXPECT_EQ(*LoadedDigest(), digest);
  EXPECT_THAT(DescribeStateFolder(path_).text, HasSubstr("a start reads snapshot 2 and "));
}

TEST_F(StateFolderTest, WhereASnapshotCantBeWrittenTheLogGoesOnWithoutIt) {
  ASSERT_TRUE(StateFolder::Open(path_).ok());
  std::filesystem::create_directory(At("snapshot-00000002.bin.begun"));  // in the way of the file
  std::filesystem::create_directory(At("snapshot-00000003.bin.begun"));
  const uint64_t digest = Tell(11, {40, 80});
  EXPECT_FALSE(std::filesystem::exists(At("snapshot-00000002.bin")));
  EXPECT_TRUE(std::filesystem::exists(At("events-00000003.log")));
  EXPECT_EQ(*LoadedDigest(), digest) << "from the segments 1 to 3";
}

TEST_F(StateFolderTest, AnEmptyFolderIsDescribed) {
  std::filesystem::create_directory(path_);
  const StateReport report = DescribeStateFolder(path_);
  EXPECT_TRUE(report.status.ok());
  EXPECT_THAT(report.text, HasSubstr("a start begins anew"));
  EXPECT_FALSE(DescribeStateFolder(path_ + "/none").status.ok());
}

}  // namespace
}  // namespace tessera
