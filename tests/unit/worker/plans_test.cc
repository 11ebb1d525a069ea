// Real plans on real executors, in one process, over mapped memory and over messages: the results are
// the interpreter's, and the counters are the plan's.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/planner/contraction.h"
#include "server/planner/plan_limits.h"
#include "server/planner/planner.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

TensorSpec Spec(std::string_view text) {
  auto spec = ParseTensorSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// Small whole numbers; of i64 such that no double has, of complex numbers both parts.
std::vector<Number> Numbers(const TensorSpec& spec, int seed) {
  std::vector<Number> out;
  for (int64_t i = 0; i < NumElements(spec.shape); ++i) {
    const int64_t value = (i * 7 + seed) % 11 - 5;
    if (spec.dtype == DType::kI64) {
      out.push_back(Number::Whole(value + (int64_t{1} << 60) * (value % 3)));
    } else if (Kind(spec.dtype) == DTypeKind::kComplex) {
      out.emplace_back(ScalarValue{DType::kC128, static_cast<double>(value), 0, static_cast<double>(i % 5 - 2)});
    } else {
      out.emplace_back(static_cast<double>(value));
    }
  }
  return out;
}

// The counters that a run must report, by worker.
std::vector<int64_t> PlannedBytes(const Plan& plan, int workers) {
  const PlanTraffic traffic = TrafficOf(plan);
  std::vector<int64_t> bytes(static_cast<size_t>(workers), 0);
  const Mesh& mesh = plan.values[static_cast<size_t>(plan.outputs[0])].spec.mesh;
  for (size_t i = 0; i < traffic.received_bytes.size(); ++i) {
    const int64_t worker = traffic.by_worker ? static_cast<int64_t>(i) : mesh.workers()[i].value;
    bytes[static_cast<size_t>(worker)] += traffic.received_bytes[i];
  }
  return bytes;
}

void ExpectRuns(WorkerWorld& world, const Plan& plan, const std::vector<Scalar>& scalars) {
  std::vector<ShardedArray> inputs;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[i])].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec, static_cast<int>(i))));
  }
  auto want = Interpret(plan, inputs, scalars);
  ASSERT_TRUE(want.ok()) << want.status() << "\n" << ToText(plan);
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, scalars);
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    EXPECT_EQ(got.outputs[o], want->outputs[o]) << "output " << o << " of\n" << ToText(plan);
  }
  EXPECT_EQ(got.received_bytes, PlannedBytes(plan, world.size())) << ToText(plan);
}

// How the workers reach each other.
struct Way {
  const char* name = "";
  Reach reach = Reach::kMapped;
  int64_t max_chunk_bytes = kMaxChunkBytes;
};
class WorkerPlans : public ::testing::TestWithParam<Way> {
 protected:
  static WorldOptions World(int64_t arena_bytes) {
    return {.workers = 4,
            .reach = GetParam().reach,
            .arena_bytes = arena_bytes,
            .max_chunk_bytes = GetParam().max_chunk_bytes};
  }
};

TEST_P(WorkerPlans, EveryRedistributionOnTwoByTwo) {
  const std::vector<Placement> kinds = {Placement::Replicate(), Placement::Shard(0), Placement::Shard(1),
                                        Placement::Partial(ReduceOp::kSum)};
  // The same, or converted on the way.
  const std::pair<DType, DType> kDTypes[] = {
      {DType::kF32, DType::kF32},  {DType::kI64, DType::kI64},  {DType::kF32, DType::kF64}, {DType::kF64, DType::kI32},
      {DType::kU8, DType::kF32},   {DType::kI64, DType::kBF16}, {DType::kC64, DType::kC64}, {DType::kF32, DType::kC64},
      {DType::kC64, DType::kC128}, {DType::kC128, DType::kC64}};
  for (const auto& [from_dtype, to_dtype] : kDTypes) {
    WorkerWorld world(World(8 << 20));
    const Mesh mesh = *Mesh::Make({2, 2}, {}, {});
    for (size_t source = 0; source < 16; ++source) {
      for (size_t destination = 0; destination < 9; ++destination) {
        const Placements from = {kinds[source / 4], kinds[source % 4]};
        const Placements to = {kinds[destination / 3], kinds[destination % 3]};
        auto a = TensorSpec::Make("test", from_dtype, {7, 5}, mesh, from);
        auto b = TensorSpec::Make("test", to_dtype, {7, 5}, mesh, to);
        ASSERT_TRUE(a.ok() && b.ok());
        auto plan = PlanRedistribute({*a, {}}, *b);
        auto large = PlanRedistribute({*a, {}}, *b, InTwoPhases());
        ASSERT_TRUE(plan.ok() && large.ok()) << plan.status();
        ExpectRuns(world, *plan, {});
        if (!(*large == *plan)) ExpectRuns(world, *large, {});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(WorkerPlans, OtherMeshesEmptyShardsAndTheOtherReductions) {
  WorkerWorld world(World(1 << 20));
  const std::pair<const char*, const char*> kCases[] = {
      {"f64[9,3] @ mesh(x:2; workers=0,1) [S(0)]", "f64[9,3] @ mesh(x:2; workers=3,2) [S(1)]"},
      {"f32[3] @ mesh(4) [S(0)]", "f32[3] @ mesh(2,2) [S(0), S(0)]"},
      {"f32[2,6] @ mesh(4) [S(0)]", "f32[2,6] @ mesh(4) [S(1)]"},
      {"f32[0,6] @ mesh(4) [S(0)]", "f32[0,6] @ mesh(4) [S(1)]"},
      {"f64[6,4] @ mesh(4) [P(max)]", "f64[6,4] @ mesh(4) [S(0)]"},
      {"f64[6,4] @ mesh(4) [P(min)]", "f64[6,4] @ mesh(4) [R]"},
      {"f64[6,4] @ mesh(4) [P(avg)]", "f64[6,4] @ mesh(4) [S(1)]"},
      {"c64[6,4] @ mesh(4) [P(avg)]", "c64[6,4] @ mesh(4) [S(1)]"},
      {"c128[6,4] @ mesh(2,2) [P(product), S(0)]", "c128[6,4] @ mesh(2,2) [R, R]"},
      {"i32[6,4] @ mesh(2,2) [P(product), S(0)]", "i32[6,4] @ mesh(2,2) [R, R]"},
      {"bool[6,4] @ mesh(4) [S(1)]", "bool[6,4] @ mesh(4) [R]"},
      {"f32[] @ mesh(4) [P(sum)]", "f32[] @ mesh(4) [R]"},
  };
  for (const auto& [from, to] : kCases) {
    auto plan = PlanRedistribute({Spec(from), {}}, Spec(to));
    ASSERT_TRUE(plan.ok()) << plan.status() << from;
    ExpectRuns(world, *plan, {});
  }
}

// Several tensors in one plan: moved, reduced and spread together, of element sizes 8, 4 and 1.
Plan PlanTogether(const std::vector<std::pair<const char*, const char*>>& moves, const Topology& topology = {}) {
  PlanBuilder builder;
  std::vector<ValueMove> values;
  for (const auto& [from, to] : moves) values.push_back({builder.AddInput({Spec(from), {}}), Spec(to)});
  const auto moved = builder.AddRedistributes(values);
  TESSERA_CHECK(moved.ok());
  for (const int value : *moved) builder.AddOutput(value);
  return std::move(builder).Finish(topology);
}

Plan FiveTogether() {
  return PlanTogether({{"bool[7,3] @ mesh(4) [S(0)]", "bool[7,3] @ mesh(4) [S(1)]"},
                       {"f64[6,5] @ mesh(4) [P(sum)]", "f64[6,5] @ mesh(4) [R]"},
                       {"f32[9] @ mesh(2; workers=2,0) [P(max)]", "f32[9] @ mesh(2; workers=2,0) [R]"},
                       {"i32[5,5] @ mesh(2,2) [P(sum), S(0)]", "i32[5,5] @ mesh(2,2) [R, R]"},
                       {"f32[4] @ mesh(4) [R]", "f32[4] @ mesh(4) [R]"}});
}

// Rows and columns that their holders store to the others, beside a sum that is stored in the same phase.
Plan GathersTogether() {
  return PlanTogether({{"bool[8,3] @ mesh(4) [S(0)]", "bool[8,3] @ mesh(4) [R]"},
                       {"f64[6,8] @ mesh(4) [S(1)]", "f64[6,8] @ mesh(4) [R]"},
                       {"f64[12] @ mesh(2,2) [S(0), R]", "f32[12] @ mesh(2,2) [R, R]"},
                       {"f32[9] @ mesh(2; workers=2,0) [P(max)]", "f32[9] @ mesh(2; workers=2,0) [R]"}},
                      InTwoPhases());
}

TEST_P(WorkerPlans, SeveralTensorsShareTheirPhases) {
  WorkerWorld world(World(1 << 20));
  const Plan plan = FiveTogether();
  EXPECT_EQ(PhasesOf(plan), (std::vector<int>{1, 1, 1, 1, 2, 2, 2}));
  ExpectRuns(world, plan, {});
}

TEST_P(WorkerPlans, HoldersStoreWhatAllWant) {
  WorkerWorld world(World(1 << 20));
  const Plan plan = GathersTogether();
  EXPECT_EQ(PhasesOf(plan), (std::vector<int>{1, 2, 2, 2, 2}));
  ExpectRuns(world, plan, {});
}

void ExpectNoHazards(const Plan& plan) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec, input)));
  }
  const auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status();
  for (uint32_t seed = 0; seed < 10; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 4, .recorder = &recorder});
    const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
    EXPECT_EQ(got.outputs, want->outputs);
  }
}

TEST(WorkerHazards, SeveralTensorsShareTheirPhases) { ExpectNoHazards(FiveTogether()); }
TEST(WorkerHazards, HoldersStoreWhatAllWant) { ExpectNoHazards(GathersTogether()); }

OpCall Call(OpId op) {
  OpCall call;
  call.op = op;
  return call;
}

TEST_P(WorkerPlans, MatmulsOfEveryPlacement) {
  WorkerWorld world(World(4 << 20));
  for (const char* left : {"R", "S(0)", "S(1)", "P(sum)"}) {
    for (const char* right : {"R", "S(0)", "S(1)", "P(sum)"}) {
      for (const char* shape : {"5,6", "5,0"}) {
        const std::string inner = shape[2] == '6' ? "6" : "0";
        const std::vector<PlanOperand> operands = {
            OperandLayout{Spec(StrCat("f64[", shape, "] @ mesh(4) [", left, "]")), {}},
            OperandLayout{Spec(StrCat("f64[", inner, ",7] @ mesh(4) [", right, "]")), {}}};
        auto planned = PlanOp(Call(OpId::kMatmul), operands, {});
        ASSERT_TRUE(planned.ok()) << planned.status();
        ExpectRuns(world, planned->plan, planned->scalars.values);
        if (HasFailure()) return;
      }
    }
  }
}

constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};

absl::StatusOr<Plan> PlanContraction(const Contraction& notation, const char* left, const char* right,
                                     const char* output, const PieceLimits& pieces, const PlanLimits& limits) {
  PlanBuilder builder;
  const int a = builder.AddInput({Spec(left), {}});
  const int b = builder.AddInput({Spec(right), {}});
  TESSERA_ASSIGN_OR_RETURN(const int result,
                           AddContraction(builder, notation, a, b, Spec(output), {}, {pieces, limits, {}}));
  builder.AddOutput(result);
  return std::move(builder).Finish();
}

// A contraction whose operands are read in place, whatever the extents of their pieces.
Plan PlanInPlace(const Contraction& notation, const char* left, const char* right, const char* output) {
  return *PlanContraction(notation, left, right, output, kAnyPieces, {});
}

// Every output whose rows and columns the mesh cuts, with half of the temporaries that the whole takes.
TEST_P(WorkerPlans, ContractionsInPartsOfLettersThatTheMeshCuts) {
  WorkerWorld world(World(16 << 20));
  int split = 0;
  for (const char* left : {"S(0), S(1)", "S(1), S(0)", "S(0), R", "R, S(1)", "S(1), P(sum)", "P(sum), S(0)"}) {
    for (const char* right : {"S(0), S(1)", "S(1), S(0)", "R, S(0)", "S(1), R", "P(sum), S(1)"}) {
      for (const char* output : {"S(0), S(1)", "S(1), S(0)"}) {
        for (const PieceLimits& pieces : {PieceLimits(), kAnyPieces}) {
          const std::string a = StrCat("f64[9,6] @ mesh(2,2) [", left, "]");
          const std::string b = StrCat("f64[6,7] @ mesh(2,2) [", right, "]");
          const std::string c = StrCat("f64[9,7] @ mesh(2,2) [", output, "]");
          const auto whole = PlanContraction({}, a.c_str(), b.c_str(), c.c_str(), pieces, {});
          ASSERT_TRUE(whole.ok()) << whole.status();
          int64_t temporary_bytes = 0;
          for (const PlanBuffer& buffer : whole->buffers) {
            temporary_bytes += buffer.kind == PlanBuffer::Kind::kTemporary ? buffer.bytes : 0;
          }
          if (temporary_bytes == 0) continue;
          const auto plan = PlanContraction({}, a.c_str(), b.c_str(), c.c_str(), pieces, {temporary_bytes * 2 / 3});
          if (!plan.ok()) continue;
          ++split;
          ExpectRuns(world, *plan, {});
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GE(split, 60);
}

TEST_P(WorkerPlans, ContractionsReadTheirOperandsWhereTheyLie) {
  WorkerWorld world(World(4 << 20));
  for (const char* left : {"S(0)", "S(1)", "R"}) {
    for (const char* right : {"S(0)", "S(1)", "R"}) {
      for (const char* output : {"S(0)", "S(1)", "R", "P(sum)"}) {
        const Plan plan = PlanInPlace({}, StrCat("f64[9,6] @ mesh(4) [", left, "]").c_str(),
                                      StrCat("f64[6,7] @ mesh(4) [", right, "]").c_str(),
                                      StrCat("f64[9,7] @ mesh(4) [", output, "]").c_str());
        ExpectRuns(world, plan, {});
        if (HasFailure()) return;
      }
    }
  }
  // Wide enough that what comes in a message is multiplied in several blocks.
  const auto reads_pieces = [](const Plan& plan) {
    return std::any_of(plan.steps.begin(), plan.steps.end(),
                       [](const Step& step) { return std::holds_alternative<ContractStep>(step); });
  };
  for (const char* left : {"S(0)", "S(1)"}) {
    const Plan wide = PlanInPlace({}, StrCat("f64[9,6] @ mesh(4) [", left, "]").c_str(), "f64[6,2060] @ mesh(4) [S(0)]",
                                  "f64[9,2060] @ mesh(4) [S(0)]");
    ASSERT_TRUE(reads_pieces(wide)) << ToText(wide);
    ExpectRuns(world, wide, {});
    const Plan tall = PlanInPlace({"mk", "nk", "nm"}, "f64[2060,6] @ mesh(4) [S(1)]", "f64[9,6] @ mesh(4) [S(1)]",
                                  StrCat("f64[9,2060] @ mesh(4) [", left, "]").c_str());
    ASSERT_TRUE(reads_pieces(tall)) << ToText(tall);
    ExpectRuns(world, tall, {});
  }
  const Plan batch = PlanInPlace({"bmk", "kbn", "nbm"}, "i64[3,5,6] @ mesh(2,2) [S(1), S(2)]",
                                 "i64[6,3,7] @ mesh(2,2) [S(2), S(1)]", "i64[7,3,5] @ mesh(2,2) [S(0), S(1)]");
  ASSERT_TRUE(reads_pieces(batch)) << ToText(batch);
  ExpectRuns(world, batch, {});
}

TEST_P(WorkerPlans, ElementwiseWithScalarsReductionsAndCreation) {
  WorkerWorld world(World(4 << 20));
  auto run = [&](const OpCall& call, const std::vector<PlanOperand>& operands) {
    auto planned = PlanOp(call, operands, {});
    ASSERT_TRUE(planned.ok()) << planned.status() << " " << ToText(call);
    ExpectRuns(world, planned->plan, planned->scalars.values);
  };
  const OperandLayout rows{Spec("f32[9,6] @ mesh(2,2) [S(0), R]"), {}};
  const OperandLayout columns{Spec("f32[9,6] @ mesh(2,2) [R, S(1)]"), {}};
  const OperandLayout vector{Spec("f32[6] @ mesh(2,2) [R, R]"), {}};
  const OperandLayout pending{Spec("f32[9,6] @ mesh(2,2) [P(sum), R]"), {}};
  for (OpId op : {OpId::kAdd, OpId::kSub, OpId::kMul, OpId::kMaximum, OpId::kLess}) {
    run(Call(op), {rows, columns});
    run(Call(op), {rows, vector});
    run(Call(op), {pending, rows});
    run(Call(op), {rows, Scalar::Int(3)});
  }
  run(Call(OpId::kRelu), {rows});
  for (OpId op : {OpId::kSum, OpId::kMax, OpId::kMean, OpId::kMin}) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{0}, {1}, {0, 1}}) {
      OpCall call = Call(op);
      call.attributes.Set(attribute::dims, dims);
      run(call, {rows});
      call.attributes.Set(attribute::keepdims, true);
      run(call, {columns});
    }
  }
  OpCall argmax = Call(OpId::kArgMax);
  argmax.attributes.Set(attribute::dims, {0});
  run(argmax, {rows});
  OpCall eye = Call(OpId::kEye);
  eye.attributes.Set(attribute::dtype, DType::kF32);
  eye.attributes.Set(attribute::shape, Shape{9, 6});
  eye.attributes.Set(attribute::mesh, rows.spec.mesh);
  eye.attributes.Set(attribute::placements, rows.spec.placements);
  eye.scalars = {Scalar::Int(1)};
  run(eye, {});
  OpCall arange = eye;
  arange.op = OpId::kArange;
  arange.attributes.Set(attribute::shape, Shape{11});
  arange.scalars = {Scalar::Float(2), Scalar::Float(0.5)};
  run(arange, {});
}

INSTANTIATE_TEST_SUITE_P(Ways, WorkerPlans,
                         ::testing::Values(Way{"mapped", Reach::kMapped}, Way{"messages", Reach::kMessages},
                                           Way{"chunks", Reach::kMessages, 24}, Way{"elements", Reach::kMessages, 1}),
                         [](const auto& info) { return info.param.name; });

TEST(WorkerCounters, AKernelThatIsDroppedIsMissingInTheCounters) {
  WorkerWorld world({.workers = 2, .drops = [](int worker, const DeviceWork& work) {
                       const KernelWork* kernel = std::get_if<KernelWork>(&work);
                       return worker == 1 && kernel != nullptr && !kernel->received.empty();
                     }});
  const Plan plan =
      PlanInPlace({}, "f64[4,6] @ mesh(2) [S(0)]", "f64[6,4] @ mesh(2) [S(0)]", "f64[4,4] @ mesh(2) [S(0)]");
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec, 1)));
  }
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  EXPECT_TRUE(got.status.ok());
  EXPECT_EQ(PlannedBytes(plan, 2), (std::vector<int64_t>{96, 96}));
  EXPECT_EQ(got.received_bytes, (std::vector<int64_t>{96, 0}));
}

TEST(WorkerCounters, ACopyThatIsDroppedIsMissingInTheCounters) {
  // Worker 1 loses the copies that it makes from peers' memory.
  WorkerWorld world({.workers = 2, .drops = [](int worker, const DeviceWork& work) {
                       const CopyWork* copy = std::get_if<CopyWork>(&work);
                       return worker == 1 && copy != nullptr && copy->received_bytes != nullptr;
                     }});
  auto plan = PlanRedistribute({Spec("f32[8,8] @ mesh(2) [S(0)]"), {}}, Spec("f32[8,8] @ mesh(2) [S(1)]"));
  ASSERT_TRUE(plan.ok());
  const TensorSpec& spec = plan->values[static_cast<size_t>(plan->inputs[0])].spec;
  const WorkerWorld::Result got = world.RunPlan(*plan, {SplitDense(spec, Numbers(spec, 1))}, {});
  EXPECT_TRUE(got.status.ok());
  EXPECT_EQ(PlannedBytes(*plan, 2), (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(got.received_bytes, (std::vector<int64_t>{64, 0}));
}

TEST(WorkerCounters, APushThatIsDroppedIsMissingInTheCounters) {
  WorkerWorld world({.workers = 2, .drops = [](int worker, const DeviceWork& work) {
                       return worker == 1 && std::holds_alternative<ReduceWork>(work);
                     }});
  auto plan =
      PlanRedistribute({Spec("f32[8,8] @ mesh(2) [P(sum)]"), {}}, Spec("f32[8,8] @ mesh(2) [R]"), InTwoPhases());
  ASSERT_TRUE(plan.ok());
  const TensorSpec& spec = plan->values[static_cast<size_t>(plan->inputs[0])].spec;
  const WorkerWorld::Result got = world.RunPlan(*plan, {SplitDense(spec, Numbers(spec, 1))}, {});
  EXPECT_TRUE(got.status.ok());
  EXPECT_EQ(PlannedBytes(*plan, 2), (std::vector<int64_t>{256, 256}));
  EXPECT_EQ(got.received_bytes, (std::vector<int64_t>{128, 128}));  // worker 0's terms, and what it pushed
}

}  // namespace
}  // namespace tessera::testing
