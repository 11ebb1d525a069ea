#include "server/planner/contraction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "schemas/ops/resolve.h"
#include "schemas/types/divide.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/cost.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"
#include "server/planner/contraction_steps.h"
#include "server/planner/inner_panels.h"
#include "server/planner/number_text.h"
#include "server/planner/operand_reading.h"
#include "server/planner/split.h"

namespace tessera {
namespace {

constexpr size_t kRunnersUp = 5;
constexpr int64_t kLeastShareOfShard = 4;  // of a panel: a quarter of the least extent lies together in a shard

std::string SecondsText(double seconds) {
  char text[48];
  if (seconds >= 1) {
    std::snprintf(text, sizeof(text), seconds < 1e3 ? "%.3g s" : "%.0f s", seconds);
  } else {
    const bool is_short = seconds > 0 && seconds < 1e-6;
    std::snprintf(text, sizeof(text), is_short ? "%.3g us" : "%.3g ms", seconds * (is_short ? 1e6 : 1e3));
  }
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

// Predicted seconds of the contraction in a plan of its own.
absl::StatusOr<double> PredictContraction(const PlanBuilder& builder, const SplitProblem& problem,
                                          const WorkingOff& way) {
  PlanBuilder alone;
  std::array<OperandReading, 2> operands = {*problem.operands[0], *problem.operands[1]};
  for (OperandReading& operand : operands) {
    operand.value = alone.AddInput({operand.own, builder.value(operand.value).strides});
  }
  const SplitProblem same = {
      problem.notation, {&operands[0], &operands[1]}, problem.product, problem.output, problem.topology};
  TESSERA_RETURN_IF_ERROR(AddContractionSteps(alone, same, way).status());
  const Topology reference = ReferenceOf(problem.topology);
  return PredictSeconds(std::move(alone).Finish(reference), reference);
}

// Panels that overlap, their number doubled from one to the next.
std::vector<WorkingOff> WaysInPanels(const SplitProblem& problem, const OverlapLimits& limits) {
  std::vector<WorkingOff> ways;
  for (const WrittenInPanels& written : WriteInPanels(problem)) {
    // Least extent of the letter: of the part that one product adds up, and of the part that lies together in a shard.
    const int64_t products = std::max<int64_t>(1, static_cast<int64_t>(written.cuts.size()));
    const int64_t least_extent = std::max(CeilDivide(limits.least_extent * products, written.shard_count),
                                          CeilDivide(limits.least_extent, kLeastShareOfShard));
    const int64_t most = std::min(limits.most_panels, written.extent / least_extent);
    for (int64_t count = limits.least_parts; count <= most; count *= 2) {
      ways.push_back({std::nullopt, PanelsOf(written, count)});
    }
  }
  return ways;
}

// The fastest of several ways; at once where none is worthwhile.
absl::StatusOr<WorkingOff> ChooseFastest(const PlanBuilder& builder, const SplitProblem& problem,
                                         std::vector<WorkingOff> ways, const OverlapLimits& limits) {
  WorkingOff best;
  if (ways.empty()) return best;
  TESSERA_ASSIGN_OR_RETURN(const double whole_s, PredictContraction(builder, problem, {}));
  double best_s = limits.worthwhile * whole_s;
  for (WorkingOff& way : ways) {
    TESSERA_ASSIGN_OR_RETURN(const double way_s, PredictContraction(builder, problem, way));
    if (way_s >= best_s) continue;
    best_s = limits.worth_more * way_s;
    best = std::move(way);
  }
  return best;
}

// Parts that overlap, or else panels.
absl::StatusOr<WorkingOff> ChooseOverlap(const PlanBuilder& builder, const SplitProblem& problem,
                                         const OverlapLimits& limits) {
  std::vector<WorkingOff> ways;
  for (Split& split : OverlappedSplits(problem, limits)) ways.push_back({std::move(split), std::nullopt});
  if (ways.empty()) ways = WaysInPanels(problem, limits);
  return ChooseFastest(builder, problem, std::move(ways), limits);
}

// Less at once where that doesn't fit; no sum changes.
absl::Status FitInto(int64_t limit_bytes, const SplitProblem& problem, WorkingOff& way) {
  if (way.split.has_value() && way.split->temporary_bytes <= limit_bytes) return absl::OkStatus();
  way.split.reset();
  if (way.panels.has_value()) {
    for (const Panels::Way next : {Panels::Way::kOverlapped, Panels::Way::kOfWhole, Panels::Way::kInTurns}) {
      way.panels->way = next;
      if (TemporaryBytes(*way.panels, problem) <= limit_bytes) return absl::OkStatus();
    }
    way.panels->way = Panels::Way::kOfWhole;
  }
  if (TemporaryBytes(problem) <= limit_bytes) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(way.split, ChooseSplit(problem, limit_bytes));
  return absl::OkStatus();
}

constexpr char kOverlapText[] = " of which comes while the one before is multiplied";

// "256 each", "256 and the rest"
std::string SizesText(const std::vector<PartRange>& ranges) {
  const int64_t size = ranges[0].size;
  const bool is_even =
      std::all_of(ranges.begin(), ranges.end(), [size](const PartRange& range) { return range.size == size; });
  return StrCat(size, is_even ? " each" : " and the rest");
}

// "; in 4 panels of k, of 128 each in all of its 4 shards (in the steps k is ak)"
std::string PanelsText(const Panels& panels) {
  const WrittenInPanels& written = panels.written;
  const std::string letter(1, written.letter);
  std::string text = StrCat("; in ", panels.ranges.size(), " panels of ", letter, ", of ", SizesText(panels.ranges));
  if (written.shards != 0) {
    StrAppend(&text, " in all of its ", written.shard_count, " shards (in the steps ", letter, " is ",
              std::string(1, written.shards), letter, ")");
  }
  if (panels.way == Panels::Way::kOverlapped) StrAppend(&text, ", each panel", kOverlapText);
  if (panels.way == Panels::Way::kInTurns) StrAppend(&text, ", one after the other");
  return text;
}

std::string SplitText(const Split& split) {
  return StrCat("; in ", split.parts(), " parts over ", std::string(1, split.letter), ", of ", SizesText(split.ranges),
                split.sub_meshes > 1 ? StrCat(", on ", split.sub_meshes, " sub-meshes side by side") : "",
                split.is_overlapped ? StrCat(", each", kOverlapText) : "");
}

// "; in 4 parts over n, of 256 each: temporaries of 2,097,152 bytes in place of 8,388,608".
std::string WayText(const SplitProblem& problem, const WorkingOff& way) {
  const bool has_panels = way.panels.has_value();
  const bool is_split = way.split.has_value();
  std::string text = has_panels ? PanelsText(*way.panels) : "";
  if (is_split) text += SplitText(*way.split);
  if (!is_split && !(has_panels && way.panels->way != Panels::Way::kOfWhole)) return text;
  const int64_t temporary_bytes = is_split ? way.split->temporary_bytes : TemporaryBytes(*way.panels, problem);
  StrAppend(&text, ": temporaries of ", WithCommas(temporary_bytes), " bytes in place of ",
            WithCommas(TemporaryBytes(problem)));
  const int64_t repeated_bytes = is_split ? way.split->repeated_bytes : 0;
  if (repeated_bytes > 0) StrAppend(&text, ", and ", WithCommas(repeated_bytes), " bytes are received again");
  return text;
}

// The dtype in which a factor is read: the product's, but for floats of 8 bits, of which the product is f32.
DType FactorDType(DType factor, DType product) { return IsFloat8(factor) ? factor : product; }

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
  TESSERA_ASSIGN_OR_RETURN(const OperandReading a,
                           DecideReading(builder, notation, notation.left, left, best.left,
                                         FactorDType(left_spec.dtype, output.dtype), topology, limits.pieces));
  TESSERA_ASSIGN_OR_RETURN(const OperandReading b,
                           DecideReading(builder, notation, notation.right, right, best.right,
                                         FactorDType(right_spec.dtype, output.dtype), topology, limits.pieces));
  for (const OperandReading* operand : {&a, &b}) best.peak_bytes += GatheredAfterAll(notation, *operand, limits.pieces);
  const SplitProblem problem = {notation, {&a, &b}, best.product, output, topology};
  TESSERA_ASSIGN_OR_RETURN(WorkingOff way, ChooseOverlap(builder, problem, limits.overlap));
  if (limits.plan.temporary_bytes.has_value()) {
    TESSERA_RETURN_IF_ERROR(FitInto(*limits.plan.temporary_bytes, problem, way));
  }
  for (const OperandReading* operand : {&a, &b}) {
    if (operand->way == OperandReading::Way::kOwnShard) continue;
    TESSERA_RETURN_IF_ERROR(builder.NoteImplicit(operand->value, operand->on_grid));
  }
  TESSERA_ASSIGN_OR_RETURN(const int result, AddContractionSteps(builder, problem, way));
  builder.plan().grid =
      GridText(notation, best) + BoundText(notation, best, left_spec, right_spec, output) + WayText(problem, way);
  for (size_t i = 1; i < grids.size() && i <= kRunnersUp; ++i) {
    builder.plan().runners_up.push_back(GridText(notation, grids[i]));
  }
  return result;
}

}  // namespace tessera
