#include "schemas/codec/linger.h"

#include <sched.h>

#include <chrono>

namespace tessera {
namespace {

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

void Linger::Begin(int64_t linger_ns) {
  const int64_t now_ns = NowNs();
  end_ns_ = now_ns < busy_until_ns_ ? now_ns : now_ns + linger_ns;
}

bool Linger::Yield() {
  const int64_t before_ns = NowNs();
  if (before_ns >= end_ns_) return false;
  sched_yield();
  const int64_t after_ns = NowNs();
  if (after_ns - before_ns > kLateYieldNs) {
    busy_until_ns_ = after_ns + kNoLingerNs;
    end_ns_ = after_ns;
  }
  return true;
}

}  // namespace tessera
