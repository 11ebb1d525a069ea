#include "client/ending_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "schemas/host/blocked_signals.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kPeriod{10};

class Reaper {
 public:
  static Reaper& Get() {
    static Reaper reaper;
    return reaper;
  }

  // At the process's end: processes that still end are for init to reap.
  ~Reaper() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ForgetParents();
      pids_.clear();
    }
    changed_.notify_all();
    if (thread_ != nullptr) thread_->join();
  }

  void Add(pid_t pid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ForgetParents();
    pids_.push_back(pid);
    if (is_running_) return;
    if (thread_ != nullptr) thread_->join();  // it has ended
    is_running_ = true;
    const BlockedSignals none;
    thread_ = std::make_unique<std::thread>([this] { Run(); });
  }

  bool Await(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    ForgetParents();
    return changed_.wait_until(lock, deadline, [this] { return pids_.empty(); });
  }

 private:
  // After a fork: the children are the parent's, and so is the thread.
  void ForgetParents() {
    if (owner_ == getpid()) return;
    owner_ = getpid();
    pids_.clear();
    is_running_ = false;
    [[maybe_unused]] std::thread* leaked = thread_.release();
  }

  // Until there is none. With the mutex held it does nothing that lasts once is_running_ is false, so that Add may join
  // it.
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!pids_.empty()) {
      changed_.wait_for(lock, kPeriod, [this] { return pids_.empty(); });
      std::erase_if(pids_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
    }
    is_running_ = false;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<pid_t> pids_;
  std::unique_ptr<std::thread> thread_;
  pid_t owner_ = getpid();
  bool is_running_ = false;
};

}  // namespace

void ReapInBackground(pid_t pid) { Reaper::Get().Add(pid); }

bool AwaitReaped(std::chrono::steady_clock::time_point deadline) { return Reaper::Get().Await(deadline); }

}  // namespace tessera
