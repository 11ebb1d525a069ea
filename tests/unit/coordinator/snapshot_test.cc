// A core as a snapshot: it comes back as it was, and goes on as it would have.

#include "server/coordinator/rpc/snapshot.h"

#include <xxhash.h>

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/str_cat.h"
#include "tests/support/coordinator_story.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string Save(const Core& core) {
  std::string bytes;
  const absl::Status saved =
      Snapshot::Save(core, {.segment = 3, .events = 12}, [&](kj::ArrayPtr<const kj::byte> piece) {
        bytes.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
        return absl::OkStatus();
      });
  EXPECT_TRUE(saved.ok()) << saved;
  return bytes;
}

absl::StatusOr<Snapshot::Loaded> Load(const std::string& bytes) {
  return Snapshot::Load({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

void Tell(Core& core, const ToldEvent& next, std::vector<std::string>* texts = nullptr) {
  if (texts != nullptr) {
    core.Observe([texts](const Effects& effects) {
      for (const Effect& effect : effects) texts->push_back(ToText(effect));
    });
  }
  Event event = next.event;
  const auto done = core.Apply(next.now_us, event, next.batch);
  ASSERT_TRUE(done.ok());
  for (const EndSession& end : done->ended) core.Drop(end.session);
}

// A core that was told so many events of the story.
std::unique_ptr<Core> After(unsigned seed, int steps, size_t events) {
  auto core = std::make_unique<Core>(StoryConfig(), nullptr);
  size_t told = 0;
  TellStory(seed, steps, [&](const ToldEvent& next) {
    if (told++ < events) Tell(*core, next);
  });
  return core;
}

TEST(SnapshotTest, WhatComesBackIsWhatThereWasAtEachEvent) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    Core core(StoryConfig(), nullptr);
    size_t told = 0;
    TellStory(seed, 150, [&](const ToldEvent& next) {
      Tell(core, next);
      const std::string saved = Save(core);
      auto loaded = Load(saved);
      ASSERT_TRUE(loaded.ok()) << loaded.status() << ", seed " << seed << ", event " << told;
      ASSERT_EQ(Save(*loaded->core), saved) << "seed " << seed << ", event " << told;
      EXPECT_EQ(loaded->place.segment, 3u);
      EXPECT_EQ(loaded->place.events, 12u);
      EXPECT_EQ(Snapshot::Digest(*loaded->core), Snapshot::Digest(core));
      ++told;
    });
  }
}

TEST(SnapshotTest, AfterAnyFurtherEventsItIsAsIfAllHadBeenReplayed) {
  for (unsigned seed = 11; seed <= 14; ++seed) {
    for (const size_t at : {5u, 20u, 50u, 90u, 140u}) {
      auto whole = std::make_unique<Core>(StoryConfig(), nullptr);
      std::unique_ptr<Core> restored;
      size_t told = 0;
      TellStory(seed, 200, [&](const ToldEvent& next) {
        std::vector<std::string> expected, seen;
        Tell(*whole, next, &expected);
        if (restored != nullptr) {
          Tell(*restored, next, &seen);
          ASSERT_EQ(seen, expected) << "seed " << seed << ", from event " << at << ", at event " << told;
          ASSERT_EQ(Snapshot::Digest(*restored), Snapshot::Digest(*whole)) << "seed " << seed << ", event " << told;
        }
        if (++told == at) restored = std::move(Load(Save(*whole))->core);
      });
      ASSERT_NE(restored, nullptr);
    }
  }
}

std::string EffectsOf(Core& core, const Event& told) {
  std::string text;
  core.Observe([&text](const Effects& effects) {
    for (const Effect& effect : effects) StrAppend(&text, ToText(effect), "\n");
  });
  Event event = told;
  EXPECT_TRUE(core.Apply(0, event, nullptr).ok());
  return text;
}

// A tenant whose bucket is full waits for as long after a restart as it would have.
TEST(SnapshotTest, ATenantsShareIsAsFullAsItWas) {
  Core core(StoryConfig(), nullptr);
  WorkerJoinedEvent joined;
  joined.worker = WorkerIndex(0);
  joined.incarnation = 1;
  joined.memory_bytes = 1 << 16;
  EffectsOf(core, joined);
  EffectsOf(core,
            TenantsChangedEvent{{{.name = "t", .max_device_permille = 250, .max_detached_bytes = 512, .lanes = 2}}});
  EffectsOf(core, SessionOpenedEvent{SessionId(1), 42, "t", "c", 0});
  EffectsOf(core,
            BatchEvent{SessionId(1), 1, {FullRecord(*Mesh::Make({1}, {}, {}), {8}, {Placement::Replicate()}, 1)}});
  WorkerReportEvent report{WorkerIndex(0), 1, {}, {}};
  CompletionReport& done = report.completions.emplace_back();
  done.ordinal = Ordinal(core.machine().next_ordinal() - 1);
  done.times = {1, 750'000'001, 750'000'000, 750'000'000};  // three quarters of a second: the share of three
  EffectsOf(core, report);
  auto restored = std::move(Load(Save(core))->core);
  EXPECT_EQ(Snapshot::Digest(*restored), Snapshot::Digest(core));
  const auto paid_for_us = [](const Core& one) {
    const DeviceShare::Rate rate{.permille = 250, .workers = 1};
    int64_t now_us = 0;
    for (const TenantEntry* tenant : one.machine().tenants().all()) {
      while (tenant->limits.name == "t" && tenant->share.IsOver(now_us, rate)) now_us += 1000;
    }
    return now_us;
  };
  EXPECT_GE(paid_for_us(core), 1'000'000);
  EXPECT_EQ(paid_for_us(*restored), paid_for_us(core));
}

// As a coordinator would have written that planned the call otherwise: the hash of the plan's text is another one.
std::string WithAnotherHash(std::string saved, const std::string& plan_text) {
  uint64_t hash = XXH3_64bits(plan_text.data(), plan_text.size());
  const size_t at = saved.find(std::string(reinterpret_cast<const char*>(&hash), sizeof(hash)));
  EXPECT_NE(at, std::string::npos);
  if (at == std::string::npos) return saved;
  saved[at] = static_cast<char>(saved[at] ^ (saved[at] == 1 ? 2 : 1));  // a zero would be packed otherwise
  for (size_t part = 0; part < saved.size();) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, &saved[part], sizeof(bytes));
    hash = XXH3_64bits(&saved[part + 16], bytes);
    std::memcpy(&saved[part + 8], &hash, sizeof(hash));
    part += 16 + bytes;
  }
  return saved;
}

// Workers know a plan by its id: what another version plans otherwise gets one of its own.
TEST(SnapshotTest, APlanThatIsMadeOtherwiseHasANewIdAndTheFormerOneIsForgotten) {
  Core core(StoryConfig(), nullptr);
  WorkerJoinedEvent joined;
  joined.worker = WorkerIndex(0);
  joined.incarnation = 1;
  joined.memory_bytes = 1 << 16;
  EffectsOf(core, joined);
  EffectsOf(core, SessionOpenedEvent{SessionId(1), 42, "", "c", 0});
  const auto fill = [](uint64_t number) {
    return BatchEvent{
        SessionId(1), number, {FullRecord(*Mesh::Make({1}, {}, {}), {8}, {Placement::Replicate()}, number)}};
  };
  const std::string first = EffectsOf(core, fill(1));
  const size_t text = first.find("define 1 ");
  ASSERT_NE(text, std::string::npos) << first;
  const std::string plan_text = first.substr(text + 9, first.find("}\n", text) + 2 - text - 9);
  const std::string saved = Save(core);

  auto same = std::move(Load(saved)->core);
  EXPECT_THAT(EffectsOf(*same, fill(2)), testing::AllOf(HasSubstr("template 1 "), testing::Not(HasSubstr("define"))));
  auto loaded = Load(WithAnotherHash(saved, plan_text));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string next = EffectsOf(*loaded->core, fill(2));
  EXPECT_THAT(next, testing::AllOf(HasSubstr("forget 1"), HasSubstr("define 2 "), HasSubstr("template 2 ")));
  EXPECT_THAT(EffectsOf(*loaded->core, fill(3)),
              testing::AllOf(HasSubstr("template 2 "), testing::Not(HasSubstr("define"))));
}

TEST(SnapshotTest, ADigestTellsStatesApart) {
  EXPECT_NE(Snapshot::Digest(*After(3, 40, 30)), Snapshot::Digest(*After(3, 40, 31)));
  EXPECT_EQ(Snapshot::Digest(*After(3, 40, 30)), Snapshot::Digest(*After(3, 40, 30)));
}

TEST(SnapshotTest, AFlippedBitAnywhereIsTold) {
  const std::string saved = Save(*After(5, 60, 50));
  for (size_t byte = 0; byte < saved.size(); byte += 7) {
    std::string flipped = saved;
    flipped[byte] = static_cast<char>(flipped[byte] ^ 16);
    const auto loaded = Load(flipped);
    ASSERT_TRUE(absl::IsDataLoss(loaded.status())) << "byte " << byte << ": " << loaded.status();
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("snapshot: at byte "));
  }
}

TEST(SnapshotTest, OneThatEndsEarlyIsTold) {
  const std::string saved = Save(*After(5, 60, 50));
  for (size_t size = 0; size < saved.size(); size += 11) {
    ASSERT_TRUE(absl::IsDataLoss(Load(saved.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(Load(saved + "x").status()));
}

TEST(SnapshotTest, AnErrorOfTheDiskEndsIt) {
  const auto core = After(5, 60, 50);
  int pieces = 0;
  const absl::Status saved = Snapshot::Save(*core, {}, [&](kj::ArrayPtr<const kj::byte>) {
    return ++pieces == 5 ? absl::UnavailableError("no space") : absl::OkStatus();
  });
  EXPECT_TRUE(absl::IsUnavailable(saved));
  EXPECT_EQ(pieces, 5);
}

}  // namespace
}  // namespace tessera
