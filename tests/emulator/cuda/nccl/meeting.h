#pragma once

// Meeting: where the ranks of an emulated communicator meet, threads of one process or processes. It is a folder of
// shared memory that the unique id names:
//
//   rank-1            rank 1 has come: its process and its host, as NCCL_HOSTID says
//   head-1            what the operation at the head of rank 1's stream has: lines "send 0 7" or "recv 0 3"
//   0-1-7             what rank 0 sends to rank 1 as its 7th: count, dtype, bytes. Taken away by who receives it
//   all-1-4           what rank 1 gives to its 4th operation of collectives: of each its kind, count, dtype, sum and
//   root,
//                     and the bytes. It takes it away when its 5th is done, and so all have come to the 5th
//   error             the text of what went wrong; all ranks see it
//
// Law: a send and a receive of two ranks meet by their numbers, in the order in which each rank enqueued them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::emulator::nccl {

struct Part {
  bool is_send = false;
  int peer = 0;
  uint64_t number = 0;  // among those of the same direction and peer
  uint64_t address = 0;
  int64_t count = 0;
  int dtype = 0;
  int64_t bytes = 0;
  bool is_announced = false;  // a send's bytes are in the folder
  bool is_done = false;
};

// One of an operation's collectives.
struct Collective {
  enum class Kind : int32_t { kAllGather, kBroadcast, kReduceScatter };
  struct Call {
    Kind kind = Kind::kAllGather;
    int32_t dtype = 0;
    int64_t count = 0;
    int32_t sum = 0;  // of reductions: the library's number of the operation
    int32_t root = 0;
    bool operator==(const Call&) const = default;
  };
  Call call;
  uint64_t source = 0, destination = 0;  // addresses
  int64_t source_bytes = 0, destination_bytes = 0;
};
std::string ToText(const Collective::Call& call);

class Meeting {
 public:
  // A new folder; empty where there can be none.
  static std::string MakeFolder();

  Meeting(std::string folder, int ranks, int self) : folder_(std::move(folder)), ranks_(ranks), self_(self) {}

  int ranks() const { return ranks_; }
  int self() const { return self_; }
  void Come() const;
  // Two processes of one host, whose ranks share the one GPU that there is: NCCL refuses them. Threads of a process it
  // would refuse, too; tests have them.
  std::optional<std::string> FindSharedGpu() const;
  bool HaveAllCome() const;
  // Another rank has taken the folder away: it aborted.
  bool IsGone() const;
  std::optional<std::string> Error() const;
  void Fail(const std::string& text) const;

  void PublishHead(const std::vector<Part>& parts) const;
  // How many this rank's stream has passed, by (is a send, peer).
  using Passed = std::map<std::pair<bool, int>, uint64_t>;
  // A circle that can never end: a part of this head whose peer stands at one that hasn't it, and waits for this rank,
  // too. Parts that the peer has taken or this rank has passed aren't waited for, though the other side's head may not
  // show it yet.
  std::optional<std::string> FindOtherOrder(const std::vector<Part>& parts, const Passed& passed) const;

  void Announce(const Part& send, const std::byte* bytes) const;
  bool IsTaken(const Part& send) const;
  // True when it came; another count or dtype is a failure of all ranks.
  bool Take(const Part& receive, std::byte* bytes) const;

  // The number-th operation of collectives: what this rank gives, once.
  void AnnounceAll(uint64_t number, const std::vector<Collective::Call>& calls,
                   const std::vector<std::string>& given) const;
  // The pieces that all ranks give, by collective and rank, when all have come; ranks that call something else are a
  // failure of all.
  using Given = std::vector<std::vector<std::string>>;
  std::optional<Given> TakeAll(uint64_t number, const std::vector<Collective::Call>& calls) const;
  void ForgetAll(uint64_t number) const;
  // A rank that hasn't come to this rank's collective, and waits for this rank with something else.
  std::optional<std::string> FindPartBefore(uint64_t number, const Passed& passed) const;

  void RemoveFolder() const;
  // Takes the folder away when all ranks have left.
  void Leave() const;

 private:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string PathOf(int from, int to, uint64_t number) const;
  std::string NameOfAll(int rank, uint64_t number) const;
  bool Exists(const std::string& name) const;

  const std::string folder_;
  const int ranks_;
  const int self_;
};

}  // namespace tessera::emulator::nccl
