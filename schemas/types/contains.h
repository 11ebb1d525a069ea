#pragma once

// Whether a worker is one of some, of which there are few.

#include <algorithm>
#include <vector>

#include "schemas/types/ids.h"

namespace tessera {

inline bool Contains(const std::vector<WorkerIndex>& workers, WorkerIndex worker) {
  return std::find(workers.begin(), workers.end(), worker) != workers.end();
}

}  // namespace tessera
