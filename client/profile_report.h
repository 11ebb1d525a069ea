#pragma once

// ProfileReport: which of a session's ops ran, when and where, as the workers measured it. Plain values.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// A range of a session's ops, numbered as they were issued: [first_op, end_op).
struct OpRange {
  uint64_t first_op = 0;
  uint64_t end_op = UINT64_MAX;
};

// One worker's part of an op. Times are of one monotonic clock, of the coordinator's host.
struct ProfiledRun {
  int32_t worker = 0;
  int64_t started_ns = 0;  // its first work began; earlier waits are not in it
  int64_t ended_ns = 0;
  int64_t work_ns = 0;            // of the time between; the rest it waited, for peers or for messages
  int64_t received_bytes = 0;     // from other workers
  int64_t pushed_bytes = 0;       // stored to other workers' memory
  int64_t transferred_bytes = 0;  // between the shard and a client or a file
};

struct ProfiledOp {
  uint64_t number = 0;
  std::string name;
  std::vector<std::string> segment;  // the ops that ran as this one; empty: it alone
  std::string output;                // the spec of its first result; empty where its plan is forgotten
  int64_t predicted_us = 0;          // 0: nothing was
  std::string failure;               // the name of its status; empty: it did not fail
  uint64_t result = 0;               // the number of its first result
  std::string place;                 // where it was asked for (call_sites.h); empty: not known
  std::vector<ProfiledRun> runs;     // of the workers that had something to do, and lived to report it
};

struct ProfileReport {
  struct Clock {
    int32_t worker = 0;
    int64_t error_ns = 0;  // how far the times of its runs may be off; 0: it is the coordinator's clock
  };
  std::vector<ProfiledOp> ops;  // in the order in which they ended
  uint64_t forgotten_ops = 0;   // of those asked for: no longer remembered
  uint64_t ops_under_way = 0;
  std::vector<Clock> clocks;
};

}  // namespace tessera
