// FairTurns by itself: who has the next turn, what a charge and its correction do, gates.

#include "server/coordinator/fair_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kMs = 1'000 * kTicksPerUs;

SessionId S(uint64_t number) { return SessionId(number); }

// Takes `turns` turns, each of `ticks`, and counts whose they were.
std::map<uint64_t, int> Serve(FairTurns& turns, int count, int64_t ticks) {
  std::map<uint64_t, int> served;
  for (int i = 0; i < count; ++i) {
    const SessionId next = *turns.Next();
    ++served[next.value];
    turns.Settle(turns.Issue(next, ticks), ticks);
  }
  return served;
}

TEST(FairTurnsTest, NobodyHasATurnWithoutWork) {
  FairTurns turns;
  turns.AddSession(S(1), 0);
  EXPECT_EQ(turns.Next(), std::nullopt);
  turns.SetReady(S(1));
  EXPECT_EQ(turns.Next(), S(1));
  turns.SetIdle(S(1));
  EXPECT_EQ(turns.Next(), std::nullopt);
  turns.SetReady(S(1));
  turns.RemoveSession(S(1));
  EXPECT_EQ(turns.Next(), std::nullopt);
}

TEST(FairTurnsTest, TenantsGetTurnsByTheirWeightsHoweverManySessionsTheyHave) {
  FairTurns turns;
  turns.SetWeight(1, 3);
  turns.AddSession(S(1), 0);
  turns.SetReady(S(1));
  for (uint64_t s = 2; s < 52; ++s) {
    turns.AddSession(S(s), 1);
    turns.SetReady(S(s));
  }
  std::map<uint64_t, int> served = Serve(turns, 4000, kMs);
  EXPECT_NEAR(served[1], 1000, 4);
  for (uint64_t s = 2; s < 52; ++s) EXPECT_NEAR(served[s], 60, 1) << s;
}

TEST(FairTurnsTest, AWeightThatDividesNothingEvenlyLosesNoTick) {
  FairTurns turns;
  turns.SetWeight(0, 7);
  turns.AddSession(S(1), 0);
  turns.SetReady(S(1));
  for (int i = 0; i < 7000; ++i) turns.Pay(S(1), 1);
  EXPECT_EQ(turns.VirtualTimeOf(0), 1000);
  for (int i = 0; i < 7000; ++i) turns.Pay(S(1), -1);
  EXPECT_EQ(turns.VirtualTimeOf(0), 0);
}

TEST(FairTurnsTest, AChargeBecomesWhatWasMeasured) {
  FairTurns turns;
  turns.SetWeight(0, 2);
  turns.AddSession(S(1), 0);
  turns.SetReady(S(1));
  const TurnCharge charge = turns.Issue(S(1), kMs);
  EXPECT_EQ(turns.VirtualTimeOf(0), kMs / 2);
  turns.Settle(charge, 20 * kMs);
  EXPECT_EQ(turns.VirtualTimeOf(0), 10 * kMs);
  const TurnCharge more = turns.Issue(S(1), 4 * kMs);
  turns.RemoveSession(S(1));
  turns.Settle(more, 2 * kMs);  // of a session that is gone its tenant pays
  EXPECT_EQ(turns.VirtualTimeOf(0), 11 * kMs);
}

TEST(FairTurnsTest, WhoWasIdleGoesFirstAndSavesNothingUp) {
  FairTurns turns;
  turns.AddSession(S(1), 0);
  turns.AddSession(S(2), 1);
  turns.SetReady(S(1));
  Serve(turns, 1000, kMs);
  turns.SetReady(S(2));
  std::map<uint64_t, int> served = Serve(turns, 100, kMs);
  EXPECT_NEAR(served[2], 51, 1) << "half, and the two that it is behind by";
  // The same within a tenant.
  turns.AddSession(S(3), 0);
  turns.SetIdle(S(2));
  turns.SetReady(S(3));
  served = Serve(turns, 100, kMs);
  EXPECT_NEAR(served[3], 51, 1);
}

TEST(FairTurnsTest, NobodyOwesForATimeWhenNobodyElseWantedAnything) {
  FairTurns turns;
  turns.AddSession(S(1), 0);
  turns.AddSession(S(2), 1);
  turns.SetReady(S(1));
  Serve(turns, 1, 3000 * kMs);
  turns.SetIdle(S(1));
  // All is over: the other one begins where that ended.
  turns.SetReady(S(2));
  turns.SetReady(S(1));
  const std::map<uint64_t, int> served = Serve(turns, 100, kMs);
  EXPECT_NEAR(served.at(1), 49, 2);
}

TEST(FairTurnsTest, AGateThatIsClosedHoldsUpThoseThatWaitThereAndNobodyElse) {
  FairTurns turns;
  for (uint64_t s = 1; s <= 3; ++s) {
    turns.AddSession(S(s), static_cast<int32_t>(s));
    turns.SetReady(S(s));
  }
  EXPECT_EQ(turns.Next(), S(1));
  turns.SetBlocked(S(1), 7);
  EXPECT_EQ(turns.Next(), S(2));
  turns.SetBlocked(S(2), 7);
  std::map<uint64_t, int> served = Serve(turns, 10, kMs);
  EXPECT_EQ(served[3], 10);
  turns.Reopen([](int32_t gate) { return gate != 7; });
  EXPECT_EQ(turns.Next(), S(3));
  turns.Reopen([](int32_t gate) { return gate == 7; });
  EXPECT_EQ(turns.Next(), S(1));
  EXPECT_EQ(turns.GateOf(S(1)), 7);
  turns.Close(7);  // it is full again, which the others need not try
  EXPECT_EQ(turns.Next(), S(3));
  turns.SetReady(S(2));  // for another reason
  EXPECT_EQ(turns.Next(), S(2));
}

TEST(FairTurnsTest, AllThatWaitForAnyChangeAreTriedOnce) {
  FairTurns turns;
  for (uint64_t s = 1; s <= 3; ++s) {
    turns.AddSession(S(s), 0);
    turns.SetReady(S(s));
    turns.SetBlocked(S(s), FairTurns::kAnyChange);
  }
  EXPECT_EQ(turns.Next(), std::nullopt);
  turns.Reopen([](int32_t) { return false; });
  std::set<uint64_t> tried;
  while (const std::optional<SessionId> next = turns.Next()) {
    tried.insert(next->value);
    turns.SetBlocked(*next, FairTurns::kAnyChange);
  }
  EXPECT_THAT(tried, testing::ElementsAre(1, 2, 3));
}

TEST(FairTurnsTest, WhoWasKeptAwayForLongIsNotAheadForLong) {
  FairTurns turns;
  turns.AddSession(S(1), 0);
  turns.AddSession(S(2), 1);
  turns.SetReady(S(1));
  turns.SetReady(S(2));
  turns.SetBlocked(S(1), 0);
  Serve(turns, 100'000, kMs);
  turns.Reopen([](int32_t) { return true; });
  const std::map<uint64_t, int> served = Serve(turns, 1000, kMs);
  EXPECT_NEAR(served.at(1), 500 + FairTurns::kMaxLag / kMs / 2, 2);
}

TEST(FairTurnsTest, TenantsCompeteWhileTwoHaveWorkAndForAWhileAfter) {
  FairTurns turns;
  turns.AddSession(S(1), 0);
  turns.AddSession(S(2), 1);
  turns.SetReady(S(1));
  EXPECT_FALSE(turns.AreCompeting());
  turns.SetReady(S(2));
  EXPECT_TRUE(turns.AreCompeting());
  const TurnCharge charge = turns.Issue(S(2), kMs);
  turns.SetIdle(S(2));
  turns.SetNow(10 * FairTurns::kCompetingUs);
  EXPECT_TRUE(turns.AreCompeting()) << "its work is under way";
  turns.Settle(charge, kMs);
  turns.SetNow(11 * FairTurns::kCompetingUs - 1);
  EXPECT_TRUE(turns.AreCompeting());
  turns.SetNow(11 * FairTurns::kCompetingUs + 1000);
  EXPECT_FALSE(turns.AreCompeting());
}

TEST(TurnHeapTest, TheLeastIsOnTopWhateverChanges) {
  struct Item {
    int64_t key = 0;
    uint64_t number = 0;
    size_t place = kInNoHeap;
  };
  std::vector<Item> items(200);
  TurnHeap<Item> heap;
  uint64_t random = 1;
  const auto next = [&random]() { return random = random * 6364136223846793005u + 1442695040888963407u; };
  for (size_t i = 0; i < items.size(); ++i) items[i].number = i;
  for (int round = 0; round < 20'000; ++round) {
    Item& item = items[(next() >> 33) % items.size()];
    if (item.place == kInNoHeap) {
      heap.Push(item);
    } else if (next() >> 63) {
      heap.Remove(item);
    } else {
      item.key = static_cast<int64_t>(next() >> 40) % 100;
      heap.Moved(item);
    }
    const Item* least = nullptr;
    for (const Item& one : items) {
      if (one.place == kInNoHeap) continue;
      if (least == nullptr || std::pair(one.key, one.number) < std::pair(least->key, least->number)) least = &one;
    }
    ASSERT_EQ(heap.empty() ? nullptr : heap.top(), least) << round;
  }
}

}  // namespace
}  // namespace tessera
