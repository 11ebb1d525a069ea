// A recorded event log replayed gives the same effects, bit for bit.

#include "server/coordinator/rpc/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/support/coordinator_story.h"

namespace tessera {
namespace {

struct Recorded {
  GivenNumbers given;
  std::string digest;
  uint64_t effects = 0;
  uint64_t events = 0;
};

Recorded Record(const std::string& path, unsigned seed) {
  auto writer = *JournalWriter::Create(path, StoryConfig(), JournalDigest::kNone);
  Recorded result;
  EffectsDigest digest;
  result.given = TellStory(seed, 600, [&](const ToldEvent& told) {
    EXPECT_TRUE(writer->Append(told.now_us, told.event, told.batch).ok());
    digest.Add(told.effects);
    ++result.events;
  });
  result.digest = digest.Hex();
  result.effects = digest.count();
  return result;
}

TEST(JournalTest, ReplayGivesTheSameEffects) {
  const std::string path = testing::TempDir() + "/journal." + std::to_string(getpid());
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const Recorded recorded = Record(path, seed);
    auto replayed = ReplayJournal(path);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->events, recorded.events);
    EXPECT_EQ(replayed->effects, recorded.effects);
    EXPECT_EQ(replayed->digest, recorded.digest) << "seed " << seed;
    EXPECT_GT(recorded.effects, 300u) << "seed " << seed;
    EXPECT_EQ(replayed->given, (GivenNumbers{1'234'567, 3, 2, 3}));
    EXPECT_EQ(replayed->given, recorded.given);
  }
  unlink(path.c_str());
}

TEST(JournalTest, DifferentEventsGiveDifferentDigests) {
  const std::string path = testing::TempDir() + "/journal2." + std::to_string(getpid());
  const Recorded a = Record(path, 1);
  const Recorded b = Record(path, 2);
  EXPECT_NE(a.digest, b.digest);
  unlink(path.c_str());
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<ReplayResult> ReplayText(const std::string& text) {
  std::vector<uint64_t> aligned(text.size() / 8 + 1);
  std::memcpy(aligned.data(), text.data(), text.size());
  return ReplayBytes({reinterpret_cast<const std::byte*>(aligned.data()), text.size()});
}

TEST(JournalTest, ATornTailIsTold) {
  const std::string path = testing::TempDir() + "/torn." + std::to_string(getpid());
  const Recorded recorded = Record(path, 1);
  const std::string whole = Contents(path);
  unlink(path.c_str());
  auto replayed = ReplayText(whole.substr(0, whole.size() - 3));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->events, recorded.events - 1);
  EXPECT_GT(replayed->torn_bytes, 0u);
  EXPECT_EQ(ReplayText(whole)->torn_bytes, 0u);
}

TEST(JournalTest, WhatIsNotAsItWasWrittenIsDataLoss) {
  const std::string path = testing::TempDir() + "/changed." + std::to_string(getpid());
  Record(path, 1);
  std::string whole = Contents(path);
  unlink(path.c_str());
  whole[whole.size() / 2] ^= 1;
  const auto replayed = ReplayText(whole);
  EXPECT_EQ(replayed.status().code(), absl::StatusCode::kDataLoss) << replayed.status();
}

TEST(JournalTest, AFullDiskIsUnavailable) {
  const auto writer = JournalWriter::Create("/dev/full", CoordinatorConfig{}, JournalDigest::kNone);
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kUnavailable);
}

TEST(JournalTest, WhatIsNoJournalIsRefused) {
  EXPECT_EQ(ReplayJournal("/nonexistent/journal").status().code(), absl::StatusCode::kNotFound);
  const std::string path = testing::TempDir() + "/garbage." + std::to_string(getpid());
  FILE* file = fopen(path.c_str(), "w");
  fputs("this is no journal, and it is long enough to look like a header", file);
  fclose(file);
  EXPECT_EQ(ReplayJournal(path).status().code(), absl::StatusCode::kInvalidArgument);
  unlink(path.c_str());
}

}  // namespace
}  // namespace tessera
