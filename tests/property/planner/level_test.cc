// The busiest sender sends at most 1.1 times what the exact solver says that somebody must.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "server/planner/redistribute.h"
#include "tests/property/planner/level_solver.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

int64_t BusiestSender(const Plan& plan, int64_t element_bytes) {
  const PlanTraffic traffic = TrafficOf(plan);
  if (traffic.sent_bytes.empty()) return 0;
  return *std::max_element(traffic.sent_bytes.begin(), traffic.sent_bytes.end()) / element_bytes;
}

absl::Status CheckLevel(const TensorSpec& source, const TensorSpec& destination) {
  const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination);
  if (!plan.ok()) return plan.status();
  const int64_t busiest = BusiestSender(*plan, SizeBytes(source.dtype));
  const int64_t least = LeastBusiestSender(source, destination);
  if (busiest < least) return absl::InternalError(StrCat("sends ", busiest, ", less than can be: ", least));
  if (10 * busiest <= 11 * least) return absl::OkStatus();
  return absl::InternalError(StrCat("the busiest sends ", busiest, ", it could be ", least, "\n", ToText(*plan)));
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
    const int rank = static_cast<int>(shape.size());
    for (const Placements& from : AllPlacements(mesh.ndim(), rank, {ReduceOp::kSum})) {
      for (const Placements& to : AllPlacements(mesh.ndim(), rank, {ReduceOp::kSum})) {
        const TensorSpec source = MakeSpec(DType::kF64, shape, mesh, from);
        const TensorSpec destination = MakeSpec(DType::kF64, shape, mesh, to);
        if (!ValidateRedistribute(source, destination).ok() || HasTerms(source, destination)) continue;
        const absl::Status status = CheckLevel(source, destination);
        ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(to) << "\n" << status;
      }
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

// Bytes that come from another host.
int64_t CrossingElements(const Plan& plan, const std::vector<int32_t>& hosts) {
  int64_t elements = 0;
  for (const Step& step : plan.steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    const ExchangeWalk walk(exchange);
    for (int64_t flat = 0; flat < exchange.destination.mesh.size(); ++flat) {
      const WorkerIndex self = exchange.destination.mesh.workers()[static_cast<size_t>(flat)];
      const int32_t host = hosts[static_cast<size_t>(self.value)];
      walk.VisitReceived(self, [&](WorkerIndex from, int64_t count) {
        if (hosts[static_cast<size_t>(from.value)] != host) elements += count;
      });
    }
  }
  return elements;
}

// Draws one to four hosts for up to 32 workers: in blocks, in turns, or any.
std::vector<int32_t> DrawHosts(RandomDraws& draws) {
  const int64_t count = draws.Between(2, 4);
  const int64_t kind = draws.Below(3);
  std::vector<int32_t> hosts;
  for (int64_t worker = 0; worker < 32; ++worker) {
    const int64_t host = kind == 0 ? worker / 4 % count : kind == 1 ? worker % count : draws.Below(count);
    hosts.push_back(static_cast<int32_t>(host));
  }
  return hosts;
}

TEST(SeveralHosts, CrossLeastAndAreLevelAfterThat) {
  RandomDraws draws(5);
  int several = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const RandomRedistribute drawn = DrawRedistribute(seed);
    const std::vector<int32_t> hosts = DrawHosts(draws);
    if (!drawn.start.empty() || drawn.dtype.has_value()) continue;
    const TensorSpec& source = drawn.source.spec;
    SCOPED_TRACE(StrCat("seed ", seed, ": ", ToText(drawn)));
    Topology topology;
    topology.host_of_worker = hosts;
    const absl::StatusOr<Plan> plan = PlanRedistribute(drawn.source, drawn.destination, topology);
    ASSERT_TRUE(plan.ok()) << plan.status();
    several += plan->hosts.several() ? 1 : 0;
    const absl::StatusOr<Plan> parsed = ParsePlan(ToText(*plan));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_TRUE(*parsed == *plan) << ToText(*plan);
    const std::vector<double> dense = Numbers(source);
    const absl::StatusOr<std::vector<double>> result = RunPlan(*plan, {dense}, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(Agree(*result, dense, 1e-5));
    const absl::StatusOr<RedistributeBound> bound = BoundRedistribute(source, drawn.destination);
    ASSERT_TRUE(bound.ok());
    const PlanTraffic traffic = TrafficOf(*plan);
    EXPECT_EQ(std::accumulate(traffic.received_bytes.begin(), traffic.received_bytes.end(), int64_t{0}),
              bound->total_bytes);
    EXPECT_EQ(std::accumulate(traffic.sent_bytes.begin(), traffic.sent_bytes.end(), int64_t{0}), bound->total_bytes);
    if (HasTerms(source, drawn.destination)) continue;
    EXPECT_EQ(CrossingElements(*plan, hosts), LeastCrossing(source, drawn.destination, hosts));
    const int64_t least = LeastBusiestSender(source, drawn.destination, hosts);
    EXPECT_LE(10 * BusiestSender(*plan, SizeBytes(source.dtype)), 11 * least) << ToText(*plan);
  }
  EXPECT_GT(several, 1000);
}

}  // namespace
}  // namespace tessera
