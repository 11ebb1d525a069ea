#pragma once

// Pages of counters that lie alone in pages of the host, as a device wants them that registers them.

#include <sys/mman.h>

#include <memory>

#include "gtest/gtest.h"

#include "server/device/counters.h"

namespace tessera::testing {

inline std::shared_ptr<CounterPage> MakePage() {
  void* page = mmap(nullptr, kCounterPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return {new (page) CounterPage(), [](CounterPage* at) { munmap(at, kCounterPageBytes); }};
}

// A second mapping of the page, as a peer's process has it.
inline std::shared_ptr<CounterPage> MapAgain(const std::shared_ptr<CounterPage>& page) {
  void* again = mremap(page.get(), 0, kCounterPageBytes, MREMAP_MAYMOVE);
  EXPECT_NE(again, MAP_FAILED);
  return {static_cast<CounterPage*>(again), [page](CounterPage* at) { munmap(at, kCounterPageBytes); }};
}

}  // namespace tessera::testing
