// Moves by way of relays: the answer and the laws of other moves, and what a source gives.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/builder.h"
#include "server/planner/relays.h"
#include "tests/property/planner/crossing.h"
#include "tests/property/planner/host_worlds.h"
#include "tests/property/planner/plan_checks.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

// The plan with its move by way of relays; none when it has no single move to replicas.
std::optional<Plan> RelayedPlan(const TensorSpec& source, const TensorSpec& destination,
                                const std::vector<int32_t>& hosts) {
  absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, TopologyOf(hosts));
  if (!plan.ok() || plan->steps.empty() || CountReplicas(destination) == 1) return std::nullopt;
  const ExchangeStep& move = std::get<ExchangeStep>(plan->steps[0]);
  if (move.exchange.role != ExchangeRole::kMove) return std::nullopt;
  const std::vector<ExchangeStep> relayed = Relayed(move);
  plan->steps.assign(relayed.begin(), relayed.end());
  return *std::move(plan);
}

class RelayedMoves : public testing::TestWithParam<HostWorld> {
 protected:
  int32_t HostOf(WorkerIndex worker) const { return GetParam().hosts[static_cast<size_t>(worker.value)]; }

  // Everything that a move must be; and across hosts as little as can be.
  void Check(const TensorSpec& source, const TensorSpec& destination) {
    const std::optional<Plan> plan = RelayedPlan(source, destination, GetParam().hosts);
    if (!plan.has_value()) return;
    ++checked_;
    const absl::Status checked = CheckPlan(*plan, source, destination);
    ASSERT_TRUE(checked.ok()) << checked;
    CheckCrossing(*plan, source, destination);
  }

  void CheckCrossing(const Plan& plan, const TensorSpec& source, const TensorSpec& destination) {
    const std::string what = ToText(plan);
    std::vector<int64_t> crossing;  // by step
    for (const Step& step : plan.steps) {
      const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
      const Pieces walk(exchange);
      int64_t& count = crossing.emplace_back(0);
      for (const WorkerIndex self : exchange.destination.mesh.workers()) {
        walk.VisitReceived(
            self, [&](WorkerIndex from, int64_t elements) { count += HostOf(from) != HostOf(self) ? elements : 0; });
      }
    }
    EXPECT_EQ(crossing[0] + crossing[1], CountLeastCrossing(source, destination, GetParam().hosts).moves) << what;
    EXPECT_EQ(crossing[2], 0) << what;
    if (destination.has_partial()) return;  // each term is another element
    EXPECT_EQ(crossing[0], WantedFromFar(source, destination)) << what;
  }

  // Elements that some host wants and has not, each counted once.
  int64_t WantedFromFar(const TensorSpec& source, const TensorSpec& destination) const {
    std::vector<std::set<int32_t>> holders(static_cast<size_t>(NumElements(source.shape)));
    std::vector<bool> wanted(holders.size(), false);
    const auto visit = [](const TensorSpec& spec, auto each) {
      for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
        const Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
        const Shape extents = BoxShape(box);
        for (int64_t i = 0; i < NumElements(extents); ++i) {
          int64_t rest = i, at = 0, stride = 1;
          for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) {
            at += (box[d].start + rest % extents[d]) * stride;
            stride *= spec.shape[d];
          }
          each(spec.mesh.workers()[static_cast<size_t>(flat)], static_cast<size_t>(at));
        }
      }
    };
    visit(source, [&](WorkerIndex worker, size_t at) { holders[at].insert(HostOf(worker)); });
    visit(destination, [&](WorkerIndex worker, size_t at) {
      if (!holders[at].contains(HostOf(worker))) wanted[at] = true;
    });
    return std::count(wanted.begin(), wanted.end(), true);
  }

  int checked_ = 0;
};

TEST_P(RelayedMoves, OnOneMesh) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {5, 4}, {1, 2}}) {
    for (const auto& [source, destination] : AllRedistributions(mesh, shape)) {
      ASSERT_NO_FATAL_FAILURE(Check(source, destination));
    }
  }
  EXPECT_GT(checked_, 3);
}

// From one worker, of the mesh or not, and from two.
TEST_P(RelayedMoves, FromAnotherMesh) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  const int last = static_cast<int>(mesh.size()) - 1;
  for (const std::string& from : {StrCat("mesh(1; workers=0) [R]"), StrCat("mesh(1; workers=", last, ") [R]"),
                                  StrCat("mesh(2; workers=", last, ",0) [S(0)]"), StrCat("mesh(2; workers=0,1) [R]"),
                                  StrCat("mesh(1; workers=", last + 1, ") [R]")}) {
    const TensorSpec source = *ParseTensorSpec(StrCat("f64[6,5] @ ", from));
    for (const Placements& to : AllPlacements(mesh.ndim(), 2, {})) {
      ASSERT_NO_FATAL_FAILURE(Check(source, MakeSpec(DType::kF64, {6, 5}, mesh, to)));
    }
  }
  EXPECT_GT(checked_, 4);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RelayedMoves,
                         testing::Values(HostWorld{{3}, {0, 1, 2, 3}}, HostWorld{{4}, {0, 1, 1, 2, 3}},
                                         HostWorld{{5}, {0, 0, 1, 1, 2, 2}}, HostWorld{{2, 2}, {0, 1, 2, 3, 0}},
                                         HostWorld{{2, 3}, {0, 0, 1, 1, 2, 2, 3}},
                                         HostWorld{{3, 2}, {0, 1, 2, 2, 1, 1, 0}}));

int64_t BusiestLink(const Plan& plan, const std::vector<int32_t>& hosts) {
  std::map<int32_t, int64_t> given;
  const auto host_of = [&hosts](WorkerIndex worker) { return hosts[static_cast<size_t>(worker.value)]; };
  for (const Step& step : plan.steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    const Pieces walk(exchange);
    for (const WorkerIndex self : exchange.destination.mesh.workers()) {
      walk.VisitReceived(self, [&](WorkerIndex from, int64_t elements) {
        if (host_of(from) != host_of(self)) given[host_of(from)] += elements;
      });
    }
  }
  int64_t busiest = 0;
  for (const auto& [host, elements] : given) busiest = std::max(busiest, elements);
  return busiest;
}

bool IsRelayed(const Plan& plan) {
  return std::get<ExchangeStep>(plan.steps[0]).exchange.far_takers == FarTakers::kRelays;
}

// Tensors of one plan share the three phases; exchanges that can't be relayed go along.
TEST(Relays, OfSeveralTensorsShareTheirPhases) {
  const std::vector<int32_t> hosts = {0, 0, 1, 1, 2, 2, 3, 3};
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  std::vector<std::vector<double>> values;
  const auto add = [&](const std::string& shape, const char* from, const char* to) {
    const TensorSpec source = *ParseTensorSpec(StrCat("f64", shape, " @ ", from));
    values.push_back(Numbers(source, static_cast<int64_t>(moves.size())));
    moves.push_back({builder.AddInput({source, {}}), *ParseTensorSpec(StrCat("f64", shape, " @ mesh(8) ", to))});
  };
  add("[400,500]", "mesh(1; workers=0) [R]", "[R]");
  add("[100000]", "mesh(1; workers=1) [R]", "[R]");
  add("[240]", "mesh(1; workers=0) [R]", "[S(0)]");
  const absl::StatusOr<std::vector<int>> outputs = builder.AddRedistributes(moves);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  for (const int output : *outputs) builder.AddOutput(output);
  const Plan plan = std::move(builder).Finish(TopologyOf(hosts));
  EXPECT_TRUE(IsRelayed(plan)) << ToText(plan);
  EXPECT_EQ(PhasesOf(plan).back(), 3) << ToText(plan);
  EXPECT_LE(BusiestLink(plan, hosts), 300000 + 240);
  const absl::StatusOr<std::vector<std::vector<double>>> results = RunPlanOutputs(plan, values, {});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ(*results, values);
  const absl::Status programs = CheckPrograms(plan, values);
  EXPECT_TRUE(programs.ok()) << programs;
}

TEST(Relays, AreChosenWhereTheyAreFaster) {
  const std::vector<int32_t> own_hosts = {0, 1, 2, 3, 4, 5, 6, 7};
  // Large: the source's link gives each element once.
  const Plan large = PlanOf("f32[1048576] @ mesh(1; workers=0) [R]", "f32[1048576] @ mesh(8) [R]", own_hosts);
  EXPECT_TRUE(IsRelayed(large)) << ToText(large);
  EXPECT_LE(BusiestLink(large, own_hosts), 1048576 + 8);
  // Small: a round more costs more than it saves.
  EXPECT_FALSE(IsRelayed(PlanOf("f32[64] @ mesh(1; workers=0) [R]", "f32[64] @ mesh(8) [R]", own_hosts)));
  // All links give and take the same already, or there are only two hosts.
  EXPECT_FALSE(IsRelayed(PlanOf("f32[1048576] @ mesh(8) [S(0)]", "f32[1048576] @ mesh(8) [R]", own_hosts)));
  EXPECT_FALSE(IsRelayed(PlanOf("f32[1048576] @ mesh(1; workers=0) [R]", "f32[1048576] @ mesh(4) [R]", {0, 0, 1, 1})));
  // Several workers of each host.
  const std::vector<int32_t> pairs = {0, 0, 1, 1, 2, 2, 3, 3};
  const Plan shared = PlanOf("f32[1048576] @ mesh(1; workers=0) [R]", "f32[1048576] @ mesh(8) [R]", pairs);
  EXPECT_TRUE(IsRelayed(shared)) << ToText(shared);
  EXPECT_LE(BusiestLink(shared, pairs), 1048576 + 8);
}

}  // namespace
}  // namespace tessera
