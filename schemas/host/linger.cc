#include "schemas/host/linger.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace tessera {
namespace {

constexpr int kForgiven = 64;
constexpr int64_t kAtOnceNs = 200'000;  // between a late yield and the handling of what was there by then

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// The kernel moves a thread that may not be where it is, and leaves it there when it may.
void GoTo(int core) {
  cpu_set_t before, there;
  if (sched_getaffinity(0, sizeof(before), &before) != 0 || !CPU_ISSET(core, &before)) return;
  CPU_ZERO(&there);
  CPU_SET(core, &there);
  if (sched_setaffinity(0, sizeof(there), &there) == 0) sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace

int HomeCore(int slot) {
  cpu_set_t cores;
  if (slot < 0 || sched_getaffinity(0, sizeof(cores), &cores) != 0 || CPU_COUNT(&cores) == 0) return kNoHome;
  int left = slot % CPU_COUNT(&cores);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &cores) && left-- == 0) return core;
  }
  return kNoHome;
}

void Linger::Begin(int64_t linger_ns) {
  if (home_core_ != kNoHome && sched_getcpu() != home_core_) GoTo(home_core_);
  const int64_t now_ns = NowNs();
  const bool is_busy = now_ns < busy_until_ns_;
  end_ns_ = is_busy ? now_ns : now_ns + linger_ns;
  if (!is_busy && ++went_well_ == kForgiven) no_linger_ns_ = kNoLingerNs;
}

bool Linger::Yield() {
  const int64_t before_ns = NowNs();
  if (before_ns >= end_ns_) return false;
  sched_yield();
  const int64_t after_ns = NowNs();
  if (after_ns - before_ns > kLateYieldNs) end_ns_ = late_ns_ = after_ns;
  return true;
}

void Linger::Arrived() {
  if (late_ns_ == 0) return;
  const int64_t now_ns = NowNs();
  if (now_ns - late_ns_ < kAtOnceNs) {
    busy_until_ns_ = now_ns + no_linger_ns_;
    no_linger_ns_ = std::min(4 * no_linger_ns_, kMaxNoLingerNs);
    went_well_ = 0;
  }
  late_ns_ = 0;
}

}  // namespace tessera
