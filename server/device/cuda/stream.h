#pragma once

// Stream: one CUstream, what it was given and has not been submitted, and what waits on the host for its progress.
//
// Progress is a number that the stream writes when it comes to a mark; a mark carries what the host does then, or the
// wait that follows it. Used by the loop's thread alone.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/device/cuda/host_steps.h"
#include "server/device/cuda/launcher.h"
#include "server/device/cuda/stream_words.h"
#include "server/device/device.h"

namespace tessera::cuda {

// More may be under way than fit the GPU's queue, and submitting would block. docs/limits.md: max_gpu_operations
inline constexpr uint64_t kMaxSubmitted = 256;
// A mark at least so often.
inline constexpr uint64_t kOperationsPerMark = 64;

struct ReadItem {
  CopyWork work;
};
struct AsyncItem {
  Device::Start start;
};
struct SignalItem {
  uint64_t value = 0;
};
struct ReportItem {
  Device::Report report;
};
// The host goes on when the copy is done.
struct TransferItem {
  CopyWork work;
  absl::AnyInvocable<void(absl::Status)> done;
};
using StreamItem = std::variant<CounterWait, DeviceWork, ReadItem, AsyncItem, SignalItem, ReportItem, TransferItem>;
struct QueuedItem {
  uint64_t number = 0;  // in the order in which all items of the device were handed over
  StreamItem item;
};

class Stream {
 public:
  // What a parked stream waits for.
  struct Awaited {
    std::atomic<uint64_t>* counter = nullptr;
    uint64_t value = 0;
    bool met() const { return counter->load(std::memory_order_acquire) >= value; }
  };

  static absl::StatusOr<std::unique_ptr<Stream>> Make(const Gpu& gpu);
  ~Stream();

  CUstream get() const { return stream_; }
  StreamWords& words() const { return *words_; }
  const std::shared_ptr<StreamWords>& shared_words() const { return words_; }

  // `run` is called by Poll when the stream has come here.
  absl::Status Mark(absl::AnyInvocable<void()> run);
  // The stream stands still until the word, which the GPU has at `address`, has the value.
  absl::Status Wait(const Awaited& awaited, CUdeviceptr address);
  absl::Status Write(CUdeviceptr address, uint64_t value);
  // After an operation of another kind.
  absl::Status Submitted();

  // Runs what is due. Whether there was anything.
  bool Poll();
  bool is_full() const { return submitted_ - passed_ >= kMaxSubmitted; }
  bool is_idle() const { return marks_.empty() && queue.empty(); }
  // The GPU has nothing more of it, and the host knows. Behind the last operation there must be a mark.
  bool IsAtRest() const { return submitted_ == passed_; }
  absl::Status MarkTheLast() { return submitted_ == submitted_at_mark_ ? absl::OkStatus() : Mark(nullptr); }
  // Whether the GPU may be working on something of it now.
  bool IsAtWork() const;
  // Lets go of all that it is parked at, and waits until the GPU has no more of it. What marks carry isn't run.
  void Abandon();

  std::deque<QueuedItem> queue;  // not submitted yet
  // Since the last report: what could not be submitted, and what went wrong on the way.
  absl::Status submit_error, run_error;
  StreamWorkspace workspace;
  HostStepMemory host_memory;
  uint64_t gates = 0;
  std::deque<Launcher::Fault> faults;  // since the last report
  // When the first work since the last report was submitted (0: none was), and when the last report was passed: the
  // later of the two is when that work began, or the waits before it.
  int64_t work_submitted_ns = 0, reported_ns = 0;

 private:
  struct MarkEntry {
    uint64_t number = 0;
    uint64_t submitted = 0;  // operations before it
    absl::AnyInvocable<void()> run;
    Awaited awaited;  // what follows, if it is a wait
  };
  explicit Stream(const Gpu& gpu) : host_memory(gpu), gpu_(gpu) {}

  const Gpu gpu_;
  CUstream stream_ = nullptr;
  std::shared_ptr<StreamWords> words_;
  std::deque<MarkEntry> marks_;
  uint64_t last_mark_ = 0;
  uint64_t submitted_ = 0, submitted_at_mark_ = 0, passed_ = 0;
  Awaited parked_at_;  // behind the last mark that was passed
};

}  // namespace tessera::cuda
