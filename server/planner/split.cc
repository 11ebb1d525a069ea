#include "server/planner/split.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/same_sums.h"

namespace tessera {
namespace {

int64_t BytesOf(const TensorSpec& spec, DType dtype) { return MaxShardElements(spec) * SizeBytes(dtype); }

// Bytes that are gathered for a range; all of them without one.
int64_t GatheredBytesIn(const SplitProblem& problem, const PartRange& range) {
  int64_t bytes = 0;
  for (const OperandReading* operand : problem.operands) {
    if (operand->way != OperandReading::Way::kGathered || DimOf(operand->letters, range.letter) < 0) continue;
    bytes += BytesOf(OnGridIn(range, operand->on_grid, operand->letters), operand->gathered().dtype);
  }
  return bytes;
}

// Bytes of the whole without a range.
int64_t BytesIn(const SplitProblem& problem, const PartRange& range) {
  int64_t bytes = GatheredBytesIn(problem, range);
  for (const OperandReading* operand : problem.operands) {
    const bool has_letter = DimOf(operand->letters, range.letter) >= 0;
    const TensorSpec part = has_letter ? OnGridIn(range, operand->on_grid, operand->letters) : operand->on_grid;
    if (operand->way == OperandReading::Way::kGathered && !has_letter) {
      bytes += BytesOf(part, operand->gathered().dtype);
    }
    if (operand->is_cast) bytes += BytesOf(part, operand->dtype);
  }
  if (!HoldSameShards(problem.product, problem.output)) {
    const TensorSpec part = OnGridIn(range, problem.product, problem.notation.output);
    bytes += BytesOf(part, part.dtype);
  }
  return bytes;
}

// A letter as the grid and the output cut it.
struct CutLetter {
  char letter = 0;
  int64_t extent = 0;
  std::vector<PartRange> ranges;
  std::vector<int64_t> received_bytes;  // by range: in place of what lacks the letter, each time a part is multiplied
  int64_t sub_meshes = 0;
};

class Splitter {
 public:
  Splitter(const SplitProblem& problem, int64_t limit_bytes) : problem_(problem), limit_bytes_(limit_bytes) {}

  absl::StatusOr<Split> Run() {
    std::optional<Split> best;
    for (const LetterRole role : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight}) {
      for (const char letter : LettersOf(problem_.notation, role)) {
        const std::optional<Split> split = TryLetter(letter);
        if (!split.has_value()) continue;
        const auto rank = [](const Split& s) { return std::tuple(s.repeated_bytes, s.parts(), IsOfCutLetter(s)); };
        if (!best.has_value() || rank(*split) < rank(*best)) best = split;
      }
    }
    if (best.has_value()) return *best;
    return Refusal();
  }

  std::vector<Split> Overlapped(const OverlapLimits& limits) const {
    std::vector<Split> splits;
    if (problem_.product.mesh.size() > kMaxOverlappedPositions) return splits;
    for (const LetterRole role : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight}) {
      for (const char letter : LettersOf(problem_.notation, role)) {
        const std::optional<CutLetter> cut = IsGatheredFromFar(letter) ? Cut(letter) : std::nullopt;
        if (!cut.has_value() || cut->ranges.size() != 1) continue;
        const int64_t least_extent = role == LetterRole::kBatch ? 1 : limits.least_extent;
        const int64_t most_parts = std::min(limits.most_parts, cut->extent / least_extent);
        for (int64_t parts = limits.least_parts; parts <= most_parts; parts *= 2) {
          Split split = Make(*cut, parts);
          if (split.repeated_bytes > 0 || !HaveSameSums(problem_, split.ranges)) break;
          split.is_overlapped = true;
          split.temporary_bytes = TemporaryBytesOf(problem_, split.ranges, true);
          splits.push_back(std::move(split));
        }
      }
    }
    return splits;
  }

 private:
  static bool IsOfCutLetter(const Split& split) {
    return !split.ranges[0].on_grid.empty() || !split.ranges[0].in_output.empty();
  }

  // The workers that have to do with a part, all parts together.
  int64_t CountWorkers(const std::vector<PartRange>& parts) const {
    const int64_t all = problem_.output.mesh.size();
    int64_t workers = 0;
    for (const PartRange& part : parts) {
      workers += std::max(part.on_grid.empty() ? all : part.grid_mesh.size(),
                          part.in_output.empty() ? all : part.output_mesh.size());
    }
    return workers;
  }

  // A product that reads an operand in the shards of others waits for messages of its own.
  bool IsGatheredFromFar(char letter) const {
    bool is_gathered = false;
    for (const OperandReading* operand : problem_.operands) {
      if (operand->way == OperandReading::Way::kPieces) return false;
      is_gathered = is_gathered || (DimOf(operand->letters, letter) >= 0 && ComesFromFar(*operand, problem_.topology));
    }
    return is_gathered;
  }

  // How the operand comes to the workers of a range.
  bool CanBeBrought(const OperandReading& operand, const PartRange& range) const {
    const Mesh& mesh = problem_.product.mesh;
    if (range.on_grid.empty()) return true;
    if (!HaveSameArrangement(operand.on_grid.mesh, mesh)) return false;
    const int dim = DimOf(operand.letters, range.letter);
    for (const MeshCoordinate& fixed : range.on_grid) {
      const Placement& placement = operand.on_grid.placements[static_cast<size_t>(fixed.mesh_dim)];
      if (mesh.shape()[static_cast<size_t>(fixed.mesh_dim)] == 1) continue;
      if (dim >= 0 ? !placement.is_shard(dim) : !placement.is_replicate()) return false;
    }
    if (operand.way == OperandReading::Way::kOwnShard) return true;
    if (operand.way == OperandReading::Way::kGathered && dim < 0) return true;  // whole, once
    return IsMovable(operand.own, OnGridIn(range, operand.on_grid, operand.letters));
  }

  // A value that is pending and stays so can't go to other workers.
  static bool IsMovable(TensorSpec source, const TensorSpec& destination) {
    source.shape = destination.shape;
    return ValidateRedistribute(source, destination).ok();
  }

  // Nothing where it can't be split.
  std::optional<CutLetter> Cut(char letter) const {
    const std::string& letters = problem_.notation.output;
    const int dim = DimOf(letters, letter);
    if (dim < 0) return std::nullopt;
    CutLetter cut;
    cut.letter = letter;
    cut.extent = problem_.output.shape[static_cast<size_t>(dim)];
    cut.ranges = CommonRanges(problem_.product, problem_.output, letters, letter, kMaxContractionParts);
    if (cut.ranges.empty() || CountWorkers(cut.ranges) > kMaxContractionWorkerParts) return std::nullopt;
    const bool in_place = HoldSameShards(problem_.product, problem_.output);
    for (const PartRange& range : cut.ranges) {
      int64_t received_bytes = 0;
      for (const OperandReading* operand : problem_.operands) {
        if (!CanBeBrought(*operand, range)) return std::nullopt;
        if (operand->way != OperandReading::Way::kPieces || DimOf(operand->letters, letter) >= 0) continue;
        const auto bound = BoundRedistribute(operand->own, OnGridIn(range, operand->on_grid, operand->letters));
        if (bound.ok()) received_bytes += bound->total_bytes;
      }
      const bool is_moved = !range.on_grid.empty() || !range.in_output.empty();
      if (!in_place && is_moved &&
          !IsMovable(OnGridIn(range, problem_.product, letters), OutputIn(range, problem_.output, letters))) {
        return std::nullopt;
      }
      cut.received_bytes.push_back(received_bytes);
      cut.sub_meshes += range.start_on_grid == 0 ? 1 : 0;
    }
    return cut;
  }

  // Parts of 1/parts of the letter's extent, or less.
  Split Make(const CutLetter& cut, int64_t parts) const {
    int64_t part_extent = (cut.extent + parts - 1) / parts;
    if (part_extent > kPartGrain) part_extent = (part_extent + kPartGrain - 1) / kPartGrain * kPartGrain;
    Split split;
    split.letter = cut.letter;
    split.ranges = CutRanges(cut.ranges, part_extent);
    split.sub_meshes = cut.sub_meshes;
    split.temporary_bytes = BytesIn(problem_, split.ranges[0]);
    size_t at = 0;  // the range of `cut` that this one is of
    for (const PartRange& range : split.ranges) {
      while (range.start >= cut.ranges[at].start + cut.ranges[at].size) ++at;
      if (range.start_on_grid != 0) split.repeated_bytes += cut.received_bytes[at];
    }
    return split;
  }

  // The split with the fewest parts that fits.
  std::optional<Split> TryLetter(char letter) {
    const std::optional<CutLetter> cut = Cut(letter);
    if (!cut.has_value()) return std::nullopt;
    for (int64_t parts = 2; parts <= std::min(kMaxContractionParts, cut->extent); parts *= 2) {
      const Split split = Make(*cut, parts);
      if (split.parts() > kMaxContractionParts || CountWorkers(split.ranges) > kMaxContractionWorkerParts) break;
      const auto rank = [](const Split& s) { return std::tuple(s.temporary_bytes, IsOfCutLetter(s)); };
      if (!least_.has_value() || rank(split) < rank(*least_)) least_ = split;
      if (split.temporary_bytes <= limit_bytes_ && HaveSameSums(problem_, split.ranges)) return split;
    }
    return std::nullopt;
  }

  absl::Status Refusal() const {
    const int64_t wanted_bytes = BytesIn(problem_, {});
    std::string text = StrCat("does not fit: ", wanted_bytes, " bytes of temporaries wanted on each of ",
                              problem_.output.mesh.size(), " workers, ", limit_bytes_, " free; ");
    if (!least_.has_value()) {
      StrAppend(&text,
                "no letter of the output can be split: their extents are 1, or sums that stay pending lie on "
                "other workers, or a mesh of so many allows no parts");
    } else {
      StrAppend(&text, least_->temporary_bytes <= limit_bytes_ ? "and a split would change the order of a sum: " : "",
                "split into ", least_->parts(), " parts over ", std::string(1, least_->letter), " they would be ",
                least_->temporary_bytes);
    }
    StrAppend(&text, "; it is ", ToText(problem_.notation), " of ", ToText(problem_.operands[0]->own), " and ",
              ToText(problem_.operands[1]->own));
    return absl::ResourceExhaustedError(text);
  }

  const SplitProblem& problem_;
  const int64_t limit_bytes_;
  std::optional<Split> least_;  // of those that were tried
};

}  // namespace

int64_t TemporaryBytes(const SplitProblem& problem) { return BytesIn(problem, {}); }

int64_t TemporaryBytesOf(const SplitProblem& problem, const std::vector<PartRange>& ranges, bool is_overlapped) {
  const bool has_next = is_overlapped && ranges.size() > 1;
  return BytesIn(problem, ranges[0]) + (has_next ? GatheredBytesIn(problem, ranges[1]) : 0);
}

std::vector<Split> OverlappedSplits(const SplitProblem& problem, const OverlapLimits& limits) {
  return Splitter(problem, 0).Overlapped(limits);
}

absl::StatusOr<Split> ChooseSplit(const SplitProblem& problem, int64_t limit_bytes) {
  return Splitter(problem, limit_bytes).Run();
}

}  // namespace tessera
