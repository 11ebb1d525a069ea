#include "server/worker/rpc/report_outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

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

void ReportOutbox::Add(CompletionReport report) {
  const std::lock_guard lock(mutex_);
  completions_.push_back(std::move(report));
  Wake();
}

void ReportOutbox::Add(TransferReport report) {
  const std::lock_guard lock(mutex_);
  transfers_.push_back(std::move(report));
  Wake();
}

std::pair<std::vector<CompletionReport>, std::vector<TransferReport>> ReportOutbox::Take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  const ssize_t size = read(event_fd_, &count, sizeof(count));
  TESSERA_CHECK(size == sizeof(count) || !awake_);
  awake_ = false;
  return {std::exchange(completions_, {}), std::exchange(transfers_, {})};
}

}  // namespace tessera
