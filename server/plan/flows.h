#pragma once

// FlowsOf: which worker gives how many bytes to which other one, step by step, as Pieces has it: the flows of all
// steps sum up to TrafficOf, worker by worker. A merge of sorted runs takes what the values decide: it has no flows
// here, and TrafficOf has the most that it may take.
//
//   for (const Flow& flow : FlowsOf(plan)[0].flows) ... flow.from, flow.to, flow.bytes
//
// For people: all pairs of workers of a large mesh are more than anybody reads.

#include <cstdint>
#include <string>
#include <vector>

#include "server/plan/plan.h"

namespace tessera {

inline constexpr size_t kMaxFlowWorkers = 64;  // docs/limits.md: max_flow_workers

struct Flow {
  WorkerIndex from;
  WorkerIndex to;
  int64_t bytes = 0;
};

struct StepFlows {
  std::string title;                 // "all_to_all", "matmul"
  std::vector<WorkerIndex> workers;  // that take part, sorted
  bool is_exchange = false;
  bool joins_last = false;  // in the phase of the step before
  std::vector<Flow> flows;  // between different workers, by receiver, then by giver
};

// One for each of the plan's steps; none where the plan has more than kMaxFlowWorkers workers.
std::vector<StepFlows> FlowsOf(const Plan& plan);

}  // namespace tessera
