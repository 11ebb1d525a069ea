#pragma once

// The outputs of the state machine: messages to workers and to clients, and processes to kill. The RPC
// edge carries them out in order and decides nothing.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "schemas/types/device_kind.h"
#include "schemas/types/ids.h"
#include "server/plan/worker_message.h"

namespace tessera {

// ---- to workers -------------------------------------------------------------------------------------

using WorkerGroup = std::shared_ptr<const std::vector<WorkerIndex>>;
// The same bytes to every worker of the group.
struct ToWorkers {
  WorkerGroup workers;
  WorkerMessage message;
};

// ---- to clients -------------------------------------------------------------------------------------

struct SettledEvent {
  uint64_t request = 0;
  absl::Status status;
};
struct TicketEvent {
  uint64_t request = 0;
  TicketId ticket;
  uint64_t secret = 0;
  TensorSpec spec;
};
struct InlineValueEvent {
  uint64_t request = 0;
  std::string bytes;
};
struct BatchDoneEvent {
  uint64_t number = 0;
};
struct CommReportEvent {
  uint64_t request = 0;
  std::vector<int64_t> received_bytes;
  std::vector<int64_t> sent_bytes;
  std::vector<int64_t> uploaded_bytes;
  std::vector<int64_t> downloaded_bytes;
  std::vector<std::pair<std::string, uint64_t>> collectives;
  uint64_t first_op = 0;  // of the session's profile: the block's are [first_op, end_op)
  uint64_t end_op = 0;
};
struct FailedHandleEvent {
  HandleId handle;
  absl::Status status;
};
struct WorkerLostNotice {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  std::string reason;
};
struct WorkerJoinedNotice {
  WorkerIndex worker;
  std::string data_address;
  std::string remote_address;
  DeviceKind device = DeviceKind::kCpu;
};
struct UploadDoneEvent {
  uint64_t request = 0;
};
struct GroupJoinedEvent {
  struct Member {
    WorkerIndex worker;
    std::string process;
    std::string meeting;
  };
  uint64_t request = 0;
  uint64_t group = 0;
  std::vector<Member> members;  // by rank
};
// A collective's op is issued.
struct MatchedEvent {
  uint64_t request = 0;
  int32_t source = 0;  // of a recv: the rank that sent
};
// A publish and an attach answer with the one publication, a listing with those that may be attached.
struct PublicationsEvent {
  struct Tensor {
    std::string name;
    TensorSpec spec;
  };
  struct Publication {
    std::string name;
    uint64_t version = 0;
    std::vector<std::string> readers;
    uint64_t tensor_count = 0;
    int64_t bytes = 0;            // on each worker, at most
    std::vector<Tensor> tensors;  // of an attach
  };
  uint64_t request = 0;
  HandleId first_result;  // of an attach; the others follow
  std::vector<Publication> list;
  bool has_more = false;
};
using SessionEventBody = std::variant<SettledEvent, TicketEvent, InlineValueEvent, BatchDoneEvent, CommReportEvent,
                                      FailedHandleEvent, WorkerLostNotice, WorkerJoinedNotice, UploadDoneEvent,
                                      GroupJoinedEvent, MatchedEvent, PublicationsEvent>;
struct SessionEvent {
  uint64_t number = 0;  // dense from 1 within the session
  SessionEventBody body;
};
struct ToClient {
  SessionId session;
  SessionEvent event;
};

// A session's use, for the books.
struct SessionUsage {
  int64_t device_ns = 0;  // summed over workers
  int64_t uploaded_bytes = 0;
  int64_t downloaded_bytes = 0;
  int64_t refused = 0;  // calls

  friend bool operator==(const SessionUsage&, const SessionUsage&) = default;
};
// The session is over: its connection, if any, is to be closed.
struct EndSession {
  SessionId session;
  absl::Status reason;
  std::string tenant = {};  // of one that had begun, as its name and what it had
  std::string name = {};
  SessionUsage usage = {};
};
// A silent worker, or one that does no work, whose process is to be ended. Until that is so it may write what it was
// told to, and counts as there: WorkerLostEvent says that it is gone.
struct KillWorker {
  WorkerIndex worker;
  uint64_t incarnation = 0;
  int32_t pid = 0;
  std::string reason = "is silent";
};

using Effect = std::variant<ToWorkers, ToClient, EndSession, KillWorker>;
using Effects = std::vector<Effect>;

// One line, complete: equal texts mean equal effects. For replay checks and logs.
std::string ToText(const Effect& effect);

}  // namespace tessera
