#pragma once

// StallDesk: workers that answer pings and do no work. A probe tells them from those that wait for others (stalls.cc).

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::StallDesk {
 public:
  explicit StallDesk(StateMachine& machine) : machine_(machine), config_(machine.config_) {}

  void WatchWork();
  void AskIdle();

 private:
  void Probe(WorkerIndex worker);
  Ordinal ReadByte(WorkerIndex worker, std::string_view name, StreamId stream, Lane lane);
  std::string WhyStalled(WorkerIndex index, const WorkerEntry& worker) const;

  StateMachine& machine_;
  const CoordinatorConfig& config_;
};

}  // namespace tessera
