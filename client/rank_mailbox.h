#pragma once

// RankMailbox: a rank's sends and receives of one group whose ranks are processes of one host and call on memory of
// their own (client/rank_page/rank_mail.h). It adds the parts that RankMail can't know: threads that wait, time-outs,
// ranks that are gone.
//
//   mailbox.Push(call);                       // in the order of the calls; done at once where the message is there
//   mailbox.Drive(*call, until_ns, poll);     // on the thread that waits, or
//   mailbox.LeaveToThread();                  // on the mailbox's own
//
// The law: one thread at a time drives, which is to sleep until other ranks have moved something. Any thread moves,
// under the mutex. A call's completion runs when its thread neither drives nor holds the mutex: it may push and drive
// itself.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/rank_members.h"
#include "client/rank_page/rank_mail.h"
#include "client/session_impl.h"

namespace tessera {

inline constexpr size_t kMaxMailCalls = 1024;  // docs/limits.md: max_calls_ahead

class MailCall {
 public:
  virtual ~MailCall() = default;

  bool is_send = false;
  MailMessage message;
  std::byte* bytes = nullptr;  // of a send they are read
  int64_t wait_us = 0;         // its time-out

 private:
  friend class RankMailbox;
  virtual void EndInMail(const RankMail::Request& request) = 0;

  std::shared_ptr<RankMail::Request> request_;
  std::atomic<bool> is_queued_{false};
  int64_t deadline_ns_ = 0;
};

class RankMailbox {
 public:
  using Poll = absl::FunctionRef<absl::Status()>;

  RankMailbox(std::shared_ptr<SessionImpl> session, uint64_t group, std::string key, std::unique_ptr<RankMail> mail,
              bool has_strangers)
      : session_(std::move(session)),
        key_(std::move(key)),
        has_strangers_(has_strangers),
        members_(session_, group),
        mail_(std::move(mail)) {}
  ~RankMailbox();
  RankMailbox(const RankMailbox&) = delete;
  RankMailbox& operator=(const RankMailbox&) = delete;

  // ResourceExhausted beyond kMaxMailCalls.
  absl::Status Push(std::shared_ptr<MailCall> call);
  // Until the call is over. DeadlineExceeded at the time, and the call goes on; what `poll` says when that isn't ok,
  // about every kWaitPollMs: then the call is given up.
  absl::Status Drive(MailCall& call, int64_t until_ns, Poll poll);
  void LeaveToThread();
  // Moves what can be moved, without a wait: for somebody who asks whether a call is done.
  void MoveNow();
  // ProcessGroup::TakeComplaint. Any thread.
  absl::Status TakeComplaint();
  // The ranks' last messages. Any thread reads its notes.
  const MailRecord& record() const { return mail_->record(); }
  // Calls that wait end with the status, and those that come.
  void Cancel(const absl::Status& status);

 private:
  using Ended = std::vector<std::shared_ptr<MailCall>>;

  // All but Tell are called with the mutex. Without a call it is the mailbox's thread, which gives way to others, until
  // nothing is under way.
  absl::Status Drive(std::unique_lock<std::mutex>& lock, MailCall* call, int64_t until_ns, Poll poll);
  void AwaitNews(std::unique_lock<std::mutex>& lock, const MailCall* call, int64_t until_ns, Ended& ended);
  bool IsOver(const MailCall* call) const { return call == nullptr ? !IsBusy() : !call->is_queued_; }
  bool IsBusy() const { return !calls_.empty() || mail_->IsWithinMessage(); }
  // Adds the calls that are over.
  void Move(Ended& ended);
  // The same, and the thread that drives looks whether its own call is over.
  void MoveBesideDriver(Ended& ended);
  // Null: all of them.
  void CancelCalls(const MailCall* only, const absl::Status& why);
  void EndLate(int64_t now_ns);
  void EndOfGone(const RankMembers::View& members);
  int64_t FirstDeadline() const;
  std::string NameOf(const MailCall& call) const;
  void LeaveToThreadLocked();
  void RunThread();
  static void Tell(const Ended& ended);

  const std::shared_ptr<SessionImpl> session_;
  const std::string key_;
  const bool has_strangers_;
  const pid_t owner_ = getpid();  // a fork's copy has no thread

  std::mutex mutex_;
  std::condition_variable turned_;  // nobody drives any more, or calls are over
  RankMembers members_;
  const std::unique_ptr<RankMail> mail_;
  std::vector<std::shared_ptr<MailCall>> calls_;
  std::optional<absl::Status> cancelled_;
  bool is_driven_ = false;
  bool is_driven_by_thread_ = false;
  int waiting_ = 0;  // threads beside the mailbox's own that would drive

  bool is_awake_ = false;  // the thread
  int64_t left_ns_ = 0;    // when it was left a call, last
  bool is_ending_ = false;
  std::condition_variable wanted_;
  std::thread thread_;
};

}  // namespace tessera
