#include "tests/bench/two_processes.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tessera::bench {
namespace {

// Meets the other process: spins, yielding, so that two processes on one core go on too.
class Barrier {
 public:
  void Wait() {
    const int round = round_.load();
    if (arrived_.fetch_add(1) == 1) {
      arrived_.store(0);
      round_.fetch_add(1);
      return;
    }
    while (round_.load() == round) sched_yield();
  }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<int> round_{0};
};

void PinTo(int core) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int c = 0, seen = 0; c < CPU_SETSIZE; ++c) {
    if (!CPU_ISSET(c, &allowed)) continue;
    if (seen++ == core) {
      CPU_SET(c, &one);
      sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  }
}

}  // namespace

std::byte* SharedBytes(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  std::memset(base, 0, bytes);
  return static_cast<std::byte*>(base);
}

std::vector<double> MeasureSeconds(int repetitions, const std::function<void(int)>& prepare,
                                   const std::function<void(int)>& half) {
  Barrier* barrier = new (SharedBytes(sizeof(Barrier))) Barrier();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    std::exit(1);
  }
  const int self = child == 0 ? 1 : 0;
  PinTo(self);
  prepare(self);
  std::vector<double> seconds;
  for (int r = 0; r <= repetitions; ++r) {
    barrier->Wait();
    const auto start = std::chrono::steady_clock::now();
    half(self);
    barrier->Wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (r > 0) seconds.push_back(took.count());
  }
  if (child == 0) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::fprintf(stderr, "the second process failed\n");
    std::exit(1);
  }
  return seconds;
}

}  // namespace tessera::bench
