#pragma once

// ProfileLog: what ran of a session's ops, and when: the last ones, as far as max_profiled_runs goes. Times and bytes
// are those that workers report; predictions stand beside them.
//
//   const uint64_t number = log.TakeNumber();   // as the op is issued
//   log.Add({.number = number, .name = "add", .runs = {...}}, max_runs);   // when all its workers have reported
//
// Ops end in another order than that in which they are issued; `ops` is in the order of the ends.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "schemas/types/ids.h"
#include "schemas/types/run_times.h"
#include "server/coordinator/plan_cache.h"

namespace tessera {

// One worker's part of an op.
struct ProfiledRun {
  WorkerIndex worker = {};
  RunTimes times = {};  // on the coordinator's clock
  int64_t received_bytes = 0;
  int64_t pushed_bytes = 0;
  int64_t transferred_bytes = 0;  // between the shard and a client or a file
};
using ProfiledRuns = absl::InlinedVector<ProfiledRun, 2>;

struct ProfiledOp {
  uint64_t number = 0;
  std::string_view name = {};                            // outlives the log
  std::shared_ptr<const std::vector<WayStep>> way = {};  // of a segment: its ops
  std::weak_ptr<const Plan> plan = {};                   // an evicted one is gone
  std::string output = {};                               // of what has no plan
  int64_t predicted_us = 0;                              // 0: nothing was
  absl::StatusCode code = absl::StatusCode::kOk;
  HandleId result = {};  // of the call; 0: there is none
  ProfiledRuns runs = {};
};

class ProfileLog {
 public:
  uint64_t TakeNumber() { return next_number_++; }
  uint64_t next_number() const { return next_number_; }
  // The oldest go until there are no more than `max_runs` runs; an op without any counts as one.
  void Add(ProfiledOp op, int64_t max_runs) {
    run_count_ += WeightOf(op);
    ops_.push_back(std::move(op));
    while (run_count_ > max_runs) {
      run_count_ -= WeightOf(ops_.front());
      ops_.pop_front();
    }
  }
  const std::deque<ProfiledOp>& ops() const { return ops_; }

 private:
  friend class Snapshot;
  static int64_t WeightOf(const ProfiledOp& op) { return op.runs.empty() ? 1 : static_cast<int64_t>(op.runs.size()); }

  uint64_t next_number_ = 0;
  int64_t run_count_ = 0;
  std::deque<ProfiledOp> ops_;
};

}  // namespace tessera
