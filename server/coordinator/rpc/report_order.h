#pragma once

// ReportOrder: a worker's reports in the order in which it made them. They come as answers and as calls, and the two
// may overtake each other.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "server/coordinator/events.h"

namespace tessera {

class ReportOrder {
 public:
  static constexpr size_t kMaxEarlyReports = 64;  // docs/limits.md: max_early_reports

  // Numbers are dense from 1. InvalidArgument: seen before, or too many are ahead of the next one.
  absl::Status Add(uint64_t number, WorkerReportEvent report);
  // The next one, if it has come.
  std::optional<WorkerReportEvent> Take();

 private:
  uint64_t next_ = 1;
  std::map<uint64_t, WorkerReportEvent> waiting_;
};

}  // namespace tessera
