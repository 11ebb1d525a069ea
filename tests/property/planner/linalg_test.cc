// Linear algebra and windows: every placement of their operands against the answer of one worker, on small worlds; and
// what moves for it.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/graph.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/saving.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "server/planner/smaller_way.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

TEST(Linalg, OfOneTensor) {
  for (const OpId op :
       {OpId::kInv, OpId::kDet, OpId::kSlogdet, OpId::kQr, OpId::kEigvalsh, OpId::kSvdVals, OpId::kPinv,
        OpId::kMatrixRank, OpId::kMatrixNorm, OpId::kEig, OpId::kEigvals, OpId::kLu, OpId::kMatrixExp}) {
    CheckOp(Call(op), {{{3, 3}}}, {2}, 1);
    CheckOp(Call(op), {{{3, 3}}}, {2, 2}, 1);
    CheckOp(Call(op), {{{5, 2, 2}}}, {2, 2}, 3);
    CheckOp(Call(op), {{{2, 3, 3}}}, {3}, 1);
  }
}

TEST(Linalg, NormsAndPowers) {
  for (const std::string ord : {"1", "-1", "2", "-2", "inf", "-inf", "nuc"}) {
    OpCall norm = Call(OpId::kMatrixNorm);
    norm.attributes.Set(attribute::ord, ord);
    CheckOp(norm, {{{4, 3}}}, {2, 2}, 1);
    norm.attributes.Set(attribute::keepdims, true);
    CheckOp(norm, {{{2, 2, 3}}}, {2}, 1);
  }
  for (const int64_t n : {-2, 0, 1, 5}) {
    OpCall power = Call(OpId::kMatrixPower);
    power.attributes.Set(attribute::k, n);
    CheckOp(power, {{{3, 3}}}, {2, 2}, n == 5 ? 2 : 1);
  }
}

// Rows that are sharded, evenly and not, are decomposed where they lie.
TEST(Linalg, TallMatricesAreDecomposedInPieces) {
  for (const int64_t rows : {8, 7, 9, 13}) {
    CheckOp(Call(OpId::kQr), {{{rows, 2}}}, {2}, 1);
    CheckOp(Call(OpId::kQr), {{{rows, 2}}}, {3}, 1);
    CheckOp(Call(OpId::kQr), {{{2, rows, 2}}}, {2, 2}, 1);
  }
  CheckOp(Call(OpId::kPinv), {{{8, 2}}}, {2, 2}, 1);
}

TEST(Linalg, TallMatricesMoveTheSmallTrianglesAlone) {
  const TensorSpec spec = MakeSpec(DType::kF64, {4096, 8}, MakeMesh({4}), {Placement::Shard(0)});
  const PlanOperand operands[] = {OperandLayout{spec, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(Call(OpId::kQr), operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  int64_t received = 0;
  for (const int64_t bytes : TrafficOf(planned->plan).received_bytes) received += bytes;
  // Three triangles of 8 x 8 for each worker, and the first 8 rows of Q.
  EXPECT_LE(received, 4 * (3 + 1) * 8 * 8 * 8);
  EXPECT_EQ(planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec.placements,
            Placements{Placement::Shard(0)});
}

TEST(Linalg, OfSystems) {
  CheckOp(Call(OpId::kSolve), {{{3, 3}}, {{3, 4}}}, {2}, 1);
  CheckOp(Call(OpId::kSolve), {{{3, 3}}, {{3}}}, {2, 2}, 5);
  CheckOp(Call(OpId::kSolve), {{{3, 3}}, {{3, 4}}}, {2, 2}, 7);
  CheckOp(Call(OpId::kSolve), {{{4, 2, 2}}, {{2, 3}}}, {2, 2}, 7);
  CheckOp(Call(OpId::kSolve), {{{2, 2}}, {{4, 2, 3}}}, {2, 2}, 7);
  CheckOp(Call(OpId::kLstsq), {{{5, 2}}, {{5, 3}}}, {2}, 1);
  CheckOp(Call(OpId::kLstsq), {{{5, 2}}, {{5}}}, {2, 2}, 11);
  OpCall triangular = Call(OpId::kTriangularSolve);
  for (const bool upper : {false, true}) {
    for (const bool transposed : {false, true}) {
      triangular.attributes.Set(attribute::upper, upper);
      triangular.attributes.Set(attribute::transposed, transposed);
      CheckOp(triangular, {{{3, 3}}, {{3, 2}}}, {2}, 1);
    }
  }
}

TEST(Linalg, OfFactors) {
  CheckOp(Call(OpId::kLu), {{{4, 3}}}, {2, 2}, 1);
  CheckOp(Call(OpId::kLu), {{{2, 2, 4}}}, {2, 2}, 3);
}

struct FactorsCase {
  std::vector<std::vector<int64_t>> shapes;  // of LU, pivots, and a right-hand side
  std::vector<double> pivots;
};

// All results of an op on factors, on a mesh with these placements.
absl::StatusOr<std::vector<std::vector<double>>> ResultsOf(const OpCall& call, const FactorsCase& each,
                                                           const Mesh& mesh,
                                                           const std::vector<Placements>& placements) {
  std::vector<PlanOperand> operands;
  std::vector<std::vector<double>> inputs;
  for (size_t i = 0; i < each.shapes.size(); ++i) {
    const TensorSpec spec = MakeSpec(i == 1 ? DType::kI64 : DType::kF64, each.shapes[i], mesh, placements[i]);
    operands.push_back(OperandLayout{spec, {}});
    inputs.push_back(i == 1 ? each.pivots : Numbers(spec, static_cast<int64_t>(i)));
  }
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  if (!planned.ok()) return planned.status();
  return RunPlanOutputs(planned->plan, inputs, planned->scalars.values);
}

void CheckFactors(const OpCall& call, const FactorsCase& each) {
  const std::vector<Placements> whole(each.shapes.size(), {Placement::Replicate()});
  const auto expected = ResultsOf(call, each, MakeMesh({1}), whole);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Placements& left : AllPlacements(2, static_cast<int>(each.shapes[0].size()), {ReduceOp::kSum})) {
    for (const Placements& pivots : AllPlacements(2, static_cast<int>(each.shapes[1].size()), {})) {
      std::vector<Placements> placements = {left, pivots};
      // A right-hand side has those of the left one, the other way round.
      if (each.shapes.size() == 3) placements.push_back({left[1], left[0]});
      const bool fits = each.shapes.size() < 3 || each.shapes[2].size() == each.shapes[0].size();
      if (!fits) placements[2] = {Placement::Shard(0), Placement::Replicate()};
      const auto results = ResultsOf(call, each, MakeMesh({2, 2}), placements);
      ASSERT_TRUE(results.ok()) << results.status();
      ASSERT_EQ(results->size(), expected->size());
      for (size_t i = 0; i < results->size(); ++i) EXPECT_TRUE(Agree((*results)[i], (*expected)[i], 1e-9));
    }
  }
}

TEST(Linalg, OfFactorsAndPivots) {
  for (const FactorsCase& each : std::vector<FactorsCase>{{{{4, 2}, {2}}, {2, 3}},
                                                          {{{2, 4}, {2}}, {1, 1}},
                                                          {{{3, 3}, {3}}, {1, 2, 2}},
                                                          {{{2, 3, 2}, {2, 2}}, {2, 1, 0, 1}}}) {
    CheckFactors(Call(OpId::kLuUnpack), each);
  }
  for (const bool transposed : {false, true}) {
    OpCall solve = Call(OpId::kLuSolve);
    solve.attributes.Set(attribute::transposed, transposed);
    for (const FactorsCase& each : std::vector<FactorsCase>{{{{3, 3}, {3}, {3, 2}}, {1, 2, 2}},
                                                            {{{3, 3}, {3}, {3}}, {2, 1, 2}},
                                                            {{{2, 2, 2}, {2, 2}, {2, 3}}, {1, 1, 0, 1}}}) {
      CheckFactors(solve, each);
    }
  }
  FactorsCase beyond = {{{3, 3}, {3}, {3, 2}}, {1, 3, 2}};
  const std::vector<Placements> whole(3, {Placement::Replicate()});
  EXPECT_FALSE(ResultsOf(Call(OpId::kLuSolve), beyond, MakeMesh({1}), whole).ok());
}

// The long side of a matrix stays where it is: of tall and of wide ones the small triangles alone are gathered.
TEST(Linalg, LongSidesAreDecomposedInPieces) {
  for (const auto& [rows, columns, dim] : std::vector<std::array<int64_t, 3>>{{4096, 8, 0}, {8, 4096, 1}}) {
    const TensorSpec spec =
        MakeSpec(DType::kF64, {rows, columns}, MakeMesh({4}), {Placement::Shard(static_cast<int>(dim))});
    for (const OpId op : {OpId::kSvdVals, OpId::kPinv, OpId::kMatrixRank, OpId::kSvd}) {
      const PlanOperand operands[] = {OperandLayout{spec, {}}};
      const absl::StatusOr<OpPlan> planned = PlanOp(Call(op), operands, Topology());
      ASSERT_TRUE(planned.ok()) << planned.status();
      int64_t received = 0;
      for (const int64_t bytes : TrafficOf(planned->plan).received_bytes) received += bytes;
      EXPECT_LE(received, 4 * 3 * 8 * 8 * 8) << NameOf(op) << ToText(planned->plan);
    }
  }
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{9, 2}, {2, 9}, {2, 8, 2}, {2, 2, 8}}) {
    for (const OpId op : {OpId::kSvdVals, OpId::kPinv}) CheckOp(Call(op), {{shape}}, {2, 2}, 1);
  }
  CheckOp(Call(OpId::kLstsq), {{{9, 2}}, {{9, 2}}}, {2, 2}, 3);
}

// The way that needs less memory gives results of the same specs, which lie where the other way's do.
TEST(Linalg, BothWaysOfADecompositionGiveTheSameSpecs) {
  for (const int workers : {2, 3, 4, 7}) {
    for (const DType dtype : {DType::kF64, DType::kC64}) {
      for (const int dim : {0, 1}) {
        const TensorSpec spec = MakeSpec(dtype, {1031, 1031}, MakeMesh({workers}), {Placement::Shard(dim)});
        for (const OpId op : {OpId::kSvd, OpId::kSvdVals, OpId::kEigh, OpId::kEigvalsh, OpId::kPinv}) {
          const OperandSpec operands[] = {spec};
          const auto fast = ResolveOp(Call(op), operands, Saving::kTime);
          const auto small = ResolveOp(Call(op), operands, Saving::kMemory);
          ASSERT_TRUE(fast.ok() && small.ok()) << fast.status() << small.status();
          EXPECT_EQ(fast->outputs, small->outputs) << NameOf(op) << " of " << ToText(spec);
          ASSERT_TRUE(fast->graph != nullptr);
          const bool has_panels = op != OpId::kEigh || workers >= 4;
          EXPECT_EQ(fast->graph->nodes.size() < small->graph->nodes.size(), has_panels) << NameOf(op);
        }
      }
    }
  }
}

// Bytes of all buffers of a worker, its own shards among them, in those of the matrix.
double SharesOf(const Plan& plan, double matrix_bytes) {
  double bytes = 0;
  for (const PlanBuffer& buffer : plan.buffers) bytes += static_cast<double>(buffer.bytes);
  return bytes / matrix_bytes;
}

// On few workers the panels take less memory than the gathered matrix; values alone need less than the matrix has.
TEST(Linalg, PanelsTakeLessMemoryThanTheGatheredMatrix) {
  struct Case {
    OpId op;
    int workers;
    double shares;
  };
  for (const Case& each : std::vector<Case>{{OpId::kSvd, 2, 4.45},
                                            {OpId::kSvd, 3, 3.45},
                                            {OpId::kSvd, 4, 2.45},
                                            {OpId::kSvd, 5, 2.45},
                                            {OpId::kSvd, 6, 2.0},
                                            {OpId::kSvd, 7, 1.5},
                                            {OpId::kEigh, 4, 2.2},
                                            {OpId::kEigh, 5, 2.0},
                                            {OpId::kEigh, 6, 1.5},
                                            {OpId::kEigh, 7, 1.25},
                                            {OpId::kSvdVals, 2, 1.4},
                                            {OpId::kSvdVals, 4, 0.8},
                                            {OpId::kSvdVals, 7, 0.8},
                                            {OpId::kEigvalsh, 2, 1.4},
                                            {OpId::kEigvalsh, 4, 0.8},
                                            {OpId::kEigvalsh, 5, 1.2},
                                            {OpId::kEigvalsh, 6, 1.2},
                                            {OpId::kEigvalsh, 7, 0.8}}) {
    const TensorSpec spec = MakeSpec(DType::kF64, {1024, 1024}, MakeMesh({each.workers}), {Placement::Shard(0)});
    const PlanOperand operands[] = {OperandLayout{spec, {}}};
    const absl::StatusOr<OpPlan> whole = PlanOp(Call(each.op), operands, Topology());
    const absl::StatusOr<OpPlan> panels = PlanOp(Call(each.op), operands, Topology(), {int64_t{64} << 20});
    ASSERT_TRUE(whole.ok() && panels.ok()) << whole.status() << panels.status();
    EXPECT_TRUE(HasSmallerWay(whole->plan));
    const std::string name = std::string(NameOf(each.op)) + " on " + std::to_string(each.workers);
    EXPECT_LT(SharesOf(panels->plan, 8 << 20), each.shares) << name;
    EXPECT_LT(SharesOf(panels->plan, 8 << 20), SharesOf(whole->plan, 8 << 20)) << name;
    const absl::Status verified = VerifyPlan(panels->plan);
    EXPECT_TRUE(verified.ok()) << name << ": " << verified;
  }
}

// Columns of a right-hand side, and batches, are solved for where they lie.
TEST(Linalg, NothingMovesWhereNothingMust) {
  const Mesh mesh = MakeMesh({2, 2});
  const TensorSpec a = MakeSpec(DType::kF64, {6, 3, 3}, mesh, {Placement::Shard(0), Placement::Replicate()});
  const TensorSpec b = MakeSpec(DType::kF64, {6, 3, 4}, mesh, {Placement::Shard(0), Placement::Shard(2)});
  const PlanOperand operands[] = {OperandLayout{a, {}}, OperandLayout{b, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(Call(OpId::kSolve), operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(planned->plan.implicit.empty()) << ToText(planned->plan);
  EXPECT_EQ(planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec.placements, b.placements);
}

TEST(Fourier, AlongADimAndSeveral) {
  for (const OpId op : {OpId::kFft, OpId::kIfft, OpId::kRfft, OpId::kIrfft, OpId::kHfft, OpId::kIhfft}) {
    for (const int64_t dim : {0, 1}) {
      OpCall call = Call(op);
      call.attributes.Set(attribute::dims, {dim});
      CheckOp(call, {{{4, 5}}}, {2, 2}, 1);
      call.attributes.Set(attribute::k, 6);
      call.attributes.Set(attribute::norm, "ortho");
      CheckOp(call, {{{4, 5}}}, {3}, 1);
    }
  }
  for (const OpId op : {OpId::kFftn, OpId::kIfftn, OpId::kRfftn, OpId::kIrfftn}) {
    CheckOp(Call(op), {{{4, 5}}}, {2, 2}, 1);
  }
}

OpCall Over(OpId op, std::vector<int64_t> kernel, std::vector<int64_t> stride, std::vector<int64_t> padding,
            std::vector<int64_t> dilation) {
  OpCall call = Call(op);
  call.attributes.Set(attribute::kernel_size, std::move(kernel));
  call.attributes.Set(attribute::stride, std::move(stride));
  call.attributes.Set(attribute::padding, std::move(padding));
  call.attributes.Set(attribute::dilation, std::move(dilation));
  return call;
}

TEST(Windows, Convolutions) {
  CheckOp(Over(OpId::kConv, {}, {1}, {0}, {1}), {{{4, 2, 7}}, {{2, 2, 3}}}, {2}, 1);
  CheckOp(Over(OpId::kConv, {}, {2}, {1}, {2}), {{{3, 2, 9}}, {{4, 2, 2}}}, {2, 2}, 7);
  CheckOp(Over(OpId::kConv, {}, {1, 2}, {1, 0}, {1, 1}), {{{2, 2, 4, 5}}, {{2, 2, 3, 2}}}, {2}, 1);
  OpCall grouped = Over(OpId::kConv, {}, {1}, {1}, {1});
  grouped.attributes.Set(attribute::groups, 2);
  CheckOp(grouped, {{{3, 4, 5}}, {{6, 2, 3}}}, {2}, 1);
}

TEST(Windows, GradientsOfConvolutions) {
  using Extents = std::vector<int64_t>;
  const auto check = [](const OpCall& windows, const Extents& x, const Extents& weight, const Extents& gradient,
                        const Extents& mesh, size_t step) {
    for (const bool is_of_x : {true, false}) {
      OpCall call = windows;
      call.op = is_of_x ? OpId::kConvBackwardX : OpId::kConvBackwardWeight;
      const Extents &shape = is_of_x ? x : weight, &other = is_of_x ? weight : x;
      call.attributes.Set(attribute::shape, Shape(shape.begin(), shape.end()));
      CheckOp(call, {{gradient}, {other}}, mesh, step);
    }
  };
  check(Over(OpId::kConv, {}, {1}, {0}, {1}), {4, 2, 7}, {2, 2, 3}, {4, 2, 5}, {2}, 1);
  check(Over(OpId::kConv, {}, {2}, {1}, {2}), {3, 2, 9}, {4, 2, 2}, {3, 4, 5}, {2, 2}, 7);
  check(Over(OpId::kConv, {}, {1, 2}, {1, 0}, {1, 1}), {2, 2, 4, 5}, {2, 2, 3, 2}, {2, 2, 4, 2}, {2}, 1);
  check(Over(OpId::kConv, {}, {1}, {0}, {1}), {2, 2, 4}, {2, 2, 1}, {2, 2, 4}, {2, 2}, 3);
  OpCall grouped = Over(OpId::kConv, {}, {1}, {1}, {1});
  grouped.attributes.Set(attribute::groups, 2);
  check(grouped, {3, 4, 5}, {6, 2, 3}, {3, 6, 5}, {2}, 1);
}

TEST(Windows, Pooling) {
  for (const OpId op : {OpId::kMaxPool, OpId::kAvgPool}) {
    OpCall call = Over(op, {3}, {2}, {1}, {1});
    CheckOp(call, {{{3, 4, 8}}}, {2, 2}, 1);
    call.attributes.Set(attribute::ceil_mode, true);
    call.attributes.Set(attribute::count_include_pad, op == OpId::kAvgPool);
    CheckOp(call, {{{3, 4, 8}}}, {2}, 1);
    CheckOp(Over(op, {2, 2}, {2, 1}, {0, 1}, {1, 2}), {{{2, 3, 5, 6}}}, {2}, 1);
  }
}

// When windows go over a dim that is cut, the shards stay, and take what their windows reach beyond them.
TEST(Windows, ShardsTakeHalos) {
  const auto of_rows = [](int64_t stride, int64_t padding, int64_t dilation, int64_t extent) {
    CheckOp(Over(OpId::kConv, {}, {stride}, {padding}, {dilation}), {{{2, 1, extent}}, {{1, 1, 3}}}, {2}, 1);
    CheckOp(Over(OpId::kConv, {}, {stride}, {padding}, {dilation}), {{{1, 1, extent}}, {{1, 1, 3}}}, {2, 2}, 5);
    if (padding > 1) return;
    CheckOp(Over(OpId::kMaxPool, {3}, {stride}, {padding}, {dilation}), {{{1, 2, extent}}}, {3}, 1);
    OpCall mean = Over(OpId::kAvgPool, {3}, {stride}, {padding}, {dilation});
    CheckOp(mean, {{{1, 2, extent}}}, {2}, 1);
    mean.attributes.Set(attribute::count_include_pad, true);
    mean.attributes.Set(attribute::ceil_mode, true);
    CheckOp(mean, {{{1, 2, extent}}}, {2}, 1);
  };
  for (const int64_t extent : {12, 19, 24}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t padding : {0, 1}) of_rows(stride, padding, 1, extent);
    }
    of_rows(1, 2, 2, extent);
  }
  CheckOp(Over(OpId::kConv, {}, {1, 2}, {1, 1}, {1, 1}), {{{1, 1, 8, 9}}, {{2, 1, 3, 3}}}, {2, 2}, 5);
}

TEST(Windows, AHaloIsAllThatMoves) {
  const Mesh mesh = MakeMesh({4});
  const TensorSpec x = MakeSpec(DType::kF32, {1, 3, 64, 10}, mesh, {Placement::Shard(2)});
  const TensorSpec weight = MakeSpec(DType::kF32, {5, 3, 3, 3}, mesh, {Placement::Replicate()});
  const OperandSpec operands[] = {x, weight};
  const OpCall call = Over(OpId::kConv, {}, {1, 1}, {1, 1}, {1, 1});
  const absl::StatusOr<TensorSpec> output = OutputSpec(call, operands);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->placements[0], Placement::Shard(2));
  const absl::StatusOr<OpPlan> planned = PlanOp(call, {{OperandLayout{x, {}}, OperandLayout{weight, {}}}}, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  // Each of three borders is crossed by a row of x's 3 channels of 10 elements, in both directions.
  int64_t received = 0;
  for (const int64_t bytes : TrafficOf(planned->plan).received_bytes) received += bytes;
  EXPECT_EQ(received, 3 * 2 * 3 * 10 * 4) << ToText(planned->plan);
}

// Input channels that are cut on both sides give a pending sum; batches stay.
TEST(Windows, ConvolutionsArePlacedAsProducts) {
  const auto placed = [](const Placements& x, const Placements& weight) {
    const Mesh mesh = MakeMesh({2});
    const OperandSpec operands[] = {MakeSpec(DType::kF32, {4, 4, 9}, mesh, x),
                                    MakeSpec(DType::kF32, {8, 4, 3}, mesh, weight)};
    const absl::StatusOr<TensorSpec> output = OutputSpec(Over(OpId::kConv, {}, {1}, {1}, {1}), operands);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? output->placements[0] : Placement::Replicate();
  };
  const Placement whole = Placement::Replicate();
  EXPECT_EQ(placed({Placement::Shard(0)}, {whole}), Placement::Shard(0));
  EXPECT_EQ(placed({whole}, {Placement::Shard(0)}), Placement::Shard(1));
  EXPECT_EQ(placed({Placement::Shard(1)}, {Placement::Shard(1)}), Placement::Partial(ReduceOp::kSum));
  EXPECT_EQ(placed({whole}, {whole}), whole);
  EXPECT_EQ(placed({Placement::Shard(2)}, {whole}), Placement::Shard(2));
}

// Likewise the gradients: that of the weight is a sum over the batch.
TEST(Windows, GradientsOfConvolutionsArePlacedAsProducts) {
  const auto placed = [](OpId op, const Placement& gradient, const Placement& other) {
    const bool is_of_x = op == OpId::kConvBackwardX;
    const std::vector<int64_t> x = {4, 4, 9}, weight = {8, 4, 3}, &shape = is_of_x ? x : weight;
    const Mesh mesh = MakeMesh({2});
    const OperandSpec operands[] = {MakeSpec(DType::kF32, {4, 8, 9}, mesh, {gradient}),
                                    MakeSpec(DType::kF32, is_of_x ? weight : x, mesh, {other})};
    OpCall call = Over(op, {}, {1}, {1}, {1});
    call.attributes.Set(attribute::shape, Shape(shape.begin(), shape.end()));
    const absl::StatusOr<TensorSpec> output = OutputSpec(call, operands);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? output->placements[0] : Placement::Replicate();
  };
  const Placement whole = Placement::Replicate(), pending = Placement::Partial(ReduceOp::kSum);
  const Placement first = Placement::Shard(0), second = Placement::Shard(1), windows = Placement::Shard(2);
  EXPECT_EQ(placed(OpId::kConvBackwardX, first, whole), first);
  EXPECT_EQ(placed(OpId::kConvBackwardX, whole, second), second);
  EXPECT_EQ(placed(OpId::kConvBackwardX, second, first), pending);
  EXPECT_EQ(placed(OpId::kConvBackwardX, whole, whole), whole);
  EXPECT_EQ(placed(OpId::kConvBackwardX, windows, whole), windows);
  EXPECT_EQ(placed(OpId::kConvBackwardWeight, first, first), pending);
  EXPECT_EQ(placed(OpId::kConvBackwardWeight, second, whole), first);
  EXPECT_EQ(placed(OpId::kConvBackwardWeight, whole, second), second);
  EXPECT_EQ(placed(OpId::kConvBackwardWeight, whole, whole), whole);
}

}  // namespace
}  // namespace tessera
