#pragma once

// A collective as a redistribution: the members' operands are the shards, terms or copies of one tensor, and so are
// their results of another. Pure.
//
//   all_reduce of e elements, n ranks    [e]      P(op) -> R
//   reduce                               [e]      P(op) -> R on the root
//   broadcast                            [e]      R on the root -> R on the others
//   all_gather, gather                   [n, e]   S(0) -> R; on the root
//   scatter                              [n, e]   R on the root -> S(0)
//   reduce_scatter                       [n, e]   P(op) -> S(0)
//   all_to_all                           [n, n, e]  S(0) -> S(1)
//   send, recv                           [e]      R on the source -> R on the destination

#include <cstdint>
#include <vector>

#include "schemas/types/collective_signature.h"
#include "schemas/types/placement.h"
#include "schemas/types/shape.h"

namespace tessera {

struct CollectiveParts {
  std::vector<int32_t> givers;  // ranks whose operands are the tensor, in the order of their shards
  std::vector<int32_t> takers;  // ranks that get a result
  Shape shape;
  Placement from;
  Placement to;
};
// In a barrier nobody gives or takes.
CollectiveParts PartsOf(const CollectiveSignature& signature, int64_t ranks);
CollectiveParts PartsOfMessage(const CollectiveSignature& signature, int32_t source, int32_t destination);

}  // namespace tessera
