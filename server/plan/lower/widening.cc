#include "server/plan/lower/widening.h"

#include <algorithm>

#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"

namespace tessera {
namespace {

bool IsPlainCast(const LocalOp& op) {
  const auto* map = std::get_if<MapOp>(&op);
  if (map == nullptr) return false;
  const std::vector<ExpressionNode>& nodes = map->expression.nodes;
  return nodes.size() == 2 && nodes[0].op == ScalarOp::kInput && nodes[1].op == ScalarOp::kCast;
}

}  // namespace

PlanValue NarrowAtEndOf(const PlanValue& wide, DType narrow) {
  const int64_t ratio = SizeBytes(wide.spec.dtype) / SizeBytes(narrow);
  PlanValue value = wide;
  value.spec = WithDType(wide.spec, narrow);
  value.offset = MaxShardElements(wide.spec) * (ratio - 1);
  return value;
}

bool LiesAtEndOf(const PlanValue& narrow, const PlanValue& wide) {
  const DType dtype = narrow.spec.dtype;
  if (SizeBytes(dtype) >= SizeBytes(wide.spec.dtype) || wide.offset != 0) return false;
  if (wide.strides != RowMajorStrides(MaxShardShape(wide.spec))) return false;
  return narrow == NarrowAtEndOf(wide, dtype);
}

bool WidensInPlace(const Plan& plan, const LocalStep& step) {
  if (step.inputs.size() != 1 || !IsPlainCast(step.op)) return false;
  const bool counts_all = std::all_of(step.counted_once.begin(), step.counted_once.end(),
                                      [](const std::vector<int>& dims) { return dims.empty(); });
  return counts_all &&
         LiesAtEndOf(plan.values[static_cast<size_t>(step.inputs[0])], plan.values[static_cast<size_t>(step.output)]);
}

}  // namespace tessera
