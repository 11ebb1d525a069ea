#pragma once

// A plane whose source is dense along one dim and whose destination is dense along the other, at the cost
// of a copy: whole cache lines are read, turned in registers 16 bytes by 16 bytes, and written as whole
// lines from a small buffer. (Perfect shuffles: log2(n) rounds of interleaving n rows transpose them.)
//
// Law: a line of the source is used up before the next is loaded, so that a source pitch of a power of
// two, where lines fall on each other in the cache, costs nothing.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/stores.h"

namespace tessera::cpu {

// destination[i][j] = source[j][i] for i < rows, j < columns: source lines j are dense along i and
// `source_pitch_bytes` apart, destination rows i are dense along j and `destination_pitch_bytes` apart.
// Pitches may be negative.
struct Plane {
  int64_t rows = 0;
  int64_t columns = 0;
  const std::byte* source = nullptr;
  int64_t source_pitch_bytes = 0;
  std::byte* destination = nullptr;
  int64_t destination_pitch_bytes = 0;
};

// Elements of 1, 2, 4, 8 or 16 bytes. The caller ends the stores.
void TransposePlane(const Plane& plane, int64_t element_bytes, Stores stores);

}  // namespace tessera::cpu
