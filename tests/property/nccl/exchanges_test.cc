// Every exchange of the small worlds, by NCCL between GPU workers: the outputs have the bits that Interpret says, and
// what workers count is what the plan says. The executor, the CUDA device and the transport are the worker's own, the
// kernels those that ship; driver and library are emulated (tests/emulator/cuda).

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/test_driver.h"
#include "tests/property/nccl/nccl_world.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera::testing {
namespace {

constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

// Fractions whose sums are rounded, so that another order would be seen; negative ones, and both zeros. Between hosts
// integers: there terms are added up host by host, and the interpreter knows no hosts.
std::vector<Number> Fractions(const TensorSpec& spec, double divisor) {
  std::vector<Number> numbers;
  for (int64_t i = 0; i < NumElements(spec.shape); ++i) {
    const double value = i % 11 == 3 ? -0.0 : static_cast<double>(i * 7 % 23 - 9) / divisor;
    numbers.push_back(CastTo(spec.dtype, value));
  }
  return numbers;
}

ShardedArray InputOf(const TensorSpec& spec, double divisor = 3) {
  ShardedArray shards = SplitDense(spec, Fractions(spec, divisor));
  for (std::vector<Number>& shard : shards) {
    for (Number& number : shard) number = CastTo(spec.dtype, number);
  }
  return shards;
}

bool HaveTheSameBits(const std::vector<ShardedArray>& a, const std::vector<ShardedArray>& b) {
  const auto same = [](const Number& x, const Number& y) {
    return AreAlike(x, y) && x.dtype() == y.dtype() && x.is_negative() == y.is_negative();
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const ShardedArray& x, const ShardedArray& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [&](const auto& p, const auto& q) {
      return std::equal(p.begin(), p.end(), q.begin(), q.end(), same);
    });
  });
}

void ExpectRuns(WorkerWorld& world, const Plan& plan) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    inputs.push_back(InputOf(plan.values[static_cast<size_t>(input)].spec, plan.hosts.several() ? 1 : 3));
  }
  auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status() << "\n" << ToText(plan);
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  ASSERT_TRUE(HaveTheSameBits(got.outputs, want->outputs)) << ToText(plan);
  ExpectReceived(world, plan, *want, got.received_bytes);
  world.FreeAll();
}

// A mesh, tensors on it, and which of all pairs of placements: every `stride`-th.
struct World {
  const char* name = "";
  std::vector<int64_t> mesh;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<ReduceOp> partial_ops = {ReduceOp::kSum};
  DType from = DType::kF32;
  DType to = DType::kF32;
  size_t stride = 1;
  std::vector<int32_t> hosts = {};  // by worker; empty: each alone
  int64_t max_chunk_bytes = kMaxChunkBytes;
};

class NcclExchanges : public ::testing::TestWithParam<World> {};

TEST_P(NcclExchanges, HaveTheBitsOfInterpret) {
  const World& param = GetParam();
  const Mesh mesh = MakeMesh(param.mesh);
  WorldOptions options = NcclWorldOptions(static_cast<int>(mesh.size()), param.hosts);
  options.max_chunk_bytes = param.max_chunk_bytes;
  WorkerWorld world(options);
  size_t number = 0, run = 0;
  for (const std::vector<int64_t>& shape : param.shapes) {
    const auto placements = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), param.partial_ops);
    for (const Placements& from : placements) {
      for (const Placements& to : placements) {
        const TensorSpec source = MakeSpec(param.from, shape, mesh, from);
        const TensorSpec destination = MakeSpec(param.to, shape, mesh, to);
        Topology topology = Topology::Of(DeviceKind::kCuda), two_phases = InTwoPhases();
        topology.host_of_worker = two_phases.host_of_worker = param.hosts;
        const auto plan = PlanRedistribute({source, {}}, destination, topology);
        if (!plan.ok() || number++ % param.stride != 0) continue;
        ++run;
        ExpectRuns(world, *plan);
        const auto large = PlanRedistribute({source, {}}, destination, two_phases);
        ASSERT_TRUE(large.ok()) << large.status();
        if (!(*large == *plan)) ExpectRuns(world, *large);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(run, 0u);
  for (const std::string& hazard : TestDriver::Get().Hazards()) ADD_FAILURE() << hazard;
}

// Messages that are packed and unpacked lie in pinned memory then; shards are sent from where they lie all the same.
TEST(NcclOfAFullGpu, HasTheBitsOfInterpret) {
  WorkerWorld world(NcclWorldOptions(2));
  const Mesh mesh = MakeMesh({2});
  // The first staging memory of each worker, and no other.
  for (int worker = 0; worker < 2; ++worker) TestDriver::Get().Fail("cuMemCreate", 1, kOutOfMemory);
  for (const auto& [from, to] :
       {std::pair(Placement::Shard(1), Placement::Shard(0)), std::pair(Placement::Shard(1), Placement::Replicate())}) {
    const auto plan =
        PlanRedistribute({MakeSpec(DType::kF32, {5, 7}, mesh, {from}), {}}, MakeSpec(DType::kF32, {5, 7}, mesh, {to}));
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectRuns(world, *plan);
  }
  // Both were asked for: no call after them is refused.
  EXPECT_TRUE(world.device(0).MakeStaging(64, StagingPlace::kDevice).ok());
}

using Shapes = std::vector<std::vector<int64_t>>;

// Static initialisation orders nothing across the suite: a function.
std::vector<World> Worlds() {
  const Shapes shapes = {{}, {1}, {5}, {7}, {0, 3}, {1, 2}, {3, 5}, {7, 2}, {5, 7}};
  const std::vector<ReduceOp> others = {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  using D = DType;
  std::vector<World> worlds = {
      {"Two", {2}, shapes},
      {"Three", {3}, shapes},
      {"TwoByTwo", {2, 2}, {{}, {3}, {2, 2}}},
      {"TwoByTwoUneven", {2, 2}, {{7, 5}}},
      {.name = "TwoByThree", .mesh = {2, 3}, .shapes = {{7, 5}}},
      {.name = "Cube", .mesh = {2, 2, 2}, .shapes = {{5, 7}}, .stride = 19},
      {.name = "OtherReductions",
       .mesh = {3},
       .shapes = {{7}, {2, 3}},
       .partial_ops = others,
       .from = D::kF64,
       .to = D::kF64},
      {.name = "OtherReductionsTwoByTwo",
       .mesh = {2, 2},
       .shapes = {{5, 3}},
       .partial_ops = others,
       .from = D::kF64,
       .to = D::kF64,
       .stride = 5},
      // In pieces of a few elements, of which some lie in one piece in a shard and some don't.
      {.name = "InChunks", .mesh = {2, 2}, .shapes = {{7, 5}}, .stride = 3, .max_chunk_bytes = 16},
      {.name = "InChunksOfThree", .mesh = {3}, .shapes = {{5, 7}}, .max_chunk_bytes = 16},
      // Mapped memory within a host, NCCL between hosts.
      {.name = "TwoHosts", .mesh = {2, 2}, .shapes = {{7, 5}}, .stride = 2, .hosts = {0, 0, 1, 1}},
      {.name = "HostsOfOneAndThree", .mesh = {4}, .shapes = {{7, 5}}, .hosts = {0, 1, 1, 1}},
  };
  const std::pair<D, D> converted[] = {{D::kI64, D::kI64}, {D::kBool, D::kBool}, {D::kF32, D::kF64},
                                       {D::kF64, D::kI32}, {D::kU8, D::kF32},    {D::kI64, D::kBF16},
                                       {D::kC64, D::kC64}, {D::kBF16, D::kBF16}};
  for (const auto& [from, to] : converted) {
    worlds.push_back({.name = "Of", .mesh = {3}, .shapes = {{7}, {2, 5}}, .from = from, .to = to});
  }
  return worlds;
}

INSTANTIATE_TEST_SUITE_P(SmallWorlds, NcclExchanges, ::testing::ValuesIn(Worlds()), [](const auto& info) {
  const World& world = info.param;
  return StrCat(world.name, "_", ToText(world.from), "_", ToText(world.to), "_", info.index);
});

}  // namespace
}  // namespace tessera::testing
