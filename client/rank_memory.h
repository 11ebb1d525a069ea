#pragma once

// RankMemory: a rank's collectives on memory of its own process, as torch.distributed's are. Where all ranks are
// processes of one host, they match the calls and move the bytes in a page of theirs (rank_lane.h), and send and
// receive through rings (rank_mailbox.h). Else the input is brought to the rank's worker, the group's call runs there,
// and the output is fetched when somebody waits for it, or by a thread of the group where somebody is to be told. A
// group has one.
//
//   RankMemory memory(group);
//   TESSERA_ASSIGN_OR_RETURN(auto work, memory.Start({.kind = CollectiveKind::kAllReduce}, MakeHostView(...), {...}));
//   TESSERA_RETURN_IF_ERROR(work->Wait());

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "client/host_memory.h"
#include "client/process_group.h"
#include "client/rank_lane.h"
#include "client/rank_mailbox.h"

namespace tessera {

class RankMemory;

// A call that is under way. Its input is read, and its output written, until it is done.
class MemoryWork : public LaneCall, public MailCall, public std::enable_shared_from_this<MemoryWork> {
 public:
  using Callback = std::function<void(const absl::Status&)>;

  absl::Status Wait(std::optional<double> timeout_s = std::nullopt);
  bool IsDone();
  // ProcessGroup::TakeComplaint, once this call is done.
  absl::Status TakeComplaint() const;
  // The rank that sent, after a recv.
  int32_t source() const { return mail_source_ >= 0 ? mail_source_ : work_.source(); }
  // Calls back once, here or on the group's thread.
  void WhenDone(RankMemory& memory, Callback callback);

 private:
  friend class RankMemory;
  // Among the ranks, in lane or mailbox; asked of the coordinator; being ended by a thread.
  enum class State : uint8_t { kAmongRanks, kUnderWay, kEnding, kDone };

  void EndInLane(const absl::Status& status) override { Finish(status); }
  void EndInMail(const RankMail::Request& request) override;
  absl::Status SendAsked(uint64_t number, int64_t waited_us) override;
  // Until it has left the lane, or the mailbox.
  absl::Status AwaitRanks(std::optional<double> timeout_s);

  // Fetches the output, if nobody else does.
  void End();
  // Its group ends, and nobody will fetch the output.
  void GiveUp(const absl::Status& why);
  void Finish(const absl::Status& status);
  absl::Status Fetch();

  GroupCallOptions call_;
  std::optional<HostView> input_;  // until it was read
  std::weak_ptr<ProcessGroup> group_;
  RankMemory* memory_ = nullptr;  // while it is in the lane
  bool is_mail_ = false;
  std::vector<std::byte> packed_;  // the elements of an input whose elements lie apart
  int32_t mail_source_ = -1;
  GroupWork work_;
  std::optional<HostTarget> output_;
  std::mutex mutex_;
  std::condition_variable ended_;
  State state_ = State::kAmongRanks;
  absl::Status status_;
  std::vector<Callback> callbacks_;
};

class RankMemory {
 public:
  explicit RankMemory(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  // Both have one dim. The input is read until the work is done; it and the output may be the same memory. In a call
  // on devices they have sizes alone, and no memory.
  absl::StatusOr<std::shared_ptr<MemoryWork>> Start(const GroupCallOptions& call, const std::optional<HostView>& input,
                                                    const std::optional<HostTarget>& output);
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  friend class MemoryWork;
  // Fills in all that the lane is to know of the call.
  void FillLaneCall(const GroupCallOptions& call, MemoryWork& work) const;
  absl::Status StartMail(const std::shared_ptr<MemoryWork>& work, RankMailbox& mailbox) const;
  void Watch(std::shared_ptr<MemoryWork> work);
  void Run();

  const std::shared_ptr<ProcessGroup> group_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<MemoryWork>> watched_;
  bool is_ending_ = false;
  std::thread thread_;  // from the first work that is watched
};

}  // namespace tessera
