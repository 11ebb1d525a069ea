#pragma once

// Ranges of a box's elements, numbered in row-major order: how a shard is passed in parts.

#include <cstdint>
#include <vector>

#include "schemas/types/shape.h"

namespace tessera {

// The boxes that together hold `count` elements of `box` from number `first` on, in row-major order: at most 2 * rank +
// 1, one behind the other, each row-major in itself. The elements lie in the box.
std::vector<Box> BoxesOfRange(const Box& box, int64_t first, int64_t count);

struct ElementRange {
  int64_t first = 0;
  int64_t count = 0;
};
// Where the elements of `inner`, which lies in `box`, are among those of `box`: as few ranges as there are, ascending.
std::vector<ElementRange> RangesOfBox(const Box& box, const Box& inner);

}  // namespace tessera
