#include "server/worker/page_toucher.h"

#include <sys/resource.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "server/transport/transport.h"

namespace tessera::testing {
namespace {

int64_t FaultsOfThisThread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

// A sanitizer's own memory would fault too.
__attribute__((no_sanitize("address"))) int64_t FaultsOfWritingEveryPage(const SharedArena& arena) {
  const int64_t before = FaultsOfThisThread();
  for (int64_t at = 0; at < arena.bytes(); at += 4096) arena.memory()[at] = std::byte{1};
  return FaultsOfThisThread() - before;
}

TEST(PageToucher, WhatItTouchedFaultsNoMore) {
  constexpr int64_t kBytes = 32 << 20;
  auto arena = SharedArena::Create(kBytes);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto mapped = SharedArena::Map(dup(arena->fd()));
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  {
    PageToucher pages;
    pages.Add(arena->memory(), arena->bytes());
    pages.Drain();
  }
  EXPECT_LT(FaultsOfWritingEveryPage(*arena), 100);
  // A second mapping has page tables of its own.
  EXPECT_GT(FaultsOfWritingEveryPage(*mapped), 100);
}

TEST(PageToucher, EndsWithWorkLeft) {
  auto arena = SharedArena::Create(64 << 20);
  ASSERT_TRUE(arena.ok()) << arena.status();
  PageToucher pages;
  pages.Add(arena->memory(), arena->bytes());
}

TEST(PageToucher, AMappingThatIsGoneEndsNothing) {
  PageToucher pages;
  {
    auto arena = SharedArena::Create(8 << 20);
    ASSERT_TRUE(arena.ok()) << arena.status();
    pages.Add(arena->memory(), 0);
  }
  pages.Drain();
}

}  // namespace
}  // namespace tessera::testing
