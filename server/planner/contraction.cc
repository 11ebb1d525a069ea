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
#include "server/plan/same_shards.h"
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
  return is_gathered ? MaxShardElements(operand.on_grid) * SizeBytes(operand.own.dtype) : 0;
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

// One part after another, each into its place in the output.
absl::StatusOr<int> AddParts(PlanBuilder& builder, const SplitProblem& problem, const Split& split) {
  const Contraction& notation = problem.notation;
  const bool in_place = HoldSameShards(problem.product, problem.output);
  const int output = builder.AddTemporary(problem.output);
  const Strides strides = builder.value(output).strides;
  const int64_t stride = strides[static_cast<size_t>(DimOf(notation.output, split.letter))];
  OperandParts left(builder, *problem.operands[0]), right(builder, *problem.operands[1]);
  std::optional<int> first_product;
  for (const PartRange& range : split.ranges) {
    TESSERA_ASSIGN_OR_RETURN(ContractOperand a, left.Bring(range));
    TESSERA_ASSIGN_OR_RETURN(ContractOperand b, right.Bring(range));
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
    if (in_place) continue;
    const int part = builder.AddView(output, OutputIn(range, problem.output, notation.output), offset, strides);
    TESSERA_RETURN_IF_ERROR(builder.AddMove(product, {}, part));
  }
  return output;
}

// "; in 4 parts over n, of 256 each: temporaries of 2,097,152 bytes in place of 8,388,608".
std::string SplitText(const SplitProblem& problem, const Split& split) {
  const int64_t size = split.ranges[0].size;
  const bool is_even =
      std::all_of(split.ranges.begin(), split.ranges.end(), [&](const PartRange& range) { return range.size == size; });
  std::string text = StrCat("; in ", split.parts(), " parts over ", std::string(1, split.letter), ", of ", size,
                            is_even ? " each" : " and the rest",
                            split.sub_meshes > 1 ? StrCat(", on ", split.sub_meshes, " sub-meshes side by side") : "",
                            ": temporaries of ", WithCommas(split.temporary_bytes), " bytes in place of ",
                            WithCommas(TemporaryBytes(problem)));
  if (split.repeated_bytes > 0) {
    StrAppend(&text, ", and ", WithCommas(split.repeated_bytes), " bytes are received again");
  }
  return text;
}

}  // namespace

absl::StatusOr<int> AddContraction(PlanBuilder& builder, const Contraction& notation, int left, int right,
                                   const TensorSpec& output, const Topology& topology, const PieceLimits& pieces,
                                   const PlanLimits& limits) {
  const TensorSpec left_spec = builder.value(left).spec;
  const TensorSpec right_spec = builder.value(right).spec;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<GridCandidate> grids,
                           EnumerateGrids(notation, left_spec, right_spec, output, topology, pieces));
  GridCandidate best = grids[0];
  TESSERA_ASSIGN_OR_RETURN(const OperandReading a, DecideReading(builder, notation, notation.left, left, best.left,
                                                                 output.dtype, topology, pieces));
  TESSERA_ASSIGN_OR_RETURN(const OperandReading b, DecideReading(builder, notation, notation.right, right, best.right,
                                                                 output.dtype, topology, pieces));
  for (const OperandReading* operand : {&a, &b}) best.peak_bytes += GatheredAfterAll(notation, *operand, pieces);
  const SplitProblem problem = {notation, {&a, &b}, best.product, output, topology};
  std::string split_text;
  int result = 0;
  if (limits.temporary_bytes.has_value() && TemporaryBytes(problem) > *limits.temporary_bytes) {
    TESSERA_ASSIGN_OR_RETURN(const Split split, ChooseSplit(problem, *limits.temporary_bytes));
    TESSERA_ASSIGN_OR_RETURN(result, AddParts(builder, problem, split));
    split_text = SplitText(problem, split);
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
