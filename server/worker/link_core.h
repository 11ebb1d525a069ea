#pragma once

// LinkCore: a worker's end of its line to the coordinator, without sockets, loop or clock: which messages it has taken,
// and the reports that the coordinator has not said to have. A worker that has lost its coordinator goes on with the
// next one by it. The coordinator's end is server/coordinator/rpc/worker_outbox.h, and Core::WorkerLine's reports.
//
//   core.SkipOf(first, count);        // of messages that came: so many were taken before
//   core.TookOne();                   // each of the others, as it is taken
//   core.Reported(std::move(words));  // a report has left, as report next_report()
//   core.Acknowledge(reports);        // the coordinator has so many
//   core.Resume(reports);             // the next coordinator has so many: kept() are to be sent again
//
// Any thread.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

class LinkCore {
 public:
  using Words = std::vector<uint64_t>;

  // DataLoss where messages before `first` never came.
  absl::StatusOr<size_t> SkipOf(uint64_t first, size_t count) const;
  void TookOne() { ++taken_; }
  uint64_t taken() const { return taken_; }

  uint64_t next_report() const { return reported_ + 1; }
  uint64_t reported() const { return reported_; }
  // One at a time.
  void Reported(Words words);
  // A worker that ends with its coordinator keeps nothing.
  void ReportedForGood() { ++reported_; }
  void Acknowledge(uint64_t reports);
  // DataLoss when the coordinator has more than were sent, or lacks one that an earlier one had.
  absl::Status Resume(uint64_t reports);
  std::vector<Words> kept() const;

 private:
  std::atomic<uint64_t> taken_ = 0;
  std::atomic<uint64_t> reported_ = 0;
  mutable std::mutex mutex_;
  std::deque<Words> kept_;  // the last ones of those reported
};

}  // namespace tessera
