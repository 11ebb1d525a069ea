#pragma once

// TimedCluster: the real state machine in virtual time, with workers that run what they get one after another, each op
// for as long as the test says. Sessions have records to take up all the time, as many as the test wants.
//
//   TimedCluster cluster(2);
//   const SessionId a = cluster.Open("a");
//   cluster.Flood(a, {.elements = 7, .work_us = 900});   // from now on, with 8 of them in its queue
//   cluster.RunUntil(5'000'000);
//   cluster.WorkOf("a");                                  // us of each worker

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "server/coordinator/state_machine.h"

namespace tessera {

struct TimedOp {
  int64_t elements = 8;  // of the tensor that it makes, which is its plan: the model predicts its cost from it
  int64_t work_us = 100;
  int64_t spread_us = 0;    // the work is up to so much more
  int64_t prepared_us = 0;  // that each worker says it lowered a template for it
};

class TimedCluster {
 public:
  explicit TimedCluster(int workers, const CoordinatorConfig& config = {}, uint64_t seed = 1);

  void Change(std::vector<TenantLimits> tenants) { Apply(TenantsChangedEvent{std::move(tenants)}); }
  SessionId Open(const std::string& tenant);
  void Flood(SessionId session, const TimedOp& op, size_t queued = 8);
  // One op, and how long it took to its end, when that has come.
  void Ask(SessionId session, const TimedOp& op);
  const std::vector<int64_t>& waits_us() const { return waits_us_; }

  void RunUntil(int64_t us);
  int64_t now_us() const { return now_us_; }
  StateMachine& machine() { return machine_; }
  // The time of ops that have ended, on each of the workers.
  int64_t WorkOf(const std::string& tenant) const;
  int64_t WorkOf(SessionId session) const;
  // The most of one tenant's ops at once, and its longest op, since ForgetMost: issued and not ended.
  int64_t MostUnderWay(const std::string& tenant) const;
  int64_t LongestOp(const std::string& tenant) const;
  void ForgetMost();
  int64_t busy_us() const { return busy_us_; }

 private:
  struct Running {
    Ordinal ordinal;
    int64_t elements = 0;
    int64_t work_us = 0;
  };
  struct Client {
    std::string tenant;
    TimedOp op;
    size_t queued = 0;
    uint64_t batches = 0;
    uint64_t handles = 0;
    int64_t work_us = 0;
  };
  struct Load {
    int64_t under_way = 0, most_under_way = 0, longest_us = 0;
  };
  void Apply(Event event);
  void Carry(const Effects& effects);
  void Submit(SessionId session, const TimedOp& op);
  void Refill();
  uint64_t Random();

  StateMachine machine_;
  int workers_;
  uint64_t random_;
  int64_t now_us_ = 0;
  int64_t next_tick_us_ = 0;
  int64_t next_end_us_ = 0;
  int64_t busy_us_ = 0;
  uint64_t next_session_ = 1;
  std::map<SessionId, Client> clients_;
  std::map<int64_t, SessionId> owner_of_;  // by the elements of an op
  std::map<int64_t, TimedOp> op_of_;
  std::map<TemplateId, int64_t> elements_of_;
  std::deque<Running> running_;  // of worker 0, as of all: each op is on all of them
  std::map<std::string, Load> loads_;
  std::map<int64_t, int64_t> asked_us_;  // by the elements of an op
  std::vector<int64_t> waits_us_;
};

}  // namespace tessera
