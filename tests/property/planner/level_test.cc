// The busiest sender sends at most 1.1 times what the exact solver says that somebody must.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "server/planner/builder.h"
#include "tests/property/planner/level_solver.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

int64_t BusiestSender(const Plan& plan, int64_t element_bytes) {
  const PlanTraffic traffic = TrafficOf(plan);
  if (traffic.sent_bytes.empty()) return 0;
  return *std::max_element(traffic.sent_bytes.begin(), traffic.sent_bytes.end()) / element_bytes;
}

absl::Status CheckLevelOn(const Topology& topology, const TensorSpec& source, const TensorSpec& destination) {
  const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, topology);
  if (!plan.ok()) return plan.status();
  const int64_t busiest = BusiestSender(*plan, SizeBytes(source.dtype));
  const int64_t least = LeastBusiestSender(source, destination);
  if (busiest < least) return absl::InternalError(StrCat("sends ", busiest, ", less than can be: ", least));
  if (10 * busiest <= 11 * least) return absl::OkStatus();
  return absl::InternalError(StrCat("the busiest sends ", busiest, ", it could be ", least, "\n", ToText(*plan)));
}

// As what is small goes, and as what is large does.
absl::Status CheckLevel(const TensorSpec& source, const TensorSpec& destination) {
  const absl::Status small = CheckLevelOn({}, source, destination);
  return small.ok() ? CheckLevelOn(InTwoPhases(), source, destination) : small;
}

bool HasTerms(const TensorSpec& source, const TensorSpec& destination) {
  if (!HaveSameArrangement(source.mesh, destination.mesh)) return source.has_partial();
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (source.placements[j].is_partial() && !destination.placements[j].is_partial()) return true;
  }
  return false;
}

constexpr int64_t kExtents[] = {0, 1, 2, 3, 5, 7};

class SmallWorlds : public testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(SmallWorlds, EveryPairIsLevel) {
  const Mesh mesh = MakeMesh(GetParam());
  std::vector<std::vector<int64_t>> shapes;
  for (const int64_t a : kExtents) {
    shapes.push_back({a});
    for (const int64_t b : kExtents) shapes.push_back({a, b});
  }
  for (const std::vector<int64_t>& shape : shapes) {
    for (const auto& [source, destination] : AllRedistributions(mesh, shape)) {
      if (HasTerms(source, destination)) continue;
      const absl::Status status = CheckLevel(source, destination);
      ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(destination) << "\n" << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, SmallWorlds,
                         testing::Values(std::vector<int64_t>{2}, std::vector<int64_t>{3}, std::vector<int64_t>{2, 2},
                                         std::vector<int64_t>{2, 3}, std::vector<int64_t>{3, 2},
                                         std::vector<int64_t>{2, 2, 2}));

TEST(RandomWorlds, AreLevel) {
  int checked = 0;
  for (uint64_t seed = 0; checked < 1000; ++seed) {
    const RandomRedistribute drawn = DrawRedistribute(seed);
    if (!drawn.start.empty() || drawn.dtype.has_value() || HasTerms(drawn.source.spec, drawn.destination)) continue;
    ++checked;
    const absl::Status status = CheckLevel(drawn.source.spec, drawn.destination);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << ToText(drawn) << "\n" << status;
  }
}

absl::StatusOr<Plan> PlanTogether(const std::vector<LevelMove>& moves) {
  PlanBuilder builder;
  std::vector<ValueMove> values;
  for (const LevelMove& move : moves) values.push_back({builder.AddInput({move.source, {}}), move.destination});
  const absl::StatusOr<std::vector<int>> moved = builder.AddRedistributes(values);
  if (!moved.ok()) return moved.status();
  for (const int value : *moved) builder.AddOutput(value);
  return std::move(builder).Finish();
}

absl::Status CheckLevelTogether(const std::vector<LevelMove>& moves) {
  const absl::StatusOr<Plan> plan = PlanTogether(moves);
  if (!plan.ok()) return plan.status();
  if (const absl::Status status = VerifyPlan(*plan); !status.ok()) return status;
  if (ParsePlan(ToText(*plan)).value() != *plan) return absl::InternalError("the text does not say all");
  const int64_t busiest = BusiestSender(*plan, 1), least = LeastBusiestSenderOf(moves);
  if (busiest < least) return absl::InternalError(StrCat("sends ", busiest, ", less than can be: ", least));
  const int64_t element_bytes = 8;  // the solver cuts elements
  if (10 * busiest <= 11 * least + 10 * element_bytes) return absl::OkStatus();
  return absl::InternalError(StrCat("the busiest sends ", busiest, ", it could be ", least, "\n", ToText(*plan)));
}

TEST(Together, HoldersOfSeveralTensorsGiveLessOfEach) {
  const auto move = [](const char* shape, const char* from) {
    return LevelMove{*ParseTensorSpec(StrCat(shape, " @ ", from)),
                     *ParseTensorSpec(StrCat(shape, " @ mesh(1; workers=3) [R]"))};
  };
  const auto sent = [](const std::vector<LevelMove>& moves) { return TrafficOf(*PlanTogether(moves)).sent_bytes; };
  EXPECT_EQ(sent({move("f64[12]", "mesh(2) [R]"), move("f64[12]", "mesh(2; workers=0,2) [R]"),
                  move("f64[12]", "mesh(1) [R]")}),
            (std::vector<int64_t>{96, 96, 96, 0}));
  const LevelMove number = move("f64[]", "mesh(2) [R]"), three = move("f64[3]", "mesh(2) [R]");
  EXPECT_EQ(sent({number, number, number, number}), (std::vector<int64_t>{16, 16, 0, 0}));
  EXPECT_EQ(sent({three, three, three, three}), (std::vector<int64_t>{48, 48, 0, 0}));
  // In a chain, the last tensor has one holder alone: its load moves the rest along the chain.
  EXPECT_EQ(sent({move("f64[12]", "mesh(2; workers=0,1) [R]"), move("f64[12]", "mesh(2; workers=1,2) [R]"),
                  move("f64[12]", "mesh(1; workers=2) [R]")}),
            (std::vector<int64_t>{96, 96, 96, 0}));
}

// Two to five tensors on different workers, mostly replicated somewhere.
TEST(Together, RandomListsAreLevel) {
  int levelled = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    RandomDraws draws(seed);
    std::vector<LevelMove> moves;
    const int64_t count = draws.Between(2, 5);
    const auto spec = [&](DType dtype, const std::vector<int64_t>& shape) {
      std::vector<int32_t> workers = {0, 1, 2, 3, 4, 5};
      for (size_t i = workers.size(); i-- > 1;)
        std::swap(workers[i], workers[static_cast<size_t>(draws.Between(0, static_cast<int64_t>(i)))]);
      const int64_t rows = draws.Between(1, 3), columns = draws.Between(1, 2);
      workers.resize(static_cast<size_t>(rows * columns));
      const auto placement = [&] { return draws.Between(0, 2) > 0 ? Placement::Replicate() : Placement::Shard(0); };
      const Placement first = placement(), second = placement();
      return MakeSpec(dtype, shape, MakeMesh({rows, columns}, workers), {first, second});
    };
    for (int64_t i = 0; i < count; ++i) {
      const DType dtype = draws.Between(0, 1) == 0 ? DType::kF64 : DType::kF32;
      const std::vector<int64_t> shape = {draws.Between(1, 40), draws.Between(1, 4)};
      moves.push_back({spec(dtype, shape), spec(dtype, shape)});
    }
    const absl::Status status = CheckLevelTogether(moves);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
    levelled += ToText(*PlanTogether(moves)).find("besides") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(levelled, 100);
}

}  // namespace
}  // namespace tessera
