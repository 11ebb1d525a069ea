#include "server/planner/inner_panels.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "schemas/types/divide.h"
#include "schemas/types/layout.h"
#include "server/plan/cost.h"
#include "server/plan/exchange.h"

namespace tessera {
namespace {

// With a dim of extent n written as two, of extents `first` and n / first.
TensorSpec WithDimAsTwo(TensorSpec spec, int dim, int64_t first) {
  const auto at = spec.shape.begin() + dim;
  *at /= first;
  spec.shape.insert(at, first);
  for (Placement& placement : spec.placements) {
    if (placement.is_shard() && placement.dim() > dim) placement = Placement::Shard(placement.dim() + 1);
  }
  return spec;
}

// Whether the shards along the dim are whole elements of the first of the two.
bool IsCutBetween(const TensorSpec& spec, const TensorSpec& as_two, int dim) {
  const int64_t size = as_two.shape[static_cast<size_t>(dim) + 1];
  const std::vector<Interval> shards = DimIntervals(spec, dim);
  const std::vector<Interval> first = DimIntervals(as_two, dim);
  return std::equal(shards.begin(), shards.end(), first.begin(), first.end(), [size](Interval shard, Interval number) {
    return shard.start == number.start * size && shard.stop == number.stop * size;
  });
}

std::optional<char> UnusedLetter(const Contraction& notation) {
  for (const char letter : std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")) {
    const auto has = [letter](const std::string& letters) { return DimOf(letters, letter) >= 0; };
    if (!has(notation.left) && !has(notation.right) && !has(notation.output)) return letter;
  }
  return std::nullopt;
}

class Writer {
 public:
  Writer(const SplitProblem& problem, char letter) : problem_(problem), letter_(letter) {}

  std::optional<WrittenInPanels> Write() const {
    WrittenInPanels written;
    written.notation = problem_.notation;
    written.letter = letter_;
    int64_t shards = 1;
    int64_t on_grid = 1;
    for (size_t i = 0; i < 2; ++i) {
      const OperandReading& operand = *problem_.operands[i];
      written.operands[i] = operand;
      if (operand.way == OperandReading::Way::kPieces) written.operands[i].way = OperandReading::Way::kGathered;
      const int dim = DimOf(operand.letters, letter_);
      written.extent = operand.own.shape[static_cast<size_t>(dim)];
      const int64_t in_own = CountShards(operand.own, dim);
      const int64_t in_grid = CountShards(operand.on_grid, dim);
      shards = std::lcm(shards, std::lcm(in_own, in_grid));
      on_grid = std::max(on_grid, in_grid);
    }
    if (shards > 1 && AsTwo(shards, written)) return written;
    if (on_grid > 1) return std::nullopt;
    return written;
  }

 private:
  static int64_t CountShards(const TensorSpec& spec, int dim) {
    return static_cast<int64_t>(DimIntervals(spec, dim).size());
  }

  // Writes the letter as two, if all shards allow it.
  bool AsTwo(int64_t shards, WrittenInPanels& written) const {
    const std::optional<char> first = UnusedLetter(problem_.notation);
    const bool is_even = written.extent % shards == 0 && written.extent > 0;
    if (!is_even || !first.has_value()) return false;
    WrittenInPanels as_two = written;
    as_two.in_shards = shards;
    as_two.extent /= shards;
    const std::string both = {*first, letter_};
    for (std::string* letters : {&as_two.notation.left, &as_two.notation.right}) {
      letters->replace(static_cast<size_t>(DimOf(*letters, letter_)), 1, both);
    }
    if (!ValidateContraction(as_two.notation).ok()) return false;
    for (OperandReading& operand : as_two.operands) {
      const int dim = DimOf(operand.letters, letter_);
      for (TensorSpec* spec : {&operand.own, &operand.on_grid}) {
        TensorSpec split = WithDimAsTwo(*spec, dim, shards);
        if (!IsCutBetween(*spec, split, dim)) return false;
        *spec = std::move(split);
      }
      operand.letters.replace(static_cast<size_t>(dim), 1, both);
      operand.pieces = {};
    }
    written = std::move(as_two);
    return true;
  }

  const SplitProblem& problem_;
  const char letter_;
};

bool MayComeInPanels(const SplitProblem& problem) {
  const DType dtype = problem.product.dtype;
  if (problem.product.mesh.size() > kMaxOverlappedPositions) return false;
  if (AccumulatedIn(dtype) != dtype || dtype == DType::kBool) return false;
  bool is_from_far = false;
  for (const OperandReading* operand : problem.operands) {
    if (PendingTerms(operand->own, operand->on_grid) > 1) return false;
    is_from_far = is_from_far || (operand->way == OperandReading::Way::kGathered &&
                                  !AreOnOneHost({&operand->own.mesh, &operand->on_grid.mesh}, problem.topology));
  }
  return is_from_far;
}

}  // namespace

SplitProblem WrittenInPanels::InPlaceOf(const SplitProblem& problem) const {
  return {notation, {&operands[0], &operands[1]}, problem.product, problem.output, problem.topology};
}

std::vector<WrittenInPanels> WriteInPanels(const SplitProblem& problem) {
  std::vector<WrittenInPanels> ways;
  if (!MayComeInPanels(problem)) return ways;
  for (const char letter : LettersOf(problem.notation, LetterRole::kInner)) {
    std::optional<WrittenInPanels> written = Writer(problem, letter).Write();
    if (written.has_value() && written->extent > 0) ways.push_back(*std::move(written));
  }
  return ways;
}

Panels PanelsOf(const WrittenInPanels& written, const SplitProblem& problem, int64_t count) {
  PartRange whole;
  whole.letter = written.letter;
  whole.size = written.extent;
  Panels panels = {written, CutRanges({whole}, CeilDivide(written.extent, count)), true, 0};
  panels.temporary_bytes = TemporaryBytesOf(written.InPlaceOf(problem), panels.ranges, true);
  return panels;
}

Panels OneAfterTheOther(Panels panels, const SplitProblem& problem) {
  panels.is_overlapped = false;
  panels.temporary_bytes = TemporaryBytesOf(panels.written.InPlaceOf(problem), panels.ranges, false);
  return panels;
}

void ViewOperands(PlanBuilder& builder, const SplitProblem& problem, WrittenInPanels& written) {
  for (size_t i = 0; i < written.operands.size(); ++i) {
    OperandReading& operand = written.operands[i];
    operand.value = problem.operands[i]->value;
    if (written.in_shards == 1) continue;
    const PlanValue whole = builder.value(operand.value);
    Strides strides = whole.strides;
    const auto at = strides.begin() + DimOf(operand.letters, written.letter) - 1;
    strides.insert(at, *at * written.extent);
    operand.value = builder.AddView(operand.value, operand.own, whole.offset, strides);
  }
}

}  // namespace tessera
