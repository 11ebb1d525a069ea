#include "client/rank_lane.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/rank_waits.h"
#include "client/session_groups.h"
#include "schemas/host/linger.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kStallNs = 5'000'000'000;   // docs/limits.md: page_stall
constexpr int64_t kAnswerNs = 1'000'000'000;  // that the coordinator's answer is waited for
constexpr int64_t kShortNs = 10'000'000;

constexpr int64_t kAtOnce = 0;  // a time that a driver waits for: not at all

}  // namespace

RankLane::~RankLane() {
  if (owner_ != getpid()) {
    new std::thread(std::move(thread_));  // the parent's: never joined
    return;
  }
  Cancel(absl::CancelledError(StrCat("the group '", group_.key, "' has ended at this rank")));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status RankLane::Push(std::shared_ptr<LaneCall> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cancelled_.has_value()) return *cancelled_;
  if (queue_.size() >= kMaxLaneCalls) {
    return absl::ResourceExhaustedError(StrCat("group '", group_.key, "': ", queue_.size(),
                                               " calls of this rank wait for other ranks; that is max_calls_ahead"));
  }
  call->pushed_ns_ = SteadyNs();
  call->is_queued_ = true;
  queue_.push_back(std::move(call));
  return absl::OkStatus();
}

absl::Status RankLane::Drive(LaneCall& call, int64_t until_ns, Poll poll) {
  const auto is_over = [&call] { return !call.is_queued_.load(std::memory_order_acquire); };
  Linger linger;
  bool has_lingered = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_over()) {
    const int64_t now_ns = SteadyNs();
    if (now_ns >= until_ns) return absl::DeadlineExceededError("a collective: its wait is over");
    if (is_driven_) {
      if (!std::exchange(has_lingered, true)) {
        lock.unlock();
        for (linger.Begin(); !is_over() && linger.Yield();) {
        }
        lock.lock();
        continue;
      }
      turned_.wait_until(lock, TimeOf(std::min(until_ns, now_ns + kRankSliceNs)));
      if (SteadyNs() < now_ns + kRankSliceNs) continue;
      lock.unlock();
      TESSERA_RETURN_IF_ERROR(poll());
      lock.lock();
      continue;
    }
    TESSERA_RETURN_IF_ERROR(RunFront(lock, until_ns, poll));
  }
  return absl::OkStatus();
}

absl::Status RankLane::RunFront(std::unique_lock<std::mutex>& lock, int64_t until_ns, Poll poll) {
  is_driven_ = true;
  const std::shared_ptr<LaneCall> front = queue_.front();
  lock.unlock();
  const Ran ran = Run(*front, until_ns, poll);
  lock.lock();
  is_driven_ = false;
  if (ran.is_over) {
    queue_.pop_front();
    front->is_queued_ = false;
  }
  turned_.notify_all();
  lock.unlock();
  if (ran.end.has_value()) front->EndInLane(*ran.end);
  lock.lock();
  return ran.interrupted;
}

void RankLane::Begin(LaneCall& call) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!is_driven_ && !queue_.empty() && queue_.front().get() == &call) {
      (void)RunFront(lock, kAtOnce, NeverInterrupted);
    }
  }
  if (call.is_queued_) LeaveToThread();
}

absl::Status RankLane::Ask(absl::FunctionRef<absl::Status(uint64_t number)> send) {
  std::vector<std::pair<std::shared_ptr<LaneCall>, absl::Status>> ended;
  ++hurried_;
  if (page_ != nullptr) page_->Wake();
  std::unique_lock<std::mutex> lock(mutex_);
  turned_.wait(lock, [this] { return !is_driven_; });
  is_driven_ = true;
  while (!queue_.empty()) {
    const std::shared_ptr<LaneCall> front = queue_.front();
    lock.unlock();
    const Ran ran = Run(*front, kForeverNs, NeverInterrupted);
    lock.lock();
    if (ran.end.has_value()) ended.emplace_back(front, *ran.end);
    queue_.pop_front();
    front->is_queued_ = false;
  }
  lock.unlock();
  if (page_ != nullptr) page_->Ask(next_number_);
  const absl::Status sent = send(next_number_);
  if (sent.ok()) ++next_number_;
  lock.lock();
  is_driven_ = false;
  --hurried_;
  turned_.notify_all();
  lock.unlock();
  for (const auto& [call, status] : ended) call->EndInLane(status);
  return sent;
}

void RankLane::Cancel(const absl::Status& status) {
  std::deque<std::shared_ptr<LaneCall>> cancelled;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!cancelled_.has_value()) cancelled_ = status;
    is_cancelled_ = true;
    ++hurried_;
    if (page_ != nullptr) page_->Wake();
    turned_.wait(lock, [this] { return !is_driven_; });
    cancelled = std::move(queue_);
    queue_.clear();
    for (const auto& call : cancelled) call->is_queued_ = false;
    --hurried_;
    turned_.notify_all();
  }
  for (const auto& call : cancelled) call->EndInLane(status);
}

// ---- one call

RankLane::Ran RankLane::Run(LaneCall& call, int64_t until_ns, Poll poll) {
  Ran ran;
  RankPage::Verdict verdict = RankPage::Verdict::kAsked;
  if (call.number_ != next_number_) {
    call.number_ = next_number_;
    if (page_ != nullptr && call.fits_page && !page_->is_closed() && hurried_ == 0) {
      call.program_.emplace(call.signature, call.operands, *page_);
      call.program_->Write(0, page_->Part(page_->rank(), 0));
      // A collective of one step is done sooner through the page.
      page_->Come(call.number_, call.signature, call.program_->steps() > 1 ? call.places : RankPage::Places{});
      call.has_come_ = true;
    } else if (page_ != nullptr) {
      page_->Ask(call.number_);
    }
  }
  if (call.has_come_) verdict = AwaitVerdict(call, until_ns, poll, ran.interrupted);
  if (verdict == RankPage::Verdict::kOpen) {
    ran.is_over = false;
    return ran;
  }
  if (verdict == RankPage::Verdict::kGranted) {
    if (until_ns == kAtOnce && call.program_->steps() > 1) {
      ran.is_over = false;
      return ran;
    }
    page_->NoteGranted(call.number_);
    ran.end = RunSteps(call, poll);
  } else if (const absl::Status sent = call.SendAsked(call.number_, (SteadyNs() - call.pushed_ns_) / 1000);
             !sent.ok()) {
    ran.end = sent;
    return ran;
  }
  ++next_number_;
  return ran;
}

RankPage::Verdict RankLane::AwaitVerdict(LaneCall& call, int64_t until_ns, Poll poll, absl::Status& interrupted) {
  const uint64_t number = call.number_;
  const int64_t deadline_ns = call.pushed_ns_ + TimeoutNs(call.timeout_us);
  const auto is_there = [this, number] { return page_->VerdictOf(number) != RankPage::Verdict::kOpen; };
  for (;;) {
    if (is_there() || until_ns == kAtOnce) return page_->VerdictOf(number);
    const int64_t slice_ns = SteadyNs() + kRankSliceNs;
    page_->Await(
        RankPage::News::kVerdict, [&] { return is_there() || hurried_ > 0 || page_->is_closed(); },
        std::min({slice_ns, deadline_ns, until_ns}));
    const int64_t now_ns = SteadyNs();
    if (is_there()) return page_->VerdictOf(number);
    if (now_ns >= deadline_ns || hurried_ > 0 || page_->is_closed()) return page_->Ask(number);
    if (now_ns >= slice_ns) {
      const std::shared_ptr<const FlightReport> report = members_.Look().report;
      interrupted = poll();
      const auto needs_judge = [number](const FlightReport::Member& member) {
        return !member.why_gone.empty() || member.next_call > number;
      };
      if (!interrupted.ok() || !GroupDoor(*group_.session).Check().ok() ||
          (report != nullptr && std::any_of(report->members.begin(), report->members.end(), needs_judge))) {
        return page_->Ask(number);
      }
    }
    if (now_ns >= until_ns) return RankPage::Verdict::kOpen;
  }
}

absl::Status RankLane::RunSteps(LaneCall& call, Poll poll) {
  const int64_t stall_ns = SteadyNs() + std::max(kStallNs, TimeoutNs(call.timeout_us));
  const PageProgram& program = *call.program_;
  if (const auto in_arena = ArenaProgram::Make(call.signature, call.operands, *page_, call.number_)) {
    in_arena->Run();
    TESSERA_RETURN_IF_ERROR(EndStep(call, stall_ns, poll));
    page_->EndCall();
    return absl::OkStatus();
  }
  for (int64_t step = 0; step < program.steps(); ++step) {
    program.Read(step);
    if (step + 1 == program.steps()) break;
    program.Write(step + 1, page_->NextPart(0));
    TESSERA_RETURN_IF_ERROR(EndStep(call, stall_ns, poll));
  }
  page_->EndCall();
  return absl::OkStatus();
}

absl::Status RankLane::EndStep(const LaneCall& call, int64_t stall_ns, Poll poll) {
  page_->PublishNext();
  return AwaitStep(call, stall_ns, poll);
}

absl::Status RankLane::AwaitStep(const LaneCall& call, int64_t stall_ns, Poll poll) {
  for (;;) {
    const int64_t slice_ns = SteadyNs() + kRankSliceNs;
    RankPage::StepState state = RankPage::StepState::kOpen;
    page_->Await(
        RankPage::News::kStep,
        [&] { return (state = page_->LookAtStep()) != RankPage::StepState::kOpen || is_cancelled_; },
        std::min(slice_ns, stall_ns));
    if (state == RankPage::StepState::kPublished) return absl::OkStatus();
    if (state == RankPage::StepState::kClosed) return WhyClosed(call);
    const RankMembers::View members = members_.Look();
    if (const std::optional<int64_t> gone = members.FindGone(); gone.has_value()) {
      page_->Close(*gone);
      return members.WhyGone(NameOf(call), *gone);
    }
    absl::Status ended = GroupDoor(*group_.session).Check();
    if (ended.ok()) ended = poll();
    if (is_cancelled_) ended = absl::CancelledError(StrCat(NameOf(call), ": the group has ended at this rank"));
    if (!ended.ok()) {
      page_->Close(page_->rank());
      return ended;
    }
    if (SteadyNs() < stall_ns) continue;
    const int64_t missing = std::max<int64_t>(0, page_->FindMissing());
    page_->Close(missing);
    return absl::DeadlineExceededError(StrCat(NameOf(call), " timed out after ",
                                              static_cast<double>(SteadyNs() - call.pushed_ns_) * 1e-9,
                                              " s: ", members.NameOf(missing), " has not gone on with it"));
  }
}

// Another rank gave the call up. The coordinator's answers tell from now on whether a rank is gone.
absl::Status RankLane::WhyClosed(const LaneCall& call) {
  const int64_t start_ns = SteadyNs();
  RankMembers::View members = members_.Look();
  while (members.asked_ns < start_ns && SteadyNs() < start_ns + kAnswerNs && !is_cancelled_) {
    page_->Await(
        RankPage::News::kStep, [] { return false; }, SteadyNs() + kShortNs);
    members = members_.Look();
  }
  if (const std::optional<int64_t> gone = members.FindGone(); gone.has_value()) {
    return members.WhyGone(NameOf(call), *gone);
  }
  return absl::AbortedError(StrCat(NameOf(call), ": a rank gave it up while it ran: ", members.NameOf(page_->blamed()),
                                   " had not gone on with it"));
}

std::string RankLane::NameOf(const LaneCall& call) const {
  return StrCat("call ", call.number_, " of group '", group_.key, "'");
}

// ---- the thread

void RankLane::LeaveToThread() {
  if (is_wanted_.exchange(true)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunThread(); });
  wanted_.notify_one();
}

void RankLane::RunThread() {
  Linger linger;
  for (;;) {
    for (linger.Begin(); !is_wanted_ && linger.Yield();) {
    }
    std::shared_ptr<LaneCall> last;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wanted_.wait(lock, [this] { return is_ending_ || is_wanted_; });
      if (is_ending_) return;
      is_wanted_ = false;
      if (queue_.empty()) continue;
      last = queue_.back();
    }
    (void)Drive(*last, kForeverNs, NeverInterrupted);
  }
}

}  // namespace tessera
