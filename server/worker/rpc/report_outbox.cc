#include "server/worker/rpc/report_outbox.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "schemas/types/status_macros.h"

namespace tessera {

ReportOutbox::ReportOutbox()
    : due_fd_(epoll_create1(EPOLL_CLOEXEC)),
      now_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  for (const int fd : {now_fd_, timer_fd_}) {
    epoll_event readable{};
    readable.events = EPOLLIN;
    TESSERA_CHECK(epoll_ctl(due_fd_, EPOLL_CTL_ADD, fd, &readable) == 0);
  }
}

ReportOutbox::~ReportOutbox() {
  for (const int fd : {due_fd_, now_fd_, timer_fd_}) close(fd);
}

ReportOutbox::Alarm ReportOutbox::Raise(Alarm alarm) {
  if (alarm <= alarm_) return Alarm::kNone;
  alarm_ = alarm;
  return alarm;
}

// Without the mutex, which the one who is woken takes. An alarm that comes too late finds nothing.
void ReportOutbox::SetOff(Alarm alarm) {
  if (alarm == Alarm::kNow) TESSERA_CHECK(eventfd_write(now_fd_, 1) == 0);
  if (alarm == Alarm::kSoon) {
    itimerspec when{};
    when.it_value.tv_nsec = kReportDelayNs;
    TESSERA_CHECK(timerfd_settime(timer_fd_, 0, &when, nullptr) == 0);
  }
}

void ReportOutbox::SetPassAtOnce(PassAtOnce pass) {
  const std::lock_guard passing(passing_mutex_);
  pass_at_once_ = std::move(pass);
}

void ReportOutbox::Add(CompletionReport& report, Urgency urgency) {
  std::unique_lock passing(passing_mutex_, std::defer_lock);
  const bool may_pass = urgency == Urgency::kNow && passing.try_lock() && pass_at_once_;
  Alarm raised;
  {
    const std::lock_guard lock(mutex_);
    if (added_.completion_count_ == added_.completions_.size()) added_.completions_.emplace_back();
    std::swap(added_.completions_[added_.completion_count_++], report);
    if (may_pass && pass_at_once_(added_)) return added_.clear();  // an alarm that was set off for it finds nothing
    raised = Raise(urgency == Urgency::kNow ? Alarm::kNow : Alarm::kSoon);
  }
  SetOff(raised);
}

void ReportOutbox::Add(TransferReport report) {
  Alarm raised;
  {
    const std::lock_guard lock(mutex_);
    added_.transfers_.push_back(std::move(report));
    raised = Raise(Alarm::kNow);
  }
  SetOff(raised);
}

bool ReportOutbox::TakeIfDue() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  const bool is_now = read(now_fd_, &count, sizeof(count)) > 0;
  const bool has_expired = read(timer_fd_, &count, sizeof(count)) > 0;
  if (!is_now && !has_expired) return false;
  alarm_ = Alarm::kNone;
  std::swap(passed_, added_);
  return !passed_.empty();
}

bool ReportOutbox::Pass(absl::FunctionRef<void(const ReportBatch&)> pass) {
  const std::lock_guard passing(passing_mutex_);
  if (!TakeIfDue()) return false;
  pass(passed_);
  passed_.clear();
  return true;
}

}  // namespace tessera
