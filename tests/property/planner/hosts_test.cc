// Redistributions on several hosts: the answer and every law of one host, and the fewest elements across hosts.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "server/planner/builder.h"
#include "tests/property/planner/crossing.h"
#include "tests/property/planner/host_worlds.h"
#include "tests/property/planner/level_solver.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

bool HasTerms(const TensorSpec& source, const TensorSpec& destination) {
  if (!HaveSameArrangement(source.mesh, destination.mesh)) return source.has_partial();
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (source.placements[j].is_partial() && !destination.placements[j].is_partial()) return true;
  }
  return false;
}

// Elements that come from another host, by the role of the step.
Crossing CrossingOf(const Plan& plan, const std::vector<int32_t>& hosts) {
  const auto host_of = [&hosts](WorkerIndex worker) { return hosts[static_cast<size_t>(worker.value)]; };
  Crossing crossing;
  for (const Step& step : plan.steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    const Pieces walk(exchange);
    std::vector<WorkerIndex> workers(exchange.destination.mesh.workers().begin(),
                                     exchange.destination.mesh.workers().end());
    for (const WorkerIndex worker : exchange.source.mesh.workers()) {
      if (!exchange.destination.mesh.FindWorker(worker).has_value()) workers.push_back(worker);
    }
    for (const WorkerIndex self : workers) {
      walk.VisitReceived(self, [&](WorkerIndex from, int64_t count) {
        if (host_of(from) == host_of(self)) return;
        switch (exchange.role) {
          case ExchangeRole::kMove: crossing.moves += count; break;
          case ExchangeRole::kReduce: crossing.sums += count; break;
          case ExchangeRole::kGatherReduced:
            (PendingTerms(exchange.source, exchange.destination) == 1 ? crossing.moves : crossing.spreads) += count;
            break;
          case ExchangeRole::kHostGather: ADD_FAILURE() << "shared with another host"; break;
        }
      });
    }
  }
  return crossing;
}

// Elements that the busiest worker sends in the step that moves, or in its rounds.
int64_t BusiestMover(const Plan& plan) {
  std::map<WorkerIndex, int64_t> sent_by;
  for (const Step& step : plan.steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    if (exchange.role != ExchangeRole::kMove && !exchange.is_by_rounds()) continue;
    if (exchange.role == ExchangeRole::kHostGather) continue;
    Pieces(exchange).VisitTotals([](WorkerIndex, int64_t) {},
                                 [&](WorkerIndex from, int64_t elements) { sent_by[from] += elements; });
  }
  int64_t busiest = 0;
  for (const auto& [worker, sent] : sent_by) busiest = std::max(busiest, sent);
  return busiest;
}

absl::Status CheckHosts(const OperandLayout& layout, const TensorSpec& destination, const std::vector<int32_t>& hosts,
                        double tolerance) {
  const TensorSpec& source = layout.spec;
  Topology topology;
  topology.host_of_worker = hosts;
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanRedistribute(layout, destination, topology));
  const auto wrong = [&plan](const auto&... pieces) {
    return absl::InternalError(StrCat(pieces..., "\n", ToText(plan)));
  };
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return wrong("the text is another plan's");
  const std::vector<double> dense = Numbers(source);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<double> result, RunPlan(plan, {dense}, {}));
  if (!Agree(result, dense, tolerance)) return wrong("the result differs from the dense answer");
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(source, destination));
  const PlanTraffic traffic = TrafficOf(plan);
  const auto sum = [](const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  if (sum(traffic.received_bytes) != bound.total_bytes || sum(traffic.sent_bytes) != bound.total_bytes) {
    return wrong("receives ", sum(traffic.received_bytes), ", sends ", sum(traffic.sent_bytes), ", the bound is ",
                 bound.total_bytes);
  }
  const int64_t limit_bytes = (MaxShardElements(source) + MaxShardElements(destination)) * SizeBytes(source.dtype);
  if (layout.strides.empty()) {
    for (const int64_t peak_bytes : PeakBytes(plan)) {
      if (peak_bytes > limit_bytes) return wrong("a peak of ", peak_bytes, " is over input plus output");
    }
  }
  if (!HasTerms(source, destination) && !plan.steps.empty()) {
    const int64_t busiest = BusiestMover(plan);
    const int64_t least = LeastBusiestSender(source, destination, hosts);
    if (10 * busiest > 11 * least) return wrong("the busiest sends ", busiest, ", it could be ", least);
  }
  const Crossing crossing = CrossingOf(plan, hosts);
  const Crossing least = CountLeastCrossing(source, destination, hosts);
  if (crossing != least) {
    return wrong("moves, sums and spreads of ", crossing.moves, ", ", crossing.sums, " and ", crossing.spreads,
                 " elements cross, and must of ", least.moves, ", ", least.sums, " and ", least.spreads);
  }
  return absl::OkStatus();
}

class SmallWorlds : public testing::TestWithParam<HostWorld> {};

TEST_P(SmallWorlds, EveryPairIsRightAndCrossesLeast) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {5, 4}, {3, 8}, {1, 2}}) {
    const int rank = static_cast<int>(shape.size());
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
      if (op != ReduceOp::kSum && shape[0] != 5) continue;
      for (const Placements& from : AllPlacements(mesh.ndim(), rank, {op})) {
        for (const Placements& to : AllPlacements(mesh.ndim(), rank, {op})) {
          const TensorSpec source = MakeSpec(DType::kF64, shape, mesh, from);
          const TensorSpec destination = MakeSpec(DType::kF64, shape, mesh, to);
          if (!ValidateRedistribute(source, destination).ok()) continue;
          if (op != ReduceOp::kSum && !HasTerms(source, destination)) continue;
          const absl::Status status =
              CheckHosts({source, {}}, destination, GetParam().hosts, op == ReduceOp::kAvg ? 1e-12 : 0);
          ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(to) << "\n" << status;
        }
      }
    }
  }
}

TEST_P(SmallWorlds, ProgramsDoWhatThePlanSays) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin}) {
    for (const Placements& from : AllPlacements(mesh.ndim(), 2, {op})) {
      for (const Placements& to : AllPlacements(mesh.ndim(), 2, {op})) {
        const TensorSpec source = MakeSpec(DType::kF64, {7, 5}, mesh, from);
        const TensorSpec destination = MakeSpec(DType::kF64, {7, 5}, mesh, to);
        if (!ValidateRedistribute(source, destination).ok()) continue;
        if (op != ReduceOp::kSum && !HasTerms(source, destination)) continue;
        for (Topology topology : {Topology(), InTwoPhases()}) {
          topology.host_of_worker = GetParam().hosts;
          const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, topology);
          ASSERT_TRUE(plan.ok()) << plan.status();
          const absl::Status status = CheckPrograms(*plan, {Numbers(source)});
          ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(to) << "\n" << status << ToText(*plan);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, SmallWorlds,
                         testing::Values(HostWorld{{3}, {0, 0, 1}}, HostWorld{{4}, {0, 1, 1, 2}},
                                         HostWorld{{4}, {0, 1, 0, 1}}, HostWorld{{5}, {0, 0, 0, 1, 1}},
                                         HostWorld{{2, 2}, {0, 0, 1, 1}}, HostWorld{{2, 2}, {0, 1, 0, 1}},
                                         HostWorld{{2, 2}, {0, 0, 0, 1}}, HostWorld{{2, 3}, {0, 0, 1, 1, 2, 2}},
                                         HostWorld{{3, 2}, {0, 1, 2, 2, 1, 1}}));

// Up to four hosts for up to 32 workers: in blocks, in turns, or any. Now and then a host for each worker or two, where
// small tensors go by rounds.
std::vector<int32_t> DrawHosts(RandomDraws& draws) {
  const int64_t kind = draws.Below(4);
  const int64_t count = kind == 3 ? draws.Between(16, 32) : draws.Between(2, 4);
  std::vector<int32_t> hosts;
  for (int64_t worker = 0; worker < 32; ++worker) {
    const int64_t host = kind == 0 ? worker / 4 % count : kind % 2 == 1 ? worker % count : draws.Below(count);
    hosts.push_back(static_cast<int32_t>(host));
  }
  return hosts;
}

bool IsByRounds(const RandomRedistribute& drawn, const std::vector<int32_t>& hosts) {
  Topology topology;
  topology.host_of_worker = hosts;
  const absl::StatusOr<Plan> plan = PlanRedistribute(drawn.source, drawn.destination, topology);
  return plan.ok() && !plan->steps.empty() && std::get<ExchangeStep>(plan->steps[0]).exchange.is_by_rounds();
}

TEST(RandomWorlds, AreRightAndCrossLeast) {
  RandomDraws draws(5);
  int checked = 0;
  int by_rounds = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const RandomRedistribute drawn = DrawRedistribute(seed);
    const std::vector<int32_t> hosts = DrawHosts(draws);
    if (!drawn.start.empty() || drawn.dtype.has_value()) continue;
    ++checked;
    by_rounds += IsByRounds(drawn, hosts) ? 1 : 0;
    const absl::Status status = CheckHosts(drawn.source, drawn.destination, hosts, 1e-5);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << ToText(drawn) << "\n" << status;
  }
  EXPECT_GT(checked, 1000);
  EXPECT_GT(by_rounds, 3);
}

// Bytes that each worker sends in a sum over all of them, which each keeps a part of or all. Also where parts are so
// large that they end with whole rows, and extents so odd that they don't end where they would.
TEST(RandomWorlds, TrafficIsThatOfTheTransfers) {
  RandomDraws draws(21);
  int cut_at_rows = 0;
  for (int n = 0; n < 400; ++n) {
    const HostWorld world = draws.OneIn(2) ? HostWorld{{6}, {0, 0, 0, 1, 1, 1}} : HostWorld{{2, 3}, {0, 1, 1, 0, 0, 1}};
    const Mesh mesh = MakeMesh(world.mesh);
    const auto placements = [&](const std::vector<ReduceOp>& partial_ops) {
      const std::vector<Placements> all = AllPlacements(mesh.ndim(), 2, partial_ops);
      return all[static_cast<size_t>(draws.Below(static_cast<int64_t>(all.size())))];
    };
    const std::vector<int64_t> shape = {draws.Between(1, 300), draws.Between(1, 300)};
    const TensorSpec source = MakeSpec(DType::kU8, shape, mesh, placements({ReduceOp::kSum}));
    const TensorSpec destination = MakeSpec(DType::kU8, shape, mesh, placements({}));
    const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, TopologyOf(world.hosts));
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<int64_t> received(world.hosts.size()), sent(world.hosts.size());
    for (const Step& step : plan->steps) {
      const Pieces walk(std::get<ExchangeStep>(step).exchange);
      for (size_t worker = 0; worker < received.size(); ++worker) {
        walk.VisitReceived(WorkerIndex(static_cast<int32_t>(worker)), [&](WorkerIndex from, int64_t elements) {
          received[worker] += elements;
          sent[static_cast<size_t>(from.value)] += elements;
        });
      }
      cut_at_rows += std::get<ExchangeStep>(step).exchange.role == ExchangeRole::kHostGather ? 1 : 0;
    }
    const PlanTraffic traffic = TrafficOf(*plan);
    ASSERT_EQ(traffic.received_bytes, received) << ToText(source) << " -> " << ToText(destination);
    ASSERT_EQ(traffic.sent_bytes, sent) << ToText(source) << " -> " << ToText(destination);
  }
  EXPECT_GT(cut_at_rows, 100);
}

TEST(Sums, AreSharedByAllWorkersOfAHost) {
  for (const char* to : {"f64[960] @ mesh(6) [S(0)]", "f64[960] @ mesh(6) [R]"}) {
    for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 0, 1}}) {
      const Plan plan = PlanOf("f64[960] @ mesh(6) [P(sum)]", to, hosts);
      const PlanTraffic traffic = TrafficOf(plan);
      const int64_t total = std::accumulate(traffic.sent_bytes.begin(), traffic.sent_bytes.end(), int64_t{0});
      for (const int64_t sent : traffic.sent_bytes) EXPECT_LE(sent * 6, total + total / 20) << ToText(plan);
      EXPECT_EQ(CrossingOf(plan, hosts).sums, 960);
    }
  }
}

// An all-gather, an all-reduce and a broadcast cross once for each host that lacks it, and are level.
TEST(Shares, CrossOnceForAHost) {
  const std::vector<int32_t> hosts = {0, 0, 0, 1, 1, 1, 2, 2, 2};
  struct Case {
    const char* source;
    int64_t crossing;
    std::vector<int64_t> shared;  // what each worker gives to the others of its host
  };
  for (const Case& each :
       {Case{"f64[900] @ mesh(9) [S(0)]", 2 * 900, std::vector<int64_t>(9, 2 * 200)},
        Case{"f64[900] @ mesh(9) [P(sum)]", 4 * 900, std::vector<int64_t>(9, 2 * 200)},
        Case{"f64[900] @ mesh(1; workers=4) [R]", 2 * 900, {600, 600, 600, 0, 0, 0, 600, 600, 600}}}) {
    const Plan plan = PlanOf(each.source, "f64[900] @ mesh(9) [R]", hosts);
    const Exchange& share = std::get<ExchangeStep>(plan.steps.back()).exchange;
    ASSERT_EQ(share.role, ExchangeRole::kHostGather) << ToText(plan);
    const Crossing crossing = CrossingOf(plan, hosts);
    EXPECT_EQ(crossing.moves + crossing.sums + crossing.spreads, each.crossing) << ToText(plan);
    std::vector<int64_t> shared(9, 0);
    Pieces(share).VisitTotals(
        [](WorkerIndex, int64_t) {},
        [&](WorkerIndex from, int64_t elements) { shared[static_cast<size_t>(from.value)] += elements; });
    EXPECT_EQ(shared, each.shared) << ToText(plan);
  }
}

// A term that has replicas comes from where it is; the other terms come from as few hosts as can be.
TEST(Sums, ComeFromTheFewestHosts) {
  // Terms by coordinate of y, each on two workers. On hosts 1 and 2, 2 and 0, 3 and 2: host 2 has what 0, which
  // reduces, lacks. On hosts 0 and 3, 1 and 1, 2 and 3, reduced on 1: host 3.
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{1, 2, 3, 2, 0, 2}, {0, 1, 2, 3, 1, 3}}) {
    const Plan plan = PlanOf("f64[8] @ mesh(x:2,y:3) [R, P(sum)]", "f64[8] @ mesh(1; workers=4) [R]", hosts);
    EXPECT_EQ(CrossingOf(plan, hosts).sums, 8) << ToText(plan);
  }
}

// Others of a host don't read pushed bytes where they lie when more is pushed to the same memory later.
TEST(Shares, AreNotTakenFromMemoryThatIsPushedToAgain) {
  const TensorSpec pending = *ParseTensorSpec("f64[8] @ mesh(4) [P(sum)]");
  const TensorSpec whole = *ParseTensorSpec("f64[8] @ mesh(4) [R]");
  Topology topology = InTwoPhases();
  topology.host_of_worker = {0, 0, 1, 1};
  for (const bool again : {false, true}) {
    PlanBuilder builder;
    const int first = builder.AddInput({pending, {}}), second = builder.AddInput({pending, {}});
    const auto add_sum_of = [&](int value) {
      LocalStep sum;
      sum.op = ReduceLocalOp{ReduceOp::kSum, {0}};
      sum.inputs = {value};
      sum.output = builder.AddTemporary(*ParseTensorSpec("f64[1] @ mesh(4) [R]"));
      builder.AddOutput(sum.output);
      builder.AddLocal(std::move(sum));
    };
    const int temporary = builder.AddTemporary(whole);
    ASSERT_TRUE(builder.AddMoves({{{first, {}, temporary, {}}}}).ok());
    add_sum_of(temporary);
    if (again) {
      const int other = builder.AddAgain(temporary, whole);
      ASSERT_TRUE(builder.AddMoves({{{second, {}, other, {}}}}).ok());
      add_sum_of(other);
    }
    const Plan plan = std::move(builder).Finish(topology);
    EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan) << ToText(plan);
    int shares = 0;
    for (const Step& step : plan.steps) {
      const auto* exchange = std::get_if<ExchangeStep>(&step);
      shares += exchange != nullptr && exchange->exchange.role == ExchangeRole::kHostGather ? 1 : 0;
    }
    EXPECT_EQ(shares, again ? 0 : 1) << ToText(plan);
  }
}

}  // namespace
}  // namespace tessera
