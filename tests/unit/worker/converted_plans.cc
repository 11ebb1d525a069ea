#include "tests/unit/worker/converted_plans.h"

#include "kernels/kernel.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/planner/planner.h"

namespace tessera::testing {
namespace {

std::vector<double> Numbers(const TensorSpec& spec, int seed) {
  std::vector<double> out(static_cast<size_t>(NumElements(spec.shape)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>((i * 7 + static_cast<size_t>(seed)) % 11) - 5;
  return out;
}

}  // namespace

std::vector<Way> AllWays() {
  return {{"Mapped", Reach::kMapped, {}},
          {"OnSeveralThreads", Reach::kMapped, {}, kMaxChunkBytes, 4},
          {"Messages", Reach::kMessages, {}},
          {"SmallChunks", Reach::kMessages, {}, 1000},
          {"TwoHosts", Reach::kMapped, {0, 0, 1, 1, 0, 1}},
          {"ThreeHosts", Reach::kMapped, {0, 1, 1, 2, 2, 0}, 4096, 2}};
}

ConvertedPlans::ConvertedPlans() { SetKernelThreads(GetParam().threads); }
ConvertedPlans::~ConvertedPlans() { SetKernelThreads(1); }

WorldOptions ConvertedPlans::World(int workers, int64_t arena_bytes) {
  WorldOptions options;
  options.workers = workers;
  options.reach = GetParam().reach;
  options.hosts = GetParam().hosts;
  if (!options.hosts.empty()) options.hosts.resize(static_cast<size_t>(workers));
  options.arena_bytes = arena_bytes;
  options.max_chunk_bytes = GetParam().max_chunk_bytes;
  return options;
}

Topology ConvertedPlans::Hosts(Topology topology) {
  topology.host_of_worker = GetParam().hosts;
  return topology;
}

Plan PlanConverted(const std::vector<std::string>& sources, DType dtype, const Placements& placements,
                   const Topology& topology, const std::optional<Mesh>& mesh) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::dtype, dtype);
  if (mesh.has_value()) call.attributes.Set(attribute::mesh, *mesh);
  std::vector<PlanOperand> operands;
  for (const std::string& source : sources) {
    operands.emplace_back(OperandLayout{*ParseTensorSpec(source), {}});
  }
  call.attributes.Set(attribute::placements_each, std::vector<Placements>(sources.size(), placements));
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, topology);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned->plan;
}

std::vector<ShardedArray> InputsOf(const Plan& plan) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec, input)));
  }
  return inputs;
}

void ExpectRuns(WorkerWorld& world, const Plan& plan) {
  const std::vector<ShardedArray> inputs = InputsOf(plan);
  auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status() << "\n" << ToText(plan);
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  EXPECT_TRUE(got.outputs == want->outputs) << ToText(plan);
  ExpectReceived(world, plan, *want, got.received_bytes);
}

void ExpectNumbers(WorkerWorld& world, const Plan& plan) {
  const WorkerWorld::Result got = world.RunPlan(plan, InputsOf(plan), {});
  ASSERT_TRUE(got.status.ok()) << got.status;
  const TensorSpec& spec = plan.values[static_cast<size_t>(plan.outputs[0])].spec;
  EXPECT_TRUE(got.outputs[0] == SplitDense(spec, Numbers(spec, plan.inputs[0]))) << ToText(plan);
}

}  // namespace tessera::testing
