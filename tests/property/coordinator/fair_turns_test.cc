// Shares of the devices, of the real state machine in virtual time.
//
// The law. Let tenants i and j have records to take up all the time, for the same lane of the same workers, and let the
// cost of their plans have been measured. w is a weight, v a tenant's virtual time (FairTurns), m the longest of its
// ops, n the most of them that are under way at once, r what a turn pays for its records. Then at any time
//
//   v_i - v_j  <=  ((1 + n_i) m_i + r) / w_i  +  n_j m_j / w_j.
//
// Proof. Let s be the last time at which i had a turn. Both wait for the same workers, so j could have had it: v_i <=
// v_j just before s. The turn adds a charge to v_i, which is an average of measured costs, so at most m_i, and r. After
// it v_i changes by corrections alone, each from a charge to a measured cost, of ops that were under way at s: together
// they add at most n_i m_i. Meanwhile v_j changes by charges, which add, and by corrections. j's charges for ops that
// had not ended at s may be corrected down to nothing at worst, by n_j m_j; its later charges add at least nothing in
// sum, for what an op adds is its charge first and its measured cost in the end. Each of these is divided by its
// weight. qed
//
// v grows by measured work over the weight, so shares over a time T are off by no more than the bound over T.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/property/coordinator/timed_cluster.h"

namespace tessera {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kRecordsUs = 40;  // of a turn, at most

CoordinatorConfig Config() {
  CoordinatorConfig config;
  config.max_segment_ops = 1;  // each op is a turn of its own
  config.max_light_us = 0;     // one lane: the workers here run one op after another
  return config;
}

double ShareOf(const TimedCluster& cluster, const std::string& tenant, int64_t all) {
  return static_cast<double>(cluster.WorkOf(tenant)) / static_cast<double>(all);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  int64_t Between(int64_t least, int64_t most) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return least + static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(most - least + 1));
  }

 private:
  uint64_t state_;
};

// A tensor of so many elements is predicted to take some us or some ms: both are wrong.
int64_t ElementsFor(Random& random, int64_t number) {
  return number + (random.Between(0, 1) == 0 ? 8 : int64_t{1} << random.Between(14, 24));
}

TEST(FairTurnsLawTest, VirtualTimesStayWithinTheBoundWhateverOpsCost) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    TimedCluster cluster(2, Config(), seed);
    const auto tenants = static_cast<int32_t>(random.Between(2, 5));
    std::vector<TenantLimits> limits;
    for (int32_t t = 0; t < tenants; ++t) {
      limits.push_back({.name = std::string(1, static_cast<char>('a' + t)), .weight = random.Between(1, 4)});
    }
    cluster.Change(limits);
    int64_t number = 0;
    std::vector<std::pair<SessionId, TimedOp>> floods;
    for (const TenantLimits& tenant : limits) {
      const int64_t sessions = random.Between(1, 12);
      const int64_t work_us = random.Between(1, 3) == 1 ? random.Between(1'000, 8'000) : random.Between(30, 600);
      for (int64_t s = 0; s < sessions; ++s) {
        floods.push_back({cluster.Open(tenant.name), {ElementsFor(random, number += 1), work_us, work_us}});
        cluster.Ask(floods.back().first, floods.back().second);
        cluster.RunUntil(cluster.now_us() + 20'000);  // measured once
      }
    }
    for (const auto& [session, op] : floods) {
      // Enough that none of them runs out before the next op of anyone ends: an op is three records.
      cluster.Flood(session, op, static_cast<size_t>(60'000 / op.work_us + 30));
    }
    cluster.ForgetMost();
    cluster.RunUntil(cluster.now_us() + kSecond / 2);  // who was behind has caught up
    for (int step = 0; step < 400; ++step) {
      cluster.RunUntil(cluster.now_us() + random.Between(100, 4'000));
      const auto reach_us = [&](int32_t t, bool is_ahead) {
        const TenantLimits& tenant = limits[static_cast<size_t>(t)];
        const int64_t most = cluster.MostUnderWay(tenant.name), longest_us = cluster.LongestOp(tenant.name);
        return (is_ahead ? (1 + most) * longest_us + kRecordsUs : most * longest_us) / tenant.weight + 1;
      };
      for (int32_t i = 0; i < tenants; ++i) {
        for (int32_t j = 0; j < tenants; ++j) {
          const FairTurns& turns = cluster.machine().turns();
          ASSERT_TRUE(turns.HasBacklog(i));
          const int64_t ahead_us = (turns.VirtualTimeOf(i) - turns.VirtualTimeOf(j)) / kTicksPerUs;
          ASSERT_LE(ahead_us, reach_us(i, true) + reach_us(j, false)) << "tenants " << i << " and " << j;
        }
      }
    }
  }
}

TEST(FairTurnsLawTest, SharesAreByWeight) {
  TimedCluster cluster(2, Config());
  cluster.Change({{.name = "a", .weight = 1}, {.name = "b", .weight = 3}});
  cluster.Flood(cluster.Open("a"), {8, 700});
  cluster.Flood(cluster.Open("b"), {9, 300});
  cluster.RunUntil(5 * kSecond);
  EXPECT_NEAR(ShareOf(cluster, "a", cluster.busy_us()), 0.25, 0.0075);
  EXPECT_GT(cluster.busy_us(), 5 * kSecond * 0.98 - 100'000);
}

TEST(FairTurnsLawTest, OneSessionHasAsMuchAsFiftyOfAnotherTenant) {
  TimedCluster cluster(2, Config());
  cluster.Flood(cluster.Open("a"), {8, 400});
  for (int64_t s = 0; s < 50; ++s) cluster.Flood(cluster.Open("b"), {100 + s, 400});
  cluster.RunUntil(5 * kSecond);
  EXPECT_NEAR(ShareOf(cluster, "a", cluster.busy_us()), 0.5, 0.015);
}

TEST(FairTurnsLawTest, WhoseOpsTakeTwentyTimesWhatWasPredictedHasHalf) {
  TimedCluster cluster(2, Config());
  cluster.Flood(cluster.Open("a"), {8, 20'000});
  cluster.Flood(cluster.Open("b"), {9, 1'000});
  cluster.RunUntil(5 * kSecond);
  EXPECT_NEAR(ShareOf(cluster, "a", cluster.busy_us()), 0.5, 0.015);
}

// A new plan in every call: none of them is ever measured before it runs.
TEST(FairTurnsLawTest, PlansThatNobodyHasMeasuredAreCorrected) {
  TimedCluster cluster(1, Config());
  const SessionId a = cluster.Open("a"), b = cluster.Open("b");
  cluster.Flood(b, {9, 500});
  for (int64_t i = 0; i < 2'000; ++i) {
    if (cluster.machine().sessions().at(a).queue.size() < 4) cluster.Ask(a, {1'000 + i, 5'000});
    cluster.RunUntil(cluster.now_us() + 2'500);
  }
  EXPECT_NEAR(ShareOf(cluster, "a", cluster.busy_us()), 0.5, 0.015);
}

// Each op of one tenant costs both workers 900 us before it runs for 100; those of the other one run for 1,000. They
// have equally many.
TEST(FairTurnsLawTest, WorkersThatLowerTemplatesArePaidByTheirTenant) {
  TimedCluster cluster(2, Config());
  cluster.Flood(cluster.Open("a"), {.elements = 8, .work_us = 100, .prepared_us = 900});
  cluster.Flood(cluster.Open("b"), {.elements = 9, .work_us = 1'000});
  cluster.RunUntil(5 * kSecond);
  EXPECT_NEAR(ShareOf(cluster, "a", cluster.busy_us()), 100.0 / 1'100, 0.003);
}

TEST(FairTurnsLawTest, FiftyEqualSessionsHaveEqualShares) {
  TimedCluster cluster(2, Config());
  std::vector<SessionId> sessions;
  for (int64_t s = 0; s < 50; ++s) {
    sessions.push_back(cluster.Open("a"));
    cluster.Flood(sessions.back(), {100 + s, 300, 100});
  }
  cluster.RunUntil(5 * kSecond);
  double sum = 0, squares = 0;
  for (const SessionId session : sessions) {
    const auto work = static_cast<double>(cluster.WorkOf(session));
    sum += work;
    squares += work * work;
  }
  EXPECT_GE(sum * sum / (50 * squares), 0.99) << "Jain's index";
}

// Beside ops of 2 ms of another tenant: what is under way in the shared window, and the own op.
TEST(FairTurnsLawTest, AnOpNowAndThenWaitsForTheSharedWindowAlone) {
  TimedCluster cluster(2, Config());
  cluster.Flood(cluster.Open("a"), {8, 1'000});
  const SessionId asking = cluster.Open("b");
  for (int i = 0; i < 500; ++i) {
    cluster.Ask(asking, {9, 20});
    cluster.RunUntil(cluster.now_us() + 20'000);
  }
  std::vector<int64_t> waits = cluster.waits_us();
  ASSERT_EQ(waits.size(), 500u);
  std::sort(waits.begin(), waits.end());
  EXPECT_LE(waits[495], 3'500) << "us; alone the window would let 10 ops by";
}

// A limit of device time holds whether or not others have work, and leaves the rest to them.
TEST(DeviceShareTest, ATenantHasItsShareAndNoMoreAlsoWhenItIsAlone) {
  TimedCluster cluster(2, Config());
  cluster.Change({{.name = "a", .max_device_permille = 250}});
  cluster.Flood(cluster.Open("a"), {8, 700});
  cluster.RunUntil(2 * kSecond);  // it spends what it may have at once
  const int64_t before_us = cluster.WorkOf("a");
  cluster.RunUntil(12 * kSecond);
  EXPECT_NEAR(static_cast<double>(cluster.WorkOf("a") - before_us) / (10 * kSecond), 0.25, 0.0075);
}

TEST(DeviceShareTest, OthersHaveWhatItMayNot) {
  TimedCluster cluster(2, Config());
  cluster.Change({{.name = "a", .weight = 9, .max_device_permille = 100}, {.name = "b"}});
  for (int64_t s = 0; s < 20; ++s) cluster.Flood(cluster.Open("a"), {100 + s, 1'000});
  cluster.Flood(cluster.Open("b"), {9, 400});
  cluster.RunUntil(2 * kSecond);
  const int64_t a_us = cluster.WorkOf("a"), b_us = cluster.WorkOf("b");
  cluster.RunUntil(12 * kSecond);
  EXPECT_NEAR(static_cast<double>(cluster.WorkOf("a") - a_us) / (10 * kSecond), 0.1, 0.003);
  EXPECT_GT(cluster.WorkOf("b") - b_us, 10 * kSecond * 85 / 100);
}

TEST(DeviceShareTest, ALimitThatChangesHoldsFromThenOn) {
  TimedCluster cluster(1, Config());
  cluster.Change({{.name = "a"}});
  cluster.Flood(cluster.Open("a"), {8, 500});
  cluster.RunUntil(kSecond);
  EXPECT_GT(cluster.WorkOf("a"), kSecond * 9 / 10);
  cluster.Change({{.name = "a", .max_device_permille = 500}});
  cluster.RunUntil(3 * kSecond);
  int64_t before_us = cluster.WorkOf("a");
  cluster.RunUntil(8 * kSecond);
  EXPECT_NEAR(static_cast<double>(cluster.WorkOf("a") - before_us) / (5 * kSecond), 0.5, 0.015);
  cluster.Change({{.name = "a"}});
  before_us = cluster.WorkOf("a");
  cluster.RunUntil(9 * kSecond);
  EXPECT_GT(cluster.WorkOf("a") - before_us, kSecond * 9 / 10) << "one that is taken away holds up nothing";
}

// The law of tenants/device_share.h, over random shares, costs, sessions and mispredictions.
TEST(DeviceShareTest, NobodyHasMoreThanItsShareOfAnyTime) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    TimedCluster cluster(2, Config(), seed);
    std::vector<TenantLimits> limits;
    for (int32_t t = 0; t < static_cast<int32_t>(random.Between(1, 4)) + 1; ++t) {
      limits.push_back({.name = std::string(1, static_cast<char>('a' + t)),
                        .weight = random.Between(1, 4),
                        .max_device_permille = random.Between(10, 400)});
    }
    cluster.Change(limits);
    int64_t number = 0;
    for (const TenantLimits& tenant : limits) {
      const int64_t work_us = random.Between(1, 3) == 1 ? random.Between(1'000, 20'000) : random.Between(30, 600);
      for (int64_t s = random.Between(1, 6); s > 0; --s) {
        cluster.Flood(cluster.Open(tenant.name), {ElementsFor(random, number += 1), work_us, work_us});
      }
    }
    std::vector<std::vector<int64_t>> works;  // by look
    std::vector<int64_t> looks_us;
    for (int look = 0; look < 60; ++look) {
      cluster.RunUntil(cluster.now_us() + random.Between(20'000, 200'000));
      looks_us.push_back(cluster.now_us());
      works.emplace_back();
      for (const TenantLimits& tenant : limits) works.back().push_back(cluster.WorkOf(tenant.name));
    }
    for (size_t t = 0; t < limits.size(); ++t) {
      const int64_t longest_us = cluster.LongestOp(limits[t].name);
      const int64_t beyond_us = (1 + cluster.MostUnderWay(limits[t].name)) * longest_us;
      for (size_t from = 0; from < works.size(); ++from) {
        for (size_t to = from + 1; to < works.size(); ++to) {
          const int64_t time_us = looks_us[to] - looks_us[from] + DeviceShare::kWindowUs;
          ASSERT_LE(works[to][t] - works[from][t], time_us * limits[t].max_device_permille / 1000 + beyond_us)
              << "tenant " << t << " from " << looks_us[from] << " to " << looks_us[to];
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
