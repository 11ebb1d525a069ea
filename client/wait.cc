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

}  // namespace tessera
