#pragma once

// OperandReading: how a contraction on a chosen grid comes by one of its operands. Decided once for the whole
// contraction; then brought whole, or part by part (split.h).
//
//   f64[2048,2048] @ mesh(4) [S(0)] wanted as [R]: on one host, or with a worker on each host, kPieces; with two
//   workers on each of two hosts kGathered: each half crosses once, and not once for each worker that multiplies it.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "server/planner/builder.h"
#include "server/planner/grids.h"
#include "server/planner/overlay.h"
#include "server/planner/part_range.h"

namespace tessera {

struct OperandReading {
  enum class Way : uint8_t {
    kOwnShard = 0,  // every worker has its box
    kPieces = 1,    // the kernels read it in the shards where it lies, piece by piece
    kGathered = 2,  // it is moved, or its pending terms are reduced, into a temporary first
  };
  int value = 0;
  std::string letters;
  TensorSpec own;
  TensorSpec on_grid;         // in the operand's own dtype
  DType dtype = DType::kF32;  // that is multiplied
  Way way = Way::kOwnShard;
  // Converted by a step of its own, into another temporary. A gathered operand is converted on the way, unless it is
  // passed on: fewer bytes pass on unconverted.
  bool is_cast = false;
  Exchange pieces;                          // kPieces: the whole operand's
  Collective name = Collective::kExchange;  // of what moves

  TensorSpec gathered() const { return WithDType(on_grid, is_cast ? own.dtype : dtype); }
};

absl::StatusOr<OperandReading> DecideReading(const PlanBuilder& builder, const Contraction& notation,
                                             std::string_view letters, int value, const TensorSpec& on_grid,
                                             DType dtype, const Topology& topology, const PieceLimits& limits);

// Whether some of it comes from other hosts.
bool ComesFromFar(const OperandReading& reading, const Topology& topology);

// Appends the steps that bring the whole operand.
absl::StatusOr<ContractOperand> BringOperand(PlanBuilder& builder, const OperandReading& reading);

// Brings an operand part by part, in the same memory.
class OperandParts {
 public:
  // In memory for so many parts that are gathered: the next ones may be, while one is multiplied. Keeps references.
  OperandParts(PlanBuilder& builder, const OperandReading& reading, int gathered_at_once)
      : builder_(builder), reading_(reading), gathered_(static_cast<size_t>(gathered_at_once)) {}

  // The move, for the caller to add, that gathers the part; none where it isn't gathered. The first range is the
  // largest.
  std::optional<SliceMove> Gather(const PartRange& range);
  // The part; if it has to be gathered, the last one that was. An operand without the letter is brought once and used
  // again.
  absl::StatusOr<ContractOperand> Bring(const PartRange& range);

 private:
  int Temporary(const TensorSpec& spec, std::optional<int>& first);
  absl::StatusOr<ContractOperand> BringPart(const PartRange& range);
  // An operand without the letter, as those have it who multiply the range.
  absl::StatusOr<ContractOperand> WholeIn(const PartRange& range) const;

  PlanBuilder& builder_;
  const OperandReading& reading_;
  std::optional<ContractOperand> whole_;
  std::optional<ContractOperand> whole_in_;  // on the workers of the last range
  std::vector<MeshCoordinate> whole_at_;     // which are at these coordinates
  // The first parts' temporaries.
  std::vector<std::optional<int>> gathered_;
  std::optional<int> converted_;
  size_t gathered_count_ = 0;
  int last_gathered_ = 0;
};

}  // namespace tessera
