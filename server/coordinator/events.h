#pragma once

// The inputs of the state machine. Time is one of them: every Apply is given `now_us`.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "schemas/ops/called_as.h"
#include "schemas/ops/op.h"
#include "schemas/types/collective_kind.h"
#include "schemas/types/device_kind.h"
#include "schemas/types/ids.h"
#include "schemas/types/message_network.h"
#include "schemas/types/tensor_spec.h"
#include "server/coordinator/tenants/tenant_limits.h"
#include "server/plan/instance.h"

namespace tessera {

// ---- what a client asks for: a batch of records --------------------------------------------------

struct OperandReference {
  std::variant<HandleId, Scalar> value;
  bool last_use = false;
};
struct CallRecord {
  OpCall call;
  absl::InlinedVector<OperandReference, 3> operands;
  absl::InlinedVector<HandleId, 1> results;
  CalledAs called_as = CalledAs::kOp;
};
struct UploadedTensor {
  HandleId result;
  TensorSpec spec;
};
// The record's tensors, at least one, have one ticket and lie on the same workers. A record with bytes has all elements
// of its one tensor, row-major, and neither ticket nor request.
struct UploadRecord {
  uint64_t request = 0;
  std::vector<UploadedTensor> tensors;
  std::string bytes = {};
};
std::vector<HandleId> ResultsOf(const UploadRecord& record);
struct DownloadRecord {
  uint64_t request = 0;
  HandleId handle;
  bool allow_inline = false;
};
struct WatchRecord {
  uint64_t request = 0;
  HandleId handle;
};
struct DropRecord {
  absl::InlinedVector<HandleId, 2> handles;
};
struct CommBeginRecord {
  uint64_t scope = 0;
};
struct CommEndRecord {
  uint64_t request = 0;
  uint64_t scope = 0;
};
struct CancelRecord {
  uint64_t request = 0;
};
// Cancels all calls and uploads of the session that are not issued, but for those that lead to these handles.
struct CancelCallsRecord {
  std::vector<HandleId> needed;
};
// Empty: the handle loses its name.
struct NamingRecord {
  HandleId handle;
  std::string name;
};
struct ReleaseRecord {
  TicketId ticket;
  absl::Status reason;  // of an upload that the client gives up; ok: none is known
};
struct JoinGroupRecord {
  uint64_t request = 0;
  std::string key;
  int64_t size = 0;
  int64_t rank = 0;
  WorkerIndex worker;
  std::string process;  // for messages
  int64_t timeout_us = 0;
  std::string meeting;  // where other ranks of its host find it
};
struct LeaveGroupRecord {
  uint64_t group = 0;
};
struct CollectiveRecord {
  uint64_t request = 0;  // 0: nobody waits for an answer
  uint64_t group = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int32_t peer = 0;  // the root; of a send the destination, of a recv the source
  int32_t tag = 0;
  HandleId operand;  // 0: none
  bool last_use = false;
  HandleId result;  // 0: none
  TensorSpec result_spec;
  int64_t timeout_us = 0;
  uint64_t number = 0;      // among the member's collectives; 0: the next one
  int64_t waited_us = 0;    // before it was sent
  bool on_devices = false;  // it is only matched: it has no handles, and these say its signature
  DType dtype = DType::kF32;
  int64_t elements = 0;
};
// Sets of tensors under names that tenants read (publications.h).
struct Publish {
  struct Tensor {
    std::string name;
    HandleId handle;
  };
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<std::string> readers;
};
struct Unpublish {
  std::string name;
};
struct Attach {
  std::string name;
  HandleId first_result;  // kMaxPublishedTensors from there on are new
};
struct ListPublished {
  std::string after;
};
struct PublicationRecord {
  uint64_t request = 0;
  std::variant<Publish, Unpublish, Attach, ListPublished> asked;
};
std::string_view NameOf(const PublicationRecord& record);  // for messages
// A record that could not be decoded, or was cancelled: its results are poisoned with the reason.
struct BadRecord {
  absl::Status status;
  uint64_t request = 0;
  std::vector<HandleId> results;
  std::vector<HandleId> last_uses;  // operands that the client has no more
};
// Behind the last record of a batch: tells the client that all of it was taken up.
struct BatchEndRecord {
  uint64_t number = 0;
  int64_t came_us = 0;  // when the batch did
};
using Record =
    std::variant<CallRecord, UploadRecord, DownloadRecord, WatchRecord, DropRecord, CommBeginRecord, CommEndRecord,
                 CancelRecord, CancelCallsRecord, ReleaseRecord, NamingRecord, JoinGroupRecord, LeaveGroupRecord,
                 CollectiveRecord, PublicationRecord, BadRecord, BatchEndRecord>;

// As how many records it counts in a queue: one, and one more for each 64 handles that it names, and for each 512 bytes
// that it brings, or that its attributes hold.
int64_t WeightOf(const Record& record);

// ---- events -----------------------------------------------------------------------------------------

// A token's role says what its holder may do. An admin sees every session and may close it.
enum class Role : uint8_t { kClient = 0, kAdmin = 1 };

// Fences tell the old from the new by the newest number of each kind that was given. The next one is larger.
struct GivenNumbers {
  uint64_t epoch = 0;
  uint64_t session = 0;
  uint64_t connection = 0;
  uint64_t incarnation = 0;  // of a worker

  friend bool operator==(const GivenNumbers&, const GivenNumbers&) = default;
};

// The first one: this process is the coordinator now. Epochs grow with time.
struct StartedEvent {
  uint64_t epoch = 0;
  uint64_t peer_key = 0;  // by which workers know each other; the same after a restart
};
// The uid of a client from elsewhere, whose user nobody knows.
inline constexpr int64_t kNoUid = -1;

struct SessionOpenedEvent {
  SessionId session;
  uint64_t secret = 0;
  std::string tenant;
  std::string client;
  int64_t lease_us = 0;
  Role role = Role::kClient;
  std::string name = {};
  uint64_t connection = 0;  // by which it was opened; numbers are never used again
  int64_t uid = kNoUid;     // of the client's process, as the kernel says it on a unix socket
};
// The tenants that the pool has from now on, with what each was given. Tokens are not told.
struct TenantsChangedEvent {
  std::vector<TenantLimits> tenants;
};
// Work that the coordinator did for a session beside its records: it explained a plan, or showed a profile.
struct SessionChargedEvent {
  SessionId session;
  int64_t us = 0;
};
struct SessionClosedEvent {
  SessionId session;
};
// Nothing, when the session has a newer connection.
struct ConnectionLostEvent {
  SessionId session;
  uint64_t connection = 0;
};
// The client that goes on with a session whose connection is gone.
enum class Returning : uint8_t {
  kNewClient,   // another process in its client's place: nobody brings what that one had not brought
  kSameClient,  // the client itself, with all that it was about
};
struct SessionResumedEvent {
  SessionId session;
  Returning who = Returning::kNewClient;
  uint64_t connection = 0;
};
struct BatchEvent {
  SessionId session;
  uint64_t number = 0;
  std::vector<Record> records;
};
struct WorkerJoinedEvent {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string host;
  int64_t memory_bytes = 0;
  std::string data_address;
  std::string remote_address;  // for clients of other hosts; may be empty
  std::string message_address;
  DeviceKind device = DeviceKind::kCpu;
  int32_t pid = 0;  // as the kernel says; 0: of another PID namespace
  bool map_peers = true;
  MessageNetwork messages = MessageNetwork::kNone;
  int64_t spill_bytes = 0;  // that it may have in files (--spill); 0: it writes none
  bool has_nccl = false;    // messages with others that have it go by NCCL
};
struct WorkerLostEvent {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string reason;
};
// The sessions whose work a worker takes.
enum class Admits : uint8_t {
  kEveryone = 0,
  kFormerSessions = 1,  // cordoned: sessions that begin from now on may not use it
  kNobody = 2,          // about to be drained: calls that would use it wait
};
struct WorkerAdmitsEvent {
  WorkerIndex worker;
  Admits admits = Admits::kEveryone;
};
// An admin shuts it down. Nothing that it was told to do is under way.
struct WorkerDrainedEvent {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string reason;
};
// All sessions of a tenant end, but those of admins.
struct TenantEvictedEvent {
  std::string tenant;
  std::string reason;
};
// A number of a worker for which a join token is used from now on: its holder may come back under it, and a token with
// `uses` is good for so many numbers. By the token's id.
struct JoinTokenUsedEvent {
  std::string token;
  WorkerIndex worker;
};
// The tenants file has the token no more.
struct JoinTokenForgottenEvent {
  std::string token;
};
struct WorkerHeardEvent {
  WorkerIndex worker;
  bool is_at_work = false;  // its device computed or copied since it was heard last
};
struct WorkerReportEvent {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::vector<CompletionReport> completions;
  std::vector<TransferReport> transfers;
  uint64_t taken = 0;  // of the coordinator's messages to this process, so many it has taken
};
struct TickEvent {};
// The machine had more to take up than it does at a time (StateMachine::has_more), and now is its next turn.
struct ContinuedEvent {};

using Event =
    std::variant<StartedEvent, SessionOpenedEvent, SessionClosedEvent, ConnectionLostEvent, SessionResumedEvent,
                 BatchEvent, WorkerJoinedEvent, WorkerLostEvent, WorkerHeardEvent, WorkerReportEvent, TickEvent,
                 ContinuedEvent, TenantsChangedEvent, SessionChargedEvent, TenantEvictedEvent, WorkerAdmitsEvent,
                 WorkerDrainedEvent, JoinTokenUsedEvent, JoinTokenForgottenEvent>;

}  // namespace tessera
