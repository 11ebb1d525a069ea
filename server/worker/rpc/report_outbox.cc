#include "server/worker/rpc/report_outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "schemas/types/status_macros.h"

namespace tessera {

ReportOutbox::ReportOutbox() : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { TESSERA_CHECK(event_fd_ >= 0); }

ReportOutbox::~ReportOutbox() { close(event_fd_); }

void ReportOutbox::Wake() {  // mutex_ is held
  if (awake_) return;
  awake_ = true;
  const uint64_t one = 1;
  TESSERA_CHECK(write(event_fd_, &one, sizeof(one)) == sizeof(one));
}

void ReportOutbox::Add(CompletionReport& report) {
  const std::lock_guard lock(mutex_);
  if (added_.completion_count_ == added_.completions_.size()) added_.completions_.emplace_back();
  std::swap(added_.completions_[added_.completion_count_++], report);
  Wake();
}

void ReportOutbox::Add(TransferReport report) {
  const std::lock_guard lock(mutex_);
  added_.transfers_.push_back(std::move(report));
  Wake();
}

void ReportOutbox::Take(ReportBatch& batch) {
  batch.completion_count_ = 0;
  batch.transfers_.clear();
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  const ssize_t size = read(event_fd_, &count, sizeof(count));
  TESSERA_CHECK(size == sizeof(count) || !awake_);
  awake_ = false;
  std::swap(batch, added_);
}

}  // namespace tessera
