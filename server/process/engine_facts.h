#pragma once

// A process's share of the host, as the engine says that started it (Slurm, Kubernetes, a container, a shell):
// memory, processors, a number. Pure: files are read below `root`, variables by `variable`.
//
//   const EngineFacts facts = FindEngineFacts("", ReadVariable);
//   facts.memory_bytes    // 4294967296
//   facts.memory_from     // "/sys/fs/cgroup/memory.max"
//   ReadMemory("0.8", facts, 2)         // 1717986918: of each of two workers
//   IndexFrom("SLURM_PROCID", ...)      // 3
//   IndexFrom("hostname-ordinal", ...)  // 3 on the host "tessera-worker-3"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

using Variable = std::function<std::string(const char* name)>;  // "" where there is none
std::string ReadVariable(const char* name);                     // of the environment

struct EngineFacts {
  int64_t memory_bytes = 0;  // that the process and others of its job may have; at least the host's says one
  std::string memory_from;
  double cpus = 0;  // 0: nobody says less than the host has
  std::string cpus_from;
  std::string node;  // the engine's name of the host, where it has one of its own: "SLURMD_NODENAME"
};

// The smallest limits among those of the host, of the control groups (version 1 and 2; that of the process and all that
// it is in), and of Slurm's variables.
EngineFacts FindEngineFacts(const std::string& root, const Variable& variable);

// "4GiB", "1000000", or a share like "0.8" or "80%" of facts.memory_bytes, which `workers` share evenly.
// InvalidArgument: it is neither, or more than the limit, which the message names.
absl::StatusOr<int64_t> ReadMemory(std::string_view text, const EngineFacts& facts, int workers);

// A worker's number: that at the end of the host's name behind a dash, or in a variable. A host with several workers
// has numbers that follow each other: "hostname-ordinal*8+3" of tessera-worker-2 is 19. InvalidArgument where there is
// no such number.
absl::StatusOr<int> IndexFrom(const std::string& source, const std::string& host, const Variable& variable);

}  // namespace tessera
