#include "server/planner/inner_panels.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "schemas/types/divide.h"
#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

// With a dim of extent n written as two, of extents `first` and n / first.
TensorSpec WithDimAsTwo(TensorSpec spec, int dim, int64_t first) {
  const auto at = spec.shape.begin() + dim;
  *at /= first;
  spec.shape.insert(at, first);
  for (Placement& placement : spec.placements) {
    if (placement.is_shard() && placement.dim() > dim) placement = placement.OnDim(placement.dim() + 1);
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
    bool is_whole_on_grid = true;
    bool is_whole_in_pieces = true;
    for (size_t i = 0; i < 2; ++i) {
      const OperandReading& operand = *problem_.operands[i];
      if (IsCutElsewhere(operand)) return std::nullopt;
      written.operands[i] = operand;
      const int dim = DimOf(operand.letters, letter_);
      written.extent = operand.own.shape[static_cast<size_t>(dim)];
      const int64_t in_own = CountShards(operand.own, dim);
      const int64_t on_grid = CountShards(operand.on_grid, dim);
      shards = std::lcm(shards, std::lcm(in_own, on_grid));
      is_whole_on_grid = is_whole_on_grid && on_grid == 1;
      if (operand.way == OperandReading::Way::kPieces && in_own > 1) is_whole_in_pieces = false;
    }
    if (written.extent == 0) return std::nullopt;
    if (shards == 1) return written;
    if (WriteAsTwo(shards, written)) return written;
    // Panels of one letter: nothing may cut it but who gives it.
    return is_whole_on_grid && is_whole_in_pieces ? std::optional(written) : std::nullopt;
  }

 private:
  static int64_t CountShards(const TensorSpec& spec, int dim) {
    return static_cast<int64_t>(DimIntervals(spec, dim).size());
  }

  // Whether its pieces are cut along another inner letter, as its panels would not be.
  bool IsCutElsewhere(const OperandReading& operand) const {
    if (operand.way != OperandReading::Way::kPieces) return false;
    const std::string inner = LettersOf(problem_.notation, LetterRole::kInner);
    return std::any_of(inner.begin(), inner.end(), [&](char letter) {
      return letter != letter_ && CountShards(operand.own, DimOf(operand.letters, letter)) > 1;
    });
  }

  // Writes the letter as two, if all shards allow it.
  bool WriteAsTwo(int64_t shards, WrittenInPanels& written) const {
    const std::optional<char> first = UnusedLetter(problem_.notation);
    if (written.extent % shards != 0 || !first.has_value()) return false;
    WrittenInPanels as_two = written;
    as_two.shards = *first;
    as_two.shard_count = shards;
    as_two.extent /= shards;
    const std::string both = {*first, letter_};
    for (std::string* letters : {&as_two.notation.left, &as_two.notation.right}) {
      letters->replace(static_cast<size_t>(DimOf(*letters, letter_)), 1, both);
    }
    if (!ValidateContraction(as_two.notation).ok()) return false;
    std::set<int64_t> starts;  // of what is cut
    for (OperandReading& operand : as_two.operands) {
      if (!WriteAsTwo(both, shards, operand)) return false;
      if (operand.way != OperandReading::Way::kPieces) continue;
      for (const Interval& shard : DimIntervals(operand.own, DimOf(operand.letters, *first)))
        starts.insert(shard.start);
    }
    const OperandReading& left = as_two.operands[0];
    if (const auto on_grid = DimIntervals(left.on_grid, DimOf(left.letters, *first)); on_grid.size() > 1) {
      // Each worker has its shard of it, and a product is cut nowhere or at the same index by all.
      for (const Interval& shard : on_grid) {
        const auto inside = starts.upper_bound(shard.start);
        if (inside != starts.end() && *inside < shard.stop) return false;
      }
      starts.clear();
    }
    for (auto start = starts.begin(); start != starts.end(); ++start) {
      PartRange& cut = as_two.cuts.emplace_back();
      cut.letter = *first;
      cut.start = *start;
      cut.size = (std::next(start) == starts.end() ? shards : *std::next(start)) - *start;
    }
    written = std::move(as_two);
    return true;
  }

  bool WriteAsTwo(const std::string& letters, int64_t shards, OperandReading& operand) const {
    const int dim = DimOf(operand.letters, letter_);
    for (TensorSpec* spec : {&operand.own, &operand.on_grid}) {
      TensorSpec as_two = WithDimAsTwo(*spec, dim, shards);
      if (!IsCutBetween(*spec, as_two, dim)) return false;
      *spec = std::move(as_two);
    }
    operand.letters.replace(static_cast<size_t>(dim), 1, letters);
    if (operand.way != OperandReading::Way::kPieces) return true;
    absl::StatusOr<std::vector<NamedExchange>> exchanges = MakeExchanges(operand.own, operand.on_grid, {}, {});
    if (exchanges.ok()) operand.pieces = std::move((*exchanges)[0].exchange);
    return exchanges.ok();
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
    if (operand->way == OperandReading::Way::kPieces) {
      // Holders that share what they give may cut a panel elsewhere. A worker that multiplies nothing takes no pieces.
      if (CountReplicas(operand->own) > 1 || HasEmptyShards(problem.product)) return false;
    }
    is_from_far = is_from_far || ComesFromFar(*operand, problem.topology);
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
    if (written.has_value()) ways.push_back(*std::move(written));
  }
  return ways;
}

WrittenInPanels Gathered(WrittenInPanels written) {
  for (OperandReading& operand : written.operands) {
    if (operand.way == OperandReading::Way::kPieces) operand.way = OperandReading::Way::kGathered;
  }
  return written;
}

int64_t TemporaryBytes(const Panels& panels, const SplitProblem& problem) {
  if (panels.way == Panels::Way::kOfWhole) return TemporaryBytes(problem);
  const WrittenInPanels gathered = Gathered(panels.written);
  return TemporaryBytesOf(gathered.InPlaceOf(problem), panels.ranges, panels.way == Panels::Way::kOverlapped);
}

Panels PanelsOf(const WrittenInPanels& written, int64_t count) {
  PartRange whole;
  whole.letter = written.letter;
  whole.size = written.extent;
  return {written, CutRanges({whole}, CeilDivide(written.extent, count))};
}

void ViewOperands(PlanBuilder& builder, const SplitProblem& problem, WrittenInPanels& written) {
  for (size_t i = 0; i < written.operands.size(); ++i) {
    OperandReading& operand = written.operands[i];
    operand.value = problem.operands[i]->value;
    if (written.shards == 0) continue;
    const PlanValue whole = builder.value(operand.value);
    Strides strides = whole.strides;
    const auto at = strides.begin() + DimOf(operand.letters, written.shards);
    strides.insert(at, *at * written.extent);
    operand.value = builder.AddView(operand.value, operand.own, whole.offset, strides);
  }
}

}  // namespace tessera
