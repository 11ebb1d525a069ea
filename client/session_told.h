#pragma once

// A session tells the program by these: counts, lines of its log, and callbacks of tensors that are settled.

#include <atomic>
#include <functional>
#include <vector>

#include "client/client_log.h"
#include "client/session_counters.h"

namespace tessera {

struct SessionTold {
  SessionCounters counters;
  std::atomic<bool> has_settled{false};
  std::vector<std::function<void()>> settled;  // to be called without the session's mutex, which guards them
};

}  // namespace tessera
