#include "client/rank_mailbox.h"

#include <algorithm>
#include <chrono>

#include "client/rank_waits.h"
#include "client/session_groups.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kLookNs = 500'000;      // docs/limits.md: mail_look
constexpr int64_t kAwakeNs = 20'000'000;  // the same: how long it goes on without a call

}  // namespace

RankMailbox::~RankMailbox() {
  if (owner_ != getpid()) {
    new std::thread(std::move(thread_));  // the parent's: never joined
    return;
  }
  Cancel(absl::CancelledError(StrCat("the group '", key_, "' has ended at this rank")));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    mail_->Wake();
  }
  turned_.notify_all();
  wanted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Status RankMailbox::Push(std::shared_ptr<MailCall> call) {
  Ended ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_.has_value()) return *cancelled_;
    if (calls_.size() >= kMaxMailCalls) {
      return absl::ResourceExhaustedError(StrCat("group '", key_, "': ", calls_.size(),
                                                 " sends and receives of this rank wait for other ranks; that is "
                                                 "max_calls_ahead"));
    }
    call->deadline_ns_ = SteadyNs() + TimeoutNs(call->wait_us);
    call->is_queued_ = true;
    call->request_ =
        call->is_send ? mail_->Send(call->message, call->bytes) : mail_->Receive(call->message, call->bytes);
    calls_.push_back(std::move(call));
    MoveBesideDriver(ended);
  }
  Tell(ended);
  return absl::OkStatus();
}

absl::Status RankMailbox::TakeComplaint() {
  if (!mail_->record().HasComplaint()) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<MailRecord::Complaint> complaint = mail_->record().TakeComplaint();
  if (!complaint.has_value()) return absl::OkStatus();
  std::string others;
  if (complaint->count > 1) others = StrCat(" (the last of ", complaint->count, " such messages to it)");
  return absl::InvalidArgumentError(
      StrCat(DifferText(key_, mail_->rank(), complaint->sent, complaint->receiver, complaint->wanted), others,
             "; rank ", mail_->rank(), " is told by a call of its own, which is done"));
}

void RankMailbox::MoveNow() {
  Ended ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    MoveBesideDriver(ended);
  }
  Tell(ended);
}

absl::Status RankMailbox::Drive(MailCall& call, int64_t until_ns, Poll poll) {
  std::unique_lock<std::mutex> lock(mutex_);
  const absl::Status status = Drive(lock, &call, until_ns, poll);
  if (!is_driven_) LeaveToThreadLocked();
  return status;
}

absl::Status RankMailbox::Drive(std::unique_lock<std::mutex>& lock, MailCall* call, int64_t until_ns, Poll poll) {
  int64_t look_ns = SteadyNs() + kRankSliceNs;
  while (!IsOver(call) && !is_ending_) {
    if (SteadyNs() >= until_ns) return absl::DeadlineExceededError("a send or receive: its wait is over");
    Ended ended;
    AwaitNews(lock, call, std::min(until_ns, look_ns), ended);
    absl::Status interrupted;
    if (SteadyNs() >= look_ns) {
      look_ns = SteadyNs() + kRankSliceNs;
      lock.unlock();
      interrupted = poll();
      if (interrupted.ok()) interrupted = GroupDoor(*session_).Check();
      lock.lock();
      const RankMembers::View members = members_.Look();
      Move(ended);  // all that a rank sent before it went
      EndOfGone(members);
      if (!interrupted.ok()) CancelCalls(call, interrupted);
    }
    EndLate(SteadyNs());
    Move(ended);
    lock.unlock();
    Tell(ended);
    lock.lock();
    TESSERA_RETURN_IF_ERROR(interrupted);
  }
  return absl::OkStatus();
}

void RankMailbox::CancelCalls(const MailCall* only, const absl::Status& why) {
  for (const auto& call : calls_) {
    if (only == nullptr || call.get() == only) mail_->Cancel(call->request_, why);
  }
}

// Returns when a call is over, or at the time.
void RankMailbox::AwaitNews(std::unique_lock<std::mutex>& lock, const MailCall* call, int64_t until_ns, Ended& ended) {
  const bool is_background = call == nullptr;
  const auto is_free = [&] { return !is_driven_ && !(is_background && waiting_ > 0); };
  if (!is_free()) {
    if (!is_background) {
      ++waiting_;
      if (is_driven_by_thread_) mail_->Wake();
    }
    turned_.wait_until(lock, TimeOf(until_ns), [&] { return is_free() || IsOver(call) || is_ending_; });
    if (!is_background) --waiting_;
    return;
  }
  is_driven_ = true;
  is_driven_by_thread_ = is_background;
  const int64_t end_ns = std::min(until_ns, FirstDeadline());
  lock.unlock();
  mail_->Await(
      has_strangers_,
      [&] {
        std::lock_guard<std::mutex> moving(mutex_);
        Move(ended);
        return !ended.empty() || IsOver(call) || is_ending_ || (is_background && waiting_ > 0);
      },
      end_ns);
  lock.lock();
  is_driven_ = false;
  turned_.notify_all();
}

void RankMailbox::Cancel(const absl::Status& status) {
  Ended ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!cancelled_.has_value()) cancelled_ = status;
    CancelCalls(nullptr, status);
    MoveBesideDriver(ended);
  }
  Tell(ended);
}

// ---- with the mutex

void RankMailbox::Move(Ended& ended) {
  mail_->Move();
  std::erase_if(calls_, [&](const std::shared_ptr<MailCall>& call) {
    if (!call->request_->is_done) return false;
    ended.push_back(call);
    call->is_queued_ = false;
    return true;
  });
  if (!ended.empty()) turned_.notify_all();
}

void RankMailbox::MoveBesideDriver(Ended& ended) {
  Move(ended);
  if (is_driven_ && !ended.empty()) mail_->Wake();
}

int64_t RankMailbox::FirstDeadline() const {
  int64_t first_ns = kForeverNs;
  for (const auto& call : calls_) first_ns = std::min(first_ns, call->deadline_ns_);
  return first_ns;
}

std::string RankMailbox::NameOf(const MailCall& call) const {
  return StrCat(ToText(call.message, call.is_send), " of group '", key_, "'");
}

void RankMailbox::EndLate(int64_t now_ns) {
  for (const auto& call : calls_) {
    if (now_ns < call->deadline_ns_) continue;
    const int32_t peer = call->message.peer;
    std::string why = ": no rank has sent it";
    if (peer != kAnySource) {
      why = StrCat(": ", members_.Look().NameOf(peer), call->is_send ? " has not received it" : " has not sent it");
      if (mail_->IsFull(peer)) why += StrCat("; ", kMaxKeptMail, " bytes of its other messages wait (max_kept_mail)");
    }
    mail_->Cancel(call->request_,
                  absl::DeadlineExceededError(StrCat(NameOf(*call), " timed out after ",
                                                     static_cast<double>(call->wait_us) * 1e-6, " s", why)));
  }
}

void RankMailbox::EndOfGone(const RankMembers::View& members) {
  if (!members.FindGone().has_value()) return;
  int64_t others = 0;
  for (int64_t rank = 0; rank < mail_->ranks(); ++rank) others += rank != mail_->rank() && !members.IsGone(rank);
  for (const auto& call : calls_) {
    const int64_t peer = call->message.peer;
    if (peer == kAnySource ? others > 0 : !members.IsGone(peer)) continue;
    mail_->Cancel(call->request_, members.WhyGone(NameOf(*call), peer == kAnySource ? *members.FindGone() : peer));
  }
  for (int64_t rank = 0; rank < mail_->ranks(); ++rank) {
    if (members.IsGone(rank)) mail_->Forget(rank);
  }
}

void RankMailbox::Tell(const Ended& ended) {
  for (const auto& call : ended) call->EndInMail(*call->request_);
}

// ---- the thread

void RankMailbox::LeaveToThread() {
  std::lock_guard<std::mutex> lock(mutex_);
  LeaveToThreadLocked();
}

void RankMailbox::LeaveToThreadLocked() {
  if (!IsBusy()) return;
  left_ns_ = SteadyNs();
  if (is_awake_) return;
  is_awake_ = true;
  if (!thread_.joinable()) thread_ = std::thread([this] { RunThread(); });
  wanted_.notify_one();
}

// Most calls that are left to the thread are waited for at once. So it looks after a while, and goes on looking for
// some time, since to wake it for each call would cost more than the call.
void RankMailbox::RunThread() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_ending_) {
    if (!IsBusy() && SteadyNs() > left_ns_ + kAwakeNs) {
      is_awake_ = false;
      wanted_.wait(lock, [this] { return is_ending_ || is_awake_; });
      continue;
    }
    wanted_.wait_for(lock, std::chrono::nanoseconds(kLookNs), [this] { return is_ending_; });
    if (is_ending_ || !IsBusy() || is_driven_ || waiting_ > 0) continue;
    // Where the session has ended, all calls have been told.
    (void)Drive(lock, nullptr, kForeverNs, NeverInterrupted);
  }
}

}  // namespace tessera
