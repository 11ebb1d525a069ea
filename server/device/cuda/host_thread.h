#pragma once

// HostThread: a thread for tasks that take long, one after the other, beside the thread that enqueues. It starts with
// the first task.

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/functional/any_invocable.h"

namespace tessera::cuda {

class HostThread {
 public:
  HostThread() = default;
  ~HostThread() { Stop(); }
  HostThread(const HostThread&) = delete;
  HostThread& operator=(const HostThread&) = delete;
  void Run(absl::AnyInvocable<void()> task);
  // Returns when the task at hand has ended; the others are dropped.
  void Stop();

 private:
  void Loop();
  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<absl::AnyInvocable<void()>> tasks_;  // guarded by mutex_, as what follows
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::cuda
