#pragma once

// ProcessGroups: which sessions are the ranks of which group, and the calls that wait for each other. It holds and
// finds; the state machine compares, issues and answers (collectives.cc). docs/ranks.md has the rules.

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/collective_parts.h"
#include "server/coordinator/tables.h"

namespace tessera {

inline constexpr int64_t kMaxGroupTimeoutUs =
    int64_t{365} * 24 * 3600 * 1'000'000;  // docs/limits.md: max_group_timeout

inline constexpr uint64_t kMaxCallNumber = (uint64_t{1} << 48) - 1;  // docs/limits.md: max_call_number

// "0.5 s".
std::string SecondsText(int64_t us);

struct GroupMember {
  enum class State : uint8_t { kMissing, kHere, kGone };
  State state = State::kMissing;
  SessionId session;
  WorkerIndex worker;
  std::string process;
  std::string meeting;     // where ranks of its host find it
  uint64_t request = 0;    // of its join, until that is answered
  std::string why;         // of one that is gone
  uint64_t next_call = 1;  // the number of its next collective
};

// A member's call that waits for others.
struct ArrivedCall {
  int32_t rank = 0;
  SessionId session;
  CollectiveSignature signature;
  uint64_t request = 0;   // 0: nobody is told
  TensorPointer operand;  // null: it gives nothing
  TensorPointer result;   // null: it takes nothing
};

// The k-th calls of all members.
struct GroupCall {
  uint64_t number = 0;
  std::vector<ArrivedCall> arrived;
  absl::Status failed;  // who comes later is told the same
  int64_t deadline_us = 0;
  int64_t timeout_us = 0;
};

// A send or a recv that waits for the other side.
struct WaitingMessage {
  ArrivedCall call;  // its rank is the own one
  int32_t peer = 0;  // kAnySource: of a recv
  int32_t tag = 0;
  uint64_t claim = 0;  // of two sides that the ranks have matched by themselves; 0: they have not
  int64_t deadline_us = 0;
  int64_t timeout_us = 0;
  bool is_blocked = false;  // it has met the other side, and a worker has no room for it yet
  bool has_failed = false;  // while it was blocked: its record has nothing to do any more

  bool is_send() const { return call.signature.kind == CollectiveKind::kSend; }
  // Whether one is a send, the other a recv, and they name each other. A blocked one alone has its other side.
  bool IsOtherSideOf(const WaitingMessage& known) const;
  // "send f32[8] to rank 2 with tag 0".
  std::string ToText() const;
};

// The memory of a call, for people who look why a program hangs.
struct FlightCall {
  uint64_t number = 0;  // 0: a message
  std::string what;
  std::vector<int64_t> arrived_us;  // by rank; kNever
  int64_t matched_us = kNever;
  std::string failure;
  static constexpr int64_t kNever = -1;
};

struct ProcessGroupEntry {
  uint64_t id = 0;
  std::string tenant;
  std::string key;
  std::vector<GroupMember> members;  // by rank
  bool is_formed = false;
  int64_t forming_deadline_us = 0;
  int64_t forming_timeout_us = 0;
  std::deque<GroupCall> calls;         // by number; without those that the ranks matched by themselves
  std::list<WaitingMessage> messages;  // in the order in which they came
  std::deque<FlightCall> flight;       // in the order in which they began

  size_t CountIn(GroupMember::State state) const;
  std::optional<int32_t> RankOf(SessionId session) const;
  // "rank 2 (pid 31 on node7)".
  std::string NameOf(int32_t rank) const;
  // "call 7 of group 'world'".
  std::string NameOf(const GroupCall& call) const;
  // The failure of a call that needs a rank which is gone; `what` opens the message.
  absl::Status WhyGone(int32_t rank, const std::string& what) const;
  std::optional<int32_t> FindGone() const;
  // "ranks 0, 2 and 5", of a few, and the count of the rest.
  static std::string TextOf(const std::vector<int32_t>& ranks);
  // The call of that number; made, where no member has come to it yet.
  GroupCall& CallAt(uint64_t number);
  // The ranks that have not come to the call.
  std::vector<int32_t> MissingAt(const GroupCall& call) const;
  // "ranks 0 and 2 called X; rank 1 called Y".
  static std::string WhoCalledWhat(const std::vector<ArrivedCall>& calls);
  // Notes a call for the flight record, which keeps so many; the newest one of that number.
  FlightCall& Note(uint64_t number, const std::string& what, size_t max_flight_calls);
  FlightCall* Noted(uint64_t number);
  // Forgets calls that all members have come to, or will not.
  void ForgetCalls();
};

class ProcessGroups {
 public:
  ProcessGroupEntry* Find(uint64_t id);
  // The group with the key, in the tenant; null: there is none.
  const ProcessGroupEntry* FindByKey(const std::string& tenant, const std::string& key) const;
  ProcessGroupEntry& Add(const std::string& tenant, const std::string& key, size_t size);
  void Erase(uint64_t id);
  size_t size() const { return groups_.size(); }
  // In the order in which they were made.
  std::map<uint64_t, ProcessGroupEntry>& all() { return groups_; }
  const std::map<uint64_t, ProcessGroupEntry>& all() const { return groups_; }

 private:
  friend class Snapshot;
  std::map<uint64_t, ProcessGroupEntry> groups_;
  std::map<std::pair<std::string, std::string>, uint64_t> by_key_;
  uint64_t next_ = 1;
};

}  // namespace tessera
