#include "kernels/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera::cpu {
namespace {

using Run = absl::FunctionRef<void(int64_t, int64_t)>;

// The part's exception; null when it returned.
std::exception_ptr RunPart(Run run, int64_t part, int64_t parts) {
  try {
    run(part, parts);
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

// Helper threads that sleep until a piece of work is given out. They end with the process.
class Helpers {
 public:
  ~Helpers() {
    {
      std::lock_guard lock(mutex_);
      stops_ = true;
    }
    given_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // False when the helpers are at another piece.
  bool TryRun(int64_t parts, Run run) {
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    {
      std::lock_guard lock(mutex_);
      while (static_cast<int64_t>(threads_.size()) < parts - 1) {
        threads_.emplace_back([this, number = static_cast<int64_t>(threads_.size())] { Help(number); });
      }
      run_ = &run;
      parts_ = parts;
      left_ = parts - 1;
      ++piece_;
    }
    given_.notify_all();
    std::exception_ptr thrown = RunPart(run, 0, parts);
    {
      std::unique_lock lock(mutex_);
      done_.wait(lock, [this] { return left_ == 0; });
      run_ = nullptr;
      if (thrown == nullptr) thrown = thrown_;
      thrown_ = nullptr;
    }
    if (thrown != nullptr) std::rethrow_exception(thrown);
    return true;
  }

 private:
  void Help(int64_t number) {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      given_.wait(lock, [&] { return stops_ || (piece_ != seen && run_ != nullptr); });
      if (stops_) return;
      seen = piece_;
      if (number + 1 >= parts_) continue;
      Run* run = run_;
      const int64_t parts = parts_;
      lock.unlock();
      const std::exception_ptr thrown = RunPart(*run, number + 1, parts);
      lock.lock();
      if (thrown_ == nullptr) thrown_ = thrown;
      if (--left_ == 0) done_.notify_one();
    }
  }

  std::mutex turn_;  // held by the caller whose piece it is
  std::mutex mutex_;
  std::condition_variable given_, done_;
  std::vector<std::thread> threads_;
  Run* run_ = nullptr;
  int64_t parts_ = 0;
  int64_t left_ = 0;
  std::exception_ptr thrown_;  // by the first helper that failed
  uint64_t piece_ = 0;
  bool stops_ = false;
};

std::atomic<int> threads_to_use{1};

}  // namespace

void SetThreads(int threads) { threads_to_use.store(std::max(1, threads), std::memory_order_relaxed); }

int64_t PartsFor(int64_t touched_bytes) {
  return std::clamp<int64_t>(touched_bytes / kMinPartBytes, 1, threads_to_use.load(std::memory_order_relaxed));
}

void RunParts(int64_t parts, Run run) {
  static Helpers helpers;
  if (parts > 1 && helpers.TryRun(parts, run)) return;
  for (int64_t part = 0; part < parts; ++part) run(part, parts);
}

void RunBlocks(int64_t blocks, absl::FunctionRef<void(int64_t)> run) {
  std::atomic<int64_t> next{0};
  const int64_t threads = threads_to_use.load(std::memory_order_relaxed);
  RunParts(std::min(blocks, threads), [&](int64_t, int64_t) {
    for (int64_t block = next++; block < blocks; block = next++) run(block);
  });
}

}  // namespace tessera::cpu
