#pragma once

// JobThreads: threads beside the event loop, which itself makes no call that can block. A job is cut into steps.
// Sessions take turns by the time that they have used: a job that has run for kJobSlice goes to the back of its
// session's queue, and the session that has used the least is next. A job whose caller is gone doesn't begin, or ends
// after its step.
//
// One thread works, usually. A thread whose step doesn't return within `patience`, as on a disk that sleeps or is away,
// is left behind, and another one goes on. Each lane has a limit of such threads, so that what hangs in one lane (a
// folder on a network disk) takes no thread of another's.
//
//   JobThreads files({.name = "files", .threads = 32, .threads_per_lane = 4}, nullptr);
//   auto step = [=](JobClock::time_point until) { ...; return JobStep::kDone; };
//   files.Run({.session = 7, .lane = 0, .what = "file x.npy", .step = step});
//
// Law: a step reads and writes only memory that outlives the job, not the promise: `ended` says when it has ended.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <kj/async.h>
#include <kj/timer.h>

#include "schemas/host/linger.h"

namespace tessera {

using JobClock = std::chrono::steady_clock;

// docs/limits.md: job_slice, file_patience, file_nice
inline constexpr std::chrono::milliseconds kJobSlice{4};
inline constexpr std::chrono::milliseconds kFilePatience{50};
inline constexpr int kFileNice = 10;

enum class JobStep : uint8_t { kMore, kDone };

struct Job {
  uint64_t session = 0;
  size_t lane = 0;
  std::string what;  // for the error of one that hangs: "file /data/x.npy"
  // Called on a thread until it is done, each time until about the given time. It may be dropped between two calls.
  std::function<JobStep(JobClock::time_point until)> step;
  // Called on the event loop when no step runs any more and none will, whether or not the promise was dropped.
  std::function<void()> ended = nullptr;
};

struct JobThreadsOptions {
  std::string name;  // of its threads, at most 12 characters
  size_t threads = 1;
  size_t threads_per_lane = 1;
  int nice = 0;  // added to that of the process
  std::chrono::milliseconds patience = kFilePatience;
  std::chrono::milliseconds limit{0};  // for a step, and for a wait behind one that hangs; 0: none
  std::string limit_name = {};         // as docs/limits.md has it
};

class JobThreads final : private kj::TaskSet::ErrorHandler {
 public:
  // The timer is needed where there is a limit, and outlives this.
  explicit JobThreads(JobThreadsOptions options, kj::Timer* timer = nullptr);
  // Ends after the steps that run; jobs that wait are dropped (their promises break).
  ~JobThreads();

  // Called on the event loop's thread, as all of this is. DeadlineExceeded where the limit passes without an answer;
  // the job still ends when its step returns. A promise that is dropped drops the rest of the job.
  kj::Promise<void> Run(Job job);
  // Makes a call that may be dropped whenever there is time: for destructors that make calls which block.
  void Later(size_t lane, std::function<void()> call);
  // Threads whose step has not returned within `patience`.
  size_t late_threads();

 private:
  struct State {
    Job job;
    std::atomic<bool> is_dropped = false;
    bool runs = false;           // guarded by mutex_, as the next one is
    JobClock::time_point since;  // queued, or its step began
    kj::Own<kj::CrossThreadPromiseFulfiller<void>> done;
  };
  using StatePointer = std::shared_ptr<State>;
  // The event loop's record of it.
  struct Awaited {
    StatePointer state;
    std::function<void()> ended;
    kj::Own<kj::PromiseFulfiller<void>> answer;
  };
  struct Turns {
    JobClock::duration used{0};  // since it came, beside what the others had used then
    size_t jobs = 0;             // that wait or run
    std::map<size_t, std::deque<StatePointer>> lanes;
  };
  struct Lane {
    size_t threads = 0;  // in a step
    JobClock::time_point returned{};
  };

  void Enqueue(StatePointer state);
  void StartThread();
  void Loop();
  void AwaitMore(Linger& linger, std::unique_lock<std::mutex>& lock);
  // Null where nothing may run now; `retry` is when that changes by itself.
  StatePointer Next(JobClock::time_point now, JobClock::time_point* retry);
  void RunSteps(const StatePointer& state, std::unique_lock<std::mutex>& lock);
  void Leave(uint64_t session);
  bool Hangs(const State& state, JobClock::time_point now);
  kj::Promise<void> Watch();
  void taskFailed(kj::Exception&& exception) override;

  const JobThreadsOptions options_;
  kj::Timer* const timer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Turns> sessions_;
  std::map<size_t, Lane> lanes_;
  std::vector<StatePointer> running_;
  size_t queued_ = 0;  // jobs that wait
  size_t idle_ = 0;
  bool lingers_ = false;                // one that has worked does, and finds what is enqueued
  std::atomic<uint64_t> enqueued_ = 0;  // jobs, ever
  bool stop_ = false;
  std::list<Awaited> awaited_;  // of the event loop
  std::vector<std::thread> threads_;
  kj::Promise<void> watching_ = nullptr;
  bool is_watching_ = false;
  kj::TaskSet tasks_;
};

}  // namespace tessera
