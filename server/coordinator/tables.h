#pragma once

// The records that the state machine keeps: workers, sessions, tensors, buffers, issued operations.
// Resources of StateMachine alone; nothing else holds one.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/coordinator/counted_table.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/coordinator/fair_turns.h"
#include "server/coordinator/history.h"
#include "server/coordinator/lanes.h"
#include "server/coordinator/layout_table.h"
#include "server/coordinator/metrics.h"
#include "server/coordinator/plan_cache.h"
#include "server/coordinator/profile_log.h"
#include "server/coordinator/tenants/tenant_table.h"

namespace tessera {

enum class WorkerState : uint8_t { kAlive = 0, kSuspect = 1, kDead = 2 };

struct WorkerEntry {
  WorkerJoinedEvent info;
  WorkerState state = WorkerState::kAlive;
  int64_t last_heard_us = 0;
  int64_t last_kill_us = 0;  // since it was heard; 0: not ordered
  LaneWindows windows;
  int64_t received_bytes = 0;
  int64_t working_since_us = 0;  // when it last reported something, or got the first thing to do
  int64_t at_work_us = 0;        // when its device was said to have worked, last
  Ordinal probe;                 // under way (stalls.cc); 0: none
  int64_t probed_us = 0;
  std::string stalled;  // why it is ended though it answers; empty: it is not
  std::string lost_reason;
  int64_t done_us = 0;       // when it reported something last, or joined
  uint64_t join_number = 0;  // counts all joins of the cluster
  Admits admits = Admits::kEveryone;
  SessionId newest_admitted;          // of a cordoned one
  Ordinal first_ordinal;              // of this process; 0 for the first one of its number
  int64_t spilled_bytes = 0;          // in files of it or its host's memory, written or being written
  int64_t spilled_to_host_bytes = 0;  // of them: in its host's memory
  int64_t spill_failed_us = 0;        // when it could not write one, last; 0: it always could
};

using HistoryTable = CountedTable<History>;

// A counted range at one offset of every arena of a group. The last reference gives it back.
struct BufferEntry {
  WorkerGroup workers;
  int64_t offset_bytes = 0;
  int64_t bytes = 0;
  TenantEntry* tenant = nullptr;  // that it is charged to; null: to none
  SessionId owner;                // whose bytes they are
  uint64_t born = 0;              // how many workers had joined by then
  bool is_published = false;      // for good: nothing writes to it any more
  bool is_filled = false;         // nobody's, and a debug fill of it is issued
  uint32_t spill_slot = 0;        // of the SpillTable; 0: it never leaves
  HistoryTable::Pointer history;  // null: nobody touches it
};
// Whether a worker has the buffer's bytes: it wasn't lost, and no other process came in its place since.
inline bool Holds(const WorkerEntry& worker, const BufferEntry& buffer) {
  return worker.state != WorkerState::kDead && worker.join_number <= buffer.born;
}
using BufferTable = CountedTable<BufferEntry>;
using BufferPointer = BufferTable::Pointer;

// A range that was given back, and that instructions may still touch.
struct FreedRange {
  int64_t start = 0;
  int64_t stop = 0;
  WorkerGroup workers;
  History history;
};

struct OpEntry;
using OpPointer = std::shared_ptr<OpEntry>;

// Where a tensor was when all workers of its mesh lived, and which of them it has lost since: another process that took
// one's number has nothing of it.
struct FormerMesh {
  Mesh mesh;
  std::vector<WorkerIndex> lost;
};

// A tensor: (buffer, offset, strides) and what it waits for.
struct TensorEntry {
  SessionId session;
  HandleId handle;  // the first name it got; for messages
  SharedLayout layout = UnknownLayout();
  std::unique_ptr<FormerMesh> former;  // null: it has lost none
  BufferPointer buffer;                // null when failed before it got one
  int64_t offset_bytes = 0;            // in every arena
  Ordinal producer;                    // the op that it waits for, until that is settled (StateMachine::ProducerOf)
  absl::Status status;                 // poison: the first cause
  bool uploading = false;              // bytes are on their way from the client
  bool unmatched = false;              // the result of a collective that waits for other members
  bool is_awaited() const { return uploading || unmatched; }
  const TensorSpec& spec() const { return layout->spec; }
  const Strides& strides() const { return layout->strides; }
};
using TensorTable = CountedTable<TensorEntry>;
using TensorPointer = TensorTable::Pointer;

// Someone who wants to know when an operation, and all that led to it, has ended.
struct Waiter {
  SessionId session;
  uint64_t request = 0;
  TensorPointer tensor;
};

// The comm_debug blocks of a session that an operation or a transfer counts for: those that were open when it was
// issued.
using ScopeNumbers = absl::InlinedVector<uint64_t, 1>;

// A session that an operation counts for beside others: a member of a group whose collective it is.
struct OpShare {
  SessionId session;
  ScopeNumbers comm_scopes;
  uint64_t profile_number = 0;  // of the session
  HandleId result;              // 0: it took none
};

// An issued operation, until it is settled: complete on all its workers, and so is all that led to it.
struct OpEntry {
  enum class Kind : uint8_t { kRun, kWindow, kInlineRead, kInlineWrite };
  Kind kind = Kind::kRun;
  Ordinal ordinal;
  std::string_view name;                            // of the catalog, or "upload", "download"
  std::shared_ptr<const std::vector<WayStep>> way;  // of a segment: its ops
  bool works_alone = false;                         // no worker reads what another one has
  HandleId first_result;                            // of the call, of a segment the last one's; 0: there is none
  SessionId session;
  WorkerGroup workers;
  std::vector<WorkerIndex> missing;  // have not reported
  int64_t cost_us = 0;               // expected: what was measured before, or predicted
  int64_t predicted_us = 0;          // by the model
  int64_t issued_us = 0;
  Lane lane = Lane::kBatch;                // whose window it counts in
  TurnCharge charge;                       // until it has ended on all its workers
  std::shared_ptr<MeasuredCost> measured;  // of its plan; null: it has none
  absl::Status status;
  absl::Status broken_connection;  // what a peer of a worker that is being killed said
  int unsettled_parents = 0;
  absl::InlinedVector<Ordinal, 2> children;
  absl::InlinedVector<EntryNumber, 1> outputs;  // tensors, and views of them
  absl::InlinedVector<Waiter, 1> waiters;
  ScopeNumbers comm_scopes;
  // All but kRun: the tensor that is read or written; the first of several.
  uint64_t request = 0;
  TicketId ticket;
  TensorPointer tensor;
  Mesh mesh;                                           // of an inline read: the tensor's when it was issued
  std::vector<std::pair<int64_t, std::string>> parts;  // (flat position, bytes) of an inline read
  bool settled = false;
  uint64_t profile_number = 0;  // of its session
  std::vector<OpShare> shares;  // of a collective, which is of no session alone
  std::weak_ptr<const Plan> plan;
  ProfiledRuns runs;  // of the workers that have reported
};

// A session's transfer, or nobody's: of a buffer that is written to files, or read back (spill_desk.h).
struct TicketEntry {
  bool is_spill() const { return session == SessionId(); }
  SessionId session;
  uint64_t secret = 0;
  uint64_t request = 0;  // 0: answered
  std::weak_ptr<OpEntry> window;
  TransferDirection direction = TransferDirection::kDownload;
  std::vector<TensorPointer> tensors;  // pinned: one, or those of an upload
  WorkerGroup workers;
  std::vector<WorkerIndex> missing;  // have not said that they are done
  bool closing = false;
  absl::Status status;
  uint64_t profile_number = 0;  // of its session
  ProfiledRuns runs;            // of the workers that are done
  ScopeNumbers comm_scopes;
};

struct CommScope {
  std::vector<int64_t> received_bytes;  // by worker
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> uploaded_bytes;
  std::vector<int64_t> downloaded_bytes;
  std::map<std::string, uint64_t> collectives;
  uint64_t first_op = 0;  // numbers of the session's profile
  uint64_t end_op = 0;
  int64_t pending = 0;  // operations and transfers that have not completed
  bool ended = false;
  uint64_t request = 0;
};

// The first record of a session's queue got no memory, and may get it when windows that are being closed are closed.
// Windows opened since don't count: the wait ends whatever other sessions do.
struct MemoryWait {
  TicketId before;              // the first ticket that doesn't count
  uint64_t closed_windows = 0;  // of the cluster, when it was tried last
};

struct SessionEntry {
  SessionOpenedEvent info;
  TenantEntry* tenant = nullptr;
  absl::btree_map<HandleId, TensorPointer> tensors;
  size_t seen_losses = 0;                 // of the cluster's: no tensor of it has shards on those workers (long_work.h)
  std::map<std::string, HandleId> names;  // of tensors that are there; one has at most one
  absl::flat_hash_map<HandleId, std::string> name_of;
  std::deque<Record> queue;
  int64_t queue_weight = 0;    // WeightOf them all
  size_t lone_calls = 0;       // the next calls, which no segment has: nothing is gained, or it can't be issued
  int64_t bytes = 0;           // of its buffers in memory, on each of their workers
  int64_t spilled_bytes = 0;   // of those in files, or on their way
  bool awaits_upload = false;  // the first of the queue waits for bytes that the client is to bring
  std::optional<MemoryWait> memory_wait;
  bool wants_spilled = false;  // the first of the queue waits for what lies in files
  uint64_t last_batch = 0;
  uint64_t last_event = 0;
  RecentUse recent_use;
  TenantMetrics* metrics = nullptr;  // of its tenant; lasts
  SessionUsage usage;
  bool connected = true;
  uint64_t connection = 0;  // the newest one
  int64_t lease_deadline_us = 0;
  std::map<uint64_t, CommScope> scopes;
  std::vector<uint64_t> open_scopes;  // of them, those that have not ended
  int64_t tickets = 0;                // open ones
  std::set<uint64_t> groups;          // process groups that it is a member of
  // Reads of results whose collectives wait for other members; they hold up no other record.
  absl::flat_hash_map<HandleId, std::vector<Record>> parked;
  int64_t parked_weight = 0;  // WeightOf them all
  ProfileLog profile;
};

}  // namespace tessera
