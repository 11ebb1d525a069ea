#pragma once

// FairTurns: whose records are taken up next. Start-time fair queueing (Goyal, Vin, Cheng 1996) between tenants, and
// within a tenant between its sessions. It holds numbers alone: no record, no clock, no worker.
//
// Each tenant has a virtual time, which grows by what its work costs divided by its weight; the tenant with the least
// has the next turn, and within it the session with the least. A cost is a prediction at first, and is corrected to
// what the workers measured when the work has ended. So tenants that always have work get device time by their weights,
// whatever was predicted. The law and its bound are in tests/property/coordinator/fair_turns_test.cc.
//
//   FairTurns turns;
//   turns.SetWeight(1, 3);  turns.AddSession(SessionId(7), 1);
//   turns.SetReady(SessionId(7));
//   turns.Next() == SessionId(7);
//   const TurnCharge charge = turns.Issue(SessionId(7), 300 * kTicksPerUs);  // virtual time grows by 100 us
//   turns.Settle(charge, 600 * kTicksPerUs);                                 // it took 600: by another 100 us
//
// Times are integers, so that a replay agrees to the bit. A session that waits for a worker waits at a gate, the number
// of that worker; it costs nothing until the gate opens. Everything costs the logarithm of the number of sessions.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "schemas/types/ids.h"
#include "server/coordinator/turn_heap.h"

namespace tessera {

// Device time in 1/1024 us: 2^63 of them are 285 years.
inline constexpr int64_t kTicksPerUs = 1024;
constexpr int64_t TicksOfNs(int64_t ns) { return ns / 1000 * kTicksPerUs + ns % 1000 * kTicksPerUs / 1000; }

// The charge for a piece of work that is under way. Nobody bears it while `tenant` is negative.
struct TurnCharge {
  SessionId session;
  int32_t tenant = -1;
  int64_t ticks = 0;
};

class FairTurns {
 public:
  // A session that was idle begins so far behind the present that one op of it goes at once. Virtual time.
  static constexpr int64_t kIdleCredit = 2'000 * kTicksPerUs;
  // A session that waited for a worker while others had another one is at most so far behind when its turn comes.
  static constexpr int64_t kMaxLag = 250'000 * kTicksPerUs;
  // A tenant counts as one that competes for so long after its last work.
  static constexpr int64_t kCompetingUs = 200'000;
  // Gates are numbers of workers, and these.
  static constexpr int32_t kNoGate = -1;
  static constexpr int32_t kAnyChange = -2;

  // The time of what follows; it never goes back.
  void SetNow(int64_t now_us) { now_us_ = now_us; }
  // 1 for a tenant that was given none. Past charges keep the weight that they had.
  void SetWeight(int32_t tenant, int64_t weight);
  void AddSession(SessionId session, int32_t tenant);
  void RemoveSession(SessionId session);

  // It has something to take up: after none, or while it waits at a gate, which it leaves.
  void SetReady(SessionId session);
  // The same, of one that may have nothing.
  void Retry(SessionId session);
  void SetIdle(SessionId session);
  // It waits at the gate, which is closed from now on.
  void SetBlocked(SessionId session, int32_t gate);
  void Close(int32_t gate) { closed_.insert(gate); }
  // Opens the gates of which `is_open` says so. A session that waits for any change waits no more.
  void Reopen(const std::function<bool(int32_t)>& is_open);

  // The session whose turn it is; none: all are idle, or wait at closed gates.
  std::optional<SessionId> Next();
  // The gate that the session of Next waits at, which was opened since, and may have to be closed again.
  int32_t GateOf(SessionId session) const;

  // For work that nobody measures.
  void Pay(SessionId session, int64_t ticks);
  // For work that begins; Settle ends it, once, whether the session is still here or not.
  TurnCharge Issue(SessionId session, int64_t ticks);
  void Settle(const TurnCharge& charge, int64_t measured_ticks);

  // Whether two tenants have work, or had some in the last kCompetingUs.
  bool AreCompeting();

  // Virtual times of a tenant and of the present, for whoever shows them.
  int64_t VirtualTimeOf(int32_t tenant) const;
  int64_t present() const { return present_; }
  bool HasBacklog(int32_t tenant) const;

 private:
  friend class Snapshot;
  struct Tenant;
  struct Session {
    int64_t key = 0;      // virtual time within its tenant
    uint64_t number = 0;  // of the session
    size_t place = kInNoHeap;
    Tenant* tenant = nullptr;
    bool has_work = false;
    int32_t gate = kNoGate;
  };
  struct Tenant {
    int64_t key = 0;  // virtual time
    uint64_t number = 0;
    size_t place = kInNoHeap;  // in a heap while a session of it may have its turn
    int64_t weight = 1;
    int64_t rest = 0;     // ticks that were not enough for one of virtual time
    int64_t present = 0;  // of its sessions: the start of the one that had the last turn
    int64_t latest = 0;   // the latest end of any
    int64_t backlogged = 0;
    int64_t under_way = 0;
    int64_t last_work_us = 0;
    bool is_recent = false;
    std::map<int32_t, TurnHeap<Session>> waiting;  // by gate; kNoGate: they have no more to wait for
  };

  Tenant& TenantOf(int32_t tenant);
  void Charge(Tenant& tenant, Session* session, int64_t ticks);
  void Enter(Session& session, int32_t gate);
  void Leave(Session& session);
  void Touch(Tenant& tenant);
  void EndBusyPeriods(Tenant& tenant);
  Session* BestOf(const Tenant& tenant) const;

  std::map<int32_t, std::unique_ptr<Tenant>> tenants_;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  TurnHeap<Tenant> ready_;
  std::set<int32_t> closed_;                 // gates
  std::map<int32_t, std::set<int32_t>> at_;  // tenants with sessions at a gate
  std::vector<Tenant*> recent_;              // that compete
  int64_t next_look_us_ = 0;                 // whether they still do
  int64_t now_us_ = 0;
  int64_t present_ = 0;
  int64_t latest_ = 0;
  int64_t backlogged_ = 0;  // tenants
  int64_t under_way_ = 0;
};

}  // namespace tessera
