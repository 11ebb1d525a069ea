#include "server/worker/page_toucher.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

#include "server/device/shared_arena.h"

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

#ifdef TESSERA_SANITIZED
constexpr bool kShadowFaults = true;
#else
constexpr bool kShadowFaults = false;
#endif

std::shared_ptr<SharedArena> MakeArena(int64_t bytes) {
  auto arena = SharedArena::Create(bytes);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return std::make_shared<SharedArena>(*std::move(arena));
}

TEST(PageToucher, WhatItTouchedFaultsNoMore) {
  if (kShadowFaults) GTEST_SKIP() << "a sanitizer's shadow of the arena faults, too";
  constexpr int64_t kBytes = 32 << 20;
  const auto arena = MakeArena(kBytes);
  auto mapped = SharedArena::Map(arena->CopyDescriptors());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  {
    PageToucher pages;
    pages.Add(arena);
    pages.Drain();
  }
  EXPECT_LT(FaultsOfWritingEveryPage(*arena), 100);
  // A second mapping has page tables of its own.
  EXPECT_GT(FaultsOfWritingEveryPage(*mapped), 100);
}

TEST(PageToucher, ManyWorkersOfAHostTouchSlowly) {
  EXPECT_EQ(PageToucher::PauseAmong(0, 2), std::chrono::microseconds(250));
  EXPECT_EQ(PageToucher::PauseAmong(4, 2), std::chrono::microseconds(250));
  EXPECT_EQ(PageToucher::PauseAmong(64, 2), std::chrono::microseconds(4000));
  EXPECT_EQ(PageToucher::PauseAmong(64, 64), std::chrono::microseconds(250));
}

int64_t ReservedBytes(const SharedArena& arena) {
  struct stat info = {};
  EXPECT_EQ(fstat(arena.CopyDescriptors().memory.get(), &info), 0);
  return static_cast<int64_t>(info.st_blocks) * 512;
}

TEST(PageToucher, AnArenaBeginsWithoutPagesAndGetsThemAll) {
  const auto arena = MakeArena(40 << 20);  // the last piece is a shorter one
  EXPECT_LT(ReservedBytes(*arena), 1 << 20);
  PageToucher pages([](const absl::Status& why) { ADD_FAILURE() << why; });
  pages.Reserve(arena);
  pages.Drain();
  EXPECT_EQ(ReservedBytes(*arena), arena->bytes());
}

TEST(PageToucher, WhatCantBeReservedIsSaid) {
  const auto arena = MakeArena(1 << 20);
  auto mapped = SharedArena::Map(arena->CopyDescriptors());  // a peer has no descriptor that it could reserve by
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const auto peer = std::make_shared<SharedArena>(*std::move(mapped));
  absl::Status said;
  {
    PageToucher pages([&](const absl::Status& why) { said = why; });
    pages.Reserve(peer);
    pages.Drain();
  }
  EXPECT_FALSE(said.ok());
}

TEST(PageToucher, EndsWithWorkLeft) {
  const auto arena = MakeArena(64 << 20);
  PageToucher pages;
  pages.Add(arena);
}

TEST(PageToucher, AnArenaThatIsGoneEndsNothingAndCountsNoMore) {
  if (kShadowFaults) GTEST_SKIP() << "a sanitizer's shadow of the arena faults, too";
  constexpr int64_t kBytes = 8 << 20;
  PageToucher pages(nullptr, kBytes);
  pages.Add(MakeArena(kBytes));
  const auto another = MakeArena(kBytes);
  pages.Add(another);
  pages.Drain();
  EXPECT_LT(FaultsOfWritingEveryPage(*another), 100);
  // No more than that at a time.
  const auto beyond = MakeArena(kBytes);
  pages.Add(beyond);
  pages.Drain();
  EXPECT_GT(FaultsOfWritingEveryPage(*beyond), 100);
}

}  // namespace
}  // namespace tessera::testing
