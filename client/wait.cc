#include "client/wait.h"

#include <atomic>

namespace tessera {
namespace {

std::atomic<WaitObserver*> observer{nullptr};

}  // namespace

void SetWaitObserver(WaitObserver* value) { observer.store(value); }

WaitObserver& CurrentWaitObserver() {
  static WaitObserver none;
  WaitObserver* current = observer.load();
  return current == nullptr ? none : *current;
}

absl::Status WorkPoll::Poll() {
  const auto now = std::chrono::steady_clock::now();
  if (now - asked_ < std::chrono::milliseconds(kWaitPollMs)) return absl::OkStatus();
  asked_ = now;
  return CurrentWaitObserver().Poll();
}

}  // namespace tessera
