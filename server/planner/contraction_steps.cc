#include "server/planner/contraction_steps.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/contraction.h"
#include "schemas/types/status_macros.h"
#include "server/plan/same_shards.h"
#include "server/planner/operand_reading.h"

namespace tessera {
namespace {

using ValuePair = std::array<int, 2>;

// What parts, or panels, have in memory at once of what is gathered.
constexpr int kOverlapped = 2;

void AddLocalProduct(PlanBuilder& builder, const Contraction& notation, const ValuePair& operands, int output,
                     KernelStore store = KernelStore::kWrite) {
  LocalStep step;
  step.op = MatmulOp{notation};
  step.inputs = {operands[0], operands[1]};
  step.output = output;
  step.store = store;
  builder.AddLocal(std::move(step));
}

void AddProduct(PlanBuilder& builder, const Contraction& notation, std::array<ContractOperand, 2> operands,
                int output) {
  if (operands[0].pieces.has_value() || operands[1].pieces.has_value()) {
    builder.AddContract({MatmulOp{notation}, std::move(operands), output});
  } else {
    AddLocalProduct(builder, notation, {operands[0].value, operands[1].value}, output);
  }
}

// Gathers the operands of a part, or panel, where they are gathered: in one phase.
absl::Status AddGathers(PlanBuilder& builder, std::array<OperandParts, 2>& operands, const PartRange& range,
                        StepStart start) {
  std::vector<SliceMove> moves;
  for (OperandParts& operand : operands) {
    if (std::optional<SliceMove> move = operand.Gather(range); move.has_value()) moves.push_back(*std::move(move));
  }
  return builder.AddMoves(moves, start);
}

KernelStore StoreOf(const PartRange& panel) { return panel.start == 0 ? KernelStore::kWrite : KernelStore::kAdd; }

// The product of operands that are there, panel by panel.
void AddProductInPanels(PlanBuilder& builder, const Contraction& notation, const ValuePair& operands, int output,
                        const std::vector<PartRange>& panels) {
  for (const PartRange& panel : panels) {
    ValuePair views = {};
    for (size_t i = 0; i < views.size(); ++i) {
      const PlanValue whole = builder.value(operands[i]);
      const std::string& letters = i == 0 ? notation.left : notation.right;
      const int64_t stride = whole.strides[static_cast<size_t>(DimOf(letters, panel.letter))];
      views[i] = builder.AddView(operands[i], OnGridIn(panel, whole.spec, letters), whole.offset + panel.start * stride,
                                 whole.strides);
    }
    AddLocalProduct(builder, notation, views, output, StoreOf(panel));
  }
}

// One part after another, each into its place in the output. `panels`: of an inner letter; none: all of it at once.
absl::StatusOr<int> AddParts(PlanBuilder& builder, const SplitProblem& problem, const Split& split,
                             const std::vector<PartRange>& panels) {
  const Contraction& notation = problem.notation;
  const bool in_place = HoldSameShards(problem.product, problem.output);
  const int output = builder.AddTemporary(problem.output);
  const Strides strides = builder.value(output).strides;
  const int64_t stride = strides[static_cast<size_t>(DimOf(notation.output, split.letter))];
  const int at_once = split.is_overlapped ? kOverlapped : 1;
  std::array<OperandParts, 2> operands = {OperandParts(builder, *problem.operands[0], at_once),
                                          OperandParts(builder, *problem.operands[1], at_once)};
  std::optional<int> first_product;
  for (size_t i = 0; i < split.ranges.size(); ++i) {
    const PartRange& range = split.ranges[i];
    if (i == 0 || !split.is_overlapped) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, range, StepStart::kNewPhase));
    }
    TESSERA_ASSIGN_OR_RETURN(ContractOperand a, operands[0].Bring(range));
    TESSERA_ASSIGN_OR_RETURN(ContractOperand b, operands[1].Bring(range));
    const TensorSpec spec = OnGridIn(range, problem.product, notation.output);
    const int64_t offset = range.start_in_output * stride;
    int product = 0;
    if (in_place) {
      product = builder.AddView(output, spec, offset, strides);
    } else if (first_product.has_value()) {
      product = builder.AddAgain(*first_product, spec);
    } else {
      product = builder.AddTemporary(spec, problem.product.mesh);
      first_product = product;
    }
    if (panels.empty()) {
      AddProduct(builder, notation, {std::move(a), std::move(b)}, product);
    } else {
      AddProductInPanels(builder, notation, {a.value, b.value}, product, panels);
    }
    if (split.is_overlapped && i + 1 < split.ranges.size()) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, split.ranges[i + 1], StepStart::kWithPrevious));
    }
    if (in_place) continue;
    const int part = builder.AddView(output, OutputIn(range, problem.output, notation.output), offset, strides);
    TESSERA_RETURN_IF_ERROR(builder.AddMoves({{{product, {}, part, {}}}}));
  }
  return output;
}

absl::StatusOr<int> AddWhole(PlanBuilder& builder, const SplitProblem& problem) {
  TESSERA_ASSIGN_OR_RETURN(ContractOperand left, BringOperand(builder, *problem.operands[0]));
  TESSERA_ASSIGN_OR_RETURN(ContractOperand right, BringOperand(builder, *problem.operands[1]));
  const int product = builder.AddTemporary(problem.product);
  AddProduct(builder, problem.notation, {std::move(left), std::move(right)}, product);
  return builder.AddRedistribute(product, problem.output);
}

// One panel after another. `problem`: as it is written in panels.
absl::StatusOr<int> AddPanels(PlanBuilder& builder, const SplitProblem& problem, const Panels& panels) {
  const int at_once = panels.is_overlapped ? kOverlapped : 1;
  std::array<OperandParts, 2> operands = {OperandParts(builder, *problem.operands[0], at_once),
                                          OperandParts(builder, *problem.operands[1], at_once)};
  const int product = builder.AddTemporary(problem.product);
  for (size_t i = 0; i < panels.ranges.size(); ++i) {
    const PartRange& panel = panels.ranges[i];
    if (i == 0 || !panels.is_overlapped) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, panel, StepStart::kNewPhase));
    }
    TESSERA_ASSIGN_OR_RETURN(const ContractOperand a, operands[0].Bring(panel));
    TESSERA_ASSIGN_OR_RETURN(const ContractOperand b, operands[1].Bring(panel));
    AddLocalProduct(builder, problem.notation, {a.value, b.value}, product, StoreOf(panel));
    if (panels.is_overlapped && i + 1 < panels.ranges.size()) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, panels.ranges[i + 1], StepStart::kWithPrevious));
    }
  }
  return builder.AddRedistribute(product, problem.output);
}

}  // namespace

absl::StatusOr<int> AddContractionSteps(PlanBuilder& builder, const SplitProblem& problem, const WorkingOff& way) {
  if (!way.panels.has_value()) {
    return way.split.has_value() ? AddParts(builder, problem, *way.split, {}) : AddWhole(builder, problem);
  }
  WrittenInPanels written = way.panels->written;
  ViewOperands(builder, problem, written);
  const SplitProblem in_panels = written.InPlaceOf(problem);
  return way.split.has_value() ? AddParts(builder, in_panels, *way.split, way.panels->ranges)
                               : AddPanels(builder, in_panels, *way.panels);
}

}  // namespace tessera
