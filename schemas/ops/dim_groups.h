#pragma once

// The dims of two shapes, matched by their row-major order. Private to schemas/ops.

#include "absl/container/inlined_vector.h"
#include "schemas/types/shape.h"

namespace tessera {

// Dims of extent 1 are in no group: they hold no index. `from` and `to` are the other dims.
struct DimGroup {
  absl::InlinedVector<int, 4> from;
  absl::InlinedVector<int, 4> to;
};

using DimGroups = absl::InlinedVector<DimGroup, 6>;

// Both shapes cut into groups of neighbouring dims with equal products, as small as possible: [6,4,5] -> [24,5] has
// the groups [6,4]:[24] and [5]:[5]. The products of the shapes are equal and not 0.
DimGroups GroupDims(const Shape& from, const Shape& to);

}  // namespace tessera
