#include "server/plan/plan.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
#include "server/plan/cost.h"
#include "server/plan/lower/program.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/reference/interpret.h"
#include "server/plan/verify.h"
#include "server/planner/relays.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

Plan Redistribution(std::string_view source, std::string_view destination) {
  absl::StatusOr<Plan> plan = PlanRedistribute({*ParseTensorSpec(source), {}}, *ParseTensorSpec(destination));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

Plan RowsToColumns() { return Redistribution("f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"); }
Plan PendingToReplicate() {
  return *PlanRedistribute({*ParseTensorSpec("f32[4,4] @ mesh(2) [P(sum)]"), {}},
                           *ParseTensorSpec("f32[4,4] @ mesh(2) [R]"), InTwoPhases());
}

ExchangeStep& StepOf(Plan& plan, size_t index) { return std::get<ExchangeStep>(plan.steps[index]); }

void ExpectRefused(const Plan& plan, std::string_view why, absl::StatusCode code = absl::StatusCode::kInternal) {
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), code) << why;
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

TEST(PlanText, IsReadable) {
  EXPECT_EQ(ToText(RowsToColumns()),
            "plan {\n"
            "  b0 : input 32 bytes on mesh(2)\n"
            "  b1 : output 32 bytes on mesh(2)\n"
            "  in  %0 : f32[4,4] @ mesh(2) [S(0)] in b0\n"
            "  out %1 : f32[4,4] @ mesh(2) [S(1)] in b1\n"
            "  all_to_all %0 -> %1 move\n"
            "    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2\n"
            "    dim 1: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0\n"
            "}\n");
}

TEST(PlanText, RoundTripsEveryField) {
  Plan plan = PendingToReplicate();
  plan.values[0].strides = {-1, 4};
  plan.values[0].offset = 3;
  plan.values.push_back(plan.values[1]);
  plan.inputs = {0};
  plan.outputs = {2, 1};
  LocalStep local;
  local.op = FillOp{};
  local.output = 2;
  local.scalars = {1, 0};
  local.counted_once = {{0}, {}};
  local.inputs = {0, 1};
  plan.steps.emplace_back(local);
  plan.scalar_count = 2;
  plan.donations = {{0, 1}};
  plan.implicit = {"one \"quoted\" line", " with spaces "};
  plan.runners_up = {"a", "b"};
  plan.grid = "grid";
  plan.flops = 1.0 / 3;
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(plan));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan) << ToText(plan) << ToText(*parsed);
}

TEST(PlanText, RefusesOtherTexts) {
  const std::string text = ToText(RowsToColumns());
  for (size_t cut = 0; cut + 3 < text.size(); ++cut) {
    EXPECT_FALSE(ParsePlan(text.substr(0, cut)).ok()) << cut;
  }
  for (const char* wrong : {"plan {\n  in %0 : f32[4] @ mesh(2) [R] in b0\n}\n", "plan {\n  bogus %0 -> %1 move\n}\n",
                            "plan {\n  dim 0: [0:2) 0+0 -> 0+0\n}\n", "plan {\n}\nmore\n", "plan {\n  flops x\n}\n",
                            "plan {\n  implicit \"open\n}\n", "plan {\n  flops 12abc\n}\n",
                            "plan {\n  inputs [4294967296]\n}\n", "plan {\n  hosts [0,4294967296]\n}\n"}) {
    EXPECT_FALSE(ParsePlan(wrong).ok()) << wrong;
  }
}

// Each line in the same time: a worker may be given 16 MiB of them.
TEST(PlanText, AndItsChecksTakeManyInputs) {
  std::string text = "plan {\n  b0 : input 4 bytes on mesh(1)\n";
  for (int i = 0; i < 1 << 17; ++i) text += "  in  %" + std::to_string(i) + " : f32[] @ mesh(1) [R] in b0\n";
  text += "}\n";
  const absl::StatusOr<Plan> plan = ParsePlan(text);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(ToText(*plan) == text);
  EXPECT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan);
}

TEST(PlanFigures, OfRowsToColumns) {
  const Plan plan = RowsToColumns();
  EXPECT_EQ(TrafficOf(plan).received_bytes, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(TrafficOf(plan).sent_bytes, (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(PeakBytes(plan), (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(StepLines(plan), std::vector<std::string>{"all_to_all %0 [S(0)] -> %1 [S(1)]"});
  EXPECT_GT(DescriptionBytes(plan), 0);
}

TEST(PlanFigures, GoByWorkerWhenMeshesDiffer) {
  const Plan plan = Redistribution("f32[4] @ mesh(2) [S(0)]", "f32[4] @ mesh(2; workers=3,1) [S(0)]");
  const PlanTraffic traffic = TrafficOf(plan);
  EXPECT_TRUE(traffic.by_worker);
  EXPECT_EQ(traffic.received_bytes, (std::vector<int64_t>{0, 0, 0, 8}));
  EXPECT_EQ(traffic.sent_bytes, (std::vector<int64_t>{8, 0, 0, 0}));
}

TEST(PlanFigures, GoByWorkerWhenTheResultIsAViewOnAnotherMesh) {
  const Plan plan = Redistribution("f32[4] @ mesh(2; workers=3,1) [R]", "f32[4] @ mesh(2; workers=1,3) [R]");
  EXPECT_TRUE(plan.steps.empty());
  const PlanTraffic traffic = TrafficOf(plan);
  EXPECT_TRUE(traffic.by_worker);
  EXPECT_EQ(traffic.received_bytes, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(traffic.workers.size(), 4u);
  EXPECT_EQ(PeakBytes(plan), (std::vector<int64_t>{0, 16, 0, 16}));
}

TEST(PredictSeconds, CountsHosts) {
  const Plan plan = Redistribution("f32[1024,1024] @ mesh(2) [S(0)]", "f32[1024,1024] @ mesh(2) [R]");
  Topology two_hosts;
  two_hosts.host_of_worker = {0, 1};
  EXPECT_GT(PredictSeconds(plan, two_hosts), PredictSeconds(plan, Topology()));
}

// On eight workers of two hosts: what crosses is paid once for a host's link, not side by side by its workers.
TEST(PredictSeconds, CountsTheLinksOfHosts) {
  Topology topology;
  topology.host_of_worker = {0, 0, 0, 0, 1, 1, 1, 1};
  const auto seconds_of = [&](std::string_view source, std::string_view destination, const Topology& planned_on) {
    const absl::StatusOr<Plan> plan =
        PlanRedistribute({*ParseTensorSpec(source), {}}, *ParseTensorSpec(destination), planned_on);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return PredictSeconds(*plan, topology);
  };
  const double mib_s = static_cast<double>(1 << 20) / topology.network_bandwidth_bytes_s;
  // Each host needs the other's half, four MiB: once, where the plan knows the hosts, or once for each worker.
  const char* const rows = "f32[2048,1024] @ mesh(8) [S(0)]";
  const char* const all = "f32[2048,1024] @ mesh(8) [R]";
  const double once_s = seconds_of(rows, all, topology);
  EXPECT_GT(once_s, 4 * mib_s);
  EXPECT_LT(once_s, 8 * mib_s);
  EXPECT_GT(seconds_of(rows, all, Topology()), 16 * mib_s);
  // A sum: half of eight MiB each way as sums, then as results; or every term of what the other host reduces.
  const char* const terms = "f32[2048,1024] @ mesh(8) [P(sum)]";
  const double summed_s = seconds_of(terms, all, topology);
  EXPECT_GT(summed_s, 8 * mib_s);
  EXPECT_LT(summed_s, 14 * mib_s);
  EXPECT_GT(seconds_of(terms, all, Topology()), 2 * summed_s);
  // Small ones cost their messages.
  const double small_s = seconds_of("f32[8] @ mesh(8) [S(0)]", "f32[8] @ mesh(8) [R]", topology);
  EXPECT_GE(small_s, 2 * topology.step_latency_s + topology.message_latency_s);
}

TEST(Pieces, TakeOwnPiecesFromItself) {
  Plan plan = RowsToColumns();
  const std::vector<Transfer> transfers = Pieces(StepOf(plan, 0).exchange).ForReceiver({1});
  ASSERT_EQ(transfers.size(), 2u);
  EXPECT_EQ(ToText(transfers[0].box), "[0:2,2:4]");
  EXPECT_EQ(transfers[0].sources[0].worker, WorkerIndex(0));
  EXPECT_EQ(ToText(transfers[1].box), "[2:4,2:4]");
  EXPECT_EQ(transfers[1].sources[0].worker, WorkerIndex(1));
  EXPECT_EQ(transfers[1].source_offset, (Shape{0, 2}));
  EXPECT_EQ(transfers[1].destination_offset, (Shape{2, 0}));
}

TEST(LowerPlan, SpreadWaitsForTheReduction) {
  const absl::StatusOr<Program> program = LowerPlan(PendingToReplicate(), WorkerIndex(1), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->phases.size(), 2u);
  EXPECT_EQ(program->phases[0].peers.phase, 0);
  EXPECT_EQ(program->phases[1].peers.phase, 1);
  EXPECT_EQ(program->phases[1].peers.reads_from, std::vector<WorkerIndex>{WorkerIndex(0)});
  EXPECT_EQ(program->phases[1].peers.read_by, std::vector<WorkerIndex>{WorkerIndex(0)});
  EXPECT_EQ(program->phases[0].messages.outgoing[0].bytes, 32);
  EXPECT_EQ(program->phases[0].messages.incoming[0].bytes, 32);
}

TEST(LowerPlan, AReducerPushesToTheOthers) {
  const WorkerIndex other(0);
  const absl::StatusOr<Program> program = LowerPlan(PendingToReplicate(), WorkerIndex(1), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  const Phase& reduces = program->phases[0];
  EXPECT_EQ(reduces.peers.pushes_to, std::vector<WorkerIndex>{other});
  EXPECT_EQ(reduces.peers.pushed_by, std::vector<WorkerIndex>{other});
  const auto& reduce = std::get<ReduceInstruction>(reduces.instructions[0]);
  Operand there = reduce.destination;
  there.worker = other;
  EXPECT_EQ(reduce.pushes, std::vector<Operand>{there});
  EXPECT_TRUE(program->phases[1].is_pushed());
  Plan pull = PendingToReplicate();
  StepOf(pull, 1).exchange.delivery = Delivery::kPull;
  const absl::StatusOr<Program> pulls = LowerPlan(pull, WorkerIndex(1), MessageLists::kBuild);
  ASSERT_TRUE(pulls.ok()) << pulls.status();
  EXPECT_TRUE(pulls->phases[0].peers.pushes_to.empty() && pulls->phases[0].peers.pushed_by.empty());
}

TEST(LowerPlan, OtherWorkersGetEmptyPhases) {
  const absl::StatusOr<Program> program = LowerPlan(RowsToColumns(), WorkerIndex(7), MessageLists::kBuild);
  ASSERT_TRUE(program.ok());
  ASSERT_EQ(program->phases.size(), 1u);
  EXPECT_EQ(program->phases[0], Phase());
}

TEST(VerifyPlan, FindsAnOverlayThatLeavesAGap) {
  Plan plan = RowsToColumns();
  StepOf(plan, 0).exchange.dims[0].entries.pop_back();
  ExpectRefused(plan, "dim 0: 2 of 4 elements are written");
}

TEST(VerifyPlan, FindsOverlapsAndReadsOutside) {
  Plan overlap = RowsToColumns();
  StepOf(overlap, 0).exchange.dims[0].entries[1].start = 1;
  ExpectRefused(overlap, "dim 0: element 2");
  Plan outside = RowsToColumns();
  StepOf(outside, 0).exchange.dims[0].entries[1].source_offset = 1;
  ExpectRefused(outside, "of source shard 1");
  Plan other = RowsToColumns();
  std::swap(StepOf(other, 0).exchange.dims[0].entries[0].source_shard,
            StepOf(other, 0).exchange.dims[0].entries[1].source_shard);
  ExpectRefused(other, "source element");
}

TEST(VerifyPlan, FindsWrongDestinationOffsets) {
  Plan plan = RowsToColumns();
  StepOf(plan, 0).exchange.dims[0].entries[1].destination_offset = 1;
  ExpectRefused(plan, "outside destination shard");
}

TEST(VerifyPlan, FindsAnExchangeBetweenOtherHosts) {
  Plan plan = RowsToColumns();
  StepOf(plan, 0).exchange.hosts = WorkerHosts(std::vector<int32_t>{0, 1});
  ExpectRefused(plan, "other hosts than the plan");
}

TEST(VerifyPlan, FindsMissingAndMisplacedSteps) {
  Plan unspread = PendingToReplicate();
  unspread.steps.pop_back();
  ExpectRefused(unspread, "is not written");
  Plan unreduced = PendingToReplicate();
  unreduced.steps.erase(unreduced.steps.begin());
  ExpectRefused(unreduced, "spreads what was not reduced");
  Plan pushed = PendingToReplicate();
  StepOf(pushed, 0).exchange.delivery = Delivery::kPush;
  ExpectRefused(pushed, "pushes what it does not move or spread");
  Plan donated = PendingToReplicate();
  donated.donations = {{0, 0}};
  ExpectRefused(donated, "pushes into memory that was an input's");
  Plan elsewhere = PendingToReplicate();
  elsewhere.values.push_back(elsewhere.values[1]);
  StepOf(elsewhere, 1).source = StepOf(elsewhere, 1).destination = 2;
  ExpectRefused(elsewhere, "spreads what was not reduced");
  Plan twice = RowsToColumns();
  twice.steps.push_back(twice.steps[0]);
  ExpectRefused(twice, "is written twice");
  Plan moved = PendingToReplicate();
  StepOf(moved, 0).exchange.role = ExchangeRole::kMove;
  ExpectRefused(moved, "moves 2 pending terms");
}

Plan OnTwoHosts(std::string_view source, std::string_view destination) {
  Topology topology = InTwoPhases();
  topology.host_of_worker = {0, 0, 1, 1};
  const absl::StatusOr<Plan> plan =
      PlanRedistribute({*ParseTensorSpec(source), {}}, *ParseTensorSpec(destination), topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(PlanFigures, CountAMeshAndAListOfHostsOnce) {
  const auto bytes_on = [](const std::string& mesh) {
    const Plan plan = Redistribution("f32[8] @ " + mesh + " [S(0)]", "f32[8] @ " + mesh + " [R]");
    return DescriptionBytes(plan);
  };
  // Two meshes are parsed, of 64 workers each. Other workers than 0 to 63 are looked up in a table.
  const std::string others = "mesh(64; workers=64";
  std::string list;
  for (int worker = 63; worker > 0; --worker) list += "," + std::to_string(worker);
  EXPECT_GE(bytes_on(others + list + ")"), bytes_on("mesh(64)") + 64 * 8);
  EXPECT_GE(bytes_on("mesh(" + std::string(60, 'n') + ":64)"), bytes_on("mesh(64)") + 60);
  Plan hosts = OnTwoHosts("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]");
  const int64_t bytes = DescriptionBytes(hosts);
  StepOf(hosts, 0).exchange.hosts = WorkerHosts(std::vector<int32_t>{0, 0, 1, 1});
  EXPECT_EQ(DescriptionBytes(hosts), bytes);
  StepOf(hosts, 0).exchange.hosts = WorkerHosts(std::vector<int32_t>{0, 1, 1, 0});
  EXPECT_EQ(DescriptionBytes(hosts), bytes + 4 * 4);
}

// A replay has the same values in other objects.
TEST(PlanFigures, BytesDontDependOnWhichObjectsShareAMesh) {
  const TensorSpec source = *ParseTensorSpec("f32[8] @ mesh(n:3) [S(0)]");
  TensorSpec shared = source;
  shared.placements = {Placement::Replicate()};
  const TensorSpec apart = *ParseTensorSpec("f32[8] @ mesh(n:3) [R]");
  ASSERT_EQ(shared, apart);
  ASSERT_NE(shared.mesh.SharedAddress(), apart.mesh.SharedAddress());
  const Topology topology = InTwoPhases();
  EXPECT_EQ(DescriptionBytes(*PlanRedistribute({source, {}}, shared, topology)),
            DescriptionBytes(*PlanRedistribute({source, {}}, apart, topology)));
}

TEST(PlanText, SaysWhatIsTakenOnceForAHost) {
  const Plan plan = OnTwoHosts("f32[8] @ mesh(4) [P(sum)]", "f32[8] @ mesh(4) [R]");
  const std::string text = ToText(plan);
  EXPECT_NE(text.find("reduce_scatter %0 -> %1 reduce(sum)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather %1 -> %1 spread pushed once of "), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather %1 -> %1 share of "), std::string::npos) << text;
  EXPECT_EQ(ParsePlan(text).value(), plan);
  const Plan one = Redistribution("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]");
  EXPECT_EQ(one.steps.size(), 1u) << "nothing is far on one host";
}

TEST(VerifyPlan, FindsWrongShares) {
  const Plan gather = OnTwoHosts("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]");
  ASSERT_EQ(gather.steps.size(), 2u);
  EXPECT_TRUE(VerifyPlan(gather).ok()) << VerifyPlan(gather);
  Plan missing = gather;
  missing.steps.pop_back();
  ExpectRefused(missing, "output %1 is not written");
  Plan of_each = gather;
  StepOf(of_each, 0).exchange.far_takers = FarTakers::kEach;
  ExpectRefused(of_each, "shares what was not taken once");
  Plan to_each = gather;
  StepOf(to_each, 1).exchange.far_takers = FarTakers::kEach;
  ExpectRefused(to_each, "shares what was not taken once");
  Plan twice = gather;
  twice.steps.push_back(twice.steps[1]);
  ExpectRefused(twice, "shares what was not taken once");
  Plan pushed = gather;
  StepOf(pushed, 1).exchange.delivery = Delivery::kPush;
  ExpectRefused(pushed, "pushes what it does not move or spread");
  Plan of_one_term = OnTwoHosts("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]");
  StepOf(of_one_term, 0).exchange.role = ExchangeRole::kReduce;
  ExpectRefused(of_one_term, "reduces what has one term");
  const Plan sum = OnTwoHosts("f32[8] @ mesh(4) [P(sum)]", "f32[8] @ mesh(4) [R]");
  ASSERT_EQ(sum.steps.size(), 3u);
  EXPECT_TRUE(VerifyPlan(sum).ok()) << VerifyPlan(sum);
  Plan unspread = sum;
  unspread.steps.erase(unspread.steps.begin() + 1);
  ExpectRefused(unspread, "shares what was not taken once");
  Plan reduced_once = sum;
  StepOf(reduced_once, 0).exchange.far_takers = FarTakers::kOne;
  ExpectRefused(reduced_once, "reduces once for a host");
}

TEST(VerifyPlan, FindsASumOfOneTermAndOneOfAnotherKind) {
  Plan as_product = PendingToReplicate();
  StepOf(as_product, 0).exchange.reduce_op = ReduceOp::kProduct;
  ExpectRefused(as_product, "reduces with product");
  Plan of_one = *PlanRedistribute({*ParseTensorSpec("f32[4,4] @ mesh(2) [S(0)]"), {}},
                                  *ParseTensorSpec("f32[4,4] @ mesh(2) [R]"));
  StepOf(of_one, 0).exchange.role = ExchangeRole::kReduce;
  ExpectRefused(of_one, "reduces what has one term");
}

TEST(PlanText, SaysWhatIsRelayed) {
  Topology topology;
  topology.host_of_worker = {0, 1, 2, 3};
  const Plan plan = *PlanRedistribute({*ParseTensorSpec("f64[1048576] @ mesh(1) [R]"), {}},
                                      *ParseTensorSpec("f64[1048576] @ mesh(4) [R]"), topology);
  const std::string text = ToText(plan);
  EXPECT_NE(text.find("broadcast %0 -> %1 move relayed\n"), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather %1 -> %1 spread relayed of "), std::string::npos) << text;
  EXPECT_NE(text.find("all_gather %1 -> %1 share relayed of "), std::string::npos) << text;
  EXPECT_EQ(ParsePlan(text).value(), plan);
}

TEST(VerifyPlan, FindsWrongRelays) {
  Plan relayed = OnTwoHosts("f32[8] @ mesh(1) [R]", "f32[8] @ mesh(4) [R]");
  const std::vector<ExchangeStep> steps = Relayed(StepOf(relayed, 0));
  relayed.steps.assign(steps.begin(), steps.end());
  EXPECT_TRUE(VerifyPlan(relayed).ok()) << VerifyPlan(relayed);
  Plan alone = relayed;
  alone.steps.resize(1);
  ExpectRefused(alone, "output %1 is not written");
  Plan unshared = relayed;
  unshared.steps.resize(2);
  ExpectRefused(unshared, "output %1 is not written");
  Plan direct = relayed;
  StepOf(direct, 0).exchange.far_takers = FarTakers::kOne;
  ExpectRefused(direct, "spreads what was not reduced");
  Plan once = relayed;
  StepOf(once, 1).exchange.far_takers = FarTakers::kOne;
  ExpectRefused(once, "spreads what was not reduced");
  Plan shared_otherwise = relayed;
  StepOf(shared_otherwise, 2).exchange.far_takers = FarTakers::kOne;
  ExpectRefused(shared_otherwise, "shares what was not taken once");
  Plan unspread = relayed;
  unspread.steps.erase(unspread.steps.begin() + 1);
  ExpectRefused(unspread, "shares what was not taken once");
  Plan pushed = relayed;
  StepOf(pushed, 1).exchange.delivery = Delivery::kPush;
  ExpectRefused(pushed, "pushes what was not reduced");
  Plan sum = OnTwoHosts("f32[8] @ mesh(4) [P(sum)]", "f32[8] @ mesh(4) [R]");
  StepOf(sum, 0).exchange.far_takers = FarTakers::kRelays;
  ExpectRefused(sum, "reduces once for a host");
  Plan sum_spread = OnTwoHosts("f32[8] @ mesh(4) [P(sum)]", "f32[8] @ mesh(4) [R]");
  StepOf(sum_spread, 1).exchange.far_takers = FarTakers::kRelays;
  ExpectRefused(sum_spread, "spreads what was not reduced");
}

// Four workers, of which each stores its rows to the others.
Plan PushedGather(std::string_view dtype = "f32") {
  return *PlanRedistribute({*ParseTensorSpec("f32[4,2] @ mesh(4) [S(0)]"), {}},
                           *ParseTensorSpec(StrCat(dtype, "[4,2] @ mesh(4) [R]")), InTwoPhases());
}

TEST(PlanText, SaysWhatHoldersStore) {
  const Plan plan = PushedGather();
  const std::string text = ToText(plan);
  EXPECT_NE(text.find("all_gather %0 -> %1 move pushed\n"), std::string::npos) << text;
  EXPECT_EQ(ParsePlan(text).value(), plan);
  EXPECT_EQ(StepLines(plan), std::vector<std::string>{"all_gather %0 [S(0)] -> %1 [R], stored by holders"});
  EXPECT_EQ(PhasesOf(plan), std::vector<int>{2});
  EXPECT_EQ(StepLines(PushedGather("bf16")),
            std::vector<std::string>{"all_gather %0 [S(0)] -> %1 [R], as bf16, stored by holders"});
}

TEST(LowerPlan, AHolderReadsItsPartOnceAndStoresItToAll) {
  for (const auto& [dtype, bytes] : {std::pair("f32", 4), {"bf16", 2}}) {
    const absl::StatusOr<Program> program = LowerPlan(PushedGather(dtype), WorkerIndex(2), MessageLists::kBuild);
    ASSERT_TRUE(program.ok()) << program.status();
    ASSERT_EQ(program->phases.size(), 2u);
    const Phase& stores = program->phases[0];
    const std::vector<WorkerIndex> others = {WorkerIndex(0), WorkerIndex(1), WorkerIndex(3)};
    ASSERT_EQ(stores.instructions.size(), 1u);
    const auto& copy = std::get<ReduceInstruction>(stores.instructions[0]);
    EXPECT_EQ(copy.term_count, 1);
    ASSERT_EQ(copy.terms.size(), 1u);
    EXPECT_EQ(copy.terms[0].worker, WorkerIndex(2));
    EXPECT_EQ(copy.destination.worker, WorkerIndex(2));
    EXPECT_EQ(copy.destination.offset_bytes, 4 * bytes);
    ASSERT_EQ(copy.pushes.size(), 3u);
    for (const Operand& push : copy.pushes) EXPECT_EQ(push.offset_bytes, 4 * bytes);
    EXPECT_EQ(stores.peers.pushes_to, others);
    EXPECT_EQ(stores.peers.pushed_by, others);
    EXPECT_TRUE(stores.peers.reads_from.empty());
    EXPECT_TRUE(stores.messages.outgoing.empty());
    // Whom it can't be stored to gets it in a message, converted by its holder.
    const Phase& arrival = program->phases[1];
    EXPECT_TRUE(arrival.is_pushed());
    EXPECT_EQ(arrival.peers.phase, 1);
    EXPECT_EQ(arrival.peers.reads_from, others);
    ASSERT_EQ(arrival.instructions.size(), 3u);
    ASSERT_EQ(arrival.messages.outgoing.size(), 3u);
    EXPECT_EQ(arrival.messages.outgoing[0].bytes, 2 * bytes);
    EXPECT_EQ(arrival.messages.outgoing[0].parts[0].source_dtype, DType::kF32);
    EXPECT_EQ(arrival.messages.outgoing[0].parts[0].sources[0].parameter, 0);
    EXPECT_EQ(arrival.messages.outgoing[0].chunks[0].direct < 0, bytes == 2);
  }
}

// Nothing of it stays where it is: the first of its new places is a peer's.
TEST(LowerPlan, AHolderThatWantsNothingStoresToPeersAlone) {
  const Plan plan = *PlanRedistribute({*ParseTensorSpec("f64[4] @ mesh(1) [R]"), {}},
                                      *ParseTensorSpec("f32[4] @ mesh(2; workers=1,2) [R]"));
  const absl::StatusOr<Program> holder = LowerPlan(plan, WorkerIndex(0), MessageLists::kOmit);
  ASSERT_TRUE(holder.ok()) << holder.status();
  ASSERT_EQ(holder->phases[0].instructions.size(), 1u);
  const auto& copy = std::get<ReduceInstruction>(holder->phases[0].instructions[0]);
  EXPECT_EQ(copy.destination.worker, WorkerIndex(1));
  ASSERT_EQ(copy.pushes.size(), 1u);
  EXPECT_EQ(copy.pushes[0].worker, WorkerIndex(2));
}

TEST(VerifyPlan, FindsWrongPushedMoves) {
  const Plan gather = PushedGather();
  EXPECT_TRUE(VerifyPlan(gather).ok()) << VerifyPlan(gather);
  Plan wider = Redistribution("f32[8] @ mesh(2) [S(0)]", "f64[8] @ mesh(2) [R]");
  StepOf(wider, 0).exchange.delivery = Delivery::kPush;
  ExpectRefused(wider, "pushes as f64 what is smaller as it is");
  Plan donated = gather;
  donated.donations.push_back({0, 0});
  ExpectRefused(donated, "pushes into memory that was an input's");
  Plan beside = Redistribution("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]");
  beside.steps.push_back(beside.steps[0]);
  StepOf(beside, 1).start = StepStart::kWithPrevious;
  StepOf(beside, 1).exchange.delivery = Delivery::kPush;
  ExpectRefused(beside, "shares a phase with exchanges of another delivery");
}

TEST(VerifyPlan, FindsValuesThatDoNotFitTheirBuffers) {
  Plan plan = RowsToColumns();
  plan.buffers[1].bytes = 28;
  ExpectRefused(plan, "needs elements 0 to 7 of buffer b1 of 28 bytes");
  Plan below = RowsToColumns();
  below.values[1].offset = -1;
  ExpectRefused(below, "%1 needs elements -1");
}

TEST(VerifyPlan, FindsMovesThatMakeTerms) {
  const auto as = [](std::string_view from, std::string_view to) {
    Plan plan = Redistribution("f32[4] @ mesh(x:2,y:1) [R, R]", "f32[4] @ mesh(2; workers=2,3) [R]");
    const Placements source = *ParsePlacements(from), destination = *ParsePlacements(to);
    const Mesh& mesh = plan.buffers[0].mesh;
    plan.buffers[1].mesh = mesh;
    plan.values[0].spec.placements = source;
    plan.values[1].spec = plan.values[0].spec;
    plan.values[1].spec.placements = destination;
    StepOf(plan, 0).exchange.source = plan.values[0].spec;
    StepOf(plan, 0).exchange.destination = plan.values[1].spec;
    return plan;
  };
  ExpectRefused(as("[R, R]", "[P(sum), R]"), "makes pending terms [P(sum), R] of [R, R]");
  ExpectRefused(as("[P(sum), R]", "[P(max), R]"), "makes pending terms [P(max), R] of [P(sum), R]");
  for (const Plan& kept : {as("[P(sum), R]", "[P(sum), R]"), as("[R, R]", "[R, P(sum)]")}) {
    EXPECT_TRUE(VerifyPlan(kept).ok()) << VerifyPlan(kept) << ToText(kept);
  }
  // Terms are kept where they are: under another name of the mesh dim, not on other workers.
  Plan moved = as("[P(sum), R]", "[P(sum), R]");
  moved.values[1].spec.mesh = StepOf(moved, 0).exchange.destination.mesh = *ParseMesh("mesh(a:2,b:1)");
  EXPECT_TRUE(VerifyPlan(moved).ok()) << VerifyPlan(moved);
  moved.values[1].spec.mesh = StepOf(moved, 0).exchange.destination.mesh = *ParseMesh("mesh(2,1; workers=1,0)");
  ExpectRefused(moved, "makes pending terms");
}

TEST(VerifyPlan, FindsElementsAtOnePlaceAndGaps) {
  Plan repeated = RowsToColumns();
  repeated.values[1].strides = {0, 1};
  ExpectRefused(repeated, "%1 is written, and several elements are at one place");
  Plan wide = RowsToColumns();
  wide.values[1].strides = {3, 1};
  wide.buffers[1].bytes = 64;
  ExpectRefused(wide, "%1 is written with gaps");
  // An output that is a view of what is written.
  const auto view = [](std::string_view written, const Strides& strides, std::string_view output) {
    Plan plan = Redistribution("f32[8] @ mesh(2) [R]", "f32[8] @ mesh(2; workers=2,3) [R]");
    const TensorSpec spec = *ParseTensorSpec(written);
    plan.buffers[1].mesh = spec.mesh;
    plan.buffers[1].bytes = 16;
    StepOf(plan, 0).exchange.dims[0].entries = {{0, spec.shape[0], 0, 0, 0, 0}};
    if (spec.placements[0].is_shard()) {
      StepOf(plan, 0).exchange.dims[0].entries = {{0, 2, 0, 0, 0, 0}, {2, spec.shape[0] - 2, 0, 1, 2, 0}};
    }
    plan.values[1] = {spec, 1, 0, strides};
    StepOf(plan, 0).exchange.destination = spec;
    plan.values.push_back({*ParseTensorSpec(output), 1, 0, {1}});
    plan.outputs = {2};
    return plan;
  };
  ExpectRefused(view("f32[2] @ mesh(2) [R]", {3}, "f32[4] @ mesh(2) [R]"), "%1 is no part of output %2");
  // Worker 1 has one of the two elements.
  ExpectRefused(view("f32[3] @ mesh(2) [S(0)]", {1}, "f32[4] @ mesh(2) [S(0)]"), "is no part of output %2");
  const Plan all = view("f32[4] @ mesh(2) [S(0)]", {1}, "f32[3] @ mesh(2) [S(0)]");
  EXPECT_TRUE(VerifyPlan(all).ok()) << VerifyPlan(all) << ToText(all);
}

TEST(VerifyPlan, FindsWrongLocalSteps) {
  Plan plan = RowsToColumns();
  LocalStep step;
  step.op = MatmulOp{};
  step.inputs = {0, 0};
  step.output = 1;
  plan.steps = {step};
  ExpectRefused(plan, "extents");
}

// [S(0)] @ [S(0)] of f32[4,4] on two workers, the right operand read where it lies.
constexpr std::string_view kInPlace = R"(plan {
  b0 : input 32 bytes on mesh(2)
  b1 : input 32 bytes on mesh(2)
  b2 : output 32 bytes on mesh(2)
  in  %0 : f32[4,4] @ mesh(2) [S(0)] in b0
  in  %1 : f32[4,4] @ mesh(2) [S(0)] in b1
  out %2 : f32[4,4] @ mesh(2) [S(0)] in b2
  contract matmul() %0, %1 -> %2
    pieces 1 all_gather as f32[4,4] @ mesh(2) [R]
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2
    dim 1: [0:4) 0+0 -> 0+0
}
)";

TEST(VerifyPlan, AcceptsAContractionInPlaceAndItsTextSaysAll) {
  const absl::StatusOr<Plan> plan = ParsePlan(kInPlace);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ToText(*plan), kInPlace);
  EXPECT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan);
  EXPECT_EQ(TrafficOf(*plan).received_bytes, (std::vector<int64_t>{32, 32}));
}

TEST(VerifyPlan, FindsWrongContractions) {
  const auto refused = [](const auto& change, std::string_view why) {
    Plan plan = *ParsePlan(kInPlace);
    change(plan, std::get<ContractStep>(plan.steps[0]));
    ExpectRefused(plan, why);
  };
  using Step = ContractStep;
  refused([](Plan&, Step& step) { step.operands[0].value = 7; }, "no value %7");
  refused([](Plan&, Step& step) { step.output = 0; }, "lies in an input");
  refused([](Plan&, Step& step) { step.op.notation = {"km", "kn", "mn"}; }, "letter k has several ranges");
  refused([](Plan&, Step& step) { step.op.notation = {"mk", "kn", "mx"}; }, "in no operand");
  refused([](Plan&, Step& step) { step.op.notation = {"mk", "k", "m"}; }, "ranks differ");
  refused([](Plan&, Step& step) { step.operands[1].pieces.reset(); }, "letter k has several ranges");
  refused([](Plan&, Step& step) { step.operands[1].pieces->dims[0].entries[1].source_shard = 2; },
          "names shards 2 of 2");
  refused([](Plan&, Step& step) { step.operands[1].pieces->dims[0].entries[1].source_offset = 1; },
          "reads offsets 1 to 2");
  refused([](Plan&, Step& step) { step.operands[1].pieces->dims[0].entries.pop_back(); }, "2 of 4 elements");
  refused([](Plan&, Step& step) { step.operands[1].pieces->dims.pop_back(); }, "ranks differ");
  refused([](Plan&, Step& step) { step.operands[1].pieces->role = ExchangeRole::kReduce; }, "the pieces are pending");
  refused([](Plan&, Step& step) { step.operands[1].pieces->source.dtype = DType::kF64; }, "the pieces are of f64");
  refused([](Plan& plan, Step&) { plan.values[2].spec.dtype = DType::kI32; }, "dtypes differ");
}

// 2^62 elements on four workers are 2^64, which is 0 where it wraps.
TEST(VerifyPlan, RefusesPiecesThatCannotBeCounted) {
  Plan plan = *ParsePlan(kInPlace);
  const TensorSpec huge = *ParseTensorSpec("i8[4611686018427387904] @ mesh(4) [R]");
  plan.buffers[1] = {PlanBuffer::Kind::kInput, huge.mesh, huge.shape[0]};
  plan.values[1] = {huge, 1, 0, {1}};
  Exchange& pieces = *std::get<ContractStep>(plan.steps[0]).operands[1].pieces;
  pieces.source = pieces.destination = huge;
  pieces.dims = {{1, {{0, huge.shape[0], 0, 0, 0, 0}}}};
  ExpectRefused(plan, "too many bytes to count on 4 workers", absl::StatusCode::kInvalidArgument);
}

TEST(VerifyPlan, RefusesAPeakOverTheLimit) {
  EXPECT_TRUE(VerifyPlan(RowsToColumns(), {64}).ok());
  const absl::Status status = VerifyPlan(RowsToColumns(), {63});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("64 bytes"), std::string::npos);
}

TEST(Interpret, RefusesInputsOfOtherSizes) {
  EXPECT_FALSE(Interpret(RowsToColumns(), {}, {}).ok());
  EXPECT_FALSE(Interpret(RowsToColumns(), {{{1, 2}, {3}}}, {}).ok());
}

TEST(JoinDense, FindsReplicasThatDiffer) {
  const TensorSpec spec = *ParseTensorSpec("f32[2] @ mesh(2) [R]");
  EXPECT_TRUE(JoinDense(spec, {{1, 2}, {1, 2}}).ok());
  EXPECT_FALSE(JoinDense(spec, {{1, 2}, {1, 3}}).ok());
}

}  // namespace
}  // namespace tessera
