#include "client/ending_processes.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "schemas/host/process_end.h"

namespace tessera {
namespace {

std::chrono::steady_clock::time_point Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

pid_t StartSleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    while (true) pause();
  }
  return pid;
}

TEST(EndingProcesses, AProcessRunsUntilItIsKilled) {
  const pid_t pid = StartSleeper();
  EXPECT_FALSE(RunsNoMore(pid));
  kill(pid, SIGKILL);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(RunsNoMore(pid));
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_TRUE(RunsNoMore(pid));
}

TEST(EndingProcesses, OneThreadTakesTheStatusOfAll) {
  const pid_t first = StartSleeper(), second = StartSleeper();
  ReapInBackground(first);
  kill(first, SIGKILL);
  EXPECT_TRUE(AwaitReaped(Soon()));
  ReapInBackground(second);
  EXPECT_FALSE(AwaitReaped(std::chrono::steady_clock::now())) << "it still runs";
  kill(second, SIGKILL);
  EXPECT_TRUE(AwaitReaped(Soon()));
  EXPECT_EQ(waitpid(first, nullptr, WNOHANG), -1);
  EXPECT_EQ(waitpid(second, nullptr, WNOHANG), -1);
}

TEST(EndingProcesses, WhatIsForkedWaitsForNoneOfItsParents) {
  const pid_t child = StartSleeper();
  ReapInBackground(child);
  const pid_t fork_of_us = fork();
  if (fork_of_us == 0) _exit(AwaitReaped(Soon()) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(fork_of_us, &status, 0), fork_of_us);
  EXPECT_EQ(status, 0);
  kill(child, SIGKILL);
  EXPECT_TRUE(AwaitReaped(Soon()));
}

}  // namespace
}  // namespace tessera
