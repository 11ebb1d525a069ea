// Seeded random lists of tensors redistributed by one plan: each result is the dense one, each worker receives the sum
// of the single bounds, and everything happens in two phases at most.

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/program.h"
#include "server/planner/builder.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr uint64_t kLists = 400;
constexpr uint64_t kBlocks = 8;
constexpr int64_t kMostElements = 2000;  // of a tensor in a list

using Drawn = std::vector<RandomRedistribute>;

// Two to five whole tensors that keep their dtype. Every fourth list is of f64 alone, which CheckPrograms can run.
Drawn DrawList(uint64_t seed) {
  RandomDraws draws(seed);
  const size_t count = static_cast<size_t>(draws.Between(2, 5));
  Drawn list;
  for (uint64_t next = seed * 1000; list.size() < count; ++next) {
    RandomRedistribute drawn = DrawRedistribute(next);
    if (!drawn.start.empty() || drawn.dtype.has_value()) continue;
    if (NumElements(drawn.source.spec.shape) > kMostElements) continue;
    if (seed % 4 == 0) drawn.source.spec.dtype = drawn.destination.dtype = DType::kF64;
    list.push_back(std::move(drawn));
  }
  return list;
}

absl::StatusOr<Plan> PlanOf(const Drawn& list) {
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  for (const RandomRedistribute& drawn : list) moves.push_back({builder.AddInput(drawn.source), drawn.destination});
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> values, builder.AddRedistributes(moves));
  for (const int value : values) builder.AddOutput(value);
  return std::move(builder).Finish();
}

int64_t Sum(const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

// In all the sum of the bounds; by worker, where nothing is pending.
absl::Status CheckReceived(const Drawn& list, const Plan& plan) {
  const PlanTraffic traffic = TrafficOf(plan);
  std::vector<int64_t> expected(traffic.received_bytes.size(), 0);
  int64_t total = 0;
  bool by_worker = true;
  for (const RandomRedistribute& drawn : list) {
    TESSERA_ASSIGN_OR_RETURN(const RedistributeBound bound, BoundRedistribute(drawn.source.spec, drawn.destination));
    total += bound.total_bytes;
    by_worker = by_worker && !bound.received_bytes.empty();
    for (size_t flat = 0; flat < bound.received_bytes.size(); ++flat) {
      const size_t i = traffic.by_worker ? static_cast<size_t>(drawn.destination.mesh.workers()[flat].value) : flat;
      expected[i] += bound.received_bytes[flat];
    }
  }
  if (Sum(traffic.received_bytes) != total || Sum(traffic.sent_bytes) != total) {
    return absl::InternalError(StrCat("receives ", Sum(traffic.received_bytes), ", the bounds are ", total));
  }
  if (by_worker && traffic.received_bytes != expected) return absl::InternalError("a worker is not at its bound");
  return absl::OkStatus();
}

// One message for each pair of workers and phase.
absl::Status CheckMessages(const Plan& plan) {
  for (const PlanBuffer& buffer : plan.buffers) {
    for (const WorkerIndex worker : buffer.mesh.workers()) {
      TESSERA_ASSIGN_OR_RETURN(const Program program, LowerPlan(plan, worker, MessageLists::kBuild));
      for (const Phase& phase : program.phases) {
        std::map<WorkerIndex, int> sent;
        std::map<WorkerIndex, int> received;
        for (const OutgoingMessage& message : phase.outgoing) ++sent[message.to];
        for (const IncomingMessage& message : phase.incoming) ++received[message.from];
        if (sent.size() != phase.outgoing.size() || received.size() != phase.incoming.size()) {
          return absl::InternalError(StrCat("two messages of a pair\n", ToText(program)));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckList(const Drawn& list, bool runs_programs) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanOf(list));
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return absl::InternalError(StrCat("the text is another plan's:\n", ToText(plan)));
  if (!plan.steps.empty() && PhasesOf(plan).back() > 2) return absl::InternalError("more than two phases");
  std::vector<std::vector<double>> dense;
  for (size_t i = 0; i < list.size(); ++i) dense.push_back(Numbers(list[i].source.spec, static_cast<int64_t>(i)));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> results, RunPlanOutputs(plan, dense, {}));
  for (size_t i = 0; i < list.size(); ++i) {
    const double tolerance = list[i].source.spec.partial_op() == ReduceOp::kAvg ? 1e-5 : 0;
    if (!Agree(results[i], dense[i], tolerance)) return absl::InternalError(StrCat("result ", i, " is wrong"));
  }
  TESSERA_RETURN_IF_ERROR(CheckReceived(list, plan));
  TESSERA_RETURN_IF_ERROR(CheckMessages(plan));
  return runs_programs ? CheckPrograms(plan, dense) : absl::OkStatus();
}

class RandomLists : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomLists, AreRightAndAtTheBoundInTwoPhases) {
  for (uint64_t seed = GetParam(); seed < kLists; seed += kBlocks) {
    const Drawn list = DrawList(seed);
    bool runs_programs = seed % 4 == 0;
    std::string text;
    for (const RandomRedistribute& drawn : list) {
      StrAppend(&text, ToText(drawn), "\n");
      // CheckPrograms knows sums, maxima and minima of arrays in their own buffers.
      const ReduceOp op = drawn.source.spec.partial_op();
      runs_programs = runs_programs && drawn.source.strides.empty() && op != ReduceOp::kAvg && op != ReduceOp::kProduct;
    }
    const absl::Status status = CheckList(list, runs_programs);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ":\n" << text << status;
  }
}

TEST(RandomLists, HavePlansOfOneAndOfTwoPhasesWithPendingTensorsBesideOthers) {
  std::map<std::string, int> kinds;
  for (uint64_t seed = 0; seed < kLists; ++seed) {
    const Drawn list = DrawList(seed);
    const absl::StatusOr<Plan> plan = PlanOf(list);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ++kinds[StrCat("phases ", plan->steps.empty() ? 0 : PhasesOf(*plan).back())];
    int64_t moves = 0;
    int64_t reductions = 0;
    for (const Step& step : plan->steps) {
      const ExchangeRole role = std::get<ExchangeStep>(step).exchange.role;
      moves += role == ExchangeRole::kMove ? 1 : 0;
      reductions += role == ExchangeRole::kReduce ? 1 : 0;
    }
    if (moves > 0 && reductions > 0) ++kinds["both"];
    if (reductions > 1) ++kinds["several reductions"];
  }
  for (const char* kind : {"phases 1", "phases 2", "both", "several reductions"}) EXPECT_GE(kinds[kind], 20) << kind;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLists, testing::Range(uint64_t{0}, kBlocks));

}  // namespace
}  // namespace tessera
