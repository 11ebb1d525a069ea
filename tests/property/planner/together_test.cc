// Seeded random lists of tensors redistributed by one plan: each result is the dense one, each worker receives the sum
// of the single bounds, and everything happens in two phases at most (three on several hosts).

#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/program.h"
#include "server/planner/builder.h"
#include "server/planner/planner.h"
#include "tests/property/planner/random_redistribute.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/two_phases.h"

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

// Workers 0 to 4 on one host, the others on another one, in turns.
Topology TwoHosts() {
  Topology topology;
  for (int worker = 0; worker < 16; ++worker) topology.host_of_worker.push_back(worker < 5 ? 0 : worker % 2);
  return topology;
}

absl::StatusOr<Plan> PlanOf(const Drawn& list, const Topology& topology = {}) {
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  for (const RandomRedistribute& drawn : list) moves.push_back({builder.AddInput(drawn.source), drawn.destination});
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> values, builder.AddRedistributes(moves));
  for (const int value : values) builder.AddOutput(value);
  return std::move(builder).Finish(topology);
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
        for (const OutgoingMessage& message : phase.messages.outgoing) ++sent[message.to];
        for (const IncomingMessage& message : phase.messages.incoming) ++received[message.from];
        if (sent.size() != phase.messages.outgoing.size() || received.size() != phase.messages.incoming.size()) {
          return absl::InternalError(StrCat("two messages of a pair\n", ToText(program)));
        }
      }
    }
  }
  return absl::OkStatus();
}

// The reducers, and their order, are those of each tensor alone: so are the bits of its result. (Other replicas may
// give.)
absl::Status CheckAsAlone(const Drawn& list, const Plan& plan, const Topology& topology) {
  for (size_t i = 0; i < list.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Plan alone, PlanOf({list[i]}, topology));
    std::vector<Exchange> expected;
    for (const Step& step : alone.steps) expected.push_back(std::get<ExchangeStep>(step).exchange);
    std::vector<Exchange> exchanges;
    for (const Step& step : plan.steps) {
      const auto& exchange = std::get<ExchangeStep>(step);
      if (exchange.destination != plan.outputs[i]) continue;
      exchanges.push_back(exchange.exchange);
    }
    if (exchanges != expected) return absl::InternalError(StrCat("tensor ", i, " goes otherwise than alone"));
  }
  return absl::OkStatus();
}

absl::Status CheckList(const Drawn& list, bool runs_programs, const Topology& topology) {
  TESSERA_ASSIGN_OR_RETURN(const Plan plan, PlanOf(list, topology));
  TESSERA_ASSIGN_OR_RETURN(const Plan parsed, ParsePlan(ToText(plan)));
  if (!(parsed == plan)) return absl::InternalError(StrCat("the text is another plan's:\n", ToText(plan)));
  // With several hosts a third one shares what was taken once for a host.
  const int most = plan.hosts.several() ? 3 : 2;
  if (!plan.steps.empty() && PhasesOf(plan).back() > most) return absl::InternalError("too many phases");
  std::vector<std::vector<double>> dense;
  for (size_t i = 0; i < list.size(); ++i) dense.push_back(Numbers(list[i].source.spec, static_cast<int64_t>(i)));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> results, RunPlanOutputs(plan, dense, {}));
  for (size_t i = 0; i < list.size(); ++i) {
    const double tolerance = list[i].source.spec.partial_op() == ReduceOp::kAvg ? 1e-5 : 0;
    if (!Agree(results[i], dense[i], tolerance)) return absl::InternalError(StrCat("result ", i, " is wrong"));
  }
  if (plan.hosts.several()) {
    TESSERA_RETURN_IF_ERROR(CheckAsAlone(list, plan, topology));
  } else {
    TESSERA_RETURN_IF_ERROR(CheckReceived(list, plan));
  }
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
    for (const Topology& topology : {Topology(), TwoHosts()}) {
      const absl::Status status = CheckList(list, runs_programs, topology);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ":\n" << text << status;
    }
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
      const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
      moves += exchange.role == ExchangeRole::kMove ? 1 : 0;
      reductions += exchange.reduces() ? 1 : 0;
    }
    if (moves > 0 && reductions > 0) ++kinds["both"];
    if (reductions > 1) ++kinds["several reductions"];
  }
  for (const char* kind : {"phases 1", "phases 2", "both", "several reductions"}) EXPECT_GE(kinds[kind], 20) << kind;
}

// As the op is planned: on one mesh, converted to one dtype on the way.
struct ConvertedList {
  std::vector<PlanOperand> operands;
  OpCall call;
};

ConvertedList DrawConverted(RandomDraws& draws) {
  const Mesh mesh = draws.OneIn(2) ? MakeMesh({4}) : MakeMesh({2, 2}, {3, 1, 0, 2});
  ConvertedList list;
  list.call.op = OpId::kRedistribute;
  if (!draws.OneIn(4)) list.call.attributes.Set(attribute::dtype, draws.OneIn(2) ? DType::kF32 : DType::kF64);
  const auto draw = [&draws](const std::vector<Placements>& all) {
    return all[static_cast<size_t>(draws.Below(static_cast<int64_t>(all.size())))];
  };
  const int64_t count = draws.Between(2, 5);
  std::vector<Placements> each;
  while (static_cast<int64_t>(list.operands.size()) < count) {
    const DType dtype = draws.OneIn(3) ? DType::kI32 : draws.OneIn(2) ? DType::kF32 : DType::kF64;
    const std::vector<int64_t> shape = {draws.Between(0, 9), draws.Between(1, 9)};
    const Placements from = draw(AllPlacements(mesh.ndim(), 2, {ReduceOp::kSum, ReduceOp::kMax}));
    list.operands.emplace_back(OperandLayout{MakeSpec(dtype, shape, mesh, from), {}});
    each.push_back(draw(AllPlacements(mesh.ndim(), 2, {})));
  }
  list.call.attributes.Set(attribute::placements_each, std::move(each));
  return list;
}

absl::Status CheckConverted(const ConvertedList& list) {
  TESSERA_ASSIGN_OR_RETURN(const OpPlan planned, PlanOp(list.call, list.operands, Topology()));
  const Plan& plan = planned.plan;
  int64_t exchange_phases = 0;
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    exchange_phases += exchange != nullptr && exchange->start == StepStart::kNewPhase ? 1 : 0;
  }
  // A conversion before the move makes a third phase.
  if (exchange_phases > (list.call.attributes.Get(attribute::dtype) != nullptr ? 3 : 2))
    return absl::InternalError(ToText(plan));
  std::vector<std::vector<double>> dense;
  std::vector<int64_t> single_bytes(TrafficOf(plan).received_bytes.size(), 0);
  for (size_t i = 0; i < list.operands.size(); ++i) {
    dense.push_back(Numbers(std::get<OperandLayout>(list.operands[i]).spec, static_cast<int64_t>(i)));
    OpCall one = list.call;
    one.attributes.Set(attribute::placements, list.call.attributes.Get(attribute::placements_each)[i]);
    one.attributes.Clear(attribute::placements_each);
    TESSERA_ASSIGN_OR_RETURN(const OpPlan single, PlanOp(one, {list.operands[i]}, Topology()));
    const std::vector<int64_t> bytes = TrafficOf(single.plan).received_bytes;
    for (size_t w = 0; w < bytes.size(); ++w) single_bytes[w] += bytes[w];
    const PlanValue& output = plan.values[static_cast<size_t>(plan.outputs[i])];
    if (output.spec != single.plan.values[static_cast<size_t>(single.plan.outputs[0])].spec) {
      return absl::InternalError(StrCat("output ", i, " is ", ToText(output.spec)));
    }
  }
  if (TrafficOf(plan).received_bytes != single_bytes)
    return absl::InternalError("other bytes than one after the other");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::vector<double>> results, RunPlanOutputs(plan, dense, {}));
  for (size_t i = 0; i < results.size(); ++i) {
    if (!Agree(results[i], dense[i], 0)) return absl::InternalError(StrCat("result ", i, " is wrong\n", ToText(plan)));
  }
  return absl::OkStatus();
}

int64_t CountBuffers(const Plan& plan, PlanBuffer::Kind kind) {
  return std::count_if(plan.buffers.begin(), plan.buffers.end(),
                       [kind](const PlanBuffer& buffer) { return buffer.kind == kind; });
}

// To workers some of which have none of the tensors; some tensors are on one worker alone.
void GoElsewhere(ConvertedList& list, RandomDraws& draws) {
  const int ndim = std::get<OperandLayout>(list.operands[0]).spec.mesh.ndim();
  list.call.attributes.Set(attribute::mesh, ndim == 1 ? MakeMesh({3}, {4, 1, 5}) : MakeMesh({2, 2}, {6, 5, 2, 4}));
  for (PlanOperand& operand : list.operands) {
    if (draws.OneIn(4))
      std::get<OperandLayout>(operand).spec.mesh = ndim == 1 ? MakeMesh({1}, {2}) : MakeMesh({1, 1}, {0});
  }
}

// They are converted on the way, or where they are; values that are reduced for others alone pass on.
TEST(ConvertedLists, TakeNoTemporary) {
  RandomDraws draws(12);
  std::vector<Topology> topologies(3);  // one host; two and three
  for (int32_t worker = 0; worker < 64; ++worker) {
    topologies[1].host_of_worker.push_back(worker / 2 % 2);
    topologies[2].host_of_worker.push_back(worker % 3);
  }
  int transit = 0;
  for (int n = 0; n < 1600; ++n) {
    ConvertedList list = DrawConverted(draws);
    if (n % 2 != 0) GoElsewhere(list, draws);
    std::vector<std::vector<double>> dense;
    for (size_t i = 0; i < list.operands.size(); ++i) {
      dense.push_back(Numbers(std::get<OperandLayout>(list.operands[i]).spec, static_cast<int64_t>(i)));
    }
    for (const Topology& topology : topologies) {
      const absl::StatusOr<OpPlan> planned = PlanOp(list.call, list.operands, topology);
      ASSERT_TRUE(planned.ok()) << planned.status();
      const Plan& plan = planned->plan;
      EXPECT_EQ(CountBuffers(plan, PlanBuffer::Kind::kTemporary), 0) << ToText(plan);
      transit += CountBuffers(plan, PlanBuffer::Kind::kTransit) > 0 ? 1 : 0;
      const absl::StatusOr<std::vector<std::vector<double>>> results = RunPlanOutputs(plan, dense, {});
      ASSERT_TRUE(results.ok()) << results.status() << "\n" << ToText(plan);
      for (size_t i = 0; i < results->size(); ++i) ASSERT_TRUE(Agree((*results)[i], dense[i], 0)) << ToText(plan);
    }
  }
  EXPECT_GT(transit, 200);
}

TEST(ConvertedLists, AreRightAndReceiveWhatOneAfterTheOtherDoes) {
  RandomDraws draws(11);
  for (int n = 0; n < 200; ++n) {
    const ConvertedList list = DrawConverted(draws);
    const absl::Status status = CheckConverted(list);
    std::string text = ToText(list.call);
    for (const PlanOperand& operand : list.operands)
      StrAppend(&text, "\n", ToText(std::get<OperandLayout>(operand).spec));
    ASSERT_TRUE(status.ok()) << "list " << n << ": " << text << "\n" << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLists, testing::Range(uint64_t{0}, kBlocks));

}  // namespace
}  // namespace tessera
