#include "server/device/cuda/host_thread.h"

#include <utility>

namespace tessera::cuda {

void HostThread::Run(absl::AnyInvocable<void()> task) {
  std::lock_guard lock(mutex_);
  if (is_stopping_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  tasks_.push_back(std::move(task));
  given_.notify_one();
}

void HostThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
    given_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  tasks_.clear();
}

void HostThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    given_.wait(lock, [&] { return is_stopping_ || !tasks_.empty(); });
    if (is_stopping_) return;
    absl::AnyInvocable<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

}  // namespace tessera::cuda
