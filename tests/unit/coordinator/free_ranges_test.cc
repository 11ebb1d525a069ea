#include "server/coordinator/free_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace tessera {
namespace {

std::optional<int64_t> FirstFit(const FreeRanges& free, int64_t from, int64_t size) {
  return FreeRanges::Cursor(free).Next(from, size);
}

// The plain meaning: start -> stop.
class Model {
 public:
  explicit Model(int64_t bytes) : free_{{0, bytes}} {}
  void Take(int64_t start, int64_t stop) {
    auto range = std::prev(free_.upper_bound(start));
    const auto [free_start, free_stop] = *range;
    free_.erase(range);
    if (free_start < start) free_[free_start] = start;
    if (stop < free_stop) free_[stop] = free_stop;
  }
  void Give(int64_t start, int64_t stop) {
    auto next = free_.lower_bound(start);
    if (next != free_.end() && next->first == stop) {
      stop = next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->second == start) {
      start = std::prev(next)->first;
      free_.erase(start);
    }
    free_[start] = stop;
  }
  std::optional<int64_t> FirstFit(int64_t from, int64_t size) const {
    for (const auto& [start, stop] : free_) {
      if (stop - std::max(start, from) >= size) return std::max(start, from);
    }
    return std::nullopt;
  }
  const std::map<int64_t, int64_t>& ranges() const { return free_; }

 private:
  std::map<int64_t, int64_t> free_;
};

void ExpectSame(const FreeRanges& free, const Model& model, int step) {
  int64_t bytes = 0, largest = 0;
  FreeRanges::Cursor cursor(free);
  int64_t from = 0;
  for (const auto& [start, stop] : model.ranges()) {
    bytes += stop - start;
    largest = std::max(largest, stop - start);
    ASSERT_EQ(cursor.Next(from, 1), start) << "step " << step;
    ASSERT_EQ(cursor.stop(), stop) << "step " << step;
    from = stop;
  }
  ASSERT_EQ(cursor.Next(from, 1), std::nullopt) << "step " << step;
  ASSERT_EQ(free.bytes(), bytes) << "step " << step;
  ASSERT_EQ(free.largest(), largest) << "step " << step;
  ASSERT_EQ(free.count(), static_cast<int64_t>(model.ranges().size())) << "step " << step;
}

TEST(FreeRangesTest, TakingCutsAndGivingJoins) {
  FreeRanges free(4096);
  free.Take(0, 1024);
  free.Take(2048, 2304);
  EXPECT_EQ(free.count(), 2);
  EXPECT_EQ(free.bytes(), 2816);
  EXPECT_EQ(free.largest(), 1792);
  EXPECT_EQ(FirstFit(free, 0, 1024), 1024);
  EXPECT_EQ(FirstFit(free, 0, 1280), 2304);
  EXPECT_EQ(FirstFit(free, 1280, 512), 1280);
  EXPECT_EQ(FirstFit(free, 0, 2048), std::nullopt);
  free.Give(2048, 2304);
  free.Give(0, 1024);
  EXPECT_EQ(free, FreeRanges(4096));
}

TEST(FreeRangesTest, NothingIsFreeOfNothing) {
  FreeRanges free(0);
  EXPECT_EQ(free.count(), 0);
  EXPECT_EQ(free.largest(), 0);
  EXPECT_EQ(FirstFit(free, 0, 1), std::nullopt);
  EXPECT_EQ(free, FreeRanges());
}

TEST(FreeRangesTest, EqualSetsAreEqualWhateverTheirHistory) {
  FreeRanges up(1000), down(1000);
  for (int i = 0; i < 400; i += 2) up.Take(i, i + 1);
  for (int i = 398; i >= 0; i -= 2) down.Take(i, i + 1);
  EXPECT_EQ(up, down);
  down.Give(200, 201);
  EXPECT_NE(up, down);
  down.Take(204 + 1, 206);
  EXPECT_EQ(up.bytes(), down.bytes());
  EXPECT_NE(up, down);
}

// Copies of copies, each with a model of its own.
TEST(FreeRangesTest, AgreesWithAMapOverRandomHistoriesOfCopies) {
  constexpr int64_t kBytes = 600;
  std::mt19937 random(11);
  std::array<FreeRanges, 4> free;
  free.fill(FreeRanges(kBytes));
  std::vector<Model> models(4, Model(kBytes));
  for (int step = 0; step < 30'000; ++step) {
    const size_t which = random() % 4;
    const int64_t start = static_cast<int64_t>(random() % kBytes);
    const int64_t size = 1 + static_cast<int64_t>(random() % 12);
    const auto fit = models[which].FirstFit(start, size);
    ASSERT_EQ(FirstFit(free[which], start, size), fit) << "step " << step;
    if (random() % 512 == 0) {
      const size_t source = random() % 4;
      free[which] = free[source];
      models[which] = models[source];
    } else if (random() % 2 == 0 && fit.has_value()) {
      free[which].Take(*fit, *fit + size);
      models[which].Take(*fit, *fit + size);
    } else {
      // The first taken range from `start` on.
      int64_t taken = start, stop = kBytes;
      for (const auto& [free_start, free_stop] : models[which].ranges()) {
        if (free_stop <= taken) continue;
        if (free_start > taken) {
          stop = free_start;
          break;
        }
        taken = free_stop;
      }
      if (taken >= kBytes) continue;
      stop = std::min(stop, taken + size);
      free[which].Give(taken, stop);
      models[which].Give(taken, stop);
    }
    ExpectSame(free[which], models[which], step);
    const size_t other = random() % 4;
    ASSERT_EQ(free[which] == free[other], models[which].ranges() == models[other].ranges()) << "step " << step;
  }
}

// Fits of a growing size, further and further up, are those that each search from the bottom finds.
TEST(FreeRangesTest, AWalkFindsWhatSingleSearchesFind) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    FreeRanges free(4000);
    for (int64_t at = static_cast<int64_t>(random() % 9); at + 9 < 4000; at += 10 + static_cast<int64_t>(random() % 40))
      free.Take(at, at + 1 + static_cast<int64_t>(random() % 9));
    FreeRanges::Cursor cursor(free);
    int64_t from = 0, size = 1;
    while (true) {
      const auto found = cursor.Next(from, size);
      ASSERT_EQ(found, FirstFit(free, from, size)) << "round " << round;
      if (!found.has_value()) break;
      from = *found + static_cast<int64_t>(random() % 300);
      size += static_cast<int64_t>(random() % 2);
    }
  }
}

}  // namespace
}  // namespace tessera
