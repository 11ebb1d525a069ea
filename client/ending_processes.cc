#include "client/ending_processes.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kPeriod{10};

class Reaper {
 public:
  // Never destroyed: its thread may outlive main.
  static Reaper& Get() {
    static auto& reaper = *new Reaper;
    return reaper;
  }

  void Add(pid_t pid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ForgetParents();
    pids_.push_back(pid);
    if (is_running_) return;
    is_running_ = true;
    // Signals go to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([this] { Run(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool Await(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock<std::mutex> lock(mutex_);
    ForgetParents();
    return gone_.wait_until(lock, deadline, [this] { return pids_.empty(); });
  }

 private:
  // After a fork: the children are the parent's, and so is the thread.
  void ForgetParents() {
    if (owner_ == getpid()) return;
    owner_ = getpid();
    pids_.clear();
    is_running_ = false;
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!pids_.empty()) {
      lock.unlock();
      std::this_thread::sleep_for(kPeriod);
      lock.lock();
      std::erase_if(pids_, [](pid_t pid) { return waitpid(pid, nullptr, WNOHANG) != 0; });
    }
    is_running_ = false;
    gone_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable gone_;
  std::vector<pid_t> pids_;
  pid_t owner_ = getpid();
  bool is_running_ = false;
};

}  // namespace

bool RunsNoMore(pid_t pid) {
  int64_t pages = 0;
  return !(std::ifstream(StrCat("/proc/", pid, "/statm")) >> pages) || pages == 0;
}

void ReapInBackground(pid_t pid) { Reaper::Get().Add(pid); }

bool AwaitReaped(std::chrono::steady_clock::time_point deadline) { return Reaper::Get().Await(deadline); }

}  // namespace tessera
