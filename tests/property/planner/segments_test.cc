// Segments of random calls: planned as one they give, bit for bit, what the calls give one by one, on every mesh and
// placement of small worlds.

#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

struct Value {
  TensorSpec spec;
  std::vector<double> numbers;  // op by op
};

// A segment, and what its values are when each call is planned by itself.
struct Example {
  Segment segment;
  std::vector<std::vector<double>> inputs;
  std::vector<Value> values;
};

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  // Nothing where a call is refused, which has no dtype or shape in common.
  absl::StatusOr<Example> Make() {
    Example made;
    const std::vector<int64_t> meshes[] = {{1}, {2}, {3}, {2, 2}};
    mesh_ = MakeMesh(meshes[Below(4)]);
    const size_t inputs = 1 + Below(3);
    for (size_t i = 0; i < inputs; ++i) AddInput(made);
    const size_t calls = 2 + Below(6);
    for (size_t c = 0; c < calls; ++c) {
      const absl::Status status = AddCall(made);
      if (!status.ok() && !absl::IsInvalidArgument(status)) return status;
    }
    if (made.segment.calls.empty()) return made;
    // The last result stays, and some of the others.
    const size_t last = made.values.size() - 1;
    for (size_t v = inputs; v < last; ++v) {
      if (Below(4) == 0) made.segment.kept.push_back(static_cast<int>(v));
    }
    made.segment.kept.push_back(static_cast<int>(last));
    return made;
  }

 private:
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  void AddInput(Example& made) {
    const std::vector<int64_t> shapes[] = {{6, 5}, {6, 5}, {5}, {6, 1}, {}};
    const DType dtypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI32};
    const std::vector<int64_t>& shape = shapes[Below(5)];
    const auto all = AllPlacements(mesh_.ndim(), static_cast<int>(shape.size()), {ReduceOp::kSum});
    const TensorSpec spec = MakeSpec(dtypes[Below(5)], shape, mesh_, all[Below(all.size())]);
    made.segment.inputs.push_back({spec, {}});
    made.inputs.push_back(Numbers(spec, static_cast<int64_t>(made.inputs.size())));
    made.values.push_back({spec, made.inputs.back()});
  }

  GraphOperand Operand(const Example& made) {
    const size_t choice = Below(8);
    if (choice == 0) return Scalar::Float(1.0 / static_cast<double>(1 + Below(5)));
    if (choice == 1) return Scalar::Int(static_cast<int64_t>(Below(7)) - 3);
    // Late ones make chains.
    const size_t last = made.values.size() - 1;
    return static_cast<int>(Below(2) == 0 ? last : Below(made.values.size()));
  }

  absl::Status AddCall(Example& made) {
    const OpId binary[] = {OpId::kAdd, OpId::kMul, OpId::kSub, OpId::kDiv, OpId::kMaximum};
    const OpId unary[] = {OpId::kNeg, OpId::kTanh, OpId::kAbs, OpId::kSquare, OpId::kSilu};
    SegmentCall added;
    const size_t kind = Below(10);
    if (kind < 5) {
      added.call.op = binary[Below(5)];
      added.operands = {Operand(made), Operand(made)};
      if (!std::holds_alternative<int>(added.operands[0])) added.operands[0] = static_cast<int>(made.values.size()) - 1;
    } else {
      const auto value = static_cast<int>(Below(2) == 0 ? made.values.size() - 1 : Below(made.values.size()));
      added.operands = {value};
      const TensorSpec& spec = made.values[static_cast<size_t>(value)].spec;
      if (kind == 5) {
        const DType dtypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
        added.call.op = OpId::kAsType;
        added.call.attributes.Set(attribute::dtype, dtypes[Below(4)]);
      } else if (kind == 6 && spec.rank() > 0) {
        const OpId reductions[] = {OpId::kSum, OpId::kMean, OpId::kMax};
        added.call.op = reductions[Below(3)];
        added.call.attributes.Set(attribute::dims, {static_cast<int64_t>(Below(static_cast<size_t>(spec.rank())))});
        added.call.attributes.Set(attribute::keepdims, Below(2) == 0);
      } else {
        added.call.op = unary[Below(5)];
      }
    }
    return Run(made, std::move(added));
  }

  // The call by itself.
  absl::Status Run(Example& made, SegmentCall added) {
    std::vector<PlanOperand> operands;
    std::vector<std::vector<double>> inputs;
    for (const GraphOperand& operand : added.operands) {
      if (const int* value = std::get_if<int>(&operand)) {
        operands.emplace_back(OperandLayout{made.values[static_cast<size_t>(*value)].spec, {}});
        inputs.push_back(made.values[static_cast<size_t>(*value)].numbers);
      } else {
        operands.emplace_back(std::get<Scalar>(operand));
      }
    }
    const absl::StatusOr<OpPlan> planned = PlanOp(added.call, operands, Topology());
    if (!planned.ok()) return planned.status();
    const absl::StatusOr<std::vector<double>> result = RunPlan(planned->plan, inputs, planned->scalars.values);
    if (!result.ok()) return result.status();
    made.values.push_back({planned->plan.values[static_cast<size_t>(planned->plan.outputs[0])].spec, *result});
    made.segment.calls.push_back(std::move(added));
    return absl::OkStatus();
  }

  std::mt19937_64 random_;
  Mesh mesh_;
};

bool SameBits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return (std::isnan(x) && std::isnan(y)) || (x == y && std::signbit(x) == std::signbit(y));
         });
}

// A pending value one by one shows its sum alone here, and not its terms.
bool HasPending(const Example& made) {
  return std::any_of(made.values.begin(), made.values.end(),
                     [](const Value& value) { return value.spec.has_partial(); });
}

bool SameButForRounding(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           const bool is_finite = std::isfinite(x) && std::isfinite(y);
           return !is_finite || std::abs(x - y) <= 0.03 * (1 + std::abs(x) + std::abs(y));
         });
}

void CheckSegment(const Example& made, uint64_t seed, int64_t& saved) {
  const absl::StatusOr<OpPlan> planned = PlanSegment(made.segment, Topology());
  ASSERT_TRUE(planned.ok()) << "seed " << seed << ": " << planned.status();
  const absl::StatusOr<std::vector<std::vector<double>>> results =
      RunPlanOutputs(planned->plan, made.inputs, planned->scalars.values);
  ASSERT_TRUE(results.ok()) << "seed " << seed << ": " << results.status();
  ASSERT_EQ(results->size(), made.segment.kept.size());
  for (size_t i = 0; i < results->size(); ++i) {
    const Value& wanted = made.values[static_cast<size_t>(made.segment.kept[i])];
    ASSERT_EQ(planned->plan.values[static_cast<size_t>(planned->plan.outputs[i])].spec, wanted.spec) << "seed " << seed;
    ASSERT_TRUE(HasPending(made) ? SameButForRounding((*results)[i], wanted.numbers)
                                 : SameBits((*results)[i], wanted.numbers))
        << "seed " << seed << ", value " << made.segment.kept[i] << "\n"
        << ToText(planned->plan);
  }
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(planned->plan));
  ASSERT_TRUE(parsed.ok() && *parsed == planned->plan) << "seed " << seed << "\n" << ToText(planned->plan);
  const absl::StatusOr<PlanScalars> scalars = ScalarsOf(made.segment);
  ASSERT_TRUE(scalars.ok() && scalars->values == planned->scalars.values) << "seed " << seed;
  std::vector<Scalar> evaluated;
  ASSERT_TRUE(scalars->recipes.Evaluate(NumbersOf(made.segment), evaluated)) << "seed " << seed;
  EXPECT_EQ(evaluated, scalars->values) << "seed " << seed;
  saved += static_cast<int64_t>(made.segment.calls.size()) - static_cast<int64_t>(planned->plan.steps.size());
}

TEST(SegmentsTest, RandomSegmentsGiveTheBitsOfTheirCallsOneByOne) {
  int64_t saved = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    const absl::StatusOr<Example> made = Maker(seed).Make();
    ASSERT_TRUE(made.ok()) << "seed " << seed << ": " << made.status();
    if (made->segment.calls.empty()) continue;
    CheckSegment(*made, seed, saved);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(saved, 0);
}

TensorSpec Rows(DType dtype) { return MakeSpec(dtype, {8, 4}, MakeMesh({2}), {Placement::Shard(0)}); }

OpCall CallOf(OpId op) {
  OpCall call;
  call.op = op;
  return call;
}

TEST(SegmentsTest, AChainOfMapsIsOneMapWithoutATemporary) {
  Segment segment;
  segment.inputs = {{Rows(DType::kF32), {}}};
  segment.calls = {{CallOf(OpId::kMul), {0, Scalar::Float(2)}},
                   {CallOf(OpId::kAdd), {1, Scalar::Float(1)}},
                   {CallOf(OpId::kTanh), {2}},
                   {CallOf(OpId::kMul), {3, 3}}};
  segment.kept = {4};
  const absl::StatusOr<OpPlan> planned = PlanSegment(segment, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->plan.steps.size(), 1u) << ToText(planned->plan);
  EXPECT_EQ(planned->plan.buffers.size(), 2u) << ToText(planned->plan);
  EXPECT_EQ(planned->plan.donations.size(), 1u) << ToText(planned->plan);
}

// Scans are not fused.
TEST(SegmentsTest, AChainThatIsNotFusedTakesTheMemoryOfTwoOfItsResults) {
  Segment segment;
  segment.inputs = {{Rows(DType::kF32), {}}};
  for (int call = 0; call < 8; ++call) {
    segment.calls.push_back({CallOf(OpId::kCumulativeSum), {call}});
    segment.calls.back().call.attributes.Set(attribute::dims, {1});
  }
  segment.kept = {8};
  const absl::StatusOr<OpPlan> planned = PlanSegment(segment, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->plan.steps.size(), 8u) << ToText(planned->plan);
  EXPECT_EQ(planned->plan.buffers.size(), 4u) << ToText(planned->plan);  // and the input, and the output
  EXPECT_TRUE(VerifyPlan(planned->plan).ok()) << VerifyPlan(planned->plan) << ToText(planned->plan);
}

TEST(SegmentsTest, AMapFlowsIntoAReduction) {
  Segment segment;
  segment.inputs = {{Rows(DType::kBF16), {}}, {Rows(DType::kBF16), {}}};
  segment.calls = {{CallOf(OpId::kMul), {0, 1}}, {CallOf(OpId::kSum), {2}}};
  segment.calls[1].call.attributes.Set(attribute::dims, {1});
  segment.kept = {3};
  const absl::StatusOr<OpPlan> planned = PlanSegment(segment, Topology());
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_EQ(planned->plan.steps.size(), 1u) << ToText(planned->plan);
  EXPECT_TRUE(std::get<ReduceLocalOp>(std::get<LocalStep>(planned->plan.steps[0]).op).map.has_value());
}

TEST(SegmentsTest, ANumberThatMayBeRefusedHasNoRecipe) {
  const TensorSpec bytes = Rows(DType::kU8);
  Segment segment;
  segment.inputs = {{bytes, {}}};
  segment.calls = {{CallOf(OpId::kAdd), {0, Scalar::Int(7)}}};
  const absl::StatusOr<PlanScalars> scalars = ScalarsOf(segment);
  ASSERT_TRUE(scalars.ok()) << scalars.status();
  std::vector<Scalar> evaluated;
  ASSERT_TRUE(scalars->recipes.Evaluate({Scalar::Int(9)}, evaluated));
  EXPECT_EQ(evaluated, std::vector<Scalar>{Scalar::Int(9).As(DType::kU8)});
  EXPECT_FALSE(scalars->recipes.Evaluate({Scalar::Int(300)}, evaluated));
  EXPECT_FALSE(scalars->recipes.Evaluate({Scalar::Int(-1)}, evaluated));
}

}  // namespace
}  // namespace tessera
