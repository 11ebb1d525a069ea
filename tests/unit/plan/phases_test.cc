// Exchanges that share a phase: what may, and that a pair of workers then has one message and one wait.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/cost.h"
#include "server/plan/lower/program.h"
#include "server/plan/plan.h"
#include "server/plan/verify.h"
#include "server/planner/builder.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

using Pairs = std::vector<std::pair<std::string_view, std::string_view>>;

// The redistributions of several inputs, which are the outputs.
Plan Together(const Pairs& pairs) {
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  for (const auto& [source, destination] : pairs) {
    const int input = builder.AddInput({*ParseTensorSpec(source), {}});
    moves.push_back({input, *ParseTensorSpec(destination)});
  }
  const absl::StatusOr<std::vector<int>> values = builder.AddRedistributes(moves);
  EXPECT_TRUE(values.ok()) << values.status();
  for (const int value : *values) builder.AddOutput(value);
  return std::move(builder).Finish(InTwoPhases());
}

// A tensor of bytes and a pending one of eight bytes an element: two phases, the first one shared.
Plan BytesAndPending() {
  return Together({{"bool[3,5] @ mesh(2) [S(0)]", "bool[3,5] @ mesh(2) [S(1)]"},
                   {"f64[4,3] @ mesh(2) [P(sum)]", "f64[4,3] @ mesh(2) [R]"},
                   {"f32[5] @ mesh(2) [P(max)]", "f32[5] @ mesh(2) [R]"}});
}

ExchangeStep& StepOf(Plan& plan, size_t index) { return std::get<ExchangeStep>(plan.steps[index]); }

void ExpectRefused(const Plan& plan, std::string_view why) {
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << why;
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

TEST(SharedPhases, HoldAllThatMovesAndReducesAndThenAllThatIsSpread) {
  const Plan plan = BytesAndPending();
  EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  EXPECT_EQ(PhasesOf(plan), (std::vector<int>{1, 1, 1, 2, 2}));
  const std::vector<std::string> lines = {
      "all_to_all %0 [S(0)] -> %3 [S(1)]", "with reduce_scatter %1 [P(sum)] -> %4 [R]",
      "with reduce_scatter %2 [P(max)] -> %5 [R]", "all_gather %4 [R] -> %4 [R]", "with all_gather %5 [R] -> %5 [R]"};
  EXPECT_EQ(StepLines(plan), lines);
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(plan));
  ASSERT_TRUE(parsed.ok()) << parsed.status() << ToText(plan);
  EXPECT_EQ(*parsed, plan) << ToText(plan);
}

TEST(SharedPhases, HaveOneMessageForEachPairOfWorkers) {
  const Plan plan = BytesAndPending();
  for (const int32_t worker : {0, 1}) {
    const absl::StatusOr<Program> program = LowerPlan(plan, WorkerIndex(worker), MessageLists::kBuild);
    ASSERT_TRUE(program.ok()) << program.status();
    ASSERT_EQ(program->phases.size(), 2u);
    for (const Phase& phase : program->phases) {
      ASSERT_EQ(phase.messages.outgoing.size(), 1u) << ToText(*program);
      ASSERT_EQ(phase.messages.incoming.size(), 1u) << ToText(*program);
      EXPECT_EQ(phase.messages.outgoing[0].to, WorkerIndex(1 - worker));
      EXPECT_EQ(phase.messages.incoming[0].from, WorkerIndex(1 - worker));
      EXPECT_EQ(phase.peers.reads_from, std::vector<WorkerIndex>{WorkerIndex(1 - worker)});
    }
    EXPECT_EQ(program->phases[0].peers.pushes_to, std::vector<WorkerIndex>{WorkerIndex(1 - worker)});
    EXPECT_EQ(program->phases[0].peers.phase, 0);
    EXPECT_EQ(program->phases[1].peers.phase, 1);
    EXPECT_TRUE(program->phases[1].is_pushed());
  }
}

TEST(SharedPhases, KeepEveryPartOfAMessageAtAMultipleOfItsElementSize) {
  const absl::StatusOr<Program> program = LowerPlan(BytesAndPending(), WorkerIndex(0), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  const Phase& phase = program->phases[0];
  int64_t bytes = 0;
  std::vector<DType> dtypes;
  for (const MessagePart& part : phase.messages.outgoing[0].parts) {
    EXPECT_EQ(bytes % SizeBytes(part.dtype), 0) << ToText(*program);
    bytes += NumElements(part.extents) * SizeBytes(part.dtype);
    dtypes.push_back(part.dtype);
  }
  EXPECT_EQ(dtypes, (std::vector<DType>{DType::kF64, DType::kF32, DType::kBool}));
  EXPECT_EQ(bytes, phase.messages.outgoing[0].bytes);
}

TEST(SharedPhases, PayTheLatencyOnce) {
  const Plan one = Together({{"f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"}});
  const Plan two = Together({{"f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"},
                             {"f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"}});
  const Topology topology;
  const double work = PredictSeconds(one, topology) - topology.step_latency_s;
  EXPECT_DOUBLE_EQ(PredictSeconds(two, topology), topology.step_latency_s + 2 * work);
}

TEST(VerifyPlan, FindsStepsThatCannotShareAPhase) {
  Plan first = BytesAndPending();
  StepOf(first, 0).start = StepStart::kWithPrevious;
  ExpectRefused(first, "shares a phase with no exchange");

  Plan own = BytesAndPending();
  StepOf(own, 3).start = StepStart::kWithPrevious;  // spreads what the same phase reduces
  ExpectRefused(own, "shares a phase with exchanges of another delivery");
  StepOf(own, 3).exchange.delivery = StepOf(own, 4).exchange.delivery = Delivery::kPull;
  ExpectRefused(own, "shares a phase, but not with exchanges that wait for the same");

  Plan mixed = BytesAndPending();
  StepOf(mixed, 4).exchange.delivery = Delivery::kPull;
  ExpectRefused(mixed, "shares a phase with exchanges of another delivery");

  Plan twice = BytesAndPending();
  StepOf(twice, 1).destination = StepOf(twice, 2).destination;
  ExpectRefused(twice, "plan step 2");
  StepOf(twice, 1) = StepOf(twice, 0);
  StepOf(twice, 1).start = StepStart::kWithPrevious;
  ExpectRefused(twice, "shares a phase with a step that touches the same memory");
}

TEST(VerifyPlan, FindsAStepThatReadsWhatItsPhaseWrites) {
  PlanBuilder builder;
  const int input = builder.AddInput({*ParseTensorSpec("f32[4,4] @ mesh(2) [S(0)]"), {}});
  const int columns = *builder.AddRedistribute(input, *ParseTensorSpec("f32[4,4] @ mesh(2) [S(1)]"));
  const int rows = *builder.AddRedistribute(columns, *ParseTensorSpec("f32[4,4] @ mesh(2) [S(0)]"));
  const int last = *builder.AddRedistribute(rows, *ParseTensorSpec("f32[4,4] @ mesh(2) [S(1)]"));
  builder.AddOutput(last);
  Plan plan = std::move(builder).Finish();
  EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  StepOf(plan, 2).start = StepStart::kWithPrevious;
  ExpectRefused(plan, "shares a phase with a step that touches the same memory");
}

constexpr std::string_view kTwoTensors = R"(plan {
  b0 : input 6 bytes on mesh(2)
  b1 : input 32 bytes on mesh(2)
  b2 : output 8 bytes on mesh(2)
  b3 : output 32 bytes on mesh(2)
  in  %0 : bool[4,3] @ mesh(2) [S(0)] in b0
  in  %1 : f64[4] @ mesh(2) [P(sum)] in b1
  out %2 : bool[4,3] @ mesh(2) [S(1)] in b2
  out %3 : f64[4] @ mesh(2) [R] in b3
  all_to_all %0 -> %2 move
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2
    dim 1: [0:2) 0+0 -> 0+0, [2:3) 0+2 -> 1+0
  with reduce_scatter %1 -> %3 reduce(sum)
    dim 0: [0:4) 0+0 -> 0+0
  all_gather %3 -> %3 spread pushed of f64[4] @ mesh(2) [P(sum)]
    dim 0: [0:4) 0+0 -> 0+0
}
)";

// The plan with `what` in place of `that`, as a worker would be given it.
Plan Changed(std::string_view that, std::string_view what, std::string_view of = kTwoTensors) {
  std::string text(of);
  const size_t at = text.find(that);
  EXPECT_NE(at, std::string::npos) << that;
  const absl::StatusOr<Plan> plan = ParsePlan(text.replace(at, that.size(), what));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(PlanText, SaysWhichStepsShareAPhaseAndHostileOnesAreRefused) {
  const Plan plan = Changed("", "");
  EXPECT_EQ(ToText(plan), kTwoTensors);
  EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  EXPECT_EQ(PhasesOf(plan), (std::vector<int>{1, 1, 2}));
  ExpectRefused(Changed("all_to_all %0", "with all_to_all %0"), "shares a phase with no exchange");
  ExpectRefused(Changed("all_gather %3", "with all_gather %3"), "another delivery");
  ExpectRefused(Changed("  all_gather %3 -> %3 spread pushed", "  with all_gather %3 -> %3 spread"),
                "wait for the same");
  ExpectRefused(Changed("%3 : f64[4] @ mesh(2) [R] in b3", "%3 : f64[4] @ mesh(2) [R] in b2"), "needs elements");
}

TEST(PlanText, OnlyExchangesAndLocalStepsShareAPhase) {
  for (const char* wrong : {"plan {\n  with contract matmul() -> %0\n}\n", "plan {\n  with\n}\n",
                            "plan {\n  with with slice %0 -> %0 move\n}\n"}) {
    EXPECT_FALSE(ParsePlan(wrong).ok()) << wrong;
  }
}

// Zeros are written while %0 is gathered.
constexpr std::string_view kBeside = R"(plan {
  b0 : input 8 bytes on mesh(2)
  b1 : output 16 bytes on mesh(2)
  b2 : output 16 bytes on mesh(2)
  in  %0 : f32[4] @ mesh(2) [S(0)] in b0
  out %1 : f32[4] @ mesh(2) [R] in b1
  out %2 : f32[4] @ mesh(2) [R] in b2
  local fill() -> %1 scalars [0]
  with all_gather %0 -> %2 move
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2
  scalars 1
}
)";

TEST(SharedPhases, HaveExchangesUnderWayWhileLocalStepsRun) {
  const absl::StatusOr<Plan> plan = ParsePlan(kBeside);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ToText(*plan), kBeside);
  EXPECT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan);
  EXPECT_EQ(PhasesOf(*plan), (std::vector<int>{1, 1}));
  EXPECT_EQ(StepLines(*plan)[1], "with all_gather %0 [S(0)] -> %2 [R]");
  const absl::StatusOr<Program> program = LowerPlan(*plan, WorkerIndex(0), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->phases.size(), 1u);
  const Phase& phase = program->phases[0];
  EXPECT_TRUE(std::holds_alternative<KernelInstruction>(phase.instructions[0])) << ToText(*program);
  EXPECT_EQ(phase.instructions.size(), 3u);  // and its own half, and the other's
  EXPECT_EQ(phase.messages.incoming.size(), 1u);
  EXPECT_EQ(phase.messages.outgoing.size(), 1u);
}

TEST(SharedPhases, OfExchangesAndLocalStepsTakeAsLongAsTheLonger) {
  const Plan plan = *ParsePlan(kBeside);
  Plan local = plan, exchange = plan;
  local.steps.pop_back();
  exchange.steps.erase(exchange.steps.begin());
  StepOf(exchange, 0).start = StepStart::kNewPhase;
  Topology two_hosts;
  two_hosts.host_of_worker = {0, 1};
  two_hosts.network_bandwidth_bytes_s = 1;  // eight seconds
  EXPECT_DOUBLE_EQ(PredictSeconds(plan, two_hosts), PredictSeconds(exchange, two_hosts));
  const Topology one_host;  // what copies doesn't compute
  EXPECT_DOUBLE_EQ(PredictSeconds(plan, one_host),
                   PredictSeconds(local, one_host) + PredictSeconds(exchange, one_host));
}

TEST(VerifyPlan, FindsExchangesThatCannotRunBesideLocalSteps) {
  ExpectRefused(Changed("out %2 : f32[4] @ mesh(2) [R] in b2", "out %2 : f32[4] @ mesh(2) [R] in b1", kBeside),
                "shares a phase with a step that touches the same memory");
  ExpectRefused(Changed("  local fill() -> %1", "  with local fill() -> %1", kBeside),
                "shares a phase with no local step");
}

}  // namespace
}  // namespace tessera
