#pragma once

// NaiveExchange: what an exchange means, element by element. It reads the exchange's overlay and specs, and nothing
// that says which worker gives, reduces or passes on what: in the end every position of the destination has every
// element of its box, moved or reduced from all terms. Interpret is made of it.
//
//   f64[4] @ mesh(2) [P(sum)] -> [R]: each position gets 4 elements, each of the terms at positions 0 and 1.
//
// Law: a position lacks the elements that its worker doesn't hold, and receives each of these once. An element of c
// terms that r positions want takes c + r - 2 transfers where one of these has a term of it, else c + r - 1.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

class NaiveExchange {
 public:
  // Keeps a reference. The exchange is one that VerifyPlan accepts, and adds to no earlier one.
  explicit NaiveExchange(const Exchange& exchange);

  // An element of a position's box. Places are within the shards, by dim.
  struct Element {
    Shape at;
    Shape source_at;
    // Positions of the source's mesh that have it, one for each term, in the order of their coordinates: the position's
    // own worker where that has the term.
    std::vector<int64_t> terms;
  };
  // Calls `visit(element)` for all of a position's, in row-major order.
  void ForEachElement(int64_t destination, absl::FunctionRef<void(const Element&)> visit) const;

  // The transfers that reduce an element, and those that bring the result to all others that want it; both 0 but for
  // one of the positions that want it.
  std::pair<int64_t, int64_t> CountTransfers(int64_t destination, const Element& element) const;

 private:
  using Key = std::vector<int64_t>;
  using Holders = std::vector<std::vector<int64_t>>;  // by term
  // Coordinates on the mesh dims where terms stay pending.
  Key CarriedAt(const Mesh& mesh, int64_t flat) const;
  Key WantedAt(int64_t destination) const;
  const Holders& HoldersOf(const Key& source_shards, int64_t destination) const;

  const Exchange& exchange_;
  std::vector<size_t> carried_dims_;
  std::map<Key, std::vector<int64_t>> wanting_;  // positions that want the same
  mutable std::map<Key, Holders> holders_;       // by source shards and carried coordinates
};

}  // namespace tessera
