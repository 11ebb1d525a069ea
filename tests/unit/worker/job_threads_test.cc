// Jobs beside the event loop: sessions take turns, what hangs holds up no other lane, and who is gone is not worked
// for.

#include "server/worker/rpc/job_threads.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <kj/async-io.h>

#include "gtest/gtest.h"
#include "schemas/link/exception.h"
#include "server/worker/fair_places.h"

namespace tessera {
namespace {

// Closed, until it is opened for good. A disk that hangs.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this]() { return is_open_; });
  }
  void AwaitWaiting(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&]() { return waiting_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int waiting_ = 0;
};

class JobThreadsTest : public ::testing::Test {
 protected:
  Job JobOf(uint64_t session, std::function<JobStep(JobClock::time_point)> step, size_t lane = 0) const {
    return {.session = session, .lane = lane, .what = "test", .step = std::move(step)};
  }
  Job Waits(const std::shared_ptr<Gate>& gate, uint64_t session = 1, size_t lane = 0) const {
    return JobOf(
        session,
        [gate](JobClock::time_point) {
          gate->Pass();
          return JobStep::kDone;
        },
        lane);
  }
  Job Quick(uint64_t session = 1, size_t lane = 0) const {
    return JobOf(
        session, [](JobClock::time_point) { return JobStep::kDone; }, lane);
  }
  absl::Status StatusOf(kj::Promise<void> promise) {
    absl::Status status;
    promise.catch_([&](kj::Exception&& exception) { status = FromException(exception); }).wait(io_.waitScope);
    return status;
  }

  const std::unique_ptr<kj::AsyncIoContext> context_ = std::make_unique<kj::AsyncIoContext>(kj::setupAsyncIo());
  kj::AsyncIoContext& io_ = *context_;
  const JobThreadsOptions elastic_ = {.name = "test",
                                      .threads = 8,
                                      .threads_per_lane = 2,
                                      .patience = std::chrono::milliseconds(5),
                                      .limit = std::chrono::milliseconds(200),
                                      .limit_name = "test_limit"};
};

// The jobs of one session go on until the other one's is done, and its own other one has had a turn.
TEST_F(JobThreadsTest, JobsOfSessionsAndOfOneSessionTakeTurns) {
  JobThreads threads({.name = "test"});
  std::atomic<bool> is_over = false, had_turn = false;
  const auto gate = std::make_shared<Gate>();
  auto held = threads.Run(Waits(gate));
  auto endless = threads.Run(
      JobOf(1, [&](JobClock::time_point) { return is_over && had_turn ? JobStep::kDone : JobStep::kMore; }));
  auto second = threads.Run(JobOf(1, [&](JobClock::time_point) {
    had_turn = true;
    return is_over ? JobStep::kDone : JobStep::kMore;
  }));
  auto other = threads.Run(
      JobOf(2, [left = 3](JobClock::time_point) mutable { return --left == 0 ? JobStep::kDone : JobStep::kMore; }));
  gate->Open();
  other.wait(io_.waitScope);
  is_over = true;
  endless.wait(io_.waitScope);
  second.wait(io_.waitScope);
  EXPECT_TRUE(had_turn);
}

TEST_F(JobThreadsTest, AJobWhoseCallerIsGoneDoesNotBegin) {
  JobThreads threads({.name = "test"});
  const auto gate = std::make_shared<Gate>();
  auto held = threads.Run(Waits(gate));
  gate->AwaitWaiting(1);
  bool has_begun = false, has_ended = false;
  {
    Job job = JobOf(1, [&](JobClock::time_point) {
      has_begun = true;
      return JobStep::kDone;
    });
    job.ended = [&]() { has_ended = true; };
    auto dropped = threads.Run(std::move(job));
  }
  gate->Open();
  threads.Run(Quick()).wait(io_.waitScope);
  EXPECT_FALSE(has_begun);
  EXPECT_TRUE(has_ended);
}

TEST_F(JobThreadsTest, WhatHangsIsLeftBehindAndOthersGoOn) {
  JobThreads threads(elastic_, &io_.provider->getTimer());
  const auto gate = std::make_shared<Gate>();
  auto hanging = threads.Run(Waits(gate)).eagerlyEvaluate(nullptr);
  gate->AwaitWaiting(1);
  for (int i = 0; i < 20; ++i) threads.Run(Quick()).wait(io_.waitScope);
  EXPECT_EQ(threads.late_threads(), 1u);
  gate->Open();
  hanging.wait(io_.waitScope);
  EXPECT_EQ(threads.late_threads(), 0u);
}

// Also of jobs that come while the thread lingers behind its last one.
TEST_F(JobThreadsTest, AJobBehindOneThatHangsIsSeenByAnotherThread) {
  JobThreads threads(elastic_, &io_.provider->getTimer());
  for (int round = 0; round < 10; ++round) {
    const auto gate = std::make_shared<Gate>();
    threads.Run(Quick()).wait(io_.waitScope);
    auto hanging = threads.Run(Waits(gate)).eagerlyEvaluate(nullptr);
    auto behind = threads.Run(Quick());
    behind.wait(io_.waitScope);
    gate->Open();
    hanging.wait(io_.waitScope);
  }
}

TEST_F(JobThreadsTest, ALaneThatHangsTakesNoThreadOfAnother) {
  JobThreads threads(elastic_, &io_.provider->getTimer());
  const auto gate = std::make_shared<Gate>();
  std::vector<kj::Promise<void>> hanging;
  for (int i = 0; i < 20; ++i) hanging.push_back(threads.Run(Waits(gate, 1, 0)));
  gate->AwaitWaiting(2);
  for (int i = 0; i < 20; ++i) threads.Run(Quick(1, 1)).wait(io_.waitScope);
  EXPECT_EQ(threads.late_threads(), elastic_.threads_per_lane);
  gate->Open();
}

// The call has its answer; the job ends when the disk is there again, and only then is its memory let go of.
TEST_F(JobThreadsTest, AStepThatHangsIsAnErrorByNameAfterTheLimit) {
  JobThreads threads(elastic_, &io_.provider->getTimer());
  const auto gate = std::make_shared<Gate>();
  bool has_ended = false;
  Job job = Waits(gate);
  job.what = "file x.npy";
  job.ended = [&]() { has_ended = true; };
  std::vector<kj::Promise<void>> behind;
  auto first = threads.Run(std::move(job));
  for (int i = 0; i < 4; ++i) behind.push_back(threads.Run(Waits(gate)));
  const absl::Status status = StatusOf(kj::mv(first));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("file x.npy"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("test_limit"), absl::string_view::npos) << status;
  for (auto& promise : behind) EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(kj::mv(promise))));
  EXPECT_FALSE(has_ended);
  gate->Open();
  threads.Run(Quick()).wait(io_.waitScope);
  threads.Run(Quick()).wait(io_.waitScope);
  EXPECT_TRUE(has_ended);
}

int TakeAll(FairPlaces& places, uint64_t session, std::vector<FairPlaces::Place>& held) {
  int taken = 0;
  for (auto place = places.Take(SessionId(session), "test"); place.ok();
       place = places.Take(SessionId(session), "test")) {
    held.push_back(*std::move(place));
    ++taken;
  }
  return taken;
}

TEST(FairPlaces, OneSessionGetsAHalfAndTheNextStillGetsSome) {
  FairPlaces places("max_places", 100);
  std::vector<FairPlaces::Place> greedy, other;
  EXPECT_EQ(TakeAll(places, 1, greedy), 50);
  EXPECT_EQ(TakeAll(places, 2, other), 25);
  const absl::Status status = places.Take(SessionId(1), "files").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("max_places"), absl::string_view::npos) << status;
  greedy.clear();
  EXPECT_EQ(places.taken(), 25);
  EXPECT_EQ(TakeAll(places, 3, greedy), 38);
}

}  // namespace
}  // namespace tessera
