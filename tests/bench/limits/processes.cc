#include "tests/bench/limits/processes.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
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

// Until the parent has gone. All have met when the answer is sent, so a part is not begun while another one is done.
void RunAskedMember(const Job& job, Shared& shared, int self, int socket) {
  Member team(shared, self, job.processes);
  if (job.prepare) job.prepare(team);
  char byte = 0;
  while (read(socket, &byte, 1) == 1) {
    job.run(team);
    team.Meet();
    CheckValues(write(socket, &byte, 1) == 1, "an answer");
  }
}

// All of them at once; returns when all have answered.
void Ask(const std::vector<int>& sockets) {
  char byte = 0;
  for (const int socket : sockets) CheckValues(write(socket, &byte, 1) == 1, "a question");
  for (const int socket : sockets) CheckValues(read(socket, &byte, 1) == 1, "the answer to a question");
}

void WaitFor(const std::vector<pid_t>& children) {
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CheckValues(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the end of a child");
  }
}

pid_t Fork() {
  const pid_t child = fork();
  if (child >= 0) return child;
  std::perror("fork");
  std::exit(1);
}

// A child with a socket to this process, whose end is added to `sockets`: it has none of the others.
void ForkAsked(std::vector<int>& sockets, std::vector<pid_t>& children, const std::function<void(int)>& run) {
  int ends[2];
  CheckValues(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "a pair of sockets");
  const pid_t child = Fork();
  if (child == 0) {
    for (const int other : sockets) close(other);
    close(ends[0]);
    run(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  sockets.push_back(ends[0]);
  children.push_back(child);
}

void EndAsked(const std::vector<int>& sockets, const std::vector<pid_t>& children) {
  for (const int socket : sockets) close(socket);
  WaitFor(children);
}

void ForkMembers(const Job& job, Shared& shared, std::vector<int>& sockets, std::vector<pid_t>& children) {
  for (int self = 0; self < job.processes; ++self) {
    ForkAsked(sockets, children, [&, self](int socket) { RunAskedMember(job, shared, self, socket); });
  }
}

// Asks the members whenever it is asked, until the parent has gone.
void RunAskingOne(const Job& job, Shared& shared, int socket) {
  std::vector<int> sockets;
  std::vector<pid_t> children;
  ForkMembers(job, shared, sockets, children);
  char byte = 0;
  while (read(socket, &byte, 1) == 1) {
    Ask(sockets);
    CheckValues(write(socket, &byte, 1) == 1, "an answer");
  }
  EndAsked(sockets, children);
}

std::vector<double> MeasureAsked(const Job& job, Shared& shared) {
  std::vector<int> sockets;
  std::vector<pid_t> children;
  if (job.asked == Asked::kDirectly) {
    ForkMembers(job, shared, sockets, children);
  } else {
    ForkAsked(sockets, children, [&](int socket) { RunAskingOne(job, shared, socket); });
  }
  std::vector<double> seconds;
  for (int r = 0; r < kWarmUps + job.repetitions; ++r) {
    const double start = Now();
    Ask(sockets);
    if (r >= kWarmUps) seconds.push_back(Now() - start);
  }
  EndAsked(sockets, children);
  return seconds;
}

std::vector<double> MeasureTogether(const Job& job, Shared& shared) {
  std::vector<pid_t> children;
  for (int self = 1; self < job.processes; ++self) {
    const pid_t child = Fork();
    if (child == 0) {
      RunMember(job, shared, self);
      _exit(0);
    }
    children.push_back(child);
  }
  std::vector<double> seconds = RunMember(job, shared, 0);
  WaitFor(children);
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
  std::vector<double> seconds = job.asked == Asked::kNever ? MeasureTogether(job, *shared) : MeasureAsked(job, *shared);
  munmap(shared, sizeof(Shared));
  return seconds;
}

void CheckValues(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "limits_bench: wrong: %s\n", what);
  std::exit(1);
}

}  // namespace tessera::bench
