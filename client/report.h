#pragma once

// Reports to a client: of the cluster, of a plan, and of the bytes that its ops moved. Plain values.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/profile_report.h"
#include "schemas/types/device_kind.h"
#include "schemas/types/ids.h"
#include "schemas/types/shape.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

enum class SessionState : uint8_t { kOpen = 0, kReconnecting = 1, kClosed = 2 };
std::string_view ToText(SessionState state);

enum class WorkerState : uint8_t { kAlive = 0, kSuspect = 1, kDead = 2 };
std::string_view ToText(WorkerState state);

struct WorkerReport {
  int32_t index = 0;
  uint64_t incarnation = 0;
  std::string host;
  std::string data_address;
  std::string remote_address;  // for clients of other hosts; may be empty
  int64_t memory_bytes = 0;
  int64_t used_bytes = 0;
  int64_t spilled_bytes = 0;          // in files of it, or its host's memory
  int64_t spilled_to_host_bytes = 0;  // of them: in its host's memory
  int64_t spill_bytes = 0;            // that it may have there; 0: it has no folder for them
  WorkerState state = WorkerState::kAlive;
  int32_t pid = 0;
  DeviceKind device = DeviceKind::kCpu;
  int64_t received_bytes = 0;  // from other workers, since it joined
  int64_t outstanding = 0;     // instructions issued and not yet reported
  uint64_t activity = 0;       // heartbeats that found it at work
  bool is_cordoned = false;    // sessions that begin may not use it; in a welcome: the session may not
  bool is_draining = false;    // it is about to be shut down
};

struct SessionReport {
  uint64_t id = 0;
  std::string tenant;
  std::string client;
  std::string name;
  uint64_t tensors = 0;
  int64_t bytes = 0;  // on each worker, at most
  uint64_t queued = 0;
  bool connected = false;
  bool awaits_client = false;  // of the asking session: nothing of it goes on before its client has brought bytes
  bool awaits_ranks = false;   // of the asking session: some collective of it waits for other ranks
  int64_t spilled_bytes = 0;   // in files of each worker, at most
};

// A tenant: its limits, and its use. Bytes are of each worker; -1: no limit.
struct TenantReport {
  std::string name;
  int64_t weight = 1;
  int64_t guaranteed_bytes = 0;
  int64_t max_bytes = -1;
  int64_t max_sessions = -1;
  int64_t max_connections = -1;
  int64_t max_queued_records = -1;
  int64_t max_spilled_bytes = -1;
  int64_t max_device_permille = -1;  // of the pool's device time
  int64_t max_detached_bytes = -1;
  int64_t lanes = 0;          // 0: auto, 1: interactive, 2: batch
  int64_t used_bytes = 0;     // on the worker where it has the most
  int64_t spilled_bytes = 0;  // in files of a worker, at most
  uint64_t sessions = 0;
  uint64_t connections = 0;
  uint64_t queued = 0;        // records
  double device_seconds = 0;  // that its work took, summed over workers, since the coordinator began
  bool is_removed = false;    // the tenants file names it no more
};

// How far the drain of a worker is (Session::DrainWorker).
struct DrainStep {
  enum class Phase : uint8_t { kLooking = 0, kWaiting = 1, kEnding = 2, kDone = 3, kRefused = 4 };
  struct Loss {
    uint64_t session = 0;
    std::string tenant;
    std::string name;
    uint64_t tensors = 0;
    int64_t bytes = 0;
  };
  Phase phase = Phase::kLooking;
  uint64_t tensors = 0;  // that are on that worker alone
  int64_t bytes = 0;
  std::vector<Loss> losses;  // by session, those with the most bytes first
  int64_t outstanding = 0;   // instructions that the worker has not reported
  std::string why;           // of one that was refused
};

enum class TensorState : uint8_t {
  kQueued = 0,
  kIssued = 1,
  kReady = 2,
  kFailed = 3,
  kUploading = 4,
  kSpilled = 5,
  kSpilledToHost = 6
};
std::string_view ToText(TensorState state);

struct TensorReport {
  uint64_t handle = 0;
  TensorSpec spec;
  int64_t bytes_per_worker = 0;
  TensorState state = TensorState::kReady;
  absl::Status status;
  std::string name;
};

// A range of a session's tensors by their handles: up to `count` of them behind handle `after`.
struct TensorRange {
  uint32_t count = 0;
  uint64_t after = 0;
};

struct ClusterReport {
  uint64_t epoch = 0;
  double uptime_s = 0;
  std::vector<WorkerReport> workers;
  std::vector<SessionReport> sessions;  // the asking one; all of them for an admin
  std::vector<TensorReport> tensors;    // of the asking session
  bool has_more_tensors = false;        // than were asked for
  uint64_t next_ordinal = 0;
  uint64_t plans_cached = 0;
  uint64_t plan_hits = 0;
  uint64_t plan_misses = 0;
  uint64_t session_count = 0;  // of everybody
  uint64_t tensor_count = 0;
};

// The coordinator's answer when a session opens.
struct WelcomeReport {
  uint64_t session_id = 0;
  uint64_t secret = 0;
  uint64_t epoch = 0;
  uint64_t connection = 0;
  uint64_t last_batch = 0;
  double lease_s = 0;
  std::string server_version;
  int32_t server_pid = 0;
  uint32_t max_inline_bytes = 0;
  double heartbeat_s = 0;
  std::vector<WorkerReport> workers;
};

// One step of a plan, and the bytes that go between workers in it.
struct StepFlowsReport {
  struct Flow {
    WorkerIndex from;
    WorkerIndex to;
    int64_t bytes = 0;
  };
  std::string title;
  std::vector<WorkerIndex> workers;  // that take part
  bool is_exchange = false;
  bool joins_last = false;  // in the phase of the step before
  std::vector<Flow> flows;
};

// Lists go by position in row-major order, or by worker when source and destination meshes differ.
struct PlanReport {
  std::string text;
  std::vector<std::string> steps;
  std::vector<std::string> implicit;
  std::vector<int64_t> received_bytes;
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> peak_bytes;
  double predicted_seconds = 0;
  std::vector<TensorSpec> outputs;  // at least one
  std::string grid;
  std::vector<std::string> runners_up;
  std::vector<WorkerIndex> workers;     // of each entry of the lists
  std::vector<Strides> output_strides;  // in elements, by output
  // By output: the tensor among the operands in whose memory it lies, -1: its own; and of that the bytes on each
  // worker.
  std::vector<int> output_operands;
  std::vector<int64_t> output_bytes;
  std::vector<StepFlowsReport> flows;  // by step; none of more than 64 workers
};

// Lists go by worker index.
struct CommReport {
  std::vector<int64_t> received_bytes;
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> uploaded_bytes;    // into shards, from the client or a file
  std::vector<int64_t> downloaded_bytes;  // from shards, to the client or a file
  std::map<std::string, uint64_t> collective_counts;
  OpRange ops;  // what was issued in the block, for Session::Profile
};

// A set of tensors under a name, as its readers see it.
struct PublicationReport {
  std::string name;
  uint64_t version = 0;
  std::vector<std::string> readers;  // told to its own tenant and to admins
  uint64_t tensor_count = 0;
  int64_t bytes = 0;                                        // on each worker, at most; charged to its tenant
  std::vector<std::pair<std::string, TensorSpec>> tensors;  // of one that is attached
};

// The last calls of a process group's ranks. Times in seconds before now; negative: it was not.
struct FlightReport {
  struct Call {
    uint64_t number = 0;  // 0: a message
    std::string what;
    std::vector<double> arrived_s;  // by rank
    double matched_s = -1;
    std::string failure;
  };
  struct Member {
    std::string process;
    std::string why_gone;  // empty: it is here
    bool connected = false;
    uint64_t next_call = 0;
  };
  std::vector<Member> members;  // by rank
  std::vector<Call> calls;      // in the order in which they began
};

// A rank of a process group.
struct GroupMemberReport {
  int32_t worker = 0;
  std::string process;  // "pid 4242 on node7"
  std::string meeting;  // where ranks of its host find it; empty: nowhere
};

}  // namespace tessera
