#include "server/worker/rpc/copy_thread.h"

#include <utility>

namespace tessera {

CopyThread::CopyThread() : thread_([this]() { Loop(); }) {}

CopyThread::~CopyThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

kj::Promise<void> CopyThread::Run(std::function<void()> job) {
  auto pair = kj::newPromiseAndCrossThreadFulfiller<void>();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(job), kj::mv(pair.fulfiller)});
  }
  wake_.notify_one();
  return kj::mv(pair.promise);
}

void CopyThread::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this]() { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.run();
    job.done->fulfill();
    lock.lock();
  }
}

}  // namespace tessera
