#include "server/worker/link_core.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(LinkCoreTest, SkipsWhatItHasTaken) {
  LinkCore core;
  EXPECT_EQ(*core.SkipOf(1, 3), 0u);
  for (int i = 0; i < 3; ++i) core.TookOne();
  EXPECT_EQ(*core.SkipOf(4, 2), 0u);
  EXPECT_EQ(*core.SkipOf(2, 4), 2u) << "2 and 3 came before";
  EXPECT_EQ(*core.SkipOf(1, 2), 2u) << "all of them did";
  EXPECT_EQ(core.SkipOf(5, 1).status().code(), absl::StatusCode::kDataLoss) << "4 is missing";
  EXPECT_EQ(core.SkipOf(0, 1).status().code(), absl::StatusCode::kDataLoss) << "numbers begin with 1";
}

TEST(LinkCoreTest, KeepsReportsUntilTheyAreAcknowledged) {
  LinkCore core;
  EXPECT_EQ(core.next_report(), 1u);
  for (uint64_t i = 1; i <= 4; ++i) core.Reported({i});
  core.Acknowledge(1);
  EXPECT_EQ(core.kept(), (std::vector<LinkCore::Words>{{2}, {3}, {4}}));
  ASSERT_TRUE(core.Resume(3).ok());
  EXPECT_EQ(core.kept(), (std::vector<LinkCore::Words>{{4}}));
  EXPECT_EQ(core.Resume(2).code(), absl::StatusCode::kDataLoss) << "3 is not kept any more";
  EXPECT_EQ(core.Resume(5).code(), absl::StatusCode::kDataLoss) << "5 was never sent";
  EXPECT_EQ(core.next_report(), 5u);
}

TEST(LinkCoreTest, AWorkerThatEndsWithItsCoordinatorKeepsNothing) {
  LinkCore core;
  core.ReportedForGood();
  EXPECT_EQ(core.reported(), 1u);
  EXPECT_TRUE(core.kept().empty());
  EXPECT_EQ(core.Resume(0).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tessera
