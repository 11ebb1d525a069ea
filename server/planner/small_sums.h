#pragma once

// Small sums with fewer waits of workers for each other; the bytes that are received are the same, c + r - 2 transfers
// an element, and so are the orders of terms. What is large takes longer to read and write than such a wait.
//
//   f32[1024] [P(sum)] -> [R] on two workers: each receives 4 KiB, in one phase (all_reduce) and not in two
//   (reduce_scatter, all_gather).
//
// - Sums of two terms, for those who hold a term each: everyone takes the other term and reduces all of it
//   (ExchangeRole::kReduceEach), in place of a half that the other one then takes. That is half a tensor more to read.
// - What is reduced by one is spread by those who want it, who read it. To store it into their memory saves reading it
//   again, but has to wait until they are ready.

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// Up to Topology's max_reduced_by_each_bytes in a phase and max_pulled_bytes in the plan, on a worker. The plan's hosts
// are known.
void SaveWaitsOfSmallSums(Plan& plan, const Topology& topology);

}  // namespace tessera
