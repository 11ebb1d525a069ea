// Lines about refusals: some of each reason in a second, and how many had none.

#include "schemas/link/refusals.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(RefusalLines, AreSomeOfEachReasonInASecond) {
  RefusalLines lines;
  int written = 0;
  for (int i = 0; i < 1000; ++i) {
    written += lines.Ask("nothing shown in " + std::to_string(i) + " ms (handshake_timeout)", 7).is_written ? 1 : 0;
  }
  EXPECT_EQ(written, kMaxRefusalLines);
  // Another reason has its own.
  EXPECT_TRUE(lines.Ask("connect: the token is wrong", 7).is_written);
  const RefusalLines::Verdict next = lines.Ask("nothing shown in 3 ms (handshake_timeout)", 8);
  EXPECT_TRUE(next.is_written);
  EXPECT_EQ(next.left_out, 1000u - kMaxRefusalLines);
  EXPECT_EQ(lines.Ask("nothing shown in 3 ms (handshake_timeout)", 8).left_out, 0u);
}

TEST(RefusalLines, ReasonsOfStrangersTakeNoMemory) {
  RefusalLines lines;
  int written = 0;
  for (int i = 0; i < 10'000; ++i) {
    const std::string word(1 + i % 100, static_cast<char>('a' + i / 100 % 26));
    written += lines.Ask(word, 1).is_written ? 1 : 0;
  }
  EXPECT_LE(written, kMaxRefusalLines * (static_cast<int>(kMaxRefusalReasons) + 1));
}

}  // namespace
}  // namespace tessera
