#pragma once

// Cost: predicted time of a plan on a topology. A pure function; measured topology is an input with a
// version, and it chooses nothing that could change the order of a sum. (Parts of a product that it chooses may
// round differently: server/planner/split.h.)

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "schemas/types/device_kind.h"
#include "server/plan/plan.h"

namespace tessera {

class PiecesOfPlan;

struct Topology {
  // With the reference constants of that kind of device. A GPU's constants are read from data sheets, not measured.
  static Topology Of(DeviceKind kind);

  uint64_t version = 0;
  DeviceKind kind = DeviceKind::kCpu;      // of the workers of a plan, which have one kind
  double step_latency_s = 10e-6;           // one wait between workers
  double host_bandwidth_bytes_s = 6e9;     // one worker reading a peer's arena
  double network_bandwidth_bytes_s = 1e9;  // of a host's link to the others, each way; its workers share it
  // Between hosts by TCP (docs/performance.md): until the first message is there, in each phase that waits for some,
  // and what each costs who sends and who receives it.
  double message_latency_s = 50e-6;
  double message_overhead_s = 15e-6;
  double local_bandwidth_bytes_s = 6e9;  // one worker's own memory
  double flops_per_s = 50e9;             // of one worker
  std::vector<int32_t> host_of_worker;   // empty: all on one host
  // From where on what several want is stored to them, and not read by each (server/planner/pushed_moves.h). Not
  // measured by the cluster.
  int64_t min_pushed_bytes = int64_t{16} << 20;

  // 0 for a worker that is not listed.
  int32_t HostOf(WorkerIndex worker) const {
    const size_t index = static_cast<size_t>(worker.value);
    return index < host_of_worker.size() ? host_of_worker[index] : 0;
  }
};

// The hosts that their workers are on.
size_t CountHosts(std::initializer_list<const Mesh*> meshes, const Topology& topology);
// Whether all their workers are on one host.
bool AreOnOneHost(std::initializer_list<const Mesh*> meshes, const Topology& topology);

// Time to read a contraction's operand where it lies, or in messages.
double PredictReadingSeconds(const Exchange& pieces, const Topology& topology);

// Steps on the same workers follow each other, those on different ones run side by side.
double PredictSeconds(const Plan& plan, const Topology& topology);
double PredictSeconds(const Plan& plan, const Topology& topology, PiecesOfPlan& pieces);

}  // namespace tessera
