#pragma once

// Small sums of two terms, for those who hold a term each: everyone takes the other term and reduces all of it, in
// place of a half that the other one then takes. The bytes that are received are the same, c + r - 2 transfers an
// element; everyone waits for others once and not twice, and reads half a tensor more.
//
//   f32[1024] [P(sum)] -> [R] on two workers: each receives 4 KiB, in one phase (all_reduce) and not in two
//   (reduce_scatter, all_gather).

#include <cstdint>

#include "server/plan/plan.h"

namespace tessera {

// The reductions of a phase and the phase that spreads them become one, where all that is spread is at most
// `max_bytes` on a worker. The plan's hosts are known.
void ReduceOnEach(Plan& plan, int64_t max_bytes);

}  // namespace tessera
