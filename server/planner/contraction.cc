#include "server/planner/contraction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "schemas/ops/resolve.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/cost.h"
#include "server/plan/same_shards.h"
#include "server/planner/alternatives.h"
#include "server/planner/figures.h"
#include "server/planner/operand_reading.h"
#include "server/planner/split.h"

namespace tessera {
namespace {

constexpr size_t kRunnersUp = 5;

std::string SecondsText(double seconds) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3g ms", seconds * 1e3);
  return text;
}

std::string GridText(const Contraction& notation, const GridCandidate& grid) {
  const std::string batch = LettersOf(notation, LetterRole::kBatch).empty() ? "" : StrCat(grid.pb, ",");
  return StrCat("grid (", batch, grid.pm, ",", grid.pn, ",", grid.pk, ") on ", ToText(grid.product.mesh), " ",
                ToText(grid.left.placements), " x ", ToText(grid.right.placements), " -> ",
                ToText(grid.product.placements), ": receives ", WithCommas(grid.received_bytes), " bytes, ",
                grid.host_received_bytes > 0 ? StrCat("a host ", WithCommas(grid.host_received_bytes), ", ") : "",
                "peak ", WithCommas(grid.peak_bytes), " bytes, ", SecondsText(grid.seconds));
}

// Bytes of an operand that the grid took for one that is read in place, and that is gathered.
int64_t GatheredAfterAll(const Contraction& notation, const OperandReading& operand, const PieceLimits& limits) {
  const bool is_gathered = operand.way == OperandReading::Way::kGathered &&
                           IsReadInPlace(notation, operand.letters, operand.own, operand.on_grid, limits);
  return is_gathered ? MaxShardElements(operand.on_grid) * SizeBytes(operand.gathered().dtype) : 0;
}

// The chosen grid's words against the bound for all workers of the mesh.
std::string BoundText(const Contraction& notation, const GridCandidate& grid, const TensorSpec& left,
                      const TensorSpec& right, const TensorSpec& output) {
  const int64_t received = grid.received_bytes / SizeBytes(output.dtype);
  const int64_t owned = MaxShardElements(left) + MaxShardElements(right) + MaxShardElements(output);
  const auto extent = [&](LetterRole role) { return ExtentOf(notation, role, left.shape, right.shape); };
  const double bound =
      ContractionLowerBoundWords(extent(LetterRole::kBatch), extent(LetterRole::kLeft), extent(LetterRole::kRight),
                                 extent(LetterRole::kInner), output.mesh.size());
  return StrCat("; ", WithCommas(received), " words received and ", WithCommas(owned), " owned, lower bound ",
                WithCommas(static_cast<int64_t>(std::ceil(bound))), " together");
}

void AddProduct(PlanBuilder& builder, const Contraction& notation, std::array<ContractOperand, 2> operands,
                int output) {
  if (operands[0].pieces.has_value() || operands[1].pieces.has_value()) {
    builder.AddContract({MatmulOp{notation}, std::move(operands), output});
    return;
  }
  LocalStep step;
  step.op = MatmulOp{notation};
  step.inputs = {operands[0].value, operands[1].value};
  step.output = output;
  builder.AddLocal(std::move(step));
}

absl::StatusOr<int> AddWhole(PlanBuilder& builder, const SplitProblem& problem) {
  TESSERA_ASSIGN_OR_RETURN(ContractOperand left, BringOperand(builder, *problem.operands[0]));
  TESSERA_ASSIGN_OR_RETURN(ContractOperand right, BringOperand(builder, *problem.operands[1]));
  const int product = builder.AddTemporary(problem.product);
  AddProduct(builder, problem.notation, {std::move(left), std::move(right)}, product);
  return builder.AddRedistribute(product, problem.output);
}

// Gathers the operands of a part, where they are gathered part by part: in one phase.
absl::Status AddGathers(PlanBuilder& builder, std::array<OperandParts, 2>& operands, const PartRange& range,
                        StepStart start) {
  std::vector<SliceMove> moves;
  for (OperandParts& operand : operands) {
    if (std::optional<SliceMove> move = operand.Gather(range); move.has_value()) moves.push_back(*std::move(move));
  }
  return builder.AddMoves(moves, start);
}

// One part after another, each into its place in the output.
absl::StatusOr<int> AddParts(PlanBuilder& builder, const SplitProblem& problem, const Split& split) {
  const Contraction& notation = problem.notation;
  const bool in_place = HoldSameShards(problem.product, problem.output);
  const int output = builder.AddTemporary(problem.output);
  const Strides strides = builder.value(output).strides;
  const int64_t stride = strides[static_cast<size_t>(DimOf(notation.output, split.letter))];
  const int at_once = split.is_overlapped ? 2 : 1;
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
    AddProduct(builder, notation, {std::move(a), std::move(b)}, product);
    if (split.is_overlapped && i + 1 < split.ranges.size()) {
      TESSERA_RETURN_IF_ERROR(AddGathers(builder, operands, split.ranges[i + 1], StepStart::kWithPrevious));
    }
    if (in_place) continue;
    const int part = builder.AddView(output, OutputIn(range, problem.output, notation.output), offset, strides);
    TESSERA_RETURN_IF_ERROR(builder.AddMoves({{{product, {}, part, {}}}}));
  }
  return output;
}

// Of the contraction in a plan of its own; `split`: null for the whole.
absl::StatusOr<double> PredictContraction(const PlanBuilder& builder, const SplitProblem& problem, const Split* split) {
  PlanBuilder alone;
  std::array<OperandReading, 2> operands = {*problem.operands[0], *problem.operands[1]};
  for (OperandReading& operand : operands) {
    operand.value = alone.AddInput({operand.own, builder.value(operand.value).strides});
  }
  const SplitProblem same = {
      problem.notation, {&operands[0], &operands[1]}, problem.product, problem.output, problem.topology};
  TESSERA_RETURN_IF_ERROR((split == nullptr ? AddWhole(alone, same) : AddParts(alone, same, *split)).status());
  const Topology reference = ReferenceOf(problem.topology);
  return PredictSeconds(std::move(alone).Finish(reference), reference);
}

// The split that overlaps and is the fastest; none where none is worthwhile.
absl::StatusOr<std::optional<Split>> ChooseOverlap(const PlanBuilder& builder, const SplitProblem& problem,
                                                   const OverlapLimits& limits) {
  std::optional<Split> best;
  std::vector<Split> splits = OverlappedSplits(problem, limits);
  if (splits.empty()) return best;
  TESSERA_ASSIGN_OR_RETURN(const double whole_s, PredictContraction(builder, problem, nullptr));
  double best_s = limits.worthwhile * whole_s;
  for (Split& split : splits) {
    TESSERA_ASSIGN_OR_RETURN(const double split_s, PredictContraction(builder, problem, &split));
    if (split_s >= best_s) continue;
    best_s = limits.worth_more * split_s;
    best = std::move(split);
  }
  return best;
}

// "; in 4 parts over n, of 256 each: temporaries of 2,097,152 bytes in place of 8,388,608".
std::string SplitText(const SplitProblem& problem, const Split& split) {
  const int64_t size = split.ranges[0].size;
  const bool is_even =
      std::all_of(split.ranges.begin(), split.ranges.end(), [&](const PartRange& range) { return range.size == size; });
  std::string text =
      StrCat("; in ", split.parts(), " parts over ", std::string(1, split.letter), ", of ", size,
             is_even ? " each" : " and the rest",
             split.sub_meshes > 1 ? StrCat(", on ", split.sub_meshes, " sub-meshes side by side") : "",
             split.is_overlapped ? ", each of which comes while the one before is multiplied" : "", ": temporaries of ",
             WithCommas(split.temporary_bytes), " bytes in place of ", WithCommas(TemporaryBytes(problem)));
  if (split.repeated_bytes > 0) {
    StrAppend(&text, ", and ", WithCommas(split.repeated_bytes), " bytes are received again");
  }
  return text;
}

}  // namespace

absl::StatusOr<int> AddContraction(PlanBuilder& builder, const Contraction& notation, int left, int right,
                                   const TensorSpec& output, const Topology& topology,
                                   const ContractionLimits& limits) {
  const TensorSpec left_spec = builder.value(left).spec;
  const TensorSpec right_spec = builder.value(right).spec;
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<GridCandidate> grids,
      EnumerateGrids(notation, left_spec, right_spec, output, topology, limits.pieces, 1 + kRunnersUp));
  GridCandidate best = grids[0];
  TESSERA_ASSIGN_OR_RETURN(const OperandReading a, DecideReading(builder, notation, notation.left, left, best.left,
                                                                 output.dtype, topology, limits.pieces));
  TESSERA_ASSIGN_OR_RETURN(const OperandReading b, DecideReading(builder, notation, notation.right, right, best.right,
                                                                 output.dtype, topology, limits.pieces));
  for (const OperandReading* operand : {&a, &b}) best.peak_bytes += GatheredAfterAll(notation, *operand, limits.pieces);
  const SplitProblem problem = {notation, {&a, &b}, best.product, output, topology};
  TESSERA_ASSIGN_OR_RETURN(std::optional<Split> split, ChooseOverlap(builder, problem, limits.overlap));
  const auto fits = [&limits](int64_t bytes) { return bytes <= limits.plan.temporary_bytes.value_or(bytes); };
  if (split.has_value() && !fits(split->temporary_bytes)) split.reset();
  if (!split.has_value() && !fits(TemporaryBytes(problem))) {
    TESSERA_ASSIGN_OR_RETURN(split, ChooseSplit(problem, *limits.plan.temporary_bytes));
  }
  std::string split_text;
  int result = 0;
  if (split.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(result, AddParts(builder, problem, *split));
    split_text = SplitText(problem, *split);
  } else {
    TESSERA_ASSIGN_OR_RETURN(result, AddWhole(builder, problem));
  }
  builder.plan().grid =
      GridText(notation, best) + BoundText(notation, best, left_spec, right_spec, output) + split_text;
  for (size_t i = 1; i < grids.size() && i <= kRunnersUp; ++i) {
    builder.plan().runners_up.push_back(GridText(notation, grids[i]));
  }
  return result;
}

}  // namespace tessera
