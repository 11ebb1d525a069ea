#pragma once

// ReportOutbox: what the device's threads have to say, on its way to the coordinator. Any thread adds;
// the KJ thread takes all there is at once, so that reports travel in batches.

#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "schemas/types/ids.h"
#include "server/plan/instance.h"

namespace tessera {

struct TransferReport {
  TicketId ticket;
  absl::Status status;
};

class ReportOutbox {
 public:
  ReportOutbox();  // Makes an eventfd.
  ~ReportOutbox();
  ReportOutbox(const ReportOutbox&) = delete;
  ReportOutbox& operator=(const ReportOutbox&) = delete;

  void Add(CompletionReport report);
  void Add(TransferReport report);
  // Readable when there is something; Take clears it.
  int event_fd() const { return event_fd_; }
  std::pair<std::vector<CompletionReport>, std::vector<TransferReport>> Take();

 private:
  void Wake();
  int event_fd_;
  std::mutex mutex_;
  bool awake_ = false;
  std::vector<CompletionReport> completions_;
  std::vector<TransferReport> transfers_;
};

}  // namespace tessera
