// A coordinator's core that is had back from its log, however the process that wrote it ended.

#include "server/coordinator/rpc/core.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/support/coordinator_story.h"

namespace tessera {
namespace {

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// All that a client or a worker could see of it.
std::string Describe(Core& core) {
  const StateMachine& machine = core.machine();
  std::string text = StrCat("time ", core.now_us(), " next ", machine.next_ordinal(), " under way ",
                            machine.unsettled_ops(), " key ", core.peer_key(), "\n");
  for (const auto& [id, session] : machine.sessions()) {
    StrAppend(&text, "session ", id.value, " batch ", session.last_batch, " event ", session.last_event, " queued ",
              session.queue.size(), " waiting ", core.outbox(id).size(), "\n");
    for (const auto& [handle, tensor] : session.tensors) {
      StrAppend(&text, "  ", handle.value, " ", ToText(tensor->spec()), " at ", tensor->offset_bytes, " ",
                tensor->status.ToString(), machine.ProducerOf(*tensor) != nullptr ? " under way" : "", "\n");
    }
  }
  for (const auto& [index, line] : core.workers()) {
    StrAppend(&text, "worker ", index.value, " process ", line.incarnation, " reports ", line.reports, " messages ",
              line.outbox.size(), " before ", line.outbox.next_number(), " used ", machine.memory().UsedBytes(index),
              "\n");
  }
  return text;
}

// A story that a core was told, and what was seen of it after each event.
struct Told {
  std::string log;                // its bytes
  std::vector<std::string> seen;  // first of the empty core
  std::vector<size_t> ends;       // where in the log each event ends; first the header
};

Told Tell(unsigned seed, int steps) {
  const std::string path = StrCat(testing::TempDir(), "/told.", getpid());
  auto journal = JournalWriter::Create(path, StoryConfig(), JournalDigest::kNone);
  Core core(StoryConfig(), *std::move(journal));
  Told told;
  const auto look = [&] {
    told.seen.push_back(Describe(core));
    struct stat found {};
    EXPECT_EQ(stat(path.c_str(), &found), 0);
    told.ends.push_back(static_cast<size_t>(found.st_size));
  };
  look();
  TellStory(seed, steps, [&](const ToldEvent& next) {
    Event event = next.event;
    const auto done = core.Apply(next.now_us, event, next.batch);
    ASSERT_TRUE(done.ok()) << done.status();
    for (const EndSession& end : done->ended) core.Drop(end.session);
    look();
  });
  told.log = TextOf(path);
  unlink(path.c_str());
  return told;
}

absl::StatusOr<Core::Recovered> RecoverFrom(const std::string& path, std::string_view log) {
  std::ofstream(path, std::ios::binary) << log;
  return Core::Recover(path);
}

TEST(CoreTest, AfterEachEventTheLogHasAllThatThereIs) {
  const std::string path = StrCat(testing::TempDir(), "/prefix.", getpid());
  for (unsigned seed = 1; seed <= 3; ++seed) {
    const Told told = Tell(seed, 120);
    for (size_t i = 0; i < told.ends.size(); ++i) {
      auto recovered = RecoverFrom(path, told.log.substr(0, told.ends[i]));
      ASSERT_TRUE(recovered.ok()) << recovered.status();
      ASSERT_EQ(Describe(*recovered->core), told.seen[i]) << "seed " << seed << ", event " << i;
      EXPECT_EQ(recovered->end.torn_bytes, 0u);
    }
  }
  unlink(path.c_str());
}

TEST(CoreTest, AnEndInTheMiddleOfAnEventLosesThatEventAlone) {
  const std::string path = StrCat(testing::TempDir(), "/torn_core.", getpid());
  const Told told = Tell(7, 25);
  for (size_t i = 0, bytes = told.ends[0]; bytes < told.log.size(); ++bytes) {
    if (i + 1 < told.ends.size() && bytes == told.ends[i + 1]) ++i;
    const size_t within = bytes - told.ends[i];  // each byte of the size and behind it, of the rest every 29th
    if (within > 24 && within % 29 != 0) continue;
    auto recovered = RecoverFrom(path, told.log.substr(0, bytes));
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    ASSERT_EQ(Describe(*recovered->core), told.seen[i]) << "at byte " << bytes;
    ASSERT_EQ(recovered->end.torn_bytes, bytes - told.ends[i]);
    recovered->core = nullptr;
    ASSERT_EQ(TextOf(path).size(), told.ends[i]) << "the torn end is cut off";
  }
  unlink(path.c_str());
}

TEST(CoreTest, GoesOnWithTheLog) {
  const std::string path = StrCat(testing::TempDir(), "/goes_on.", getpid());
  const Told told = Tell(5, 60);
  auto recovered = RecoverFrom(path, told.log);
  ASSERT_TRUE(recovered.ok()) << recovered.status();
  Event started = StartedEvent{2'000'000, 77};
  ASSERT_TRUE(recovered->core->Apply(recovered->core->now_us() + 5, started).ok());
  const std::string seen = Describe(*recovered->core);
  recovered->core = nullptr;
  auto again = Core::Recover(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Describe(*again->core), seen);
  EXPECT_EQ(again->core->peer_key(), 77u);
  EXPECT_EQ(again->core->machine().given().epoch, 2'000'000u);
  unlink(path.c_str());
}

TEST(CoreTest, AFlippedBitAnywhereIsToldAndNothingBegins) {
  const std::string path = StrCat(testing::TempDir(), "/flipped.", getpid());
  const Told told = Tell(3, 20);
  for (size_t byte = 0; byte + 1 < told.ends[told.ends.size() - 2]; byte += 31) {
    std::string log = told.log;
    log[byte] = static_cast<char>(log[byte] ^ 4);
    const auto recovered = RecoverFrom(path, log);
    // In a length that says more than there is, too: it looks like a torn end, but for what follows.
    ASSERT_FALSE(recovered.ok()) << "byte " << byte << " was taken, with " << recovered->end.torn_bytes
                                 << " torn bytes";
    ASSERT_TRUE(absl::IsDataLoss(recovered.status()) || absl::IsInvalidArgument(recovered.status()))
        << recovered.status();
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace tessera
