#pragma once

// Plans of small tensors as large ones are planned: sums are reduced in parts, which are then stored to the others, and
// so are tensors of which each holds a part.

#include "server/plan/cost.h"

namespace tessera {

inline Topology InTwoPhases() {
  Topology topology;
  topology.max_reduced_by_each_bytes = 0;
  topology.min_pushed_bytes = 0;
  return topology;
}

}  // namespace tessera
