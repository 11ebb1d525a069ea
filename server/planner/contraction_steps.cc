#include "server/planner/contraction_steps.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/contraction.h"
#include "schemas/types/status_macros.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/operand_reading.h"

namespace tessera {
namespace {

using ValuePair = std::array<int, 2>;
using OperandPair = std::array<ContractOperand, 2>;

// So many gathered parts, or panels, are in memory at once.
constexpr int kOverlapped = 2;

// A view of the value's part in the range, whose letter starts at `start` there.
int AddRangeView(PlanBuilder& builder, int value, const PartRange& range, int64_t start, const std::string& letters) {
  const PlanValue whole = builder.value(value);
  const int64_t stride = whole.strides[static_cast<size_t>(DimOf(letters, range.letter))];
  return builder.AddView(value, OnGridIn(range, whole.spec, letters), whole.offset + start * stride, whole.strides);
}

void AddLocalProduct(PlanBuilder& builder, const Contraction& notation, const ValuePair& operands, int output,
                     KernelStore store = KernelStore::kWrite, StepStart start = StepStart::kNewPhase) {
  LocalStep step;
  step.op = MatmulOp{notation};
  step.inputs = {operands[0], operands[1]};
  step.output = output;
  step.store = store;
  step.start = start;
  builder.AddLocal(std::move(step));
}

void AddProduct(PlanBuilder& builder, const Contraction& notation, OperandPair operands, int output,
                KernelStore store = KernelStore::kWrite) {
  if (operands[0].pieces.has_value() || operands[1].pieces.has_value()) {
    builder.AddContract({MatmulOp{notation}, std::move(operands), output, store});
  } else {
    AddLocalProduct(builder, notation, {operands[0].value, operands[1].value}, output, store);
  }
}

KernelStore StoreOf(const PartRange& panel) { return panel.start == 0 ? KernelStore::kWrite : KernelStore::kAdd; }

// The product of a panel of operands that are there, cut by cut in one phase.
void AddProductInCuts(PlanBuilder& builder, const WrittenInPanels& written, const ValuePair& operands, int output,
                      KernelStore store) {
  if (written.cuts.empty()) return AddLocalProduct(builder, written.notation, operands, output, store);
  StepStart start = StepStart::kNewPhase;
  for (const PartRange& cut : written.cuts) {
    const ValuePair views = {AddRangeView(builder, operands[0], cut, cut.start, written.notation.left),
                             AddRangeView(builder, operands[1], cut, cut.start, written.notation.right)};
    AddLocalProduct(builder, written.notation, views, output, store, start);
    store = KernelStore::kAdd;
    start = StepStart::kWithPrevious;
  }
}

// A panel of an operand that was brought whole along the panels' letter, for a range of the output or all of it.
absl::StatusOr<ContractOperand> PanelOf(PlanBuilder& builder, const OperandReading& reading, ContractOperand operand,
                                        const PartRange* range, const PartRange& panel) {
  if (!operand.pieces.has_value()) {
    operand.value = AddRangeView(builder, operand.value, panel, panel.start, reading.letters);
    return operand;
  }
  const TensorSpec spec = OnGridIn(panel, operand.pieces->destination, reading.letters);
  std::vector<int64_t> start(spec.shape.size(), 0);
  start[static_cast<size_t>(DimOf(reading.letters, panel.letter))] = panel.start;
  const int dim = range == nullptr ? -1 : DimOf(reading.letters, range->letter);
  if (dim >= 0) start[static_cast<size_t>(dim)] = range->start;
  TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges, MakeExchanges(reading.own, spec, start, {}));
  operand.pieces = std::move(exchanges[0].exchange);
  return operand;
}

// The product of operands that were brought, at once or added up panel by panel. `range`: of the output, or null.
absl::Status AddProducts(PlanBuilder& builder, const SplitProblem& problem, OperandPair operands,
                         const PartRange* range, int output, const Panels* panels) {
  if (panels == nullptr) {
    AddProduct(builder, problem.notation, std::move(operands), output);
    return absl::OkStatus();
  }
  for (const PartRange& panel : panels->ranges) {
    OperandPair in_panel;
    for (size_t i = 0; i < operands.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(in_panel[i], PanelOf(builder, *problem.operands[i], operands[i], range, panel));
    }
    AddProduct(builder, problem.notation, std::move(in_panel), output, StoreOf(panel));
  }
  return absl::OkStatus();
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

// One part after another, each into its place in the output.
absl::StatusOr<int> AddParts(PlanBuilder& builder, const SplitProblem& problem, const Split& split,
                             const Panels* panels) {
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
    TESSERA_RETURN_IF_ERROR(AddProducts(builder, problem, {std::move(a), std::move(b)}, &range, product, panels));
    if (split.is_overlapped && i + 1 < split.ranges.size()) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, split.ranges[i + 1], StepStart::kWithPrevious));
    }
    if (in_place) continue;
    const int part = builder.AddView(output, OutputIn(range, problem.output, notation.output), offset, strides);
    TESSERA_RETURN_IF_ERROR(builder.AddMoves({{{product, {}, part, {}}}}));
  }
  return output;
}

absl::StatusOr<int> AddWhole(PlanBuilder& builder, const SplitProblem& problem, const Panels* panels) {
  TESSERA_ASSIGN_OR_RETURN(ContractOperand left, BringOperand(builder, *problem.operands[0]));
  TESSERA_ASSIGN_OR_RETURN(ContractOperand right, BringOperand(builder, *problem.operands[1]));
  const int product = builder.AddTemporary(problem.product);
  TESSERA_RETURN_IF_ERROR(AddProducts(builder, problem, {std::move(left), std::move(right)}, nullptr, product, panels));
  return builder.AddRedistribute(product, problem.output);
}

// One panel after another, or each while the one before is multiplied.
absl::StatusOr<int> AddPanels(PlanBuilder& builder, const SplitProblem& problem, const Panels& panels) {
  WrittenInPanels written = Gathered(panels.written);
  ViewOperands(builder, problem, written);
  const bool is_overlapped = panels.way == Panels::Way::kOverlapped;
  const int at_once = is_overlapped ? kOverlapped : 1;
  std::array<OperandParts, 2> operands = {OperandParts(builder, written.operands[0], at_once),
                                          OperandParts(builder, written.operands[1], at_once)};
  const int product = builder.AddTemporary(problem.product);
  for (size_t i = 0; i < panels.ranges.size(); ++i) {
    const PartRange& panel = panels.ranges[i];
    if (i == 0 || !is_overlapped) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, panel, StepStart::kNewPhase));
    }
    TESSERA_ASSIGN_OR_RETURN(const ContractOperand a, operands[0].Bring(panel));
    TESSERA_ASSIGN_OR_RETURN(const ContractOperand b, operands[1].Bring(panel));
    AddProductInCuts(builder, written, {a.value, b.value}, product, StoreOf(panel));
    if (!is_overlapped || i + 1 == panels.ranges.size()) continue;
    TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, panels.ranges[i + 1], StepStart::kWithPrevious));
  }
  return builder.AddRedistribute(product, problem.output);
}

}  // namespace

absl::StatusOr<int> AddContractionSteps(PlanBuilder& builder, const SplitProblem& problem, const WorkingOff& way) {
  if (way.panels.has_value() && way.panels->way != Panels::Way::kOfWhole) {
    return AddPanels(builder, problem, *way.panels);
  }
  const auto add = [&](const SplitProblem& written, const Panels* panels) {
    return way.split.has_value() ? AddParts(builder, written, *way.split, panels) : AddWhole(builder, written, panels);
  };
  if (!way.panels.has_value()) return add(problem, nullptr);
  WrittenInPanels written = way.panels->written;
  ViewOperands(builder, problem, written);
  return add(written.InPlaceOf(problem), &*way.panels);
}

}  // namespace tessera
