#pragma once

// StepLinesOn: the steps of a plan for people, as its workers run them: what the host computes for a GPU, what is
// cuBLASLt's, and what moves by NCCL.
//
//   "all_gather %0 [S(0)] -> %1 [R], by NCCL"                 no two of them map each other; messages of pairs
//   "all_gather %0 [S(0)] -> %1 [R], by NCCL's AllGather"     likewise; one call of all
//   (server/plan/lower/collective_calls.h) "all_gather %0 [S(0)] -> %1 [R], by NCCL between hosts"   on a host they
//   read where it lies

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// `topology`: the kind of the workers' devices, and who maps whom: those of one host. `has_nccl`: whether a worker's
// messages with others of which it is so go by NCCL.
std::vector<std::string> StepLinesOn(const Topology& topology, absl::FunctionRef<bool(WorkerIndex)> has_nccl,
                                     const Plan& plan);

}  // namespace tessera
