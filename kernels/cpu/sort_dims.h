#pragma once

// A stable order of a few dims without memory of its own: std::stable_sort allocates.

#include <algorithm>

namespace tessera::cpu {

template <typename Dims, typename Before>
void SortDims(Dims& dims, const Before& before) {
  for (auto it = dims.begin(); it != dims.end(); ++it) {
    std::rotate(std::upper_bound(dims.begin(), it, *it, before), it, it + 1);
  }
}

}  // namespace tessera::cpu
