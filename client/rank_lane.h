#pragma once

// RankLane: a rank's collectives of one group, one after another. Where the ranks have a page (client/rank_page), they
// match and run the calls in it. The coordinator is asked for the others: where a signature differs or doesn't run in
// the page, a rank is late or gone, or a call is on handles.
//
//   lane.Push(call);                       // in the order of the calls
//   lane.Drive(*call, until_ns, poll);     // on the thread that waits, or
//   lane.Begin(*call);                     // on the lane's own
//
// The law: one thread at a time drives the lane. It gives the calls their numbers, so the page and the coordinator
// count the same calls. A call's completion runs when nobody drives: it may push and drive itself.

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/rank_members.h"
#include "client/rank_page/arena_program.h"
#include "client/rank_page/page_program.h"
#include "client/rank_page/rank_page.h"
#include "client/session_impl.h"

namespace tessera {

inline constexpr size_t kMaxLaneCalls = 1024;  // docs/limits.md: max_calls_ahead

class LaneCall {
 public:
  virtual ~LaneCall() = default;

  CollectiveSignature signature;
  PageOperands operands;
  bool fits_page = false;
  RankPage::Places places;  // in the ranks' arena
  int64_t timeout_us = 0;

 private:
  friend class RankLane;
  // The call is over: the page has run it, or it couldn't be run.
  virtual void EndInLane(const absl::Status& status) = 0;
  // Sends it to the coordinator, as the rank's call of this number, that has waited so long already.
  virtual absl::Status SendAsked(uint64_t number, int64_t waited_us) = 0;

  std::atomic<bool> is_queued_{false};
  int64_t pushed_ns_ = 0;
  // Used by the thread that drives.
  uint64_t number_ = 0;
  bool has_come_ = false;
  std::optional<PageProgram> program_;
};

class RankLane {
 public:
  struct Group {
    std::shared_ptr<SessionImpl> session;
    uint64_t number = 0;
    std::string key;
  };
  using Poll = absl::FunctionRef<absl::Status()>;

  // `page`: null where the ranks have none.
  RankLane(Group group, std::unique_ptr<RankPage> page) : group_(std::move(group)), page_(std::move(page)) {}
  ~RankLane();
  RankLane(const RankLane&) = delete;
  RankLane& operator=(const RankLane&) = delete;

  const RankPage* page() const { return page_.get(); }

  // ResourceExhausted beyond kMaxLaneCalls.
  absl::Status Push(std::shared_ptr<LaneCall> call);
  // Until the call has left the lane, as one that is over or asked. DeadlineExceeded at the time; what `poll` says when
  // that isn't ok, about every kWaitPollMs: then the call is asked, or given up where it is granted.
  absl::Status Drive(LaneCall& call, int64_t until_ns, Poll poll);
  // Takes a call as far as it goes without a wait for other ranks, if it is the first one, and leaves the rest to the
  // lane's thread. The other ranks find that this one has come, whenever that thread has its turn.
  void Begin(LaneCall& call);
  void LeaveToThread();
  // Empties the lane without a wait, by asking, then gives `send` the next number. That counts where it is ok.
  absl::Status Ask(absl::FunctionRef<absl::Status(uint64_t number)> send);
  // Calls that wait end with the status.
  void Cancel(const absl::Status& status);

 private:
  struct Ran {
    bool is_over = true;
    absl::Status interrupted;
    std::optional<absl::Status> end;  // for EndInLane
  };
  // `lock` holds the mutex, and nobody drives.
  absl::Status RunFront(std::unique_lock<std::mutex>& lock, int64_t until_ns, Poll poll);
  Ran Run(LaneCall& call, int64_t until_ns, Poll poll);
  RankPage::Verdict AwaitVerdict(LaneCall& call, int64_t until_ns, Poll poll, absl::Status& interrupted);
  absl::Status RunSteps(LaneCall& call, Poll poll);
  absl::Status EndStep(const LaneCall& call, int64_t stall_ns, Poll poll);
  absl::Status AwaitStep(const LaneCall& call, int64_t stall_ns, Poll poll);
  absl::Status WhyClosed(const LaneCall& call);
  std::string NameOf(const LaneCall& call) const;
  void RunThread();

  const Group group_;
  const pid_t owner_ = getpid();  // a fork's copy has no thread
  const std::unique_ptr<RankPage> page_;
  RankMembers members_{group_.session, group_.number};
  uint64_t next_number_ = 1;  // of the thread that drives

  std::mutex mutex_;
  std::condition_variable turned_;  // it has a driver no more, or a call has left
  std::deque<std::shared_ptr<LaneCall>> queue_;
  bool is_driven_ = false;
  std::atomic<int> hurried_{0};  // threads that want it empty
  std::optional<absl::Status> cancelled_;
  std::atomic<bool> is_cancelled_{false};  // has it

  std::atomic<bool> is_wanted_{false};  // the thread
  bool is_ending_ = false;
  std::condition_variable wanted_;
  std::thread thread_;
};

}  // namespace tessera
