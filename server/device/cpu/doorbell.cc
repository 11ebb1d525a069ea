#include "server/device/cpu/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

void FutexWait(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Ring(LaneBell& bell) {
  bell.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleeping.load(std::memory_order_seq_cst) != 0) FutexWakeAll(bell.doorbell);
}

void RingWatchers(CounterPage& page) {
  for (LaneBell& bell : page.bells) {
    if (bell.watching.load(std::memory_order_seq_cst) == 0) continue;
    bell.doorbell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(bell.doorbell);
  }
}

void SpinPause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace tessera
