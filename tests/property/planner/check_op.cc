#include "tests/property/planner/check_op.h"

#include "gtest/gtest.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

const std::vector<ReduceOp>& SomePartials() {
  static const auto* const ops = new std::vector<ReduceOp>{ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAvg};
  return *ops;
}

Strides ColumnMajor(const TensorSpec& spec) {
  const Shape extents = MaxShardShape(spec);
  Strides strides(extents.size());
  int64_t stride = 1;
  for (size_t d = 0; d < extents.size(); ++d) {
    strides[d] = stride;
    stride *= std::max<int64_t>(1, extents[d]);
  }
  return strides;
}

enum class Order { kRowMajor, kColumnMajor };

PlanOperand Operand(const Argument& argument, const Mesh& mesh, const Placements& placements, Order order) {
  if (argument.number.has_value()) return *argument.number;
  const TensorSpec spec = MakeSpec(argument.dtype, argument.shape, mesh, placements);
  return OperandLayout{spec, order == Order::kColumnMajor ? ColumnMajor(spec) : Strides{}};
}

}  // namespace

OpCall Call(OpId op) {
  OpCall call;
  call.op = op;
  return call;
}

absl::StatusOr<std::vector<double>> RunOp(const OpCall& call, const std::vector<PlanOperand>& operands, Plan* plan) {
  absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  if (!planned.ok()) return planned.status();
  const Segment segment = SegmentOf(call, operands);
  const absl::StatusOr<PlanScalars> scalars = ScalarsOf(segment);
  if (!scalars.ok() || scalars->values != planned->scalars.values || !(scalars->recipes == planned->scalars.recipes)) {
    return absl::InternalError("ScalarsOf differs from PlanOp");
  }
  std::vector<Scalar> evaluated;
  if (!scalars->recipes.Evaluate(NumbersOf(segment), evaluated) || evaluated != scalars->values) {
    return absl::InternalError("the recipes give other scalars");
  }
  std::vector<std::vector<double>> inputs;
  for (const PlanOperand& operand : operands) {
    const auto* layout = std::get_if<OperandLayout>(&operand);
    if (layout != nullptr) inputs.push_back(Numbers(layout->spec, static_cast<int64_t>(inputs.size())));
  }
  *plan = std::move(planned->plan);
  return RunPlan(*plan, inputs, planned->scalars.values);
}

absl::Status CheckCall(const OpCall& call, const std::vector<PlanOperand>& operands,
                       const std::vector<double>& expected) {
  std::vector<OperandSpec> specs;
  for (const PlanOperand& operand : operands) {
    const auto* layout = std::get_if<OperandLayout>(&operand);
    if (layout != nullptr) {
      specs.emplace_back(layout->spec);
    } else {
      specs.emplace_back(std::get<Scalar>(operand));
    }
  }
  Plan plan;
  const absl::StatusOr<std::vector<double>> result = RunOp(call, operands, &plan);
  if (!result.ok()) return result.status();
  const absl::StatusOr<TensorSpec> wanted = OutputSpec(call, specs);
  if (!wanted.ok() || plan.values[static_cast<size_t>(plan.outputs[0])].spec != *wanted) {
    return absl::InternalError(StrCat("the output is not as OutputSpec says\n", ToText(plan)));
  }
  if (!Agree(*result, expected, 1e-9)) {
    return absl::InternalError(StrCat("the result differs from the dense answer\n", ToText(plan)));
  }
  const absl::StatusOr<Plan> parsed = ParsePlan(ToText(plan));
  if (!parsed.ok() || !(*parsed == plan)) {
    return absl::InternalError(StrCat("the text does not give the plan back: ", parsed.status().ToString(), "\n",
                                      ToText(plan), parsed.ok() ? ToText(*parsed) : ""));
  }
  return absl::OkStatus();
}

void CheckOp(const OpCall& call, const std::vector<Argument>& arguments, const std::vector<int64_t>& mesh_shape,
             size_t stride, size_t min_checked) {
  const Mesh one = MakeMesh({1});
  std::vector<PlanOperand> dense;
  for (const Argument& argument : arguments) {
    dense.push_back(Operand(argument, one, {Placement::Replicate()}, Order::kRowMajor));
  }
  Plan plan;
  const absl::StatusOr<std::vector<double>> expected = RunOp(call, dense, &plan);
  ASSERT_TRUE(expected.ok()) << ToText(call) << ": " << expected.status();
  const Mesh mesh = MakeMesh(mesh_shape);
  std::vector<std::vector<PlanOperand>> all = {{}};
  for (const Argument& argument : arguments) {
    std::vector<std::vector<PlanOperand>> longer;
    std::vector<Placements> choices = {{}};
    if (!argument.number.has_value()) {
      choices = AllPlacements(mesh.ndim(), static_cast<int>(argument.shape.size()),
                              argument.dtype == DType::kF64 ? SomePartials() : std::vector<ReduceOp>{});
    }
    for (const auto& operands : all) {
      for (const Placements& placements : choices) {
        longer.push_back(operands);
        longer.back().push_back(
            Operand(argument, mesh, placements, longer.size() % 2 == 0 ? Order::kRowMajor : Order::kColumnMajor));
      }
    }
    all = std::move(longer);
  }
  size_t checked = 0;
  for (size_t i = 0; i < all.size(); i += stride) {
    std::string text = ToText(call);
    for (const PlanOperand& operand : all[i]) {
      const auto* layout = std::get_if<OperandLayout>(&operand);
      StrAppend(&text, " ", layout != nullptr ? ToText(layout->spec) : ToText(std::get<Scalar>(operand)));
    }
    ++checked;
    const absl::Status status = CheckCall(call, all[i], *expected);
    ASSERT_TRUE(status.ok()) << text << "\n" << status;
  }
  EXPECT_GE(checked, min_checked) << ToText(call);
}

}  // namespace tessera
