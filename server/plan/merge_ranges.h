#pragma once

// Ranges of the runs that a merge of runs apart takes from holders that are reached by messages, who can't be read
// where they lie (merged_runs.h): found from samples alone. Pure; all workers find the same. The merge finds the
// elements within the ranges by exact multi-selection.
//
//   runs 1 3 5 7 and 2 4 6 8, samples of step 2: 1 5 and 2 6. The first half of the whole is 1 2 3 4. 5 has rank 3 at
//   least, as 1 and 2 are before it, and 6 has rank 4: the half ends before 6, and maybe behind 5. So it takes at most
//   1 3 5 7 and 2 4, and those are sent for it.
//
// The elements are ordered by key, run and index in the run, so that equal ones have one order. A sample is an element
// 0, step, 2 step, .. of a run. Where c samples of a run of n lie before an element x, elements before x in the run are
//     low(c) = 0 if c = 0, else (c - 1) step + 1    at least: the last of those samples, and what is before it,
//     high(c) = min(c step, n)                      at most: the next sample isn't.
// For a sample x the sums of these over the runs (of its own run: its index) bound its rank; they differ by
// E = (runs - 1)(step - 1) at most. Both grow along the order of the samples.
//
// Law: the elements of ranks [a, b) lie, of each run, in [low(c), high(d)), where c samples of the run have ranks that
// are surely below a, and d such that may be below b. All these ranges together have at most
//     b - a + 2 (2 runs - 1)(step - 1)
// elements. For let before(j, r) be the elements of run j with ranks below r; over all runs they are r. If x is run j's
// first sample whose rank is surely b or more, the one before it has a rank below b + E, and is one of before(j, b +
// E): high(d) <= before(j, b + E) + step - 1, over the runs at most b + E + runs (step - 1). In the same way the low(c)
// are a - E - runs (step - 1) at least.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/shape.h"

namespace tessera {

inline int64_t SampleCount(int64_t size, int64_t step) { return (size + step - 1) / step; }

// The most that all ranges of one part have together beyond the part itself.
inline int64_t RangeSlack(int64_t runs, int64_t step) { return 2 * (2 * runs - 1) * (step - 1); }

// From one sample to the next, so that samples and slack together are fewest, about: the root of the longest run,
// halved. 0 where they are more than 1/8 of what the runs of others have, so that whole runs are as well sent.
int64_t SampleStep(absl::Span<const int64_t> sizes);

// By part and run. Part k of the output has the ranks of run k's places in the vector: as many as run k, behind those
// of the runs before it. `keys`: of each run's samples, in order; InvalidArgument if they aren't, or too few or many.
absl::StatusOr<std::vector<std::vector<Interval>>> MergeRanges(absl::Span<const int64_t> sizes, int64_t step,
                                                               absl::Span<const std::vector<uint64_t>> keys);

}  // namespace tessera
