#include "client/copy_threads.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "schemas/host/blocked_signals.h"
#include "schemas/host/cores.h"
#include "schemas/host/linger.h"
#include "schemas/host/streamed_copy.h"
#include "schemas/types/bounds.h"

namespace tessera {
namespace {

int PartsOf(int64_t bytes, const CopyThreads& threads) {
  return static_cast<int>(std::clamp<int64_t>(bytes / kMinCopyPartBytes, 1, threads.threads()));
}

}  // namespace

CopyThreads& CopyThreads::OfProcess() {
  static CopyThreads& threads = *new CopyThreads(ThreadsOfProcess());
  return threads;
}

int CopyThreads::ThreadsOfProcess() {
  const char* const wanted = std::getenv("TESSERA_COPY_THREADS");
  const int threads = wanted != nullptr ? std::atoi(wanted) : UsableCores() / 2;
  return std::clamp(threads, 1, kMaxCopyThreads);
}

CopyThreads::~CopyThreads() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  given_.notify_all();
  for (std::thread& thread : started_) thread.join();
}

void CopyThreads::Job::TakeParts() {
  for (int part = next++; part < parts; part = next++) copy(part);
}

void CopyThreads::Share(int parts, absl::FunctionRef<void(int part)> copy) {
  Job job = {copy, parts};
  std::unique_lock sharing(sharing_, std::defer_lock);
  if (parts < 2 || threads_ < 2 || getpid() != owner_ || !sharing.try_lock()) return job.TakeParts();
  for (const BlockedSignals none; static_cast<int>(started_.size()) < threads_ - 1;) {
    started_.emplace_back([this] { Run(); });
  }
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    ++jobs_;
  }
  given_.notify_all();
  job.TakeParts();
  {
    const std::lock_guard lock(mutex_);
    job_ = nullptr;
  }
  // Each of them is in a part, of some ten microseconds.
  while (helpers_ > 0) std::this_thread::yield();
}

void CopyThreads::Run() {
  pthread_setname_np(pthread_self(), "copy");
  Linger linger;
  std::unique_lock lock(mutex_);
  while (!is_over_) {
    const uint64_t seen = jobs_;
    Job* const job = job_;
    if (job != nullptr) ++helpers_;
    lock.unlock();
    if (job != nullptr) {
      job->TakeParts();
      --helpers_;
    }
    // A slab is soon followed by the next one.
    for (linger.Begin(); jobs_ == seen && linger.Yield();) continue;
    if (jobs_ != seen) linger.Arrived();
    lock.lock();
    given_.wait(lock, [&] { return is_over_ || jobs_ != seen; });
  }
}

void CopyBoxShared(const HostView& source, const Box& box, char* destination, CopyThreads& threads) {
  const int64_t bytes = NumElements(box) * SizeBytes(source.dtype);
  const auto cut = std::find_if(box.begin(), box.end(), [](const Interval& indices) { return indices.size() > 1; });
  if (cut == box.end()) return CopyBoxTo(source, box, destination);
  const auto dim = static_cast<size_t>(cut - box.begin());
  const int64_t rows = cut->size(), row_bytes = bytes / rows;
  const auto parts = static_cast<int>(std::min<int64_t>(rows, PartsOf(bytes, threads)));
  threads.Share(parts, [&](int part) {
    const int64_t first = rows * part / parts;
    Box own = box;
    own[dim] = {box[dim].start + first, box[dim].start + rows * (part + 1) / parts};
    CopyBoxTo(source, own, destination + first * row_bytes);
  });
}

void CopyShared(char* destination, const char* source, int64_t bytes, CopyThreads& threads) {
  constexpr int64_t kLineBytes = 64;
  const int parts = PartsOf(bytes, threads);
  const auto begin_of = [&](int part) {
    return part == parts ? bytes : bytes / kLineBytes * part / parts * kLineBytes;
  };
  threads.Share(parts, [&](int part) {
    const int64_t first = begin_of(part);
    StreamedCopy(destination + first, source + first, begin_of(part + 1) - first);
  });
}

}  // namespace tessera
