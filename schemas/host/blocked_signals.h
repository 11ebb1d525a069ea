#pragma once

// BlockedSignals: while it is there, this thread takes no signal, nor does a thread that it starts for all of its life.
// Signals go to the program's own threads then, which they interrupt.
//
//   { const BlockedSignals none; thread_ = std::thread([this] { Run(); }); }

#include <pthread.h>
#include <signal.h>

namespace tessera {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tessera
