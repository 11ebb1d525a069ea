#pragma once

// WaitObserver: what a blocking call does around its wait. The Python module lets go of the
// interpreter and looks for Ctrl-C; a C++ program needs none.

#include "client/require_cxx20.h"

#include <chrono>

#include "absl/status/status.h"

namespace tessera {

inline constexpr int kWaitPollMs = 100;  // docs/limits.md: wait_poll

class WaitObserver {
 public:
  virtual ~WaitObserver() = default;
  // Called before and after a wait, on the waiting thread; Leave is given what Enter gave.
  virtual void* Enter() { return nullptr; }
  virtual void Leave(void* token) { (void)token; }
  // Called about every kWaitPollMs between the two. Not ok ends the wait with that status.
  virtual absl::Status Poll() { return absl::OkStatus(); }
};

// One for the process; null takes it away. Set before the first wait.
void SetWaitObserver(WaitObserver* observer);
WaitObserver& CurrentWaitObserver();

// Enter and Leave by scope.
class WaitScope {
 public:
  WaitScope() : observer_(CurrentWaitObserver()), token_(observer_.Enter()) {}
  ~WaitScope() { observer_.Leave(token_); }
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
  absl::Status Poll() { return observer_.Poll(); }

 private:
  WaitObserver& observer_;
  void* token_;
};

// For work that goes on without waiting: asks the observer every kWaitPollMs, however often it is asked itself.
class WorkPoll {
 public:
  absl::Status Poll();

 private:
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
};

}  // namespace tessera
