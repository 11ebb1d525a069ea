// How long a loop stays awake, and what it hears meanwhile.

#include "schemas/host/linger.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "schemas/host/loop_linger.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

int64_t NsSince(Clock::time_point start) { return (Clock::now() - start).count(); }

TEST(Linger, EndsByItself) {
  Linger linger;
  EXPECT_FALSE(linger.Yield());  // not begun
  const Clock::time_point start = Clock::now();
  linger.Begin(2'000'000);
  while (linger.Yield()) {
  }
  // Over in time, or because somebody else took the core.
  EXPECT_LT(NsSince(start), 1'000'000'000);
  linger.Begin(0);
  EXPECT_FALSE(linger.Yield());
}

// On one core the other thread runs only when this one gives the core away.
TEST(Linger, SeesWhatAnotherThreadDoes) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(HomeCore(0), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // and of the thread that it starts
  constexpr int kTurns = 1000;
  std::atomic<int> turn{0};
  std::thread other([&turn] {
    for (int i = 0; i < kTurns; ++i) {
      while (turn.load() != 2 * i + 1) std::this_thread::yield();
      turn = 2 * i + 2;
    }
  });
  Linger linger;
  int seen = 0;
  int missed = 0;  // lingered to the end, always back in time, and saw nothing
  for (int i = 0; i < kTurns; ++i) {
    turn = 2 * i + 1;
    linger.Begin();
    bool lingers = true;
    bool is_late = false;
    bool has_lingered = false;
    while (turn.load() != 2 * i + 2 && lingers) {
      const Clock::time_point yielded = Clock::now();
      lingers = linger.Yield();
      has_lingered = has_lingered || lingers;
      is_late = is_late || NsSince(yielded) > kLateYieldNs;
    }
    if (turn.load() == 2 * i + 2) {
      linger.Arrived();
      ++seen;
    } else if (has_lingered && !is_late) {
      ++missed;
    }
    while (turn.load() != 2 * i + 2) std::this_thread::yield();
  }
  other.join();
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_GT(seen, 0);
  EXPECT_LT(missed, kTurns / 10);
}

// Beside a thread that never gives the core away, a yield costs a time slice: few are tried.
TEST(Linger, DoesNotCompeteWithWork) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(HomeCore(0), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // and of the thread that it starts
  std::atomic<bool> stop{false};
  std::thread worker([&stop] {
    while (!stop) {
    }
  });
  Linger linger;
  int late = 0;
  const Clock::time_point start = Clock::now();
  while (NsSince(start) < 400'000'000) {
    linger.Begin();
    for (bool goes_on = true; goes_on;) {
      const Clock::time_point yielded = Clock::now();
      goes_on = linger.Yield();
      if (!goes_on || NsSince(yielded) <= kLateYieldNs) continue;
      ++late;
      if (late == 1) {
        // Nothing came meanwhile: no harm was done.
        linger.Begin();
        EXPECT_TRUE(linger.Yield());
      }
      linger.Arrived();
    }
  }
  stop = true;
  worker.join();
  EXPECT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_LT(late, 30);  // after 5, 20, 80 ms, then every 200; some 100 if it went on
}

TEST(Linger, GoesHome) {
  const int home = HomeCore(1);
  ASSERT_NE(home, kNoHome);
  Linger linger(home);
  linger.Begin();
  EXPECT_EQ(sched_getcpu(), home);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_EQ(CPU_COUNT(&after), static_cast<int>(std::thread::hardware_concurrency()));  // it isn't bound
  EXPECT_EQ(HomeCore(-1), kNoHome);
}

struct Loop {
  kj::AsyncIoContext io = kj::setupAsyncIo();
  LoopLinger linger{io.unixEventPort};
};

TEST(LoopLinger, TimersAndDescriptorsAreHeardWhileItLingersAndAfter) {
  Loop loop;
  const kj::AutoCloseFd owned(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int fd = owned.get();
  kj::UnixEventPort::FdObserver observer(loop.io.unixEventPort, fd, kj::UnixEventPort::FdObserver::OBSERVE_READ);
  for (const int64_t delay_us : {0, 100, 5000}) {
    loop.linger.Begin();
    std::thread writer([fd, delay_us] {
      const Clock::time_point start = Clock::now();
      while (NsSince(start) < delay_us * 1000) std::this_thread::yield();
      eventfd_write(fd, 1);
    });
    observer.whenBecomesReadable().wait(loop.io.waitScope);
    eventfd_t value = 0;
    EXPECT_EQ(eventfd_read(fd, &value), 0);
    writer.join();
    loop.linger.Begin();
    loop.io.provider->getTimer().afterDelay(delay_us * kj::MICROSECONDS).wait(loop.io.waitScope);
  }
}

// A wake by another thread is taken by the event port's poll, which the lingering loop calls itself.
TEST(LoopLinger, AnotherThreadsPromisesAreNotLost) {
  Loop loop;
  for (int i = 0; i < 200; ++i) {
    auto pair = kj::newPromiseAndCrossThreadFulfiller<int>();
    loop.linger.Begin();
    std::thread other([i, &fulfiller = pair.fulfiller]() {
      const Clock::time_point start = Clock::now();
      while (NsSince(start) < (i % 20) * 10'000) std::this_thread::yield();
      fulfiller->fulfill(kj::cp(i));
    });
    EXPECT_EQ(pair.promise.wait(loop.io.waitScope), i);
    other.join();
  }
}

TEST(LoopLinger, WhatIsQueuedRunsFirst) {
  Loop loop;
  loop.linger.Begin();
  int turns = 0;
  for (int i = 0; i < 100; ++i) kj::evalLater([&turns]() { ++turns; }).wait(loop.io.waitScope);
  EXPECT_EQ(turns, 100);
}

}  // namespace
}  // namespace tessera
