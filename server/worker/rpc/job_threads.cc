#include "server/worker/rpc/job_threads.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include <spdlog/spdlog.h>

#include "schemas/link/exception.h"
#include "schemas/types/str_cat.h"
#include "server/device/be_nicer.h"

namespace tessera {
namespace {

constexpr int kWatchesPerLimit = 8;

double Seconds(JobClock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

JobThreads::JobThreads(JobThreadsOptions options, kj::Timer* timer)
    : options_(std::move(options)), timer_(timer), tasks_(*this) {
  const std::lock_guard lock(mutex_);
  StartThread();
}

JobThreads::~JobThreads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

kj::Promise<void> JobThreads::Run(Job job) {
  auto state = std::make_shared<State>();
  auto done = kj::newPromiseAndCrossThreadFulfiller<void>();
  auto answer = kj::newPromiseAndFulfiller<void>();
  state->done = kj::mv(done.fulfiller);
  const auto place = awaited_.insert(awaited_.end(), Awaited{state, std::move(job.ended), kj::mv(answer.fulfiller)});
  state->job = std::move(job);
  state->job.ended = nullptr;
  tasks_.add(done.promise.then([this, place]() {
    Awaited over = kj::mv(*place);
    awaited_.erase(place);
    if (over.ended) over.ended();
    over.answer->fulfill();
  }));
  if (options_.limit.count() > 0 && !is_watching_) {
    is_watching_ = true;
    watching_ = Watch().eagerlyEvaluate(nullptr);
  }
  Enqueue(state);
  return answer.promise.attach(kj::defer([state]() { state->is_dropped = true; }));
}

void JobThreads::Later(size_t lane, std::function<void()> call) {
  auto state = std::make_shared<State>();
  state->job = {.session = 0, .lane = lane, .what = {}, .step = [call = std::move(call)](JobClock::time_point) {
                  call();
                  return JobStep::kDone;
                }};
  Enqueue(std::move(state));
}

size_t JobThreads::late_threads() {
  const std::lock_guard lock(mutex_);
  const auto now = JobClock::now();
  return static_cast<size_t>(std::count_if(running_.begin(), running_.end(), [&](const StatePointer& state) {
    return now - state->since >= options_.patience;
  }));
}

void JobThreads::Enqueue(StatePointer state) {
  const std::lock_guard lock(mutex_);
  const auto found = sessions_.find(state->job.session);
  if (found == sessions_.end()) {
    // It has used as much as the one that has used the least: nobody saves time up.
    JobClock::duration least{0};
    bool is_first = true;
    for (const auto& [session, turns] : sessions_) {
      if (is_first || turns.used < least) least = turns.used;
      is_first = false;
    }
    sessions_[state->job.session].used = least;
  }
  Turns& turns = sessions_[state->job.session];
  ++turns.jobs;
  state->since = JobClock::now();
  turns.lanes[state->job.lane].push_back(std::move(state));
  ++enqueued_;
  ++queued_;
  if (!lingers_) wake_.notify_one();
}

// Called by a thread that holds the mutex.
void JobThreads::StartThread() {
  threads_.emplace_back([this, name = StrCat(options_.name, "-", threads_.size())]() {
    pthread_setname_np(pthread_self(), name.c_str());
    BeNicer(options_.nice);
    Loop();
  });
}

JobThreads::StatePointer JobThreads::Next(JobClock::time_point now, JobClock::time_point* retry) {
  for (const StatePointer& state : running_) {
    const JobClock::time_point late = state->since + options_.patience;
    if (late > now) {
      *retry = late;
      return nullptr;
    }
  }
  *retry = JobClock::time_point::max();
  Turns* first = nullptr;
  std::deque<StatePointer>* queue = nullptr;
  for (auto& [session, turns] : sessions_) {
    if (first != nullptr && turns.used >= first->used) continue;
    for (auto& [lane, jobs] : turns.lanes) {
      if (jobs.empty() || lanes_[lane].threads >= options_.threads_per_lane) continue;
      if (first == &turns && (*queue)[0]->since <= jobs[0]->since) continue;
      first = &turns;
      queue = &jobs;
    }
  }
  if (queue == nullptr) return nullptr;
  StatePointer next = std::move(queue->front());
  queue->pop_front();
  if (queue->empty()) first->lanes.erase(next->job.lane);
  --queued_;
  return next;
}

// After a job the next one often comes soon: the calls of a small load follow each other.
void JobThreads::AwaitMore(Linger& linger, std::unique_lock<std::mutex>& lock) {
  lingers_ = true;
  const uint64_t seen = enqueued_;
  lock.unlock();
  for (linger.Begin(); enqueued_ == seen && linger.Yield();) continue;
  if (enqueued_ != seen) linger.Arrived();
  lock.lock();
  lingers_ = false;
}

void JobThreads::Loop() {
  Linger linger;
  bool has_worked = false;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    JobClock::time_point retry;
    StatePointer state = Next(JobClock::now(), &retry);
    if (state == nullptr && std::exchange(has_worked, false) && !lingers_ && retry == JobClock::time_point::max()) {
      AwaitMore(linger, lock);
      continue;
    }
    if (state == nullptr) {
      ++idle_;
      retry == JobClock::time_point::max() ? wake_.wait(lock) : static_cast<void>(wake_.wait_until(lock, retry));
      --idle_;
      continue;
    }
    // One that goes on, should this one hang.
    if (idle_ == 0 && threads_.size() < options_.threads) StartThread();
    if (queued_ > 0) wake_.notify_one();
    RunSteps(state, lock);
    has_worked = true;
  }
}

// Until it is done, or others have their turn.
void JobThreads::RunSteps(const StatePointer& state, std::unique_lock<std::mutex>& lock) {
  Lane& lane = lanes_[state->job.lane];
  running_.push_back(state);
  ++lane.threads;
  state->runs = true;
  JobStep step = JobStep::kMore;
  bool is_alone = true;
  while (step == JobStep::kMore && is_alone && !stop_) {
    const JobClock::time_point began = JobClock::now();
    state->since = began;
    lock.unlock();
    step = state->is_dropped ? JobStep::kDone : state->job.step(began + kJobSlice);
    lock.lock();
    lane.returned = JobClock::now();
    Turns& turns = sessions_[state->job.session];
    turns.used += lane.returned - began;
    is_alone = queued_ == 0;
  }
  state->runs = false;
  --lane.threads;
  running_.erase(std::find(running_.begin(), running_.end(), state));
  if (step == JobStep::kMore && !stop_) {
    state->since = lane.returned;
    sessions_[state->job.session].lanes[state->job.lane].push_back(state);
    ++queued_;
    return;
  }
  Leave(state->job.session);
  // The objects that the step holds may take their time to go.
  lock.unlock();
  state->job.step = nullptr;
  if (state->done.get() != nullptr) state->done->fulfill();
  lock.lock();
}

void JobThreads::Leave(uint64_t session) {
  auto found = sessions_.find(session);
  if (--found->second.jobs == 0) sessions_.erase(found);
}

// With the mutex.
bool JobThreads::Hangs(const State& state, JobClock::time_point now) {
  const JobClock::time_point since = state.runs ? state.since : std::max(state.since, lanes_[state.job.lane].returned);
  return now - since > options_.limit;
}

// Answers for jobs that hang. The threads go on with them.
kj::Promise<void> JobThreads::Watch() {
  const int64_t pause_ms = std::max<int64_t>(options_.limit.count() / kWatchesPerLimit, 1);
  return timer_->afterDelay(pause_ms * kj::MILLISECONDS).then([this]() -> kj::Promise<void> {
    std::vector<Awaited*> hanging;
    size_t threads = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto now = JobClock::now();
      for (Awaited& awaited : awaited_) {
        if (awaited.answer->isWaiting() && Hangs(*awaited.state, now)) hanging.push_back(&awaited);
      }
      threads = static_cast<size_t>(std::count_if(running_.begin(), running_.end(),
                                                  [&](const StatePointer& state) { return Hangs(*state, now); }));
    }
    for (Awaited* const awaited : hanging) {
      const std::string words = StrCat(awaited->state->job.what, ": no answer for ", Seconds(options_.limit), " s (",
                                       options_.limit_name, "); ", threads, " threads wait for one");
      spdlog::warn("{}", words);
      awaited->state->is_dropped = true;
      awaited->answer->reject(ToException(absl::DeadlineExceededError(words)));
    }
    if (awaited_.empty()) {
      is_watching_ = false;
      return kj::READY_NOW;
    }
    return Watch();
  });
}

void JobThreads::taskFailed(kj::Exception&& exception) {
  spdlog::error("{}: {}", options_.name, exception.getDescription().cStr());
}

}  // namespace tessera
