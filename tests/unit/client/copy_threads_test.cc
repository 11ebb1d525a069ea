// Copies that threads share: each part once, also beside other callers and in a forked process, and boxes of any
// layout.

#include "client/copy_threads.h"

#include <sys/wait.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <latch>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

TEST(CopyThreads, EachPartIsCopiedOnce) {
  for (const int threads : {1, 2, 5}) {
    CopyThreads copies(threads);
    for (const int parts : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> times(static_cast<size_t>(parts));
      for (int round = 1; round <= 20; ++round) {
        copies.Share(parts, [&](int part) { ++times[static_cast<size_t>(part)]; });
        for (const std::atomic<int>& time : times)
          ASSERT_EQ(time, round) << threads << " threads, " << parts << " parts";
      }
    }
  }
}

// A part that waits for another one has it from another thread.
TEST(CopyThreads, PartsAreUnderWayAtOnce) {
  constexpr int kThreads = 4;
  CopyThreads copies(kThreads);
  std::latch all(kThreads);
  copies.Share(kThreads, [&](int) { all.arrive_and_wait(); });
}

// A copy of two parts by two threads, which is under way until this is destroyed.
class HeldCopy {
 public:
  explicit HeldCopy(CopyThreads& copies)
      : caller_([&] {
          copies.Share(2, [&](int) {
            begun_.count_down();
            may_end_.wait();
          });
        }) {
    begun_.wait();
  }
  ~HeldCopy() {
    may_end_.count_down();
    caller_.join();
  }

 private:
  std::latch begun_{2}, may_end_{1};
  std::thread caller_;
};

TEST(CopyThreads, ACallerBesideAnotherOneCopiesAlone) {
  CopyThreads copies(2);
  const HeldCopy held(copies);
  std::set<std::thread::id> by;
  copies.Share(100, [&](int) { by.insert(std::this_thread::get_id()); });
  EXPECT_EQ(by, std::set{std::this_thread::get_id()});
}

TEST(CopyThreads, AForkedProcessCopiesAlone) {
  CopyThreads copies(3);
  const HeldCopy held(copies);
  const pid_t child = fork();
  if (child == 0) {
    int parts = 0;
    copies.Share(10, [&](int) { ++parts; });
    _exit(parts == 10 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(CopyThreads, AsManyAsTheSettingSays) {
  const auto threads_by = [](const char* setting) {
    setenv("TESSERA_COPY_THREADS", setting, 1);
    return CopyThreads::ThreadsOfProcess();
  };
  EXPECT_EQ(threads_by("3"), 3);
  EXPECT_EQ(threads_by("0"), 1);
  EXPECT_EQ(threads_by("99"), kMaxCopyThreads);
  unsetenv("TESSERA_COPY_THREADS");
  EXPECT_LE(CopyThreads::ThreadsOfProcess(), kMaxCopyThreads);
}

TEST(CopyThreads, BoxesOfAnyLayout) {
  CopyThreads copies(3);
  constexpr int64_t kRows = 31, kColumns = 6007, kPlanes = 3;
  std::vector<int32_t> numbers(static_cast<size_t>(kPlanes * kRows * kColumns));
  std::iota(numbers.begin(), numbers.end(), 7);
  const HostView dense = MakeHostView(DType::kI32, {kPlanes, kRows, kColumns}, numbers.data());
  HostView turned = dense;
  turned.shape = {kColumns, kRows, kPlanes};
  std::swap(turned.strides_bytes[0], turned.strides_bytes[2]);
  const std::vector<std::pair<HostView, Box>> cases = {
      {dense, WholeBox(dense.shape)},
      {dense, {{1, 2}, {3, 29}, {0, kColumns}}},
      {dense, {{2, 3}, {4, 5}, {0, kColumns}}},
      {dense, {{0, 3}, {1, 31}, {5, 6001}}},
      {dense, {{0, 3}, {1, 1}, {5, 6001}}},
      {turned, WholeBox(turned.shape)},
      {turned, {{6000, 6001}, {0, 31}, {1, 3}}},
  };
  for (const auto& [view, box] : cases) {
    std::vector<int32_t> one(static_cast<size_t>(NumElements(box))), shared(one.size());
    CopyBoxTo(view, box, reinterpret_cast<char*>(one.data()));
    CopyBoxShared(view, box, reinterpret_cast<char*>(shared.data()), copies);
    EXPECT_EQ(shared, one) << ToText(view.shape) << " " << ToText(box);
  }
}

TEST(CopyThreads, BytesThatBeginAndEndAnywhere) {
  CopyThreads copies(3);
  std::vector<char> from(1 << 20), to(from.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 31 % 127 + 1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{500'001}, from.size() - 8}) {
    for (const size_t first : {0, 1, 7}) {
      std::fill(to.begin(), to.end(), 0);
      CopyShared(to.data() + first, from.data() + 5, static_cast<int64_t>(bytes), copies);
      EXPECT_TRUE(std::equal(to.begin() + first, to.begin() + first + bytes, from.begin() + 5));
      EXPECT_EQ(std::count(to.begin(), to.end(), 0), static_cast<int64_t>(to.size() - bytes));
    }
  }
}

}  // namespace
}  // namespace tessera
