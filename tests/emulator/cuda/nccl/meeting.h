#pragma once

// Meeting: where the ranks of an emulated communicator meet, threads of one process or processes. It is a folder of
// shared memory that the unique id names:
//
//   rank-1            rank 1 has come: its process and its host, as NCCL_HOSTID says
//   head-1            what the operation at the head of rank 1's stream has: lines "send 0 7" or "recv 0 3"
//   0-1-7             what rank 0 sends to rank 1 as its 7th: count, dtype, bytes. Taken away by who receives it
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

class Meeting {
 public:
  // A new folder; empty where there can be none.
  static std::string MakeFolder();

  Meeting(std::string folder, int ranks, int self) : folder_(std::move(folder)), ranks_(ranks), self_(self) {}

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
  // What can never end: a part of this head whose peer stands at one that hasn't it, and waits for this rank, too. What
  // the peer has taken or this rank has passed isn't waited for, though the other side's head may not show it yet.
  std::optional<std::string> FindOtherOrder(const std::vector<Part>& parts, const Passed& passed) const;

  void Announce(const Part& send, const std::byte* bytes) const;
  bool IsTaken(const Part& send) const;
  // True when it came; another count or dtype is a failure of all ranks.
  bool Take(const Part& receive, std::byte* bytes) const;

  void RemoveFolder() const;
  // Takes the folder away when all ranks have left.
  void Leave() const;

 private:
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string PathOf(int from, int to, uint64_t number) const;
  bool Exists(const std::string& name) const;

  const std::string folder_;
  const int ranks_;
  const int self_;
};

}  // namespace tessera::emulator::nccl
