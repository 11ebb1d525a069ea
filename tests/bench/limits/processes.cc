#include "tests/bench/limits/processes.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace tessera::bench {
namespace {

constexpr int kMaxProcesses = 64;
constexpr int kWarmUps = 2;

struct alignas(64) Times {
  double start = 0;
  double end = 0;
};

struct Shared {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> round{0};
  Times times[kMaxProcesses];
};

class Member : public Team {
 public:
  Member(Shared& shared, int self, int size) : shared_(shared), self_(self), size_(size) {}
  int self() const override { return self_; }
  int size() const override { return size_; }

  void Meet() override {
    const int round = shared_.round.load();
    if (shared_.arrived.fetch_add(1) + 1 == size_) {
      shared_.arrived.store(0);
      shared_.round.fetch_add(1);
      return;
    }
    // With more processes than cores a yield is what lets the others arrive.
    for (int spins = 0; shared_.round.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < 200) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  Shared& shared_;
  const int self_;
  const int size_;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<double> RunMember(const Job& job, Shared& shared, int self) {
  Member team(shared, self, job.processes);
  if (job.prepare) job.prepare(team);
  std::vector<double> seconds;
  for (int r = 0; r < kWarmUps + job.repetitions; ++r) {
    team.Meet();
    shared.times[self].start = Now();
    job.run(team);
    shared.times[self].end = Now();
    team.Meet();
    double start = shared.times[0].start, end = shared.times[0].end;
    for (int p = 1; p < job.processes; ++p) {
      start = std::min(start, shared.times[p].start);
      end = std::max(end, shared.times[p].end);
    }
    if (r >= kWarmUps) seconds.push_back(end - start);
    team.Meet();
  }
  return seconds;
}

}  // namespace

std::byte* SharedBytes(size_t bytes) {
  void* base = mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  std::memset(base, 0, bytes);
  return static_cast<std::byte*>(base);
}

std::vector<double> MeasureSeconds(const Job& job) {
  CheckValues(job.processes >= 1 && job.processes <= kMaxProcesses, "the number of processes");
  Shared* shared = new (SharedBytes(sizeof(Shared))) Shared();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int self = 1; self < job.processes; ++self) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      std::exit(1);
    }
    if (child == 0) {
      RunMember(job, *shared, self);
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<double> seconds = RunMember(job, *shared, 0);
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CheckValues(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the end of a child");
  }
  munmap(shared, sizeof(Shared));
  return seconds;
}

void CheckValues(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "limits_bench: wrong: %s\n", what);
  std::exit(1);
}

}  // namespace tessera::bench
