#include "server/worker/attached_memory.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace tessera {
namespace {

int TakeAll(AttachedMemory::Share& share, int64_t bytes) {
  int taken = 0;
  while (share.Take(bytes).ok()) ++taken;
  return taken;
}

TEST(AttachedMemory, OneConnectionGetsAHalfAndTheNextStillGetsSome) {
  AttachedMemory attached({.count = 100, .bytes = 1 << 30});
  AttachedMemory::Share greedy(attached), other(attached), third(attached);
  EXPECT_EQ(TakeAll(greedy, 1), 50);
  EXPECT_EQ(TakeAll(other, 1), 25);
  EXPECT_EQ(TakeAll(third, 1), 13);
  const absl::Status status = greedy.Take(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_attached"), absl::string_view::npos) << status;
}

TEST(AttachedMemory, BytesAreSharedOutLikewise) {
  AttachedMemory attached({.count = 100, .bytes = 1000});
  AttachedMemory::Share greedy(attached), other(attached);
  EXPECT_EQ(TakeAll(greedy, 100), 5);
  EXPECT_TRUE(other.Take(200).ok());
  const absl::Status status = other.Take(200);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_attached_bytes"), absl::string_view::npos) << status;
}

TEST(AttachedMemory, WhatIsGivenBackIsThereAgain) {
  AttachedMemory attached({.count = 10, .bytes = 1000});
  AttachedMemory::Share share(attached);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(TakeAll(share, 10), 5);
    for (int i = 0; i < 5; ++i) share.Give(10);
  }
  EXPECT_GT(AttachedMemory::HostLimits().count, 1000);
  EXPECT_GT(AttachedMemory::HostLimits().bytes, int64_t{1} << 30);
}

}  // namespace
}  // namespace tessera
