#pragma once

// OperandReading: how a contraction on a chosen grid comes by one of its operands. Decided once for the whole
// contraction; then brought whole, or part by part (split.h).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "server/planner/builder.h"
#include "server/planner/grids.h"
#include "server/planner/overlay.h"

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
  DType dtype = DType::kF32;  // that is multiplied; the operand is converted, into a temporary, if its own is another
  Way way = Way::kOwnShard;
  Exchange pieces;                          // kPieces: the whole operand's
  Collective name = Collective::kExchange;  // of what moves

  bool is_converted() const { return own.dtype != dtype; }
};

absl::StatusOr<OperandReading> DecideReading(const PlanBuilder& builder, const Contraction& notation,
                                             std::string_view letters, int value, const TensorSpec& on_grid,
                                             DType dtype, const PieceLimits& limits);

// A range of one letter of the output.
struct LetterRange {
  char letter = 0;
  int64_t start = 0;
  int64_t size = 0;
};
// The spec of what lies in the range; all of it where the letters don't have that one.
TensorSpec SpecInRange(TensorSpec spec, std::string_view letters, const LetterRange& range);

// Appends the steps that bring the whole operand.
absl::StatusOr<ContractOperand> BringOperand(PlanBuilder& builder, const OperandReading& reading);

// Brings an operand part by part, in the same memory.
class OperandParts {
 public:
  // Keeps references.
  OperandParts(PlanBuilder& builder, const OperandReading& reading) : builder_(builder), reading_(reading) {}

  // The first range is the largest. An operand without the letter is brought once and used again.
  absl::StatusOr<ContractOperand> Bring(const LetterRange& range);

 private:
  int Temporary(const TensorSpec& spec, std::optional<int>& first);
  absl::StatusOr<ContractOperand> BringPart(const LetterRange& range);

  PlanBuilder& builder_;
  const OperandReading& reading_;
  std::optional<ContractOperand> whole_;
  std::optional<int> gathered_, converted_;  // those of the first part
};

}  // namespace tessera
