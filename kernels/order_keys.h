#pragma once

// The elements of a vector as numbers that are ordered as a merge orders the elements: for those who choose among
// elements of any dtype and know nothing of it.
//
//   f32 1.0, -0.0, NaN, ascending, by value: three numbers, of which the second is the least and the third the largest.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"

namespace tessera {

// Equal numbers for elements that the merge has as equal. Unimplemented of dtypes that have no order.
absl::StatusOr<std::vector<uint64_t>> OrderKeys(const MergeOp& op, const KernelInput& values);

}  // namespace tessera
