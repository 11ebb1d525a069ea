#pragma once

// Worlds of several hosts, and what is planned on them.

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/cost.h"
#include "tests/support/plan_redistribute.h"

namespace tessera {

struct HostWorld {
  std::vector<int64_t> mesh;
  std::vector<int32_t> hosts;  // by worker
};

inline std::ostream& operator<<(std::ostream& out, const HostWorld& world) {
  out << "mesh";
  for (const int64_t extent : world.mesh) out << " " << extent;
  out << " on hosts";
  for (const int32_t host : world.hosts) out << " " << host;
  return out;
}

inline Topology TopologyOf(const std::vector<int32_t>& hosts) {
  Topology topology;
  topology.host_of_worker = hosts;
  return topology;
}

inline Plan PlanOf(const std::string& source, const std::string& destination, const std::vector<int32_t>& hosts) {
  const absl::StatusOr<Plan> plan =
      PlanRedistribute({*ParseTensorSpec(source), {}}, *ParseTensorSpec(destination), TopologyOf(hosts));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

}  // namespace tessera
