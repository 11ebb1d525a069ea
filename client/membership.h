#pragma once

// The workers that a cluster has and had, by number, as a session knows them.

#include <cstdint>
#include <map>
#include <vector>

#include "schemas/types/device_kind.h"
#include "schemas/types/ids.h"

namespace tessera {

struct Membership {
  struct Worker {
    bool is_here = false;
    DeviceKind device = DeviceKind::kCpu;
    bool is_cordoned = false;  // this session may not use it
  };
  std::map<int32_t, Worker> workers;
  int32_t numbers = 0;  // how many the cluster has given out
  // The workers of the kind that are there and may be used.
  std::vector<WorkerIndex> Present(DeviceKind kind) const;
  // The kind of the worker with the lowest number that is there.
  DeviceKind default_kind() const;
};

}  // namespace tessera
