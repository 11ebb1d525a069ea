#pragma once

// PiecesOfPlan: the Pieces of a plan's exchanges, each made when it is first asked for. A cold plan's proof and its
// price look at the same pieces, and on many workers the tables under them take longer than the questions.
//
//   PiecesOfPlan pieces;
//   VerifyPlan(plan, {.pieces = &pieces});
//   PredictSeconds(plan, topology, pieces);
//
// Law: the plan's steps stay where they are. One thread at a time.

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

class PiecesOfPlan {
 public:
  const Pieces& Of(const Exchange& exchange) {
    std::unique_ptr<const Pieces>& made = made_[&exchange];
    if (made == nullptr) made = std::make_unique<const Pieces>(exchange);
    return *made;
  }

 private:
  absl::flat_hash_map<const Exchange*, std::unique_ptr<const Pieces>> made_;
};

}  // namespace tessera
