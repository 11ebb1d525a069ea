#pragma once

// Temporaries that local steps alone read: what a worker's kernels may keep in the cache and never write to memory.
//
//   local map(exp:f32(sub:f32(in0:f32, in1:f32))) %0, %1 -> %2     has two readers
//   local reduce(sum; dims=[1]) %2 -> %3
//   local map(div:f32(in0:f32, in1:f32)) %2, %3 -> %4

#include <cstddef>

#include "server/plan/plan.h"

namespace tessera {

// How many inputs of local steps read the output of the local step `step`, each on its own worker, where nothing else
// ever does; 0: something may, or nothing does. The plan is one that VerifyPlan accepts.
int CountOutputReaders(const Plan& plan, size_t step);

}  // namespace tessera
