#pragma once

// Plans of small tensors as large ones are planned: what two workers sum up is reduced in halves and then spread.

#include "server/plan/cost.h"

namespace tessera {

inline Topology InTwoPhases() {
  Topology topology;
  topology.max_reduced_by_each_bytes = 0;
  return topology;
}

}  // namespace tessera
