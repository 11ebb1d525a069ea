#pragma once

// NcclCollectives: calls of NCCL that sets of workers make together (collectives.h), on one stream of the GPU. A set's
// communicator has its workers as ranks, in the order of their numbers; it is made when the set's first call has its
// turn, and kept for the next ones.
//
// The worker of the smallest number is the set's leader: each member tells it that it is ready for a call, or that it
// refuses it, and it says "enter" to all when all are ready, or "stay" as soon as one refuses or is lost. So a worker
// that can't take its part leaves nobody inside a call. Words go by the pairs' control (pair.h).
//
//   worker 2 (leader)                               worker 3, worker 5
//   ready itself        <-- "ready 7.1" --
//   makes an id         -- "enter 7.1, id" -->
//   ncclCommInitRankConfig(rank 0 of 3)             ncclCommInitRankConfig(rank 1, 2 of 3)
//   ncclAllGather                                   ncclAllGather
//
// Law: a worker makes its calls, and the communicators for them, in the order in which it announced them, one after the
// other. An instruction waits for smaller ordinals alone, and so does its turn here: of all that is under way in the
// cluster the call of the smallest key has all of its workers come to it.
//
// When a worker of a set is lost, or a call fails at any of its ranks, all ranks abort the communicator: calls under
// way end with Unavailable as soon as the stream has passed it, and the next call makes another one. A leader keeps
// max_communicators; the one that was used longest ago goes when all of its ranks have nothing under way on it.
//
// All but what `Collectives` says is of the transport's one thread.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "server/transport/collectives.h"
#include "server/transport/nccl/nccl_stream.h"
#include "server/transport/nccl/pair.h"

namespace tessera {

// All ranks hear that a call is broken, and of a worker's death from the coordinator: so long a broken call waits for
// the dead one's name.
inline constexpr std::chrono::milliseconds kReasonWait(500);  // docs/limits.md: collective_reason_wait
inline constexpr size_t kMaxCommunicators = 16;               // docs/limits.md: max_communicators

class NcclCollectives final : public Collectives {
 public:
  // The pair with a worker, or null.
  using PairOf = std::function<NcclPair*(WorkerIndex)>;
  NcclCollectives(NcclParts& parts, PairOf pair_of);

  void Announce(CollectiveKey key, std::vector<WorkerIndex> workers) override;
  void Enter(CollectiveKey key, std::vector<CollectivePart> parts, Done done) override;
  void Refuse(CollectiveKey key) override;

  void Hear(WorkerIndex from, const NcclRecord& record);
  // Words may be lost: calls that the two have to do with end.
  void LinkBroke(WorkerIndex peer, const absl::Status& status);
  void Lost(WorkerIndex peer);
  // Whether it wants to be asked again soon.
  bool Progress();
  // All ends; until Progress says false.
  void Close();

 private:
  using Workers = std::vector<WorkerIndex>;
  enum class State : uint8_t { kNone, kStarting, kReady };
  struct Communicator {
    State state = State::kNone;
    ncclComm_t comm = nullptr;
    uint64_t number = 0;        // the leader's count, of the last one
    uint64_t ended_number = 0;  // up to here they are over
    ncclUniqueId id = {};
    // Used by the leader.
    uint64_t used = 0;           // when a call was let in last
    uint64_t question = 0;       // whether its members have nothing under way there; 0: they aren't asked
    std::set<WorkerIndex> idle;  // who said so
    bool is_live() const { return number > ended_number; }
  };
  struct Call {
    CollectiveKey key;
    Workers workers;
    std::vector<CollectivePart> parts = {};
    Done done = nullptr;
    bool is_here = false;  // this worker is ready, or refuses
    bool may_enter = false;
    bool is_launched = false;                    // but the stream's mark behind it
    uint64_t number = 0;                         // of its communicator
    absl::Status failure = absl::OkStatus();     // nobody enters, or it broke
    std::map<WorkerIndex, uint64_t> ready = {};  // of the leader: who would call what
  };
  struct Launched {
    uint64_t launch = 0;
    CollectiveKey key;
    Workers workers;
    uint64_t number = 0;
    Done done;
    cuda::GpuUse::Spinning spinning;  // until the stream has passed it
    absl::Status status = absl::OkStatus();
    std::optional<std::chrono::steady_clock::time_point> named_by =
        std::nullopt;  // it broke, and by whom isn't known yet
  };

  bool IsLeader(const Workers& workers) const { return workers.front() == parts_.self; }
  Call* Find(CollectiveKey key);
  Communicator* FindNumber(WorkerIndex leader, uint64_t number, const Workers** workers);
  bool IsInUse(const Workers& workers, uint64_t number) const;

  void Add(CollectiveKey key, Workers workers);
  void Ready(CollectiveKey key, std::vector<CollectivePart> parts, Done done);
  void RefuseHere(CollectiveKey key);
  void HearOfCall(Call& call, WorkerIndex from, const NcclRecord& record);
  void TakeReady(Call& call, WorkerIndex from, uint64_t what);
  void LetIn(Call& call);
  // By the leader: nobody enters.
  void Stay(Call& call, WorkerIndex reason, const absl::Status& why);
  void Fail(Call& call, const absl::Status& why);
  void GiveUp(CollectiveKey key, WorkerIndex from);
  absl::Status Issue(const Workers& workers, Communicator& communicator);
  void MakeRoom();

  // It is over at all ranks; `tells`: those that may not know it hear so.
  void End(const Workers& workers, Communicator& communicator, const absl::Status& why, bool tells);
  // The library says that it broke, here or at another rank.
  void Break(const Workers& workers, Communicator& communicator, const absl::Status& status);
  bool ProgressFirst();
  absl::Status Advance(Call& call, Communicator& communicator);
  absl::Status Start(const Workers& workers, Communicator& communicator);
  absl::Status Launch(Call& call, Communicator& communicator);
  absl::Status Mark();
  void FindBroken();
  void AnswerQuestions();

  void Say(WorkerIndex to, const NcclRecord& record);
  void SayToOthers(const Workers& workers, const NcclRecord& record);

  NcclParts& parts_;
  const PairOf pair_of_;
  absl::Status closed_;
  CollectiveKey last_key_;
  std::deque<Call> calls_;                                                          // announced, in order
  std::map<CollectiveKey, std::vector<std::pair<WorkerIndex, NcclRecord>>> early_;  // said of what isn't announced yet
  std::map<Workers, Communicator> communicators_;
  uint64_t issued_ = 0, questions_ = 0, uses_ = 0;              // of this leader
  std::vector<std::pair<WorkerIndex, NcclRecord>> unanswered_;  // questions of leaders
  NcclStream stream_;
  uint64_t launches_ = 0;
  bool is_marked_ = true;  // the last one's number is behind it in the stream
  std::deque<Launched> launched_;
};

}  // namespace tessera
