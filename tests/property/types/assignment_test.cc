#include "schemas/types/assignment.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

using Weights = std::vector<std::vector<int64_t>>;

std::vector<int> Identity(size_t size) {
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The sum of weights, and how many rows are at their own number.
using Worth = std::pair<int64_t, int>;

int CountOwn(const std::vector<int>& columns) {
  int own = 0;
  for (size_t row = 0; row < columns.size(); ++row) own += columns[row] == static_cast<int>(row) ? 1 : 0;
  return own;
}

Worth BestOfAll(size_t size, const std::function<Worth(const std::vector<int>&)>& worth_of) {
  std::vector<int> order = Identity(size);
  Worth best = worth_of(order);
  while (std::next_permutation(order.begin(), order.end())) best = std::max(best, worth_of(order));
  return best;
}

void ExpectPermutation(std::vector<int> columns) {
  std::sort(columns.begin(), columns.end());
  EXPECT_EQ(columns, Identity(columns.size()));
}

Worth WorthOfRows(const Weights& weights, const std::vector<int>& columns) {
  int64_t sum = 0;
  for (size_t row = 0; row < columns.size(); ++row) sum += weights[row][columns[row]];
  return {sum, CountOwn(columns)};
}

struct Grouped {
  std::vector<int> group_of_row;
  std::vector<int> class_of_column;
  Weights weights;
};

Worth WorthOfGroups(const Grouped& grouped, const std::vector<int>& columns) {
  std::set<std::pair<int, int>> pairs;
  for (size_t row = 0; row < columns.size(); ++row) {
    pairs.emplace(grouped.group_of_row[row], grouped.class_of_column[columns[row]]);
  }
  int64_t sum = 0;
  for (const auto& [group, of_class] : pairs) sum += grouped.weights[group][of_class];
  return {sum, CountOwn(columns)};
}

// Many equal weights in even rounds, few in odd ones.
Weights DrawWeights(std::mt19937_64& draws, size_t rows, size_t columns, int round) {
  Weights weights(rows, std::vector<int64_t>(columns));
  for (std::vector<int64_t>& row : weights) {
    for (int64_t& weight : row) weight = static_cast<int64_t>(draws() % (round % 2 == 0 ? 4 : 1000));
  }
  return weights;
}

TEST(AssignRows, IsTheBestOfAllAssignments) {
  std::mt19937_64 draws(11);
  for (int round = 0; round < 1000; ++round) {
    const size_t size = 1 + draws() % 6;
    const Weights weights = DrawWeights(draws, size, size, round);
    const std::vector<int> chosen = AssignRows(weights);
    ExpectPermutation(chosen);
    EXPECT_EQ(WorthOfRows(weights, chosen),
              BestOfAll(size, [&](const std::vector<int>& columns) { return WorthOfRows(weights, columns); }));
  }
}

TEST(AssignGroupedRows, IsTheBestOfAllAssignments) {
  std::mt19937_64 draws(12);
  for (int round = 0; round < 4000; ++round) {
    const size_t size = 1 + draws() % (round % 8 == 0 ? 7 : 6);
    const size_t groups = 1 + draws() % size;
    const size_t classes = 1 + draws() % size;
    Grouped grouped = {Identity(size), Identity(size), DrawWeights(draws, groups, classes, round)};
    for (int& group : grouped.group_of_row) group = static_cast<int>(draws() % groups);  // some stay empty
    for (int& of_class : grouped.class_of_column) of_class = static_cast<int>(draws() % classes);
    const std::vector<int> chosen = AssignGroupedRows(grouped.group_of_row, grouped.class_of_column, grouped.weights);
    ExpectPermutation(chosen);
    EXPECT_EQ(WorthOfGroups(grouped, chosen),
              BestOfAll(size, [&](const std::vector<int>& columns) { return WorthOfGroups(grouped, columns); }));
  }
}

TEST(AssignGroupedRows, IsAssignRowsWhereAllAreAlone) {
  std::mt19937_64 draws(13);
  for (int round = 0; round < 20; ++round) {
    const size_t size = 40 + draws() % 20;
    const Weights weights = DrawWeights(draws, size, size, round);
    EXPECT_EQ(WorthOfRows(weights, AssignGroupedRows(Identity(size), Identity(size), weights)),
              WorthOfRows(weights, AssignRows(weights)));
  }
}

TEST(AssignGroupedRows, KnowsTheExamplesAndTheLimits) {
  EXPECT_EQ(AssignRows({{5, 9}, {4, 2}}), (std::vector<int>{1, 0}));
  EXPECT_EQ(AssignGroupedRows({0, 0}, {0, 0}, {{7}}), (std::vector<int>{0, 1}));
  EXPECT_EQ(AssignGroupedRows({0, 0, 1, 1}, {0, 0, 1, 1}, {{3, 3}, {3, 3}}), (std::vector<int>{0, 3, 2, 1}));
  EXPECT_EQ(AssignRows({}), std::vector<int>{});
  EXPECT_EQ(AssignGroupedRows({}, {}, {}), std::vector<int>{});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(AssignRows({{kMost - 1, kMost}, {kMost, kMost - 1}}), (std::vector<int>{1, 0}));
  EXPECT_EQ(AssignGroupedRows({0, 1}, {0, 1}, {{kMost - 1, kMost}, {kMost, kMost - 1}}), (std::vector<int>{1, 0}));
}

}  // namespace
}  // namespace tessera
