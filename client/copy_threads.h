#pragma once

// CopyThreads: threads of this process that share a copy with its caller. One core copies some 10 GB/s; a GPU takes 50,
// and a host with many cores has as much. They begin with the first copy that is shared, and linger between two.
//
//   CopyThreads::OfProcess().Share(parts, [&](int part) { ... });    each part once, by any thread; all when it returns
//
// Law: a caller waits for no part that nobody has begun: it takes those itself. So a process that was forked, whose
// threads are the parent's, and a caller beside another one, whose copy the threads are at, copy alone.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/host_memory.h"

namespace tessera {

inline constexpr int kMaxCopyThreads = 8;                         // docs/limits.md: max_copy_threads
inline constexpr int64_t kMinCopyPartBytes = int64_t{128} << 10;  // docs/limits.md: min_copy_part_bytes

class CopyThreads {
 public:
  // All sessions share these. Never destroyed: a copy may be under way as the process ends.
  static CopyThreads& OfProcess();
  // TESSERA_COPY_THREADS, or half of the cores that the process may use; from 1 to kMaxCopyThreads.
  static int ThreadsOfProcess();

  // So many threads, the caller among them.
  explicit CopyThreads(int threads) : threads_(threads) {}
  ~CopyThreads();
  CopyThreads(const CopyThreads&) = delete;

  int threads() const { return threads_; }
  // From any thread. The function throws nothing.
  void Share(int parts, absl::FunctionRef<void(int part)> copy);

 private:
  struct Job {
    absl::FunctionRef<void(int)> copy;
    const int parts;
    std::atomic<int> next = 0;
    void TakeParts();
  };
  void Run();

  const int threads_;
  const pid_t owner_ = getpid();  // a fork's copy has no threads
  std::mutex sharing_;            // of the caller whose job it is
  std::vector<std::thread> started_;

  std::mutex mutex_;
  std::condition_variable given_;
  Job* job_ = nullptr;              // guarded by mutex_
  bool is_over_ = false;            // likewise
  std::atomic<uint64_t> jobs_ = 0;  // so far; written under mutex_
  std::atomic<int> helpers_ = 0;    // at the job; raised under mutex_
};

// As CopyBoxTo (host_memory.h), shared where there are bytes enough: rows of the first dim of several indices.
void CopyBoxShared(const HostView& source, const Box& box, char* destination,
                   CopyThreads& threads = CopyThreads::OfProcess());
// As StreamedCopy (streamed_copy.h), likewise.
void CopyShared(char* destination, const char* source, int64_t bytes, CopyThreads& threads = CopyThreads::OfProcess());

}  // namespace tessera
