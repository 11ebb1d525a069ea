// The busiest sender sends at most 1.1 times what the exact solver says that somebody must.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
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

}  // namespace
}  // namespace tessera
