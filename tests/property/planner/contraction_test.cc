#include "server/planner/contraction.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/program.h"
#include "server/plan/movement/exchange.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

OpCall Matmul() {
  OpCall call;
  call.op = OpId::kMatmul;
  return call;
}

std::vector<double> DenseMatmul(const std::vector<double>& a, const std::vector<double>& b, int64_t m, int64_t k,
                                int64_t n) {
  std::vector<double> c(static_cast<size_t>(m * n), 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
      }
    }
  }
  return c;
}

absl::StatusOr<Plan> PlanMatmul(const TensorSpec& a, const TensorSpec& b, const Topology& topology = {}) {
  const PlanOperand operands[] = {OperandLayout{a, {}}, OperandLayout{b, {}}};
  absl::StatusOr<OpPlan> planned = PlanOp(Matmul(), operands, topology);
  if (!planned.ok()) return planned.status();
  return std::move(planned->plan);
}

// The same plan with pieces of any extent read where they lie, or none.
absl::StatusOr<Plan> PlanWithLimits(const TensorSpec& a, const TensorSpec& b, const TensorSpec& output,
                                    const PieceLimits& limits) {
  PlanBuilder builder;
  const int left = builder.AddInput({a, {}});
  const int right = builder.AddInput({b, {}});
  const absl::StatusOr<int> result = AddContraction(builder, {}, left, right, output, Topology(), {limits, {}, {}});
  if (!result.ok()) return result.status();
  builder.AddOutput(*result);
  return std::move(builder).Finish();
}

constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};

absl::Status CheckMatmul(const TensorSpec& a, const TensorSpec& b) {
  absl::StatusOr<Plan> plan = PlanMatmul(a, b);
  if (!plan.ok()) return plan.status();
  const OperandSpec specs[] = {a, b};
  const absl::StatusOr<TensorSpec> wanted = OutputSpec(Matmul(), specs);
  if (!wanted.ok()) return wanted.status();
  if (plan->values[static_cast<size_t>(plan->outputs[0])].spec != *wanted) {
    return absl::InternalError(StrCat("the output is not ", ToText(*wanted), "\n", ToText(*plan)));
  }
  const std::vector<double> left = Numbers(a, 1);
  const std::vector<double> right = Numbers(b, 2);
  const absl::StatusOr<std::vector<double>> result = RunPlan(*plan, {left, right}, {});
  if (!result.ok()) return result.status();
  const bool averages = a.partial_op() == ReduceOp::kAvg || b.partial_op() == ReduceOp::kAvg;
  if (!Agree(*result, DenseMatmul(left, right, a.shape[0], a.shape[1], b.shape[1]), averages ? 1e-9 : 0)) {
    return absl::InternalError(StrCat("the result differs from the dense answer\n", ToText(*plan)));
  }
  const absl::StatusOr<Plan> in_place = PlanWithLimits(a, b, *wanted, kAnyPieces);
  if (!in_place.ok()) return in_place.status();
  if (averages) return absl::OkStatus();
  const absl::StatusOr<std::vector<double>> same = RunPlan(*in_place, {left, right}, {});
  if (!same.ok()) return same.status();
  if (*same != *result) return absl::InternalError(StrCat("read in place it differs\n", ToText(*in_place)));
  if (ParsePlan(ToText(*in_place)).value() != *in_place) {
    return absl::InternalError(StrCat("the text does not say all\n", ToText(*in_place)));
  }
  const bool sums = a.partial_op() == ReduceOp::kSum && b.partial_op() == ReduceOp::kSum;
  return sums ? CheckPrograms(*in_place, {left, right}) : absl::OkStatus();
}

// The pieces of products that a worker computes from messages, with chunks of so many bytes, and their regions.
std::pair<size_t, size_t> CountPieces(const Plan& plan, int64_t max_chunk_bytes) {
  const auto program = LowerPlan(plan, WorkerIndex(0), MessageLists::kBuild, max_chunk_bytes);
  if (!program.ok()) return {0, 0};
  std::set<int> regions;
  for (const InstructionPiece& piece : program->phases[0].messages.pieces) regions.insert(piece.region);
  return {program->phases[0].messages.pieces.size(), regions.size()};
}

// Worker 0 has 7 of 20 rows, and 7 and 6 come; the columns in 7 blocks of each, or in 7 and 6 that don't fit each
// other.
TEST(Contraction, WhatComesInBlocksIsMultipliedRegionByRegion) {
  const TensorSpec a = *ParseTensorSpec("f64[48,20] @ mesh(3) [S(0)]");
  const TensorSpec b = *ParseTensorSpec("f64[20,7200] @ mesh(3) [S(0)]");
  const TensorSpec output = *ParseTensorSpec("f64[48,7200] @ mesh(3) [S(0)]");
  const auto plan = PlanWithLimits(a, b, output, kAnyPieces);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const auto& [max_chunk_bytes, pieces, regions] :
       {std::tuple<int64_t, size_t, size_t>{49152, 7 * 3, 7}, {57600, 1 + 7 + 6, 1}}) {
    EXPECT_EQ(CountPieces(*plan, max_chunk_bytes), std::pair(pieces, regions)) << max_chunk_bytes;
    EXPECT_TRUE(CheckPrograms(*plan, {Numbers(a), Numbers(b)}, max_chunk_bytes).ok()) << max_chunk_bytes;
  }
}

struct Sizes {
  int64_t m, k, n;
};

void CheckPlacements(const Mesh& mesh, const Sizes& s, const std::vector<ReduceOp>& partial_ops, size_t stride) {
  size_t number = 0;
  for (const Placements& left : AllPlacements(mesh.ndim(), 2, partial_ops)) {
    for (const Placements& right : AllPlacements(mesh.ndim(), 2, partial_ops)) {
      if (number++ % stride != 0) continue;
      const TensorSpec a = MakeSpec(DType::kF64, {s.m, s.k}, mesh, left);
      const TensorSpec b = MakeSpec(DType::kF64, {s.k, s.n}, mesh, right);
      const absl::Status status = CheckMatmul(a, b);
      ASSERT_TRUE(status.ok()) << ToText(a) << " x " << ToText(b) << "\n" << status;
    }
  }
}

TEST(Contraction, EveryPlacementOnTwo) {
  for (const Sizes& s :
       std::vector<Sizes>{{4, 4, 4}, {5, 3, 7}, {1, 1, 1}, {3, 0, 2}, {0, 3, 2}, {2, 7, 0}, {1, 5, 2}}) {
    CheckPlacements(MakeMesh({2}), s, {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg}, 1);
  }
}

TEST(Contraction, EveryPlacementOnTwoByTwo) {
  for (const Sizes& s : std::vector<Sizes>{{5, 3, 7}, {4, 4, 4}, {3, 0, 2}, {1, 5, 3}, {1, 9, 1}}) {
    CheckPlacements(MakeMesh({2, 2}), s, {ReduceOp::kSum}, 1);
  }
}

TEST(Contraction, SampledPlacementsOnTwoByThree) {
  CheckPlacements(MakeMesh({2, 3}), {7, 5, 4}, {ReduceOp::kSum}, 3);
  CheckPlacements(MakeMesh({2, 3}), {5, 11, 2}, {ReduceOp::kAvg}, 7);
}

TEST(Contraction, SampledPlacementsOnThreeDims) {
  CheckPlacements(MakeMesh({2, 2, 2}), {6, 5, 7}, {ReduceOp::kSum}, 61);
}

TEST(Contraction, OperandsOnMeshesOfOtherShapes) {
  const Mesh line = MakeMesh({4});
  const Mesh square = MakeMesh({2, 2});
  for (const Placements& left : AllPlacements(1, 2, {ReduceOp::kSum})) {
    for (const Placements& right : AllPlacements(2, 2, {ReduceOp::kSum})) {
      const TensorSpec a = MakeSpec(DType::kF64, {5, 6}, line, left);
      const TensorSpec b = MakeSpec(DType::kF64, {6, 3}, square, right);
      const absl::Status status = CheckMatmul(a, b);
      ASSERT_TRUE(status.ok()) << ToText(a) << " x " << ToText(b) << "\n" << status;
    }
  }
}

// On a mesh dim of size 1 nothing is pending: the operand is read where it lies.
TEST(Contraction, OneTermIsReadInPlace) {
  const TensorSpec a = *ParseTensorSpec("f64[2048,2048] @ mesh(2) [S(0)]");
  const TensorSpec b = *ParseTensorSpec("f64[2048,2048] @ mesh(1,2) [P(sum), S(0)]");
  const absl::StatusOr<Plan> plan = PlanMatmul(a, b);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->steps.size(), 1u) << ToText(*plan);
  EXPECT_TRUE(std::get<ContractStep>(plan->steps[0]).operands[1].pieces.has_value()) << ToText(*plan);
}

TEST(Contraction, GramMatrixOfDigitsTakesTheOtherRowsOnce) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec x = MakeSpec(DType::kF32, {1797, 64}, mesh, {Placement::Shard(0)});
  const TensorSpec transposed = MakeSpec(DType::kF32, {64, 1797}, mesh, {Placement::Shard(1)});
  const PlanOperand operands[] = {OperandLayout{x, {}}, OperandLayout{transposed, {1, 64}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(Matmul(), operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Plan& plan = planned->plan;
  EXPECT_EQ(TrafficOf(plan).received_bytes, (std::vector<int64_t>{344832, 344832, 344832, 345600})) << ToText(plan);
  EXPECT_EQ(plan.values[static_cast<size_t>(plan.outputs[0])].spec.placements, Placements{Placement::Shard(0)});
  ASSERT_EQ(StepLines(plan),
            std::vector<std::string>{"contract matmul() %0 [S(0)], %1 [S(1)] all_gather [R] -> %2 [S(0)]"});
  EXPECT_EQ(plan.grid.find("grid (4,1,1) "), 0u) << plan.grid;
  EXPECT_FALSE(plan.runners_up.empty());
  ASSERT_EQ(plan.implicit.size(), 1u);
  EXPECT_EQ(plan.implicit[0], "redistribute %1 [S(1)] -> [R]: 1,380,096 bytes");
}

TEST(Contraction, AnOperandIsMultipliedWhereItLies) {
  const Mesh mesh = MakeMesh({2});
  const TensorSpec rows = MakeSpec(DType::kF64, {2048, 2048}, mesh, {Placement::Shard(0)});
  const absl::StatusOr<Plan> plan = PlanMatmul(rows, rows);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(StepLines(*plan),
            std::vector<std::string>{"contract matmul() %0 [S(0)], %1 [S(0)] all_gather [R] -> %2 [S(0)]"});
  const int64_t half = 2048 * 1024 * 8;
  EXPECT_EQ(TrafficOf(*plan).received_bytes, (std::vector<int64_t>{half, half}));
  EXPECT_EQ(PeakBytes(*plan), (std::vector<int64_t>{3 * half, 3 * half})) << "operands and result, nothing else";
  EXPECT_EQ(plan->implicit, std::vector<std::string>{"redistribute %1 [S(0)] -> [R]: 33,554,432 bytes"});
}

TEST(Contraction, ThinPiecesAreGatheredFirst) {
  const Mesh mesh = MakeMesh({2});
  const TensorSpec a = MakeSpec(DType::kF64, {4096, 64}, mesh, {Placement::Shard(0)});
  const TensorSpec b = MakeSpec(DType::kF64, {64, 4096}, mesh, {Placement::Shard(0)});
  const absl::StatusOr<Plan> plan = PlanMatmul(a, b);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(StepLines(*plan), (std::vector<std::string>{"all_gather %1 [S(0)] -> %2 [R]",
                                                        "local matmul() %0 [S(0)], %2 [R] -> %3 [S(0)]"}));
}

TEST(Contraction, AnOperandOfAnotherDTypeIsConvertedAsItIsTaken) {
  const TensorSpec rows = MakeSpec(DType::kF64, {2048, 2048}, MakeMesh({2}), {Placement::Shard(0)});
  const TensorSpec narrow = WithDType(rows, DType::kF32);
  const absl::StatusOr<Plan> plan = PlanMatmul(rows, narrow);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(StepLines(*plan), (std::vector<std::string>{"all_gather %1 [S(0)] -> %2 [R], as f64",
                                                        "local matmul() %0 [S(0)], %2 [R] -> %3 [S(0)]"}));
  const int64_t half = 2048 * 1024 * 4;
  EXPECT_EQ(TrafficOf(*plan).received_bytes, (std::vector<int64_t>{half, half}));
  // On two hosts what is passed on within a host is, in fewer bytes.
  Topology topology;
  topology.host_of_worker = {0, 0, 1, 1};
  const TensorSpec quarter = MakeSpec(DType::kF64, {128, 128}, MakeMesh({4}), {Placement::Shard(0)});
  const std::vector<std::string> lines = StepLines(*PlanMatmul(quarter, WithDType(quarter, DType::kF32), topology));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], "all_gather %2 [R] -> %2 [R]");
  EXPECT_EQ(lines[2], "local map(cast:f64(in0:f32)) %2 [R] -> %3 [R]");
}

// Bytes that each host gets of others.
std::vector<int64_t> CrossingBytes(const Plan& plan, const std::vector<int32_t>& hosts) {
  std::vector<int64_t> crossing(hosts.size());
  const auto add = [&](const Exchange& exchange) {
    const Pieces walk(exchange);
    for (size_t worker = 0; worker < hosts.size(); ++worker) {
      walk.VisitReceived(WorkerIndex(static_cast<int32_t>(worker)), [&](WorkerIndex from, int64_t elements) {
        const bool is_far = hosts[static_cast<size_t>(from.value)] != hosts[worker];
        if (is_far) crossing[static_cast<size_t>(hosts[worker])] += elements * SizeBytes(exchange.destination.dtype);
      });
    }
  };
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) add(exchange->exchange);
    const auto* contract = std::get_if<ContractStep>(&step);
    if (contract == nullptr) continue;
    for (const ContractOperand& operand : contract->operands) {
      if (operand.pieces.has_value()) add(*operand.pieces);
    }
  }
  return crossing;
}

TEST(Contraction, WhatSeveralWorkersOfAHostNeedCrossesOnce) {
  Topology topology;
  topology.host_of_worker = {0, 0, 1, 1};
  const TensorSpec rows = MakeSpec(DType::kF64, {2048, 2048}, MakeMesh({4}), {Placement::Shard(0)});
  const absl::StatusOr<Plan> plan = PlanMatmul(rows, rows, topology);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(StepLines(*plan), (std::vector<std::string>{"all_gather %1 [S(0)] -> %2 [R]", "all_gather %2 [R] -> %2 [R]",
                                                        "local matmul() %0 [S(0)], %2 [R] -> %3 [S(0)]"}));
  const int64_t quarter = 2048 * 512 * 8;
  EXPECT_EQ(CrossingBytes(*plan, topology.host_of_worker), (std::vector<int64_t>{2 * quarter, 2 * quarter, 0, 0}));
  EXPECT_EQ(TrafficOf(*plan).received_bytes, std::vector<int64_t>(4, 3 * quarter));
  EXPECT_EQ(PeakBytes(*plan), std::vector<int64_t>(4, 7 * quarter));
  EXPECT_NE(plan->grid.find("receives 25,165,824 bytes, a host 16,777,216, peak 58,720,256 bytes"), std::string::npos)
      << plan->grid;
  // A worker on each host, or none that wants the same as another on its host: nothing to share.
  topology.host_of_worker = {0, 1, 2, 3};
  const TensorSpec fewer = MakeSpec(DType::kF64, {512, 512}, MakeMesh({4}), {Placement::Shard(0)});
  EXPECT_EQ(StepLines(*PlanMatmul(fewer, fewer, topology)),
            std::vector<std::string>{"contract matmul() %0 [S(0)], %1 [S(0)] all_gather [R] -> %2 [S(0)]"});
  // A wait for others costs more than a few bytes that cross twice.
  topology.host_of_worker = {0, 0, 1, 1};
  const TensorSpec small = MakeSpec(DType::kF64, {512, 16}, MakeMesh({4}), {Placement::Shard(0)});
  const TensorSpec square = MakeSpec(DType::kF64, {16, 128}, MakeMesh({4}), {Placement::Shard(1)});
  EXPECT_EQ(StepLines(*PlanMatmul(small, square, topology)),
            std::vector<std::string>{"contract matmul() %0 [S(0)], %1 [S(1)] all_gather [R] -> %2 [S(0)]"});
}

TEST(Contraction, TheGridSaysWhatCrosses) {
  const std::vector<int64_t> meshes[] = {{4}, {2, 2}};
  const std::vector<int32_t> all_hosts[] = {{0, 0, 1, 1}, {0, 1, 1, 0}};
  for (const std::vector<int64_t>& shape : meshes) {
    const Mesh mesh = MakeMesh(shape);
    for (const std::vector<int32_t>& hosts : all_hosts) {
      Topology topology;
      topology.host_of_worker = hosts;
      for (const Placements& left : AllPlacements(mesh.ndim(), 2, {ReduceOp::kSum})) {
        for (const Placements& right : AllPlacements(mesh.ndim(), 2, {ReduceOp::kSum})) {
          const TensorSpec a = MakeSpec(DType::kF64, {2048, 2048}, mesh, left);
          const TensorSpec b = MakeSpec(DType::kF64, {2048, 2048}, mesh, right);
          const OperandSpec specs[] = {a, b};
          const absl::StatusOr<TensorSpec> output = OutputSpec(Matmul(), specs);
          ASSERT_TRUE(output.ok());
          const auto grids = EnumerateGrids({}, a, b, *output, topology);
          const absl::StatusOr<Plan> plan = PlanMatmul(a, b, topology);
          ASSERT_TRUE(grids.ok() && plan.ok());
          const std::vector<int64_t> crossing = CrossingBytes(*plan, hosts);
          EXPECT_EQ((*grids)[0].host_received_bytes, *std::max_element(crossing.begin(), crossing.end()))
              << ToText(*plan);
        }
      }
    }
  }
}

TEST(Contraction, LargeInnerDimIsSplit) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec a = MakeSpec(DType::kF32, {64, 1000000}, mesh, {Placement::Shard(1)});
  const TensorSpec b = MakeSpec(DType::kF32, {1000000, 64}, mesh, {Placement::Shard(1)});
  const absl::StatusOr<Plan> plan = PlanMatmul(a, b);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->grid.find("grid (1,1,4) "), 0u) << plan->grid;
}

TEST(Contraction, OperandsThatFitAreNotConverted) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec whole = MakeSpec(DType::kF32, {2048, 2048}, mesh, {Placement::Replicate()});
  const absl::StatusOr<Plan> plan = PlanMatmul(whole, whole);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->steps.size(), 1u) << ToText(*plan);
}

// A product that is pending on neither mesh dim, from operands that fit no rule: the grid that wins
// splits the inner dim and reduces the small product.
TEST(Contraction, GridsAreComparedByWhatTheyCost) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec a = MakeSpec(DType::kF32, {32, 1000000}, mesh, {Placement::Shard(1)});
  const TensorSpec b = MakeSpec(DType::kF32, {1000000, 32}, mesh, {Placement::Shard(0)});
  const TensorSpec output = MakeSpec(DType::kF32, {32, 32}, mesh, {Placement::Shard(0)});
  const absl::StatusOr<std::vector<GridCandidate>> grids = EnumerateGrids({}, a, b, output, Topology());
  ASSERT_TRUE(grids.ok()) << grids.status();
  EXPECT_EQ((*grids)[0].pk, 4);
  for (size_t i = 1; i < grids->size(); ++i) EXPECT_LE((*grids)[i - 1].seconds, (*grids)[i].seconds);
}

TEST(Contraction, GridsFollowHostsAndNotMeasurements) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec a = MakeSpec(DType::kF32, {512, 512}, mesh, {Placement::Shard(0)});
  const TensorSpec b = MakeSpec(DType::kF32, {512, 512}, mesh, {Placement::Shard(1)});
  const PlanOperand operands[] = {OperandLayout{a, {}}, OperandLayout{b, {}}};
  Topology measured;
  measured.version = 9;
  measured.host_bandwidth_bytes_s = 1;
  measured.flops_per_s = 1;
  const absl::StatusOr<OpPlan> first = PlanOp(Matmul(), operands, Topology());
  const absl::StatusOr<OpPlan> second = PlanOp(Matmul(), operands, measured);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->plan, second->plan);
}

TEST(Contraction, PriceIsWhatThePlanReceives) {
  const Mesh mesh = MakeMesh({2, 2});
  for (const Placements& left : AllPlacements(2, 2, {ReduceOp::kSum})) {
    for (const Placements& right : AllPlacements(2, 2, {ReduceOp::kSum})) {
      const TensorSpec a = MakeSpec(DType::kF32, {12, 7}, mesh, left);
      const TensorSpec b = MakeSpec(DType::kF32, {7, 10}, mesh, right);
      const OperandSpec specs[] = {a, b};
      const absl::StatusOr<TensorSpec> output = OutputSpec(Matmul(), specs);
      ASSERT_TRUE(output.ok());
      const absl::StatusOr<std::vector<GridCandidate>> grids = EnumerateGrids({}, a, b, *output, Topology());
      const absl::StatusOr<Plan> plan = PlanMatmul(a, b);
      ASSERT_TRUE(grids.ok() && plan.ok());
      const PlanTraffic traffic = TrafficOf(*plan);
      EXPECT_EQ((*grids)[0].received_bytes,
                *std::max_element(traffic.received_bytes.begin(), traffic.received_bytes.end()))
          << ToText(*plan);
    }
  }
}

}  // namespace
}  // namespace tessera
