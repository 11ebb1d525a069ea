// Ranges that are found of samples, over all small worlds: they have all that is merged, and no more than the slack.

#include "server/plan/merge_ranges.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Keys = std::vector<uint64_t>;

// All runs of at most `most` keys of 0, 1 and 2, in order.
std::vector<Keys> AllRuns(int64_t most) {
  std::vector<Keys> runs;
  for (int64_t zeros = 0; zeros <= most; ++zeros) {
    for (int64_t ones = 0; zeros + ones <= most; ++ones) {
      for (int64_t twos = 0; zeros + ones + twos <= most; ++twos) {
        Keys& run = runs.emplace_back(static_cast<size_t>(zeros), 0);
        run.insert(run.end(), static_cast<size_t>(ones), 1);
        run.insert(run.end(), static_cast<size_t>(twos), 2);
      }
    }
  }
  return runs;
}

// By part and run: what the part is made of, of a stable sort of the runs behind each other.
std::vector<std::vector<Interval>> Taken(const std::vector<Keys>& runs) {
  std::vector<std::tuple<uint64_t, size_t, int64_t>> all;
  for (size_t run = 0; run < runs.size(); ++run) {
    for (size_t i = 0; i < runs[run].size(); ++i) all.emplace_back(runs[run][i], run, static_cast<int64_t>(i));
  }
  std::sort(all.begin(), all.end());
  std::vector<std::vector<Interval>> taken(runs.size(), std::vector<Interval>(runs.size()));
  std::vector<int64_t> before(runs.size());
  size_t at = 0;
  for (size_t part = 0; part < runs.size(); ++part) {
    for (size_t run = 0; run < runs.size(); ++run) taken[part][run].start = before[run];
    for (size_t i = 0; i < runs[part].size(); ++i) ++before[std::get<1>(all[at++])];
    for (size_t run = 0; run < runs.size(); ++run) taken[part][run].stop = before[run];
  }
  return taken;
}

// False, with a failure, where a range lacks something or all of a part are too long.
bool RangesHold(const std::vector<Keys>& runs, int64_t step) {
  std::vector<int64_t> sizes;
  std::vector<Keys> samples;
  for (const Keys& run : runs) {
    sizes.push_back(static_cast<int64_t>(run.size()));
    Keys& of_run = samples.emplace_back();
    for (size_t i = 0; i < run.size(); i += static_cast<size_t>(step)) of_run.push_back(run[i]);
  }
  const auto ranges = MergeRanges(sizes, step, samples);
  if (!ranges.ok()) {
    ADD_FAILURE() << ranges.status();
    return false;
  }
  const std::vector<std::vector<Interval>> taken = Taken(runs);
  for (size_t part = 0; part < runs.size(); ++part) {
    int64_t all = 0;
    for (size_t run = 0; run < runs.size(); ++run) {
      const Interval range = (*ranges)[part][run], own = taken[part][run];
      all += range.size();
      if (0 <= range.start && range.start <= own.start && own.stop <= range.stop && range.stop <= sizes[run]) continue;
      ADD_FAILURE() << "part " << part << " of run " << run << " takes " << own.start << " to " << own.stop
                    << ", its range is " << range.start << " to " << range.stop << ", step " << step;
      return false;
    }
    const int64_t most = sizes[part] + RangeSlack(static_cast<int64_t>(runs.size()), step);
    if (all <= most) continue;
    ADD_FAILURE() << "part " << part << " has " << all << ", more than " << most << ", step " << step;
    return false;
  }
  return true;
}

TEST(MergeRanges, HaveAllThatIsTakenInSmallWorlds) {
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<Keys> of_two = AllRuns(6), of_three = AllRuns(4);
    for (const Keys& a : of_two) {
      for (const Keys& b : of_two) ASSERT_TRUE(RangesHold({a, b}, step));
    }
    for (const Keys& a : of_three) {
      for (const Keys& b : of_three) {
        for (const Keys& c : of_three) ASSERT_TRUE(RangesHold({a, b, c}, step));
      }
    }
  }
}

TEST(MergeRanges, HaveAllThatIsTakenOfManyRuns) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<Keys> runs(1 + random() % 9);
    const uint64_t keys = i % 2 == 0 ? 4 : 1000;
    for (Keys& run : runs) {
      run.resize(random() % 200);
      for (uint64_t& key : run) key = random() % keys;
      std::sort(run.begin(), run.end());
    }
    for (const int64_t step : {1, 2, 7, 30, 500}) ASSERT_TRUE(RangesHold(runs, step));
  }
}

TEST(MergeRanges, RefuseSamplesThatMakeNoSense) {
  const std::vector<int64_t> sizes = {4, 4};
  EXPECT_EQ(MergeRanges(sizes, 2, std::vector<Keys>{{3, 1}, {1, 2}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MergeRanges(sizes, 2, std::vector<Keys>{{1, 2, 3}, {1, 2}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MergeRanges(sizes, 0, std::vector<Keys>{{1, 2}, {1, 2}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SampleStep, IsForVectorsThatGainByIt) {
  EXPECT_EQ(SampleStep({}), 0);
  EXPECT_EQ(SampleStep({100}), 0);
  EXPECT_EQ(SampleStep({50, 50, 50, 50}), 0);
  const int64_t size = 4 << 20, step = SampleStep({size, size, size, size});
  EXPECT_EQ(step, 1024);
  // A shard is a hundred and more times as large.
  EXPECT_LE(4 * SampleCount(size, step) + RangeSlack(4, step), size / 100);
}

}  // namespace
}  // namespace tessera
