#pragma once

// A pool's workers in an allocation of Slurm: one step on all of its nodes, which srun starts and ends. Each of its
// tasks is `tessera keep`, which starts its worker again when that has ended.
//
//   if (IsInAllocation(ReadEnvironment)) ...
//   TESSERA_ASSIGN_OR_RETURN(const SlurmStep step, PlanSlurmStep(ReadEnvironment, request));
//   TESSERA_ASSIGN_OR_RETURN(const pid_t srun, StartSlurmStep(step, pool.join_token));

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

using Environment = std::function<std::string(const char* name)>;  // "" where there is none
std::string ReadEnvironment(const char* name);

struct SlurmRequest {
  int workers_on_node = 0;  // 0: one for each GPU of a node, or for each NUMA domain
  std::string device = "cpu";
  std::string program;         // tessera
  std::string worker_program;  // tessera-worker
  std::string address, pin;
  std::string memory;                     // of each worker; "": its part of 0.8 of what Slurm gives
  std::vector<std::string> worker_flags;  // more of them
};

struct SlurmStep {
  int nodes = 0, workers = 0;          // all together
  std::vector<std::string> arguments;  // srun first
};

// In a batch script or under salloc, and in no step of it: `tessera up` itself may be a task of another pool.
bool IsInAllocation(const Environment& environment);
// The port of a job, which others of a node don't have: follows from the job's number.
int PortOfJob(const Environment& environment);
// FailedPrecondition: a number that Slurm says is missing, or no GPU is there where workers want one.
absl::StatusOr<SlurmStep> PlanSlurmStep(const Environment& environment, const SlurmRequest& request);
// The process of srun, which gets the token by its environment, and ends with this one. NotFound: no srun in PATH.
absl::StatusOr<pid_t> StartSlurmStep(const SlurmStep& step, const std::string& join_token);

}  // namespace tessera
