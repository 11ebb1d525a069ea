#pragma once

// CheckPieces: whether what receivers take of a value is all of it, once, and what senders give them, and what the
// totals say. A law of VerifyPlan, at any number of elements and workers: it looks at pieces, never at elements.
//
//   f32[65536] [S(0)] -> [R] on 4,096 workers: 16 million pieces. The totals of all workers are compared; so are the
//   pieces of position 0 and of the last one, and of some between until there are kMaxVerifiedPieces.
//
// Laws. For each position that is looked at:
//   - the pieces that it takes in the exchanges of the value tile the cells that it wants, each once;
//   - a piece has all terms, each once, and each source has the cell;
//   - a sender that is looked at gives it just the pieces that it takes from there.
// Where every piece was looked at, or the totals have a closed form, all workers receive as many elements as they send.
// Where every piece was looked at, each worker receives and sends what its pieces sum up to; else each position that
// was looked at receives that.

#include <vector>

#include "absl/status/status.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

inline constexpr int64_t kMaxVerifiedPieces = 1 << 11;  // docs/limits.md: max_verified_pieces

struct ExchangeViews {
  const Exchange* exchange = nullptr;
  const PieceViews* views = nullptr;
};

// The exchanges that bring one value, in their order: a move or a reduction, and what adds to it. None goes by rounds.
// Internal, with the position, the cell and both numbers, when a law does not hold. The exchanges are such as
// VerifyPlan accepts by themselves.
absl::Status CheckPieces(const std::vector<ExchangeViews>& exchanges);

}  // namespace tessera
