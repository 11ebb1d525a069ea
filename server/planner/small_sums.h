#pragma once

// Small sums with fewer waits of workers for each other; the bytes that are received are the same, c + r - 2 transfers
// an element, and so are the orders of terms. A large sum takes longer to read and write than such a wait.
//
//   f32[1024] [P(sum)] -> [R] on two workers: each receives 4 KiB, in one phase (all_reduce) and not in two
//   (reduce_scatter, all_gather).
//
// Sums of two terms, for those who hold a term each: everyone takes the other term and reduces all of it
// (ExchangeRole::kReduceEach), in place of a half that is then stored to the other one. That is half a tensor more to
// read.

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// Up to Topology's max_reduced_by_each_bytes in a phase, on a worker. The plan's hosts are known.
void SaveWaitsOfSmallSums(Plan& plan, const Topology& topology);

}  // namespace tessera
