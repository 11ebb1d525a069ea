#pragma once

// ReportOutbox: reports of the device's threads, on their way to the coordinator. Any thread adds; the KJ thread passes
// on all there is at once, so that reports travel in batches. While more ops are under way a report may wait for
// kReportDelayNs, since a message for each op would cost more than a small op does; nobody waits for the last one: the
// thread that adds it passes it on, too, with all that is there, where that can be done at once. Memory goes round: a
// report that is added gets that of one which was sent.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"
#include "server/plan/instance.h"

namespace tessera {

// Reports that were taken at once. Reused for the next taking.
class ReportBatch {
 public:
  absl::Span<const CompletionReport> completions() const {
    return absl::MakeConstSpan(completions_).subspan(0, completion_count_);
  }
  absl::Span<const TransferReport> transfers() const { return transfers_; }
  bool empty() const { return completion_count_ == 0 && transfers_.empty(); }
  void clear() {
    completion_count_ = 0;
    transfers_.clear();
  }

 private:
  friend class ReportOutbox;
  std::vector<CompletionReport> completions_;  // beyond the count: memory to be used again
  size_t completion_count_ = 0;
  std::vector<TransferReport> transfers_;
};

inline constexpr int64_t kReportDelayNs = 500'000;  // docs/limits.md: report_delay
enum class Urgency : uint8_t { kNow = 0, kSoon = 1 };

class ReportOutbox {
 public:
  ReportOutbox();  // Makes file descriptors.
  ~ReportOutbox();
  ReportOutbox(const ReportOutbox&) = delete;
  ReportOutbox& operator=(const ReportOutbox&) = delete;

  // Passes a batch on, on any thread; false when that can't be done at once. One call at a time. A thread that adds a
  // report meanwhile waits for it.
  using PassAtOnce = std::function<bool(const ReportBatch&)>;
  // Null, in the end: no call is made any more, and none is under way.
  void SetPassAtOnce(PassAtOnce pass);

  // Takes the report and leaves another's memory in its place.
  void Add(CompletionReport& report, Urgency urgency);
  void Add(TransferReport report);
  // Readable when something is due; Pass clears it.
  int event_fd() const { return due_fd_; }
  // Makes it readable.
  void Nudge() { SetOff(Alarm::kNow); }
  // Calls `pass` with all that was added since the last time, if it is due; false when it isn't. Batches are passed in
  // the order in which they were added, whoever does it.
  bool Pass(absl::FunctionRef<void(const ReportBatch&)> pass);

 private:
  enum class Alarm : uint8_t { kNone, kSoon, kNow };
  Alarm Raise(Alarm alarm);  // mutex_ is held; what is to be set off
  void SetOff(Alarm alarm);
  bool TakeIfDue();
  int due_fd_;  // an epoll of the two: to set off a timer takes longer than an event, even for at once
  int now_fd_;  // an eventfd
  int timer_fd_;
  std::mutex passing_mutex_;  // before mutex_
  PassAtOnce pass_at_once_;
  ReportBatch passed_;
  std::mutex mutex_;
  Alarm alarm_ = Alarm::kNone;
  ReportBatch added_;
};

}  // namespace tessera
