#pragma once

// A worker's death and a session's end leave work to do with each tensor, of which there may be a million. It is done
// in slices (StateMachine::GoOnWithLongWork), and others have their turn between them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "server/coordinator/tables.h"

namespace tessera {

struct WorkerLoss {
  WorkerIndex worker;
  absl::Status cause;
  uint64_t joins = 0;  // how many workers had joined by then: later tensors are on others
};

// Goes through one session's tensors by their handles. Until it is through, the session's records wait.
struct LossSweep {
  SessionId session;
  HandleId next;        // the first one that it hasn't seen
  size_t end_loss = 0;  // sees the losses before this one
};

struct LongWork {
  std::vector<WorkerLoss> losses;  // all of the cluster; SessionEntry::seen_losses counts them
  bool is_seen = true;             // by all sessions, which is asked after each event
  std::optional<LossSweep> sweep;
  std::deque<absl::btree_map<HandleId, TensorPointer>> given_up;  // of sessions that have ended
};

}  // namespace tessera
