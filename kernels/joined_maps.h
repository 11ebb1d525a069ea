#pragma once

// Maps that follow each other and share operands, in one pass over memory: each block of elements goes through all of
// them before the next one does. The maps of an optimizer's step are such: the first moment of the gradient, the second
// of the gradient, the parameter of both moments. One by one they take 10 times a parameter's bytes, so 7 times.
//
//   if (MayJoin(mean, square) && MayJoin(square, parameter)) RunMaps({&mean, &square, &parameter});
//
// Law: RunMaps does what RunKernel does for one call after the other, to the bit. Maps take turns only where
//   1. each operand is one element, or has element i of the output at the place of its element i in row-major order;
//   2. of two maps, what one writes is apart from each operand of the other, or is the same elements of the same
//   memory.
// Then what a map does to a block and what another one does to another block touch no byte that either of them writes,
// and their order doesn't matter; at one block they run in the order of the calls. Blocks are cut as for one map.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera {

inline constexpr size_t kMaxJoinedMaps = 8;                   // docs/limits.md: max_joined_maps
inline constexpr int64_t kMinJoinedBytes = int64_t{1} << 18;  // docs/limits.md: min_joined_bytes

// Whether it may be worth it to give them to RunMaps together: large maps of one shape. Costs little.
bool MayJoin(const KernelCall& call, const KernelCall& next);

// Runs maps, those together that can be: in how many passes. The first error; maps after it may have run or not.
absl::StatusOr<int> RunMaps(absl::Span<const KernelCall* const> calls);

}  // namespace tessera
