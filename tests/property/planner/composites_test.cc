// Composite rows: every placement of their operands against the answer of one worker, on small worlds.

#include <cstdint>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/graph.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/planner/fusion.h"
#include "server/planner/planner.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

OpCall Named(std::string_view name) { return Call((*FindOpByName(name))->id); }

OpCall Over(OpId op, std::vector<int64_t> dims) {
  OpCall call = Call(op);
  call.attributes.Set(attribute::dims, std::move(dims));
  return call;
}

TEST(Composites, OfOneTensorOverDims) {
  for (const OpId op : {OpId::kVar, OpId::kStd, OpId::kSoftmax, OpId::kLogSoftmax, OpId::kLogSumExp, OpId::kLayerNorm,
                        OpId::kRmsNorm, OpId::kCountNonzero, OpId::kVectorNorm, OpId::kFlip}) {
    for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}}) {
      CheckOp(Over(op, dims), {{{5, 3}}}, {2}, 1);
      CheckOp(Over(op, dims), {{{5, 3}}}, {2, 2}, 1);
      CheckOp(Over(op, dims), {{{2, 7}}}, {3, 2}, 2);
    }
  }
}

TEST(Composites, OfStatistics) {
  for (const OpId op : {OpId::kNanSum, OpId::kNanProd, OpId::kNanMax, OpId::kNanMin, OpId::kNanMean, OpId::kNanVar,
                        OpId::kNanStd, OpId::kPtp}) {
    for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}}) {
      CheckOp(Over(op, dims), {{{5, 3}}}, {2, 2}, 1);
      CheckOp(Over(op, dims), {{{2, 7}}}, {3, 2}, 2);
    }
  }
  CheckOp(Call(OpId::kCov), {{{5, 3}}}, {2, 2}, 1);
  CheckOp(Call(OpId::kCov), {{{2, 7}}}, {3, 2}, 1);
  CheckOp(Call(OpId::kKron), {{{5, 3}}, {{2, 2}}}, {2, 2}, 3);
  CheckOp(Call(OpId::kKron), {{{5, 3}}, {{4}}}, {3}, 1);
}

TEST(Composites, OfElements) {
  for (const OpId op : {OpId::kSinc, OpId::kDegToRad, OpId::kRadToDeg, OpId::kCbrt, OpId::kNanToNum}) {
    CheckOp(Call(op), {{{5, 3}}}, {2, 2}, 1);
  }
  for (const OpId op : {OpId::kHeaviside, OpId::kFmod, OpId::kFmax, OpId::kFmin, OpId::kFloatPower}) {
    CheckOp(Call(op), {{{5, 3}}, {{3}}}, {2, 2}, 3);
    CheckOp(Call(op), {{{5, 3}}, {{}, DType::kF64, Scalar::Float(2)}}, {2, 2}, 1);
    CheckOp(Call(op), {{{}, DType::kF64, Scalar::Float(2)}, {{5, 3}}}, {2, 2}, 1);
  }
  for (const OpId op : {OpId::kGcd, OpId::kLcm, OpId::kFmod}) {
    CheckOp(Call(op), {{{5, 3}, DType::kI64}, {{3}, DType::kI64}}, {2, 2}, 3);
  }
  for (const OpId op : {OpId::kAddcmul, OpId::kAddcdiv}) {
    CheckOp(Call(op), {{{5, 3}}, {{5, 3}}, {{3}}}, {2}, 1);
    CheckOp(Call(op), {{{5, 3}}, {{3}}, {{5, 1}}, {{}, DType::kF64, Scalar::Float(3)}}, {2}, 1);
  }
}

// Nothing is computed of no elements, and their sum is there.
TEST(Composites, OfNothing) {
  for (const OpId op : {OpId::kVar, OpId::kVectorNorm, OpId::kCountNonzero}) {
    CheckOp(Over(op, {0}), {{{0, 3}}}, {2, 2}, 1);
  }
}

TEST(Composites, OfOptimizersSteps) { CheckOp(Named("sgd_step"), {{{5, 3}}, {{5, 3}}, {{}}}, {2}, 1); }

TEST(Composites, OfGradients) {
  const DType number = DType::kI64;
  for (const char* name : {"silu_backward", "gelu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward",
                           "leaky_relu_backward"}) {
    CheckOp(Named(name), {{{5, 3}}, {{5, 3}}}, {2, 2}, 3);
  }
  for (const char* name : {"layer_norm_backward", "rms_norm_backward", "softmax_backward", "log_softmax_backward"}) {
    OpCall call = Named(name);
    call.attributes.Set(attribute::dims, {1});
    CheckOp(call, {{{5, 3}}, {{5, 3}}}, {2}, 1);
    CheckOp(call, {{{2, 7}}, {{2, 7}}}, {2, 2}, 5);
  }
  OpCall norm = Named("layer_norm_backward");
  norm.attributes.Set(attribute::dims, {1});
  CheckOp(norm, {{{5, 3}}, {{5, 3}}, {{3}}}, {2}, 3);
  const DType label = DType::kU8;
  OpCall loss = Named("nll_loss_and_weight");
  CheckOp(loss, {{{5, 4}}, {{5}, label}}, {2}, 1);
  CheckOp(loss, {{{5, 4}}, {{5}, label}, {{4}}}, {2, 2}, 5);
  loss = Named("nll_loss_backward");
  CheckOp(loss, {{{5, 4}}, {{}}, {{5}, label}, {{}}}, {2}, 1);
  OpCall embedding = Named("embedding_backward");
  embedding.attributes.Set(attribute::num_classes, 64);
  CheckOp(embedding, {{{4, 3}}, {{4}, number}}, {2, 2}, 3);
  CheckOp(Named("scaled_dot_product_attention_backward"),
          {{{2, 2, 3, 2}}, {{2, 2, 3, 2}}, {{2, 1, 3, 2}}, {{2, 1, 3, 2}}}, {2}, 97);
  CheckOp(Named("scaled_dot_product_attention_backward"),
          {{{1, 4, 3, 2}}, {{1, 4, 3, 2}}, {{1, 2, 3, 2}}, {{1, 2, 3, 2}}, {{4, 3, 3}}}, {2}, 997);
  const Argument of{{2, 2, 3, 2}};
  CheckOp(Named("scaled_dot_product_attention_backward"), {of, of, of, of}, {2}, 97);
  CheckOp(Named("scaled_dot_product_attention_backward"), {of, of, of, of, {{2, 3, 3}}}, {2}, 797);
  const Argument rows{{2, 2, 3}};
  CheckOp(Named("scaled_dot_product_attention_backward_of_result"), {of, of, of, of, of, rows}, {2}, 9973);
  CheckOp(Named("scaled_dot_product_attention_and_logarithms"), {of, of, of, {{2, 3, 3}}}, {2}, 97);
}

// Batches stay where they are; sequences come whole to them.
TEST(Composites, OfAttentionsGradients) {
  OpCall gradients = Named("attention_gradients");
  gradients.attributes.Set(attribute::is_causal, true);
  gradients.scalars = {Scalar::Float(0.5)};
  CheckOp(gradients, {{{3, 3, 1}}, {{3, 3, 2}}, {{3, 4, 2}}, {{3, 4, 1}}}, {2}, 13);
  CheckOp(gradients, {{{2, 3, 1}}, {{2, 3, 2}}, {{2, 4, 2}}, {{2, 4, 1}}}, {2, 2}, 200003);
  CheckOp(gradients, {{{3, 2, 3, 1}}, {{3, 2, 3, 2}}, {{3, 4, 2}}, {{3, 4, 1}}}, {2}, 13);
  OpCall known = Named("attention_gradients_of_result");
  known.scalars = {Scalar::Float(0.5)};
  CheckOp(known, {{{2, 3, 1}}, {{2, 3, 2}}, {{2, 4, 2}}, {{2, 4, 1}}, {{2, 3, 1}}, {{2, 3}}}, {2}, 13);
  CheckOp(known, {{{3, 2, 3, 1}}, {{3, 2, 3, 2}}, {{3, 4, 2}}, {{3, 4, 1}}, {{3, 2, 3, 1}}, {{3, 2, 3}}}, {2}, 9973);
  OpCall logarithms = Named("attention_logarithms");
  logarithms.attributes.Set(attribute::is_causal, true);
  logarithms.scalars = {Scalar::Float(0.5)};
  CheckOp(logarithms, {{{2, 3, 2}}, {{2, 4, 2}}}, {2, 2}, 7);
  CheckOp(logarithms, {{{5, 2}}, {{3, 2}}, {{5, 3}}}, {2}, 1);
  const auto sharded = [](const std::vector<int64_t>& shape) {
    return MakeSpec(DType::kBF16, shape, MakeMesh({2, 2}), {Placement::Shard(0), Placement::Shard(1)});
  };
  const TensorSpec query = sharded({2, 4, 8, 16}), key = sharded({2, 4, 6, 16});
  const PlanOperand operands[] = {OperandLayout{query, {}}, OperandLayout{query, {}}, OperandLayout{key, {}},
                                  OperandLayout{key, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(Named("scaled_dot_product_attention_backward"), operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  // One kernel for all gradients, each of which is then copied to memory of its own; nothing moves.
  EXPECT_EQ(planned->plan.steps.size(), 4u) << ToText(planned->plan);
  for (const Step& step : planned->plan.steps) {
    EXPECT_TRUE(std::holds_alternative<LocalStep>(step)) << ToText(planned->plan);
  }
}

TEST(Composites, OfDiagonals) {
  for (const OpId op : {OpId::kTril, OpId::kTriu, OpId::kTrace, OpId::kDiagonal}) {
    for (const int64_t k : {-2, 0, 1, 5}) {
      OpCall call = Call(op);
      call.attributes.Set(attribute::k, k);
      CheckOp(call, {{{5, 3}}}, {2, 2}, 1);
      CheckOp(call, {{{2, 3, 4}}}, {2}, 1);
    }
  }
}

TEST(AlongShards, ScansGoOnWhereTheShardBeforeEnds) {
  for (const OpId op : {OpId::kCumulativeSum, OpId::kCumulativeProd, OpId::kCumulativeMax, OpId::kCumulativeMin}) {
    for (const int64_t dim : {0, 1}) {
      CheckOp(Over(op, {dim}), {{{5, 3}}}, {2}, 1);
      CheckOp(Over(op, {dim}), {{{5, 3}}}, {2, 2}, 1);
      CheckOp(Over(op, {dim}), {{{2, 7}}}, {3, 2}, 1);
    }
    CheckOp(Over(op, {0}), {{{9}}}, {4}, 1);
  }
}

TEST(AlongShards, WinnersOfShardsAreCompared) {
  for (const OpId op : {OpId::kArgMin, OpId::kArgMax}) {
    for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {0, 1}}) {
      CheckOp(Over(op, dims), {{{5, 3}}}, {2, 2}, 1);
      CheckOp(Over(op, dims), {{{2, 7}}}, {3, 2}, 1);
    }
    CheckOp(Over(op, {0, 2}), {{{3, 2, 5}}}, {2, 2}, 1);
  }
}

// The cut stays: each worker reads the rows that its part of the result has.
TEST(AlongShards, LookupsMoveTheRowsThatTheyTake) {
  const TensorSpec table = MakeSpec(DType::kF32, {8, 6}, MakeMesh({2}), {Placement::Shard(0)});
  const TensorSpec indices = MakeSpec(DType::kI64, {3}, MakeMesh({2}), {Placement::Shard(0)});
  const PlanOperand operands[] = {OperandLayout{table, {}}, OperandLayout{indices, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(Over(OpId::kTakeAlongAxis, {0}), operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->plan.steps.size(), 1u) << ToText(planned->plan);
  EXPECT_EQ(ToText(planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec),
            "f32[3,6] @ mesh(2) [S(0)]");
}

TEST(Arrangements, ConcatAndStack) {
  for (const int64_t dim : {0, 1}) {
    const std::vector<int64_t> longer = dim == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{5, 4};
    CheckOp(Over(OpId::kConcat, {dim}), {{{5, 3}}, {longer}}, {2}, 1);
    CheckOp(Over(OpId::kConcat, {dim}), {{{5, 3}}, {longer}}, {3}, 1);
    CheckOp(Over(OpId::kConcat, {dim}), {{{5, 3}}, {longer}}, {2, 2}, 5);
    CheckOp(Over(OpId::kConcat, {dim}), {{{5, 3}}, {longer}, {{5, 3}}}, {2}, 3);
    CheckOp(Over(OpId::kStack, {dim}), {{{5, 3}}, {{5, 3}}}, {2, 2}, 5);
  }
  CheckOp(Over(OpId::kConcat, {0}), {{{0, 3}}, {{4, 3}}}, {3}, 1);
}

TEST(Arrangements, RollTileRepeatPad) {
  OpCall roll = Over(OpId::kRoll, {0, 1});
  roll.attributes.Set(attribute::shift, {2, -1});
  CheckOp(roll, {{{5, 3}}}, {2, 2}, 1);
  OpCall flat = Call(OpId::kRoll);
  flat.attributes.Set(attribute::shift, {4});
  CheckOp(flat, {{{5, 3}}}, {2, 2}, 1);
  OpCall tile = Call(OpId::kTile);
  tile.attributes.Set(attribute::repeats, {2, 3});
  CheckOp(tile, {{{5, 3}}}, {2, 2}, 1);
  OpCall repeat = Over(OpId::kRepeat, {0});
  repeat.attributes.Set(attribute::repeats, {3});
  CheckOp(repeat, {{{5, 3}}}, {2, 2}, 1);
  OpCall pad = Call(OpId::kPad);
  pad.attributes.Set(attribute::pad_width, {1, 2, 0, 3});
  pad.scalars = {Scalar::Float(9)};
  CheckOp(pad, {{{5, 3}}}, {2, 2}, 1);
  CheckOp(pad, {{{5, 3}}}, {3}, 1);
}

// Side by side pending terms are what their sums are, and nothing moves.
TEST(Arrangements, PendingPiecesStayPending) {
  const Mesh mesh = MakeMesh({2, 2});
  const auto steps_of = [&](const OpCall& call, const std::vector<Placements>& pieces, std::string_view output) {
    std::vector<PlanOperand> operands;
    for (const Placements& placements : pieces) {
      operands.push_back(OperandLayout{MakeSpec(DType::kF64, {4, 3}, mesh, placements), {}});
    }
    const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
    ASSERT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(ToText(planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec), output);
    for (const Step& step : planned->plan.steps) {
      EXPECT_TRUE(std::holds_alternative<LocalStep>(step)) << ToText(planned->plan);
    }
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
    const Placements pending = {Placement::Partial(op), Placement::Shard(1)};
    const std::string name = ToText(Placement::Partial(op));
    steps_of(Over(OpId::kConcat, {0}), {pending, pending}, StrCat("f64[8,3] @ mesh(2,2) [", name, ", S(1)]"));
    steps_of(Over(OpId::kStack, {0}), {pending, pending}, StrCat("f64[2,4,3] @ mesh(2,2) [", name, ", S(2)]"));
    const Placements both = {Placement::Partial(op), Placement::Partial(op)};
    OpCall assign = Call(OpId::kAssign);
    assign.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, 0, 4, 1}, {IndexItem::Kind::kSlice, 0, 3, 1}});
    steps_of(assign, {pending, pending}, StrCat("f64[4,3] @ mesh(2,2) [", name, ", S(1)]"));
    steps_of(Over(OpId::kConcat, {1}), {both, both, both}, StrCat("f64[4,9] @ mesh(2,2) [", name, ", ", name, "]"));
  }
}

// A number stands beside pending terms where its own terms reduce to it: 0 in a sum, any in a maximum.
TEST(Arrangements, PaddingOfPendingTerms) {
  OpCall pad = Call(OpId::kPad);
  pad.attributes.Set(attribute::pad_width, {1, 2, 0, 3});
  const auto placements_of = [&](ReduceOp op, const Scalar& number) {
    pad.scalars = {number};
    const OperandSpec operands[] = {MakeSpec(DType::kF64, {5, 3}, MakeMesh({2}), {Placement::Partial(op)})};
    const absl::StatusOr<TensorSpec> output = OutputSpec(pad, operands);
    return output.ok() ? ToText(output->placements) : output.status().ToString();
  };
  EXPECT_EQ(placements_of(ReduceOp::kSum, Scalar::Float(0)), "[P(sum)]");
  EXPECT_EQ(placements_of(ReduceOp::kAvg, Scalar::Int(0)), "[P(avg)]");
  EXPECT_EQ(placements_of(ReduceOp::kMax, Scalar::Float(9)), "[P(max)]");
  EXPECT_EQ(placements_of(ReduceOp::kSum, Scalar::Float(9)), "[S(0)]");
  EXPECT_EQ(placements_of(ReduceOp::kProduct, Scalar::Float(0)), "[S(0)]");
  for (const double number : {0.0, 9.0}) {
    pad.scalars = {Scalar::Float(number)};
    CheckOp(pad, {{{5, 3}}}, {2, 2}, 1);
    CheckOp(pad, {{{4, 2}}}, {2}, 1);
  }
}

TEST(Arrangements, Assignment) {
  const auto slice = [](int64_t start, int64_t size, int64_t step) {
    return IndexItem{IndexItem::Kind::kSlice, start, size, step};
  };
  OpCall assign = Call(OpId::kAssign);
  assign.attributes.Set(attribute::index, {slice(1, 3, 1), slice(0, 2, 2)});
  CheckOp(assign, {{{5, 3}}, {{3, 2}}}, {2}, 1);
  CheckOp(assign, {{{5, 3}}, {{3, 2}}}, {2, 2}, 3);
  assign.attributes.Set(attribute::index, {slice(4, 3, -2), slice(0, 3, 1)});
  CheckOp(assign, {{{5, 3}}, {{3}}}, {3}, 1);
  assign.attributes.Set(attribute::index, {{IndexItem::Kind::kInteger, 4, 1, 1}, slice(0, 3, 1)});
  CheckOp(assign, {{{5, 3}}, {{}, DType::kF64, Scalar::Float(7)}}, {2, 2}, 1);
}

TEST(Reshape, MovesWhatItMust) {
  for (const Shape& shape : std::vector<Shape>{{35}, {5, 7}, {1, 35}, {7, 5, 1}}) {
    OpCall reshape = Call(OpId::kReshape);
    reshape.attributes.Set(attribute::shape, shape);
    CheckOp(reshape, {{{7, 5}}}, {2}, 1);
    CheckOp(reshape, {{{7, 5}}}, {2, 2}, 1);
  }
}

// Rows become elements where they are: three rows of four are twelve elements.
TEST(Reshape, KeepsRowsWhereTheyAre) {
  OpCall reshape = Call(OpId::kReshape);
  reshape.attributes.Set(attribute::shape, Shape{36});
  const TensorSpec spec = MakeSpec(DType::kF32, {9, 4}, MakeMesh({4}), {Placement::Shard(0)});
  const PlanOperand operands[] = {OperandLayout{spec, {}}};
  const absl::StatusOr<OpPlan> planned = PlanOp(reshape, operands, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_TRUE(planned->plan.steps.empty());
  EXPECT_EQ(ToText(planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec),
            "f32[36] @ mesh(4) [S(0;12,12,12,0)]");
}

// softmax along a dim that is whole: one map of x and its maximum, one sum, and a quotient; nothing moves.
TEST(Fusion, ChainsOfMapsAreOneMap) {
  const TensorSpec spec = MakeSpec(DType::kF32, {8, 6}, MakeMesh({2}), {Placement::Shard(0)});
  const OperandSpec operands[] = {spec};
  OpCall gelu = Call(OpId::kGelu);
  const absl::StatusOr<OpResolution> resolution = ResolveOp(gelu, operands);
  ASSERT_TRUE(resolution.ok()) << resolution.status();
  ASSERT_NE(resolution->graph, nullptr);
  EXPECT_GT(resolution->graph->nodes.size(), 3u);
  const std::vector<FusedNode> fused = FuseMaps(*resolution->graph);
  ASSERT_EQ(fused.size(), 1u);
  EXPECT_EQ(fused[0].inputs, std::vector<int>{0});
}

TEST(ExplicitSizes, AreCutsLikeOthers) {
  const Mesh mesh = MakeMesh({3});
  const Placement sized = Placement::Shard(0, {3, 0, 5});
  const TensorSpec source = MakeSpec(DType::kF64, {8, 3}, mesh, {sized});
  for (const Placement& to :
       {Placement::Replicate(), Placement::Shard(0), Placement::Shard(1), Placement::Shard(0, {0, 8, 0})}) {
    const absl::Status there = CheckRedistribute(source, MakeSpec(DType::kF64, {8, 3}, mesh, {to}));
    EXPECT_TRUE(there.ok()) << there;
    const absl::Status back = CheckRedistribute(MakeSpec(DType::kF64, {8, 3}, mesh, {to}), source);
    EXPECT_TRUE(back.ok()) << back;
  }
  const TensorSpec pending = MakeSpec(DType::kF64, {8, 3}, mesh, {Placement::Partial(ReduceOp::kSum)});
  EXPECT_TRUE(CheckRedistribute(pending, source).ok());
  EXPECT_EQ(LocalBox(source, {2}), (Box{{3, 8}, {0, 3}}));
  EXPECT_EQ(MaxShardShape(source), (Shape{5, 3}));
  EXPECT_EQ(ToText(source), "f64[8,3] @ mesh(3) [S(0;3,0,5)]");
  EXPECT_EQ(*ParseTensorSpec(ToText(source)), source);
  EXPECT_EQ(MakeSpec(DType::kF64, {8, 3}, mesh, {Placement::Shard(0, {3, 3, 2})}),
            MakeSpec(DType::kF64, {8, 3}, mesh, {Placement::Shard(0)}));
  EXPECT_FALSE(ParseTensorSpec("f64[8,3] @ mesh(3) [S(0;3,5)]").ok());
  EXPECT_FALSE(ParseTensorSpec("f64[8,3] @ mesh(3) [S(0;3,3,3)]").ok());
}

}  // namespace
}  // namespace tessera
