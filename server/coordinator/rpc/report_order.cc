#include "server/coordinator/rpc/report_order.h"

#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status ReportOrder::Add(uint64_t number, WorkerReportEvent report) {
  if (number < next_ || waiting_.contains(number)) {
    return absl::InvalidArgumentError(StrCat("report ", number, " came twice"));
  }
  if (number > next_ && waiting_.size() >= kMaxEarlyReports) {
    return absl::InvalidArgumentError(StrCat("report ", number, " came, and ", next_, " did not"));
  }
  waiting_.emplace(number, std::move(report));
  return absl::OkStatus();
}

std::optional<WorkerReportEvent> ReportOrder::Take() {
  const auto found = waiting_.find(next_);
  if (found == waiting_.end()) return std::nullopt;
  WorkerReportEvent report = std::move(found->second);
  waiting_.erase(found);
  ++next_;
  return report;
}

}  // namespace tessera
