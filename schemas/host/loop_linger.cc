#include "schemas/host/loop_linger.h"

namespace tessera {

void LoopLinger::Begin() {
  linger_.Arrived();
  linger_.Begin();
  if (lingers_) return;
  lingers_ = true;
  turns_ = Turn().eagerlyEvaluate(nullptr);
}

// Comes to its turn when nothing else has something to do.
kj::Promise<void> LoopLinger::Turn() {
  return kj::evalLast([this]() -> kj::Promise<void> {
    lingers_ = linger_.Yield();
    // Another thread's wake is for the loop itself, which looks for it before it sleeps.
    if (port_.poll()) {
      port_.wake();
      lingers_ = false;
    }
    if (!lingers_) return kj::READY_NOW;
    return Turn();
  });
}

}  // namespace tessera
