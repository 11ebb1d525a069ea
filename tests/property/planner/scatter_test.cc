// Writes by indices: every placement of x, indices and updates against the answer of one worker; and what moves.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/planner/planner.h"
#include "tests/property/planner/check_op.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

struct Case {
  std::string mode;
  int64_t dim;
  std::vector<int64_t> x, indices, updates;
};

OpCall CallOf(const Case& each) {
  OpCall call = Call(OpId::kScatter);
  call.attributes.Set(attribute::mode, each.mode);
  call.attributes.Set(attribute::dims, {each.dim});
  return call;
}

// Within the dim; of negative ones, which count from the end, some.
std::vector<double> IndicesOf(const Case& each) {
  int64_t count = 1;
  for (const int64_t extent : each.indices) count *= extent;
  const int64_t extent = each.x[static_cast<size_t>(each.dim)];
  std::vector<double> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<double>((5 * i + 2) % extent - (i % 4 == 3 ? extent : 0)));
  }
  return indices;
}

struct Written {
  Plan plan;
  std::vector<double> result;
};

absl::StatusOr<Written> RunScatter(const Case& each, const Mesh& mesh, const std::vector<Placements>& placements) {
  const std::vector<int64_t>* const shapes[] = {&each.x, &each.indices, &each.updates};
  std::vector<PlanOperand> operands;
  std::vector<std::vector<double>> inputs;
  for (size_t i = 0; i < 3; ++i) {
    const TensorSpec spec = MakeSpec(i == 1 ? DType::kI64 : DType::kF64, *shapes[i], mesh, placements[i]);
    operands.push_back(OperandLayout{spec, {}});
    inputs.push_back(i == 1 ? IndicesOf(each) : Numbers(spec, static_cast<int64_t>(i)));
  }
  absl::StatusOr<OpPlan> planned = PlanOp(CallOf(each), operands, Topology());
  if (!planned.ok()) return planned.status();
  absl::StatusOr<std::vector<double>> result = RunPlan(planned->plan, inputs, planned->scalars.values);
  if (!result.ok()) return result.status();
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(planned->plan));
  if (!parsed.ok() || !(*parsed == planned->plan)) return absl::InternalError("the text does not give the plan back");
  return Written{std::move(planned->plan), *std::move(result)};
}

void CheckAll(const Case& each, const std::vector<int64_t>& mesh_shape, size_t stride) {
  const auto expected = RunScatter(each, MakeMesh({1}), std::vector<Placements>(3, {Placement::Replicate()}));
  ASSERT_TRUE(expected.ok()) << expected.status();
  const Mesh mesh = MakeMesh(mesh_shape);
  const auto choices = [&](const std::vector<int64_t>& shape, std::vector<ReduceOp> partial) {
    return AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), partial);
  };
  const std::vector<ReduceOp> terms = {ReduceOp::kSum, ReduceOp::kMax};
  size_t number = 0;
  for (const Placements& x : choices(each.x, terms)) {
    for (const Placements& indices : choices(each.indices, {})) {
      for (const Placements& updates : choices(each.updates, terms)) {
        if (number++ % stride != 0) continue;
        const auto written = RunScatter(each, mesh, {x, indices, updates});
        ASSERT_TRUE(written.ok()) << written.status();
        ASSERT_TRUE(Agree(written->result, expected->result, 1e-9))
            << each.mode << ToText(x) << ToText(indices) << ToText(updates) << ToText(written->plan);
      }
    }
  }
}

TEST(Scatter, OnEveryPlacement) {
  for (const std::string mode : {"add", "max", "min"}) {
    for (const auto& mesh : std::vector<std::vector<int64_t>>{{2}, {3}}) {
      CheckAll({mode, 0, {3, 2}, {7}, {7, 2}}, mesh, 1);
      CheckAll({mode, 1, {2, 3}, {2, 5}, {2, 5}}, mesh, 1);
      CheckAll({mode, 0, {5}, {3}, {3}}, mesh, 1);
      CheckAll({mode, 0, {11, 2}, {3}, {3, 2}}, mesh, 1);
      CheckAll({mode, 1, {2, 13}, {1, 4}, {2, 4}}, mesh, 1);
    }
    CheckAll({mode, 0, {3, 2}, {8}, {8, 2}}, {2, 2}, 7);
    CheckAll({mode, 1, {2, 3}, {1, 7}, {2, 7}}, {2, 2}, 13);
  }
  // The last one of several that go to one place stays.
  CheckAll({"set", 0, {3, 2}, {7}, {7, 2}}, {2}, 1);
  CheckAll({"set", 1, {2, 9}, {2, 4}, {2, 4}}, {2, 2}, 11);
  CheckAll({"set", 0, {13, 2}, {6}, {6, 2}}, {2, 2}, 11);
}

TEST(Scatter, MoreUpdatesThanElementsStayWhereTheyAre) {
  const Mesh mesh = MakeMesh({2, 2});
  const Placement whole = Placement::Replicate(), cut = Placement::Shard(0);
  for (const auto& [mode, op] : std::vector<std::pair<std::string, ReduceOp>>{
           {"add", ReduceOp::kSum}, {"max", ReduceOp::kMax}, {"min", ReduceOp::kMin}}) {
    const Case each = {mode, 0, {4, 6}, {64}, {64, 6}};
    const Placement terms = Placement::Partial(op);
    for (const auto& [x, updates, wanted] : std::vector<std::array<Placements, 3>>{
             {Placements{whole, whole}, {cut, cut}, {terms, terms}},
             {Placements{whole, Placement::Shard(1)}, {cut, Placement::Shard(1)}, {terms, Placement::Shard(1)}},
             {Placements{terms, whole}, {cut, whole}, {terms, whole}},
             {Placements{whole, whole}, {terms, cut}, {terms, terms}}}) {
      Placements indices;
      for (const Placement& one : updates) indices.push_back(one == cut ? cut : whole);
      const auto written = RunScatter(each, mesh, {x, indices, updates});
      ASSERT_TRUE(written.ok()) << written.status();
      EXPECT_TRUE(std::all_of(written->plan.steps.begin(), written->plan.steps.end(), [](const Step& step) {
        return std::holds_alternative<LocalStep>(step);
      })) << ToText(written->plan);
      EXPECT_EQ(written->plan.values[static_cast<size_t>(written->plan.outputs[0])].spec.placements, wanted);
    }
  }
  // Fewer are brought together: a pending x would have to be reduced.
  const auto few = RunScatter({"add", 0, {64, 6}, {4}, {4, 6}}, mesh, {{whole, whole}, {cut, whole}, {cut, whole}});
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->plan.values[static_cast<size_t>(few->plan.outputs[0])].spec.placements, (Placements{whole, whole}));
}

TEST(Scatter, FewUpdatesGoToShardsThatStay) {
  const Placement whole = Placement::Replicate(), cut = Placement::Shard(0), columns = Placement::Shard(1);
  for (const std::string mode : {"set", "add", "max", "min"}) {
    for (const Placements& x : {Placements{cut, cut}, {cut, whole}, {cut, columns}}) {
      const auto written =
          RunScatter({mode, 0, {64, 6}, {4}, {4, 6}}, MakeMesh({2, 2}), {x, {whole, whole}, {whole, whole}});
      ASSERT_TRUE(written.ok()) << written.status();
      for (const Step& step : written->plan.steps) {  // nothing of x moves
        const auto* exchange = std::get_if<ExchangeStep>(&step);
        EXPECT_TRUE(exchange == nullptr || exchange->source != written->plan.inputs[0]) << ToText(written->plan);
      }
      EXPECT_EQ(written->plan.values[static_cast<size_t>(written->plan.outputs[0])].spec.placements, x);
    }
  }
}

}  // namespace
}  // namespace tessera
