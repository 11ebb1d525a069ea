#pragma once

// Kernels that follow each other and share operands, in one pass over memory: each block of rows goes through all of
// them before the next one does. Maps and reductions of whole rows, as the steps of a normalisation are:
//
//   x f32[4096,4096]: its rows' sums; these / 4096; the rows' sums of (x - mean)^2; ...; (x - mean) / scale
//
// One by one they read x three times, so once. Where all are maps, a row is an element: an optimizer's first moment of
// the gradient, the second of the gradient, the parameter of both moments.
//
//   if (MayJoin(sum, mean) && MayJoin(sum, squares)) RunJoined({&sum, &mean, &squares});
//
// Law: RunJoined does what RunKernel does for one call after the other, to the bit, but for outputs that the calls
// alone read (KernelCall::output_readers): a block of these stays in the cache, and their memory may be as it was.
// Kernels take turns only where
//   1. leading dims, the same of all, are none that is reduced: their elements are the rows, and of each operand the
//   rows lie at one stride, or it is the same for all of them;
//   2. of two kernels, what one writes is apart from each operand of the other, or row i of the one and row j of the
//   other are apart wherever i is not j.
// Then what a kernel does to a row and what another one does to another row touch no byte that either of them writes,
// and their order doesn't matter; at one row they run in the order of the calls. A kernel's result for a row doesn't
// depend on which rows are computed with it: a sum's tree is the reduced extent's, a map goes element by element.

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera {

inline constexpr size_t kMaxJoinedKernels = 8;                // docs/limits.md: max_joined_kernels
inline constexpr int64_t kMinJoinedBytes = int64_t{1} << 18;  // docs/limits.md: min_joined_bytes
// docs/limits.md: joined_block_bytes. Bytes of a block's rows, of all kernels together: they stay in a core's
// second-level cache.
inline constexpr int64_t kJoinedBlockBytes = int64_t{1} << 18;
// docs/limits.md: max_joined_row_bytes. Longer rows don't stay in the cache: nothing is saved.
inline constexpr int64_t kMaxJoinedRowBytes = int64_t{1} << 22;

// Whether it may be worth it to give both to RunJoined, `call` as the first: they are of these kinds, over rows as
// many, and the first one is large. Costs little.
bool MayJoin(const KernelCall& call, const KernelCall& next);

// Runs kernels, those together that can be and the last of which finds so many bytes in the cache: in how many passes.
// The first error; kernels after it may have run or not.
absl::StatusOr<int> RunJoined(absl::Span<const KernelCall* const> calls, int64_t least_saved_bytes = kMinJoinedBytes);

}  // namespace tessera
