#pragma once

// CopyThread: the io stream's hands. Copies between clients' memory and the arena run here, one after
// another, so that the KJ thread answers heartbeats meanwhile.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include <kj/async.h>

namespace tessera {

class CopyThread {
 public:
  CopyThread();
  // Ends after the job that runs; jobs that wait are dropped (their promises break).
  ~CopyThread();

  // Runs `job` on the thread; the promise is fulfilled on the calling KJ thread.
  kj::Promise<void> Run(std::function<void()> job);

 private:
  struct Job {
    std::function<void()> run;
    kj::Own<kj::CrossThreadPromiseFulfiller<void>> done;
  };
  void Loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera
