#include "client/rank_page/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "schemas/host/cores.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {
namespace {

constexpr int kLooks = 200;                     // before the first yield
constexpr int kMostLingering = 4;               // ranks a core, of a group that lingers
constexpr int64_t kStrangersLingerNs = 50'000;  // docs/limits.md: linger
constexpr int64_t kSliceNs = 50'000'000;        // of a sleep: a ring that is lost costs no more

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t value, int64_t ns) {
  const timespec timeout = {ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &timeout, nullptr, 0);
}

}  // namespace

int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Patience PatienceOf(int64_t ranks, bool has_strangers) {
  static const int cores = UsableCores();
  Patience patience;
  if (ranks <= cores) patience.looks = kLooks;
  // Among many ranks those that yield take turns, and the one that all wait for comes last.
  if (ranks <= kMostLingering * cores) patience.linger_ns = has_strangers ? kStrangersLingerNs : kLingerNs;
  return patience;
}

void AwaitBell(Bell bell, Patience patience, Linger& linger, absl::FunctionRef<bool()> done, int64_t until_ns) {
  for (int look = 0; look < patience.looks; ++look) {
    if (done()) return;
    Pause();
  }
  uint32_t rung = bell.rung.load(std::memory_order_seq_cst);
  if (patience.linger_ns > 0) {
    linger.Begin(patience.linger_ns);
    while (linger.Yield()) {
      if (!done()) continue;
      linger.Arrived();
      return;
    }
  }
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (;;) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const int64_t left_ns = until_ns - SteadyNs();
    if (done() || left_ns <= 0) break;
    FutexWait(bell.rung, rung, std::min(left_ns, kSliceNs));
    rung = bell.rung.load(std::memory_order_seq_cst);
  }
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void FenceBeforeBells() { std::atomic_thread_fence(std::memory_order_seq_cst); }

void RingIfAsleep(Bell bell) {
  FenceBeforeBells();
  RingIfSeenAsleep(bell);
}

void RingIfSeenAsleep(Bell bell) {
  if (bell.sleepers.load(std::memory_order_relaxed) != 0) Ring(bell.rung);
}

void Ring(std::atomic<uint32_t>& rung) {
  rung.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&rung), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace tessera
