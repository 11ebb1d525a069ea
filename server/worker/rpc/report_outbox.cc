#include "server/worker/rpc/report_outbox.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "schemas/types/status_macros.h"

namespace tessera {

ReportOutbox::ReportOutbox() : event_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  TESSERA_CHECK(event_fd_ >= 0);
}

ReportOutbox::~ReportOutbox() { close(event_fd_); }

void ReportOutbox::Wake(Alarm alarm) {  // mutex_ is held
  if (alarm <= alarm_) return;
  alarm_ = alarm;
  itimerspec when{};
  when.it_value.tv_nsec = alarm == Alarm::kNow ? 1 : kReportDelayNs;
  TESSERA_CHECK(timerfd_settime(event_fd_, 0, &when, nullptr) == 0);
}

void ReportOutbox::Add(CompletionReport& report, Urgency urgency) {
  const std::lock_guard lock(mutex_);
  if (added_.completion_count_ == added_.completions_.size()) added_.completions_.emplace_back();
  std::swap(added_.completions_[added_.completion_count_++], report);
  Wake(urgency == Urgency::kNow ? Alarm::kNow : Alarm::kSoon);
}

void ReportOutbox::Add(TransferReport report) {
  const std::lock_guard lock(mutex_);
  added_.transfers_.push_back(std::move(report));
  Wake(Alarm::kNow);
}

void ReportOutbox::Take(ReportBatch& batch) {
  batch.completion_count_ = 0;
  batch.transfers_.clear();
  const std::lock_guard lock(mutex_);
  uint64_t expirations = 0;
  if (read(event_fd_, &expirations, sizeof(expirations)) < 0) return;  // nothing is due
  alarm_ = Alarm::kNone;
  std::swap(batch, added_);
}

}  // namespace tessera
