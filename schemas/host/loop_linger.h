#pragma once

// LoopLinger: an event loop that has just had something to do lingers (linger.h) before it sleeps, and looks at its
// sockets meanwhile.

#include <atomic>

#include <kj/async-unix.h>
#include <kj/async.h>

#include "schemas/host/linger.h"

namespace tessera {

class LoopLinger {
 public:
  // Lingers in the calling thread's loop.
  explicit LoopLinger(kj::UnixEventPort& port, int home_core = kNoHome)
      : port_(port), linger_(home_core), turns_(kj::READY_NOW) {}

  // Something has come just now: more will come soon.
  void Begin();
  // Any thread may ask.
  bool lingers() const { return lingers_.load(std::memory_order_relaxed); }

 private:
  kj::Promise<void> Turn();

  kj::UnixEventPort& port_;
  Linger linger_;
  std::atomic<bool> lingers_ = false;
  kj::Promise<void> turns_;
};

}  // namespace tessera
