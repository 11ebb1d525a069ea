#pragma once

// Plans of small tensors as large ones are planned: tensors of which each holds a part are stored to the others.

#include "server/plan/cost.h"

namespace tessera {

inline Topology InTwoPhases() {
  Topology topology;
  topology.min_pushed_bytes = 0;
  return topology;
}

}  // namespace tessera
