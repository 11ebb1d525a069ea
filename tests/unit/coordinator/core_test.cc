// A coordinator's core that is had back from its log, however the process that wrote it ended.

#include "server/coordinator/rpc/core.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
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

// Messages that a core may send now: those to workers, and those with events to sessions.
size_t Sendable(Core& core) {
  size_t count = 0;
  for (const auto& [index, line] : core.workers()) count += line.outbox.unsent();
  for (const auto& [id, session] : core.machine().sessions()) {
    core.outbox(id).Disconnected();
    std::optional<capnp::MallocMessageBuilder> message;
    while (core.outbox(id).NextMessage(SessionOutbox::Quiet::kNow, message)) ++count;
    core.outbox(id).Disconnected();
  }
  return count;
}

TEST(CoreTest, EffectsThatAreHeldBackLeaveWithTheirCommitAndTheSameOnes) {
  Core held(StoryConfig(), nullptr), other(StoryConfig(), nullptr);
  held.HoldBack();
  uint64_t waiting = 0, ended = 0, other_ended = 0;
  TellStory(3, 120, [&](const ToldEvent& next) {
    Event event = next.event, again = next.event;
    const size_t before = Sendable(held);
    const auto done = held.Apply(next.now_us, event, next.batch);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(done->is_empty()) << "nothing is to be carried out before the commit";
    if (!std::holds_alternative<WorkerReportEvent>(next.event) &&
        !std::holds_alternative<WorkerLostEvent>(next.event) &&
        !std::holds_alternative<SessionClosedEvent>(next.event)) {
      EXPECT_LE(Sendable(held), before);
    }
    const auto told = other.Apply(next.now_us, again, next.batch);
    ASSERT_TRUE(told.ok());
    for (const EndSession& end : told->ended) other.Drop(end.session);
    other_ended += told->ended.size();
    waiting += held.has_held() ? 1 : 0;
    if (held.events() % 7 != 0) return;
    const Core::Consequences due = held.Commit(held.events());
    for (const EndSession& end : due.ended) held.Drop(end.session);
    ended += due.ended.size();
    EXPECT_FALSE(held.has_held());
    EXPECT_EQ(Describe(held), Describe(other));
    EXPECT_EQ(Sendable(held), Sendable(other));
  });
  EXPECT_GT(waiting, 20u);
  const Core::Consequences due = held.Commit(held.events());
  EXPECT_EQ(ended + due.ended.size(), other_ended);
}

TEST(CoreTest, ACommitFreesTheEventsUpToItAndNoLaterOnes) {
  Core core(StoryConfig(), nullptr);
  core.HoldBack();
  WorkerOutbox outbox;
  for (const uint64_t event : {4u, 4u, 6u}) outbox.Add(std::make_shared<const WorkerMessage>(Shutdown{"x"}), event);
  EXPECT_EQ(outbox.unsent(), 0u);
  outbox.Commit(5);
  EXPECT_EQ(outbox.unsent(), 2u);
  outbox.Sent(2);
  outbox.Taken(9);
  EXPECT_EQ(outbox.size(), 1u) << "a worker has not taken what it was not sent";
  EXPECT_TRUE(absl::IsDataLoss(outbox.Resume(3)));
  outbox.Commit(6);
  EXPECT_EQ(outbox.unsent(), 1u);
}

// A log at the level `disk`: `commits` says after which events how many are on the disk.
std::string DiskLog(unsigned seed, int steps, std::vector<size_t>& ends) {
  const std::string path = StrCat(testing::TempDir(), "/disk.", getpid());
  const JournalPlace place{.level = LogLevel::kDisk};
  Core core(StoryConfig(), *JournalWriter::Create(path, StoryConfig(), JournalDigest::kNone, place));
  core.HoldBack();
  TellStory(seed, steps, [&](const ToldEvent& next) {
    Event event = next.event;
    ASSERT_TRUE(core.Apply(next.now_us, event, next.batch).ok());
    ends.push_back(TextOf(path).size());
    if (core.events() % 10 == 0) core.Commit(core.events() - 3);
  });
  const std::string log = TextOf(path);
  unlink(path.c_str());
  return log;
}

TEST(CoreTest, AHoleBehindTheLastCommitIsTheMachinesEndAndOneBeforeItALoss) {
  const std::string path = StrCat(testing::TempDir(), "/hole.", getpid());
  std::vector<size_t> ends;
  const std::string log = DiskLog(3, 60, ends);
  const size_t count = ends.size();
  // The newest record of a commit stands behind event 10n + 1 and says 10n - 3.
  const size_t committed = (count - 1) / 10 * 10 - 3;
  for (size_t lost = 5; lost < count; ++lost) {
    std::string holed = log;
    std::fill(holed.begin() + static_cast<long>(ends[lost - 1]), holed.begin() + static_cast<long>(ends[lost]), '\0');
    const auto recovered = RecoverFrom(path, holed);
    if (lost < committed) {
      ASSERT_TRUE(absl::IsDataLoss(recovered.status())) << "event " << lost << ": " << recovered.status();
    } else {
      ASSERT_TRUE(recovered.ok()) << "event " << lost << ": " << recovered.status();
      EXPECT_EQ(recovered->end.events, lost);
    }
  }
  unlink(path.c_str());
}

}  // namespace
}  // namespace tessera
