// Products by groups: every placement of both operands against the answer of one worker, and what moves.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/op_ids.h"
#include "server/planner/planner.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

struct Case {
  std::vector<int64_t> a, b;
  std::vector<double> offsets;
};

struct Product {
  Plan plan;
  TensorSpec spec;
  std::vector<double> result;
};

absl::StatusOr<Product> Multiply(const Case& each, const Mesh& mesh, const std::vector<Placements>& placements) {
  const Shape groups = {static_cast<int64_t>(each.offsets.size())};
  const TensorSpec a = MakeSpec(DType::kF64, each.a, mesh, placements[0]),
                   b = MakeSpec(DType::kF64, each.b, mesh, placements[1]),
                   offsets = MakeSpec(DType::kI64, {groups[0]}, mesh, placements[2]);
  const std::vector<PlanOperand> operands = {OperandLayout{a, {}}, OperandLayout{b, {}}, OperandLayout{offsets, {}}};
  absl::StatusOr<OpPlan> planned = PlanOp(Call(OpId::kGroupedMatmul), operands, Topology());
  if (!planned.ok()) return planned.status();
  absl::StatusOr<std::vector<double>> result =
      RunPlan(planned->plan, {Numbers(a, 1), Numbers(b, 2), each.offsets}, planned->scalars.values);
  if (!result.ok()) return result.status();
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(planned->plan));
  if (!parsed.ok() || !(*parsed == planned->plan)) return absl::InternalError("the text does not give the plan back");
  const TensorSpec spec = planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec;
  return Product{std::move(planned->plan), spec, *std::move(result)};
}

void CheckAll(const Case& each, const std::vector<int64_t>& mesh_shape, size_t stride) {
  const auto expected = Multiply(each, MakeMesh({1}), std::vector<Placements>(3, {Placement::Replicate()}));
  ASSERT_TRUE(expected.ok()) << expected.status();
  const Mesh mesh = MakeMesh(mesh_shape);
  const auto choices = [&](size_t rank, std::vector<ReduceOp> partial) {
    return AllPlacements(mesh.ndim(), static_cast<int>(rank), partial);
  };
  size_t number = 0;
  for (const Placements& a : choices(each.a.size(), {ReduceOp::kSum})) {
    for (const Placements& b : choices(each.b.size(), {ReduceOp::kSum})) {
      for (const Placements& offsets : choices(1, {})) {
        if (number++ % stride != 0) continue;
        const auto product = Multiply(each, mesh, {a, b, offsets});
        ASSERT_TRUE(product.ok()) << product.status() << ToText(a) << ToText(b) << ToText(offsets);
        ASSERT_TRUE(Agree(product->result, expected->result, 1e-9))
            << ToText(a) << ToText(b) << ToText(offsets) << ToText(product->plan);
      }
    }
  }
}

TEST(GroupedMatmul, OnEveryPlacement) {
  // Empty groups, and elements behind the last one.
  const Case rows = {{7, 3}, {4, 3, 5}, {2, 2, 6, 6}}, inner = {{3, 7}, {7, 5}, {0, 3, 3, 5}};
  for (const Case& each : {rows, inner}) {
    CheckAll(each, {2}, 1);
    CheckAll(each, {3}, 1);
    CheckAll(each, {2, 2}, 7);
  }
  CheckAll({{5, 2}, {1, 2, 3}, {5}}, {2, 2}, 5);
  CheckAll({{2, 5}, {5, 3}, {5}}, {2, 2}, 5);
}

bool MovesNothing(const Plan& plan) {
  for (const Step& step : plan.steps) {
    if (!std::holds_alternative<LocalStep>(step)) return false;
  }
  return true;
}

TEST(GroupedMatmul, WhatLiesAsAProductNeedsStays) {
  const Mesh mesh = MakeMesh({2, 2});
  const Placement whole = Placement::Replicate(), pending = Placement::Partial(ReduceOp::kSum);
  const Placement first = Placement::Shard(0), second = Placement::Shard(1), third = Placement::Shard(2);
  const Case rows = {{8, 4}, {4, 4, 6}, {2, 4, 5, 8}}, inner = {{4, 8}, {8, 6}, {2, 4, 5, 8}};
  struct Wanted {
    const Case& each;
    Placements a, b, output;
  };
  for (const Wanted& one : std::vector<Wanted>{
           {rows, {first, whole}, {whole, first}, {first, pending}},  // tokens by rows, experts in shards
           {rows, {first, whole}, {whole, third}, {first, second}},
           {rows, {first, second}, {whole, second}, {first, pending}},
           {rows, {whole, whole}, {whole, whole}, {whole, whole}},
           {inner, {second, whole}, {first, whole}, {pending, first}},  // each has some of the groups
           {inner, {second, first}, {first, whole}, {pending, second}},
           {inner, {whole, whole}, {whole, second}, {first, third}},
           {inner, {whole, whole}, {whole, whole}, {first, whole}}}) {
    const auto product = Multiply(one.each, mesh, {one.a, one.b, {whole, whole}});
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_TRUE(MovesNothing(product->plan)) << ToText(product->plan);
    EXPECT_EQ(product->spec.placements, one.output) << ToText(product->spec);
  }
}

TEST(GroupedMatmul, TokensGoToExpertsOrExpertsToTokensWhicheverIsLess) {
  const Mesh mesh = MakeMesh({4});
  const Placement whole = Placement::Replicate(), cut = Placement::Shard(0);
  const std::vector<double> offsets = {1, 2, 3, 4};
  const auto few = Multiply({{4, 16}, {4, 16, 8}, offsets}, mesh, {{cut}, {cut}, {whole}});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_TRUE(few->spec.placements[0].is_partial()) << ToText(few->plan);
  const auto many = Multiply({{256, 4}, {4, 4, 8}, {64, 128, 130, 256}}, mesh, {{cut}, {cut}, {whole}});
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ(many->spec.placements, Placements{cut}) << ToText(many->plan);
}

TEST(GroupedMatmul, OffsetsOutOfOrderAreAnErrorThatNamesThem) {
  const Placements whole = {Placement::Replicate()};
  for (const auto& [offsets, text] :
       std::vector<std::pair<std::vector<double>, std::string>>{{{3, 2}, "offset 2 of group 1 is not from 3 to 5"},
                                                                {{3, 6}, "offset 6 of group 1 is not from 3 to 5"},
                                                                {{-1, 2}, "offset -1 of group 0 is not from 0 to 5"}}) {
    const auto product = Multiply({{5, 3}, {2, 3, 2}, offsets}, MakeMesh({1}), {whole, whole, whole});
    EXPECT_NE(std::string(product.status().message()).find(text), std::string::npos) << product.status();
  }
}

}  // namespace
}  // namespace tessera
