#include "server/coordinator/rpc/worker_outbox.h"

#include <algorithm>

#include "schemas/types/str_cat.h"

namespace tessera {

void WorkerOutbox::Taken(uint64_t number) {
  if (number < first_) return;
  const auto count = static_cast<size_t>(std::min<uint64_t>(number - first_ + 1, sent_));
  messages_.erase(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(count));
  first_ += count;
  sent_ -= count;
}

absl::Status WorkerOutbox::Resume(uint64_t number) {
  const uint64_t last = first_ + messages_.size() - held_.count() - 1;
  if (number + 1 < first_ || number > last) {
    return absl::DataLossError(StrCat("join: the worker has taken messages up to ", number, "; those from ", first_,
                                      " to ", last, " are here"));
  }
  sent_ = messages_.size() - held_.count();
  Taken(number);
  Disconnected();
  return absl::OkStatus();
}

}  // namespace tessera
