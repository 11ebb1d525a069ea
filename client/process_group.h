#pragma once

// ProcessGroup: this session as one rank among sessions that call collectives together, as the processes of
// torch.distributed do. The coordinator compares the ranks' calls, and runs each as one op of their workers.
//
//   TESSERA_ASSIGN_OR_RETURN(auto group, ProcessGroup::Join(session, {.key = "run 7", .size = 4, .rank = rank,
//                                                                     .worker = WorkerIndex(rank)}));
//   TESSERA_ASSIGN_OR_RETURN(GroupWork work, group->Run({.kind = CollectiveKind::kAllReduce}, &x, x.shape()));
//   TESSERA_RETURN_IF_ERROR(work.Wait());     // work.result() may be used before
//
// A rank's tensors lie whole on its worker, and are never changed: a result is a new tensor. docs/ranks.md has the
// rules. Any thread may call; calls of one group count in the order in which they are made.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "schemas/types/collective_kind.h"

namespace tessera {

class RankLane;
class RankMailbox;
class TensorReceive;

struct GroupOptions {
  std::string key;  // all ranks say the same
  int64_t size = 1;
  int64_t rank = 0;
  WorkerIndex worker;  // of its own
  double timeout_s = 1800;
};

struct GroupCallOptions {
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int32_t peer = 0;  // the root; of a send the destination, of a recv the source or kAnySource
  int32_t tag = 0;
  double timeout_s = 1800;
  bool is_waited_for = false;  // RankMemory::Start runs it on the calling thread
  // Where a send and a receive are an exchange: the elements of the message the other way, for a text to both sides
  // where these differ.
  int64_t other_elements = -1;
  // The ranks' devices move the bytes once the call has matched: it is compared, and nothing else is done. Such a call
  // has no tensors; these say its signature's.
  bool on_devices = false;
  DType dtype = DType::kF32;
  int64_t elements = -1;
};

// InvalidArgument for NaN and what is below 0; more than a year is a year.
absl::StatusOr<int64_t> TimeoutUs(std::string_view what, double seconds);

// One call of this rank.
class GroupWork {
 public:
  // Until the result is there, or, of a call without one, until all have come; the call's own time-out ends it, too.
  absl::Status Wait(std::optional<double> timeout_s = std::nullopt) const;
  bool IsDone() const;
  // The rank that sent, after a recv.
  int32_t source() const;
  // Null where the call is late.
  const std::optional<Tensor>& result() const { return result_; }
  // A recv in a group whose ranks match their messages by themselves has its result when the message has come, or the
  // part of it that says where its bytes are. LateResult waits for that.
  bool is_late() const { return receive_ != nullptr; }
  absl::StatusOr<Tensor> LateResult() const;

 private:
  friend class ProcessGroup;
  std::shared_ptr<TensorReceive> receive_;
  std::shared_ptr<SessionImpl> session_;
  std::shared_ptr<void> request_;  // of a call that is answered
  std::optional<Tensor> result_;
};

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  // Blocks until all ranks are there. InvalidArgument: another size, a rank or a worker that is taken.
  // DeadlineExceeded names the ranks that are missing.
  static absl::StatusOr<std::shared_ptr<ProcessGroup>> Join(const Session& session, const GroupOptions& options);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // `operand`: null where the rank gives nothing. `result`: the shape of what it takes, of the operand's dtype or of
  // `result_dtype`. The wait, and the result, tell of faults that the coordinator finds.
  absl::StatusOr<GroupWork> Run(const GroupCallOptions& call, const Tensor* operand, const std::optional<Shape>& result,
                                std::optional<DType> result_dtype = std::nullopt) const;
  // The group's last calls and messages, at most 64, and how its members are, with those that the ranks matched by
  // themselves. NotFound when it was left.
  absl::StatusOr<FlightReport> Flight(uint32_t last_calls = UINT32_MAX) const;
  // InvalidArgument where a rank couldn't take a message that this one had sent, and this one wasn't told; once. For a
  // later call to tell it, when that is done.
  absl::Status TakeComplaint() const;
  // Others' calls that need this rank fail from now on.
  void Leave();

  int64_t rank() const { return options_.rank; }
  int64_t size() const { return options_.size; }
  const std::string& key() const { return options_.key; }
  uint64_t number() const { return group_; }  // the coordinator's
  WorkerIndex worker() const { return options_.worker; }
  const Mesh& mesh() const { return mesh_; }  // of the own worker
  const Session& session() const { return session_; }
  const std::vector<GroupMemberReport>& members() const { return members_; }
  RankLane& lane() const { return *lane_; }
  // Null where sends and receives go through the workers, and the coordinator matches them.
  RankMailbox* mailbox() const { return mailbox_.get(); }

 private:
  friend class MemoryWork;     // sends calls of the lane
  friend class TensorReceive;  // and of the mailbox
  friend class RankMemory;
  ProcessGroup(const Session& session, GroupOptions options);

  absl::Status CheckMember(std::string_view name) const;
  // A send or receive of a Tensor in a group with a mailbox.
  absl::StatusOr<GroupWork> SendByMail(const GroupCallOptions& call, const Tensor* operand) const;
  absl::StatusOr<GroupWork> ReceiveByMail(const GroupCallOptions& call, const Shape& result, DType dtype) const;
  // `number`: of sends and receives the claim, or 0.
  absl::StatusOr<GroupWork> Send(const GroupCallOptions& call, const Tensor* operand,
                                 const std::optional<Shape>& result, std::optional<DType> result_dtype, uint64_t number,
                                 int64_t waited_us) const;

  Session session_;
  GroupOptions options_;
  Mesh mesh_;
  uint64_t group_ = 0;
  std::vector<GroupMemberReport> members_;
  std::unique_ptr<RankLane> lane_;
  std::unique_ptr<RankMailbox> mailbox_;
  std::atomic<bool> has_left_{false};
  mutable std::atomic<uint64_t> next_claim_{1};  // of messages that this rank sends through the workers
};

}  // namespace tessera
