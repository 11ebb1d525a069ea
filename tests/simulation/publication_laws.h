#pragma once

// The law of publications, as the simulation checks it with every message to workers: nothing is written where a tensor
// lies that is published, or that was published and is held.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/state_machine.h"
#include "tests/simulation/generator.h"

namespace tessera {

class PublicationLaws {
 public:
  // After an event, before its messages to workers are looked at.
  void See(const StateMachine& machine);
  absl::Status Check(const StateMachine& machine, const ToWorkers& told);
  // A coordinator goes, and another one comes from its log: buffers lie where they lay, under other numbers.
  void Goes(const StateMachine& machine) { held_ = HeldRanges(machine); }
  void Comes(const StateMachine& machine);
  // One comes from a part of the log: what is published now is all that is known.
  void ComesFromBefore(const StateMachine& machine) {
    published_.clear();
    See(machine);
  }
  // A fault: the result of some op is placed where a published tensor lies, as if that were donated. False: there was
  // neither such an op nor such a tensor.
  bool Misplace(const StateMachine& machine, Generator& random, ToWorkers& told) const;
  // Bytes of a worker that publications have.
  static int64_t BytesOn(const StateMachine& machine, WorkerIndex worker);

 private:
  struct Range {
    int64_t start = 0;
    int64_t stop = 0;
    std::vector<WorkerIndex> workers;
    bool operator==(const Range&) const = default;
  };
  std::vector<Range> HeldRanges(const StateMachine& machine) const;
  std::vector<Range> WrittenBy(const ToWorkers& told) const;

  std::map<TemplateId, std::shared_ptr<const Plan>> plans_;
  std::vector<Range> held_;                            // when the coordinator went
  std::set<std::pair<uint32_t, uint32_t>> published_;  // numbers of buffers that ever were
};

}  // namespace tessera
