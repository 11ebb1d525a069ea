#include "server/planner/split.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/planner/figures.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

constexpr int64_t kComparedPositions = 64;  // beyond it pieces that could be cut otherwise are not compared

int64_t BytesOf(const TensorSpec& spec, DType dtype) { return MaxShardElements(spec) * SizeBytes(dtype); }

bool IsCut(const TensorSpec& spec, std::string_view letters, char letter) {
  const int dim = DimOf(letters, letter);
  return dim >= 0 && DimIntervals(spec, dim).size() != 1;
}

bool IsOnSeveralHosts(const Mesh& mesh, const Topology& topology) {
  return std::any_of(mesh.workers().begin(), mesh.workers().end(),
                     [&](WorkerIndex worker) { return topology.HostOf(worker) != topology.HostOf(mesh.workers()[0]); });
}

// Bytes of the temporaries of one part.
int64_t BytesIn(const SplitProblem& problem, const LetterRange& range) {
  int64_t bytes = 0;
  for (const OperandReading* operand : problem.operands) {
    const TensorSpec part = SpecInRange(operand->on_grid, operand->letters, range);
    if (operand->way == OperandReading::Way::kGathered) bytes += BytesOf(part, part.dtype);
    if (operand->is_converted()) bytes += BytesOf(part, operand->dtype);
  }
  if (!HoldSameShards(problem.product, problem.output)) {
    const TensorSpec part = SpecInRange(problem.product, problem.notation.output, range);
    bytes += BytesOf(part, part.dtype);
  }
  return bytes;
}

class Splitter {
 public:
  Splitter(const SplitProblem& problem, int64_t limit_bytes) : problem_(problem), limit_bytes_(limit_bytes) {}

  absl::StatusOr<Split> Run() {
    std::optional<Split> best;
    for (const LetterRole role : {LetterRole::kBatch, LetterRole::kLeft, LetterRole::kRight}) {
      for (const char letter : LettersOf(problem_.notation, role)) {
        const std::optional<Split> split = TryLetter(letter);
        if (!split.has_value()) continue;
        const auto rank = [](const Split& s) { return std::tuple(s.repeated_bytes, s.parts()); };
        if (!best.has_value() || rank(*split) < rank(*best)) best = split;
      }
    }
    if (best.has_value()) return *best;
    return Refusal();
  }

 private:
  int64_t ExtentOfLetter(char letter) const {
    return problem_.output.shape[static_cast<size_t>(DimOf(problem_.notation.output, letter))];
  }

  // The letter's dim is whole wherever a part is a range of it.
  bool IsFree(char letter) const {
    if (DimOf(problem_.notation.output, letter) < 0 || IsCut(problem_.product, problem_.notation.output, letter) ||
        IsCut(problem_.output, problem_.notation.output, letter)) {
      return false;
    }
    return std::none_of(problem_.operands.begin(), problem_.operands.end(), [letter](const OperandReading* operand) {
      return IsCut(operand->on_grid, operand->letters, letter);
    });
  }

  Split Make(char letter, int64_t parts) const {
    Split split;
    split.letter = letter;
    split.extent = ExtentOfLetter(letter);
    split.part_extent = (split.extent + parts - 1) / parts;
    if (split.part_extent > kPartGrain) {
      split.part_extent = (split.part_extent + kPartGrain - 1) / kPartGrain * kPartGrain;
    }
    split.temporary_bytes = BytesIn(problem_, {letter, 0, split.part_extent});
    for (const OperandReading* operand : problem_.operands) {
      if (operand->way != OperandReading::Way::kPieces || DimOf(operand->letters, letter) >= 0) continue;
      const auto bound = BoundRedistribute(operand->own, operand->on_grid);
      if (bound.ok()) split.repeated_bytes += bound->total_bytes * (split.parts() - 1);
    }
    return split;
  }

  // The split with the fewest parts that fits.
  std::optional<Split> TryLetter(char letter) {
    if (!IsFree(letter)) return std::nullopt;
    const int64_t most = std::min(
        {kMaxContractionParts, ExtentOfLetter(letter), kMaxContractionWorkerParts / problem_.output.mesh.size()});
    for (int64_t parts = 2; parts <= most; parts *= 2) {
      const Split split = Make(letter, parts);
      if (!least_.has_value() || split.temporary_bytes < least_->temporary_bytes) least_ = split;
      if (split.temporary_bytes <= limit_bytes_ && KeepsSums(split)) return split;
    }
    return std::nullopt;
  }

  // With several hosts the order of a sum follows from the host where it is reduced; where there is a choice, it may
  // be another one for a part than for the whole.
  bool KeepsReducers(const Split& split) const {
    if (!IsOnSeveralHosts(problem_.output.mesh, problem_.topology)) return true;
    for (int64_t start = 0; start < split.extent; start += split.part_extent) {
      const LetterRange range = {split.letter, start, std::min(split.part_extent, split.extent - start)};
      for (const OperandReading* operand : problem_.operands) {
        if (operand->way == OperandReading::Way::kGathered && DimOf(operand->letters, split.letter) >= 0 &&
            !ReducesAlike(operand->own, operand->own, operand->on_grid, operand->letters, range)) {
          return false;
        }
      }
      const std::string& letters = problem_.notation.output;
      if (!HoldSameShards(problem_.product, problem_.output) &&
          !ReducesAlike(problem_.product, SpecInRange(problem_.product, letters, range), problem_.output, letters,
                        range)) {
        return false;
      }
    }
    return true;
  }

  // What of a range is reduced on which host: boxes of the whole. Empty when nothing is pending.
  struct ReducedBox {
    Box box;
    int32_t host = 0;
  };
  absl::StatusOr<std::vector<ReducedBox>> ReducedBoxes(const TensorSpec& source, const TensorSpec& destination,
                                                       absl::Span<const int64_t> source_start, size_t dim,
                                                       int64_t start) const {
    TESSERA_ASSIGN_OR_RETURN(std::vector<NamedExchange> exchanges,
                             MakeExchanges(source, destination, source_start, {}));
    std::vector<ReducedBox> reduced;
    Exchange& exchange = exchanges[0].exchange;
    if (exchange.role != ExchangeRole::kReduce) return reduced;
    exchange.hosts = WorkerHosts(problem_.topology.host_of_worker);
    const ExchangeWalk walk(exchange);
    const Mesh& mesh = destination.mesh;
    for (int64_t flat = 0; flat < mesh.size(); ++flat) {
      const int32_t host = exchange.hosts.HostOf(mesh.workers()[static_cast<size_t>(flat)]);
      for (Transfer& transfer : walk.TransfersTo(mesh.PositionAt(flat))) {
        transfer.box[dim] = {transfer.box[dim].start + start, transfer.box[dim].stop + start};
        reduced.push_back({std::move(transfer.box), host});
      }
    }
    return reduced;
  }

  // `part_source`: what the range is reduced from, the whole source or that part of it.
  bool ReducesAlike(const TensorSpec& source, const TensorSpec& part_source, const TensorSpec& destination,
                    std::string_view letters, const LetterRange& range) const {
    if (!source.has_partial() || CountReplicas(destination) == 1) return true;  // one worker can reduce a cell
    if (destination.mesh.size() > kComparedPositions) return false;
    const size_t dim = static_cast<size_t>(DimOf(letters, range.letter));
    std::vector<int64_t> start(source.shape.size(), 0);
    if (part_source.shape == source.shape) start[dim] = range.start;
    const auto whole = ReducedBoxes(source, destination, {}, dim, 0);
    const auto part = ReducedBoxes(part_source, SpecInRange(destination, letters, range), start, dim, range.start);
    if (!whole.ok() || !part.ok()) return false;
    for (const ReducedBox& a : *whole) {
      for (const ReducedBox& b : *part) {
        if (a.host != b.host && !IsEmpty(Intersect(a.box, b.box))) return false;
      }
    }
    return true;
  }

  // Whether the parts add up what the whole does. A source that is not replicated is cut by its own shards alone;
  // else its holders share what they give, and may cut a part elsewhere than the whole.
  bool KeepsSums(const Split& split) const {
    if (!KeepsReducers(split)) return false;
    for (const OperandReading* operand : problem_.operands) {
      if (operand->way != OperandReading::Way::kPieces || DimOf(operand->letters, split.letter) < 0) continue;
      if (CountReplicas(operand->own) == 1) continue;
      const Mesh& mesh = operand->on_grid.mesh;
      if (mesh.size() > kComparedPositions || IsOnSeveralHosts(mesh, problem_.topology)) return false;
      for (int64_t start = 0; start < split.extent; start += split.part_extent) {
        const LetterRange range = {split.letter, start, std::min(split.part_extent, split.extent - start)};
        if (!CutsAlike(*operand, range)) return false;
      }
    }
    return true;
  }

  // Whether what lies in the range is cut into the same pieces of the inner letters, in the whole and by itself.
  bool CutsAlike(const OperandReading& operand, const LetterRange& range) const {
    const size_t dim = static_cast<size_t>(DimOf(operand.letters, range.letter));
    const TensorSpec spec = SpecInRange(operand.on_grid, operand.letters, range);
    std::vector<int64_t> start(spec.shape.size(), 0);
    start[dim] = range.start;
    const auto exchanges = MakeExchanges(operand.own, spec, start, {});
    if (!exchanges.ok()) return false;
    const ExchangeWalk whole(operand.pieces), part((*exchanges)[0].exchange);
    for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
      const Position position = spec.mesh.PositionAt(flat);
      const std::vector<Transfer> pieces = part.TransfersTo(position);
      for (const Transfer& piece_of_whole : whole.TransfersTo(position)) {
        for (const Transfer& piece : pieces) {
          Box box = piece.box;
          box[dim] = {box[dim].start + range.start, box[dim].stop + range.start};
          if (IsEmpty(Intersect(box, piece_of_whole.box))) continue;
          for (size_t d = 0; d < box.size(); ++d) {
            if (RoleOf(problem_.notation, operand.letters[d]) != LetterRole::kInner) continue;
            if (box[d] != piece_of_whole.box[d]) return false;
          }
        }
      }
    }
    return true;
  }

  absl::Status Refusal() const {
    const int64_t wanted_bytes = BytesIn(problem_, {});
    std::string text = StrCat("matmul: does not fit: ", wanted_bytes, " bytes of temporaries wanted on each of ",
                              problem_.output.mesh.size(), " workers, ", limit_bytes_, " free; ");
    if (!least_.has_value()) {
      StrAppend(&text, "no letter of the output can be split: the mesh cuts them all, or their extents are 1");
    } else {
      StrAppend(&text, least_->temporary_bytes <= limit_bytes_ ? "and a split would change the order of a sum: " : "",
                "split into ", least_->parts(), " parts over ", std::string(1, least_->letter), " they would be ",
                least_->temporary_bytes);
    }
    return absl::ResourceExhaustedError(text);
  }

  const SplitProblem& problem_;
  const int64_t limit_bytes_;
  std::optional<Split> least_;  // of those that were tried
};

}  // namespace

int64_t TemporaryBytes(const SplitProblem& problem) { return BytesIn(problem, {}); }

absl::StatusOr<Split> ChooseSplit(const SplitProblem& problem, int64_t limit_bytes) {
  return Splitter(problem, limit_bytes).Run();
}

}  // namespace tessera
