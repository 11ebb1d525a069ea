#pragma once

// CallItems: a phase that is calls of a library of collectives, as a device item (server/transport/collectives.h). It
// stands in the place of the phase's messages and instructions, and its stream goes on when the library's has passed
// it. Its operands and results lie in the arena: nothing is packed.
//
// Bytes received are counted when the call has passed, by what it moves to this rank.

#include <vector>

#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/transport/collectives.h"
#include "server/worker/arena.h"
#include "server/worker/run_record.h"
#include "server/worker/template_cache.h"

namespace tessera {

class CallItems {
 public:
  // `collectives` may be null: no phase is.
  CallItems(const ArenaTable& arenas, Device& device, Collectives* collectives)
      : arenas_(arenas), device_(device), collectives_(collectives) {}

  // Whether phase `number` (from 1 on) of the instance is calls here.
  bool Has(const Instance& instance, const ProgramTemplate& known, int number) const {
    return collectives_ != nullptr && instance.makes_calls && !known.calls.empty() &&
           !known.calls[static_cast<size_t>(number) - 1].calls.empty();
  }
  // In the order of instructions and phases, as is Refuse, which is for an instance that can't run: no worker's call
  // begins then.
  void Enqueue(const Instance& instance, int number, const RunRecordRef& record);
  void Refuse(const Instance& instance, int number, const RunRecordRef& record);

 private:
  const ArenaTable& arenas_;
  Device& device_;
  Collectives* const collectives_;
};

}  // namespace tessera
