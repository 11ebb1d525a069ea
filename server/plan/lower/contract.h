#pragma once

// The products of one position of a contraction step: of pieces of the operands, each piece in the shard of one worker.
// LowerPlan makes an instruction of each; Interpret has its own, naive way.
//
//   [S(0)] @ [S(0)] on two workers, f64[4,4]: position 0 has rows 0 and 1 of the left operand in place and
//   reads the right one in two pieces: left[0:2,0:2] * right[0:2] writes, left[0:2,2:4] * right[2:4]
//   (worker 1's shard) is added.
//
// Law: the output boxes of the products that write are disjoint and cover the position's shard (of a step that adds,
// all products add); products that add follow in the order of the inner letters' indexes, and run in this order. Each
// element of a piece that a position needs is counted once.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/plan/plan.h"

namespace tessera {

// Boxes are relative to the position's own box of the operand or the output.
struct OperandPiece {
  Box box;
  WorkerIndex worker;   // whose shard it lies in
  Shape source_offset;  // where the box starts in that shard
};
struct PieceProduct {
  std::array<int, 2> pieces = {0, 0};  // by operand: index into ContractPieces
  std::array<Box, 2> boxes;            // the part of the piece that is multiplied
  Box output;
  bool adds = false;                            // to what earlier products wrote
  std::array<bool, 2> is_first = {true, true};  // no earlier product reads this part of the piece
};
struct ContractPieces {
  std::array<std::vector<OperandPiece>, 2> operands;
  std::vector<PieceProduct> products;  // empty when the position's shard is
};

inline constexpr int64_t kMaxPieceProducts = 1 << 16;  // of one position; docs/limits.md: max_piece_products

// The step is one that VerifyPlan accepts. ResourceExhausted above kMaxPieceProducts.
absl::StatusOr<ContractPieces> PiecesOf(const Plan& plan, const ContractStep& step, absl::Span<const int64_t> position);

// Whether the boxes of one position fit the notation: the same indexes for a letter wherever it stands, a unit
// letter has extent 1. An empty output asks for nothing.
absl::Status CheckContractionBoxes(const Contraction& notation, const Box& left, const Box& right, const Box& output);

}  // namespace tessera
