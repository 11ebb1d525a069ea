#pragma once

// Stream: one CUstream, what it was given and has not been submitted, and what waits on the host for its progress.
//
// Progress is a number that the stream writes when it comes to a mark; a mark carries what the host does then, or the
// wait that follows it. Used by the loop's thread alone.
//
// Operations on words (marks, signals, waits) that follow each other are one call of the driver: they are gathered, and
// Flush enqueues them. The stream flushes before its own events; work is enqueued behind a Flush, and the loop flushes
// when it has nothing more for the stream.
//
// A stream is parked while a wait that was submitted isn't met, as the host reads its word, or is for a stream that was
// parked as it signalled. Behind the first such wait it takes kParkedOperations more: a driver may block a call on a
// queue that is full, and nothing would empty this one.

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "server/device/cuda/host_steps.h"
#include "server/device/cuda/launcher.h"
#include "server/device/cuda/stream_words.h"
#include "server/device/device.h"

namespace tessera::cuda {

// More may be under way than fit the GPU's queue, and submitting would block. docs/limits.md: max_gpu_operations
inline constexpr uint64_t kMaxSubmitted = 256;
// Behind a wait that isn't met. docs/limits.md: max_parked_gpu_operations
inline constexpr uint64_t kParkedOperations = 32;
// A mark at least so often.
inline constexpr uint64_t kOperationsPerMark = 64;
// Operations on words of one call; the driver takes 255.
inline constexpr size_t kMostGathered = 64;

struct ReadItem {
  CopyWork work;
};
// The side that ends its start: a peer, whose message it may be; or the worker's host, which waits for nobody.
enum class EndsBy : uint8_t { kOthers, kHost };
struct AsyncItem {
  Device::Start start;
  EndsBy ends_by = EndsBy::kOthers;
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
// The rest of work of which the libraries' thread enqueues a step.
struct RestItem {
  KernelWork work;
  std::shared_ptr<Making> beside;
  std::vector<Step> steps;
  std::vector<std::shared_ptr<std::byte[]>> of_host = {};  // which the step uses until it has run
};
using StreamItem =
    std::variant<PageWait, DeviceWork, ReadItem, AsyncItem, SignalItem, ReportItem, TransferItem, RestItem>;
struct QueuedItem {
  uint64_t number = 0;  // in the order in which all items of the device were handed over
  StreamItem item;
};

class Stream {
 public:
  // A parked stream waits for these.
  struct Awaited {
    std::atomic<uint64_t>* counter = nullptr;
    uint64_t value = 0;
    bool met() const { return counter == nullptr || counter->load(std::memory_order_acquire) >= value; }
  };

  static absl::StatusOr<std::unique_ptr<Stream>> Make(const Gpu& gpu, Lane lane);
  ~Stream();

  CUstream get() const { return stream_; }
  StreamWords& words() const { return *words_; }
  const std::shared_ptr<StreamWords>& shared_words() const { return words_; }

  // `run` is called by Poll when the stream has come here.
  absl::Status Mark(absl::AnyInvocable<void()> run);
  // The stream stands still until the word, which the GPU has at `address`, has the value.
  absl::Status Wait(const Awaited& awaited, CUdeviceptr address);
  // Likewise, and the host stands in for the stream: nothing more may be submitted until then. `then` is called by
  // Poll.
  void Hold(const Awaited& awaited, absl::AnyInvocable<void()> then);
  bool is_held() const { return held_.has_value(); }
  // Writes the value to a counter that other streams and peers wait for.
  absl::Status Signal(const Awaited& counter, CUdeviceptr address);
  // Whether WaitFor can be called: the signal of at least `value` was submitted, and the stream isn't parked, or was
  // already as it was submitted.
  bool GivesEvent(uint64_t value);
  // The stream goes on behind a signal of the other one. The driver knows of such a wait, which it doesn't of a wait
  // for a word.
  absl::Status WaitFor(Stream& other, const Awaited& signal);
  // After operations of another kind.
  absl::Status Submitted(uint64_t operations);
  // Enqueues what was gathered.
  absl::Status Flush();

  // Runs what is due. Whether there was anything.
  bool Poll();
  bool is_full() const { return submitted_ - passed_ >= kMaxSubmitted; }
  bool is_idle() const { return marks_.empty() && queue.empty() && !is_held(); }
  bool IsParked();
  // Whether it is parked at a wait of its own, for what no stream of the worker does.
  bool StandsStill();
  // How many operations may be submitted.
  uint64_t Room();
  // How many were submitted, and the last of them that the GPU is known to have passed: up to the last mark.
  uint64_t submitted() const { return submitted_; }
  uint64_t passed() const { return passed_; }
  // So that the GPU is known to have passed so many when it has.
  absl::Status MarkBehind(uint64_t operations) {
    return submitted_at_mark_ >= operations ? absl::OkStatus() : Mark(nullptr);
  }
  // Whether the GPU may be working on something of it now.
  bool IsAtWork() const;
  // Lets go of all that it is parked at.
  void LetGo();
  // Waits until the GPU has no more of it. All streams were let go before. The marks' callbacks aren't run.
  void Abandon();

  std::deque<QueuedItem> queue;  // not submitted yet
  // The wants of its first item before it can be submitted (Launcher::Turn).
  bool wants_clear = false;
  uint64_t wants_room = 0;
  const std::atomic<bool>* wants_made = nullptr;
  std::shared_ptr<Making> making;
  bool wants_something() const { return wants_clear || wants_room > 0 || wants_made != nullptr; }
  const Lane lane;
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
  struct SubmittedWait {
    Awaited awaited;
    uint64_t submitted = 0;   // operations, with it
    bool is_for_own = false;  // for another stream of the worker
  };
  struct Held {
    Awaited awaited;
    absl::AnyInvocable<void()> then;
  };
  struct RecordedSignal {
    uint64_t value = 0;
    CUevent event = nullptr;
  };
  // As many as signals fit behind a wait.
  static constexpr size_t kEvents = kParkedOperations / 2;
  absl::Status Record(CUevent event);
  absl::Status Gather(const CUstreamBatchMemOpParams& operation);
  absl::Status GatherWrite(CUdeviceptr address, uint64_t value);
  Stream(const Gpu& gpu, Lane of_lane) : lane(of_lane), host_memory(gpu), gpu_(gpu) {}

  const Gpu gpu_;
  CUstream stream_ = nullptr;
  std::shared_ptr<StreamWords> words_;
  std::vector<CUstreamBatchMemOpParams> gathered_;
  std::deque<MarkEntry> marks_;
  uint64_t last_mark_ = 0;
  uint64_t submitted_ = 0, submitted_at_mark_ = 0, passed_ = 0;
  Awaited parked_at_;                // behind the last mark that was passed
  std::deque<SubmittedWait> waits_;  // that were not met when they were looked at last
  std::optional<Held> held_;
  std::array<CUevent, kEvents> events_ = {};
  CUevent last_event_ = nullptr;  // behind all that was submitted as it was recorded
  size_t next_event_ = 0;
  std::deque<RecordedSignal> signals_;  // that were submitted while the stream was parked
  uint64_t signalled_ = 0;              // the last value of them all
};

}  // namespace tessera::cuda
