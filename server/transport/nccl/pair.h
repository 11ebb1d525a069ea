#pragma once

// NcclPair: this worker's messages with one peer (nccl_transport.h). Used by the transport's one thread.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/transport/nccl/library.h"
#include "server/transport/nccl/nccl_stream.h"
#include "server/transport/transport.h"

namespace tessera {

// kBroken: the communicator `ordinal` failed; kId: it begins. kHello says broken_ordinal alone. From kReady on they are
// of collectives (collectives.h).
enum class NcclWord : uint32_t {
  kPosted = 1,
  kGo = 2,
  kOtherSize = 3,
  kId = 4,
  kBroken = 5,
  kHello = 6,
  kReady = 7,    // member to leader: it would enter; `bytes` is what it would call
  kRefuse = 8,   // it won't
  kEnter = 9,    // leader to member: all enter; the communicator `expected_bytes`, and its id
  kStay = 10,    // nobody does, by reason of the worker `bytes`
  kEnded = 11,   // either way: the communicator `ordinal` of the leader isn't used any more, whatever is under way
  kLeave = 12,   // leader to member: when nothing is under way there, say so; `bytes` is the number of the question
  kIsIdle = 13,  // the answer
};
// From the leader to the other one, or back.
enum class NcclWay : uint32_t { kFromLeader = 0, kToLeader = 1 };

// A word on the control, a message each.
struct NcclRecord {
  NcclWord word = NcclWord::kHello;
  NcclWay way = NcclWay::kFromLeader;
  uint64_t ordinal = 0;
  uint32_t phase = 0;
  uint32_t chunk = 0;
  uint64_t bytes = 0;           // kPosted; kOtherSize: that were sent
  uint64_t expected_bytes = 0;  // kOtherSize
  uint64_t broken_ordinal = 0;  // the messages of no smaller ordinal pass
  std::array<char, NCCL_UNIQUE_ID_BYTES> id = {};
};

struct NcclPost {
  MessageTag tag;
  bool is_send = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  MessageTransport::Done done;
  bool is_told = false;   // the peer has heard of it, or may have
  bool is_again = false;  // it is told a second time, on a new connection
};

// Parts that pairs share.
struct NcclParts {
  using Task = absl::AnyInvocable<void()>;
  WorkerIndex self;
  const Nccl* nccl = nullptr;
  cuda::Gpu gpu;
  MessageTransport* control = nullptr;
  cuda::PinnedSlots* slots = nullptr;
  std::function<void(Task)> run;  // on the transport's thread; from any
  // For collectives: a peer's words, and that words to it or by it may be lost.
  std::function<void(WorkerIndex, const NcclRecord&)> hear;
  std::function<void(WorkerIndex, const absl::Status&)> link_broke;
};

class NcclPair : public std::enable_shared_from_this<NcclPair> {
 public:
  NcclPair(NcclParts& parts, WorkerIndex peer);

  void Add(NcclPost post);
  // Words about collectives. Words come in the order in which they are said, until link_broke.
  void SayOfCollectives(const NcclRecord& record);
  void ListenForCollectives();
  // Whether it wants to be asked again soon.
  bool Progress();
  // All that is pending ends with it, as does what comes later.
  void Close(absl::Status why);
  bool is_closed() const { return !closed_.ok(); }

 private:
  using Key = std::tuple<uint64_t, uint32_t, uint32_t, NcclWay>;
  enum class State : uint8_t { kNone, kStarting, kReady, kLaunching };
  struct Launched {
    uint64_t number = 0;
    std::vector<NcclPost> posts;
    absl::Status status;
    cuda::GpuUse::Spinning spinning;  // until the stream has passed it
  };

  bool is_leader() const { return parts_.self.value < peer_.value; }
  Key KeyOf(const NcclPost& post) const;
  void Listen();
  void BeginListening();
  void Say(NcclRecord record);
  void Tell(const Key& key);
  void Hear(const NcclRecord& record);
  void ControlFailed(uint64_t generation, const absl::Status& status);
  void BeginAgain(const absl::Status& status);
  void Match(const Key& key);
  void Begin(NcclPost post);
  void EndOtherSize(NcclPost post, uint64_t sent, uint64_t expected);
  void EndAll(const absl::Status& status);
  void EndThrough(uint64_t ordinal, const absl::Status& status);
  void Fail(const absl::Status& status);
  absl::Status Advance();
  absl::Status Start(const ncclUniqueId& id, uint64_t number);
  absl::Status Launch();
  absl::Status Mark();
  void Abort();

  NcclParts& parts_;
  const WorkerIndex peer_;
  absl::Status closed_;
  // The control: a record's tag is its generation and number. A break begins another generation. Law: a side that
  // listens in a generation has said something in it, so that the control ends the other side's listening in it, too.
  uint64_t generation_ = 1;
  uint32_t said_ = 0, heard_ = 0;
  bool is_listening_ = false;
  bool has_talked_ = false;  // in this generation, more than hello, or it was told more
  uint64_t broken_ordinal_ = 0;
  std::map<Key, NcclPost> posts_;
  std::map<Key, uint64_t> peer_posts_;  // bytes; of the leader
  // The communicator.
  State state_ = State::kNone;
  ncclComm_t comm_ = nullptr;
  uint64_t comm_number_ = 0;  // the leader counts them
  NcclStream stream_;
  uint64_t launches_ = 0;
  std::deque<NcclPost> queue_;
  std::deque<Launched> launched_;
};

}  // namespace tessera
