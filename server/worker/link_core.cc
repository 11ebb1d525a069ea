#include "server/worker/link_core.h"

#include <algorithm>
#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<size_t> LinkCore::SkipOf(uint64_t first, size_t count) const {
  const uint64_t taken = taken_;
  if (first == 0 || first > taken + 1) {
    return absl::DataLossError(StrCat("the coordinator's message ", first, " came after its message ", taken));
  }
  return static_cast<size_t>(std::min<uint64_t>(count, taken + 1 - first));
}

void LinkCore::Reported(Words words) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(words));
  ++reported_;
}

void LinkCore::Acknowledge(uint64_t reports) {
  const std::lock_guard lock(mutex_);
  while (!kept_.empty() && reported_ - kept_.size() < reports) kept_.pop_front();
}

absl::Status LinkCore::Resume(uint64_t reports) {
  {
    const std::lock_guard lock(mutex_);
    const uint64_t before = reported_ - kept_.size();
    if (reports < before || reports > reported_) {
      return absl::DataLossError(StrCat("the coordinator has ", reports, " reports of this worker, which has sent ",
                                        reported_.load(), " and keeps those after ", before));
    }
  }
  Acknowledge(reports);
  return absl::OkStatus();
}

std::vector<LinkCore::Words> LinkCore::kept() const {
  const std::lock_guard lock(mutex_);
  return {kept_.begin(), kept_.end()};
}

}  // namespace tessera
