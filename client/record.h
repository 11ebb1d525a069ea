#pragma once

// Records: a session's requests to the coordinator, in order. Events: what it is told. Both are the
// records of schemas/session.capnp as plain values, so that only client/connection knows the wire.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/report.h"
#include "schemas/ops/called_as.h"
#include "schemas/ops/op.h"
#include "schemas/types/collective_kind.h"

namespace tessera {

struct RecordOperand {
  enum class Kind : uint8_t { kHandle, kScalar };
  Kind kind = Kind::kHandle;
  bool last_use = false;
  uint64_t handle = 0;
  Scalar scalar;
};

// An operand of a call whose plan is asked for; or, where `spec` is set, a tensor that the coordinator doesn't have.
struct ExplainOperand {
  RecordOperand operand;
  std::shared_ptr<const TensorSpec> spec;
  Strides strides;
};

// Memory that a result which was planned only would have: bytes on each worker of its mesh.
struct HeldMemory {
  Mesh mesh;
  int64_t bytes = 0;
};

inline constexpr size_t kInlineOperands = 3;  // only a redistribute of several tensors has more

// The fields of kJoinGroup and kCollective; schemas/session.capnp says what each is.
struct GroupRecord {
  uint64_t group = 0;
  std::string key;
  uint32_t size = 0;
  uint32_t rank = 0;
  int32_t worker = 0;
  std::string process;
  std::string meeting;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int32_t peer = 0;
  int32_t tag = 0;
  uint64_t operand = 0;
  int64_t timeout_us = 0;
  uint64_t number = 0;
  int64_t waited_us = 0;
  bool on_devices = false;
  DType dtype = DType::kF32;
  int64_t elements = 0;
};

// The fields of kPublish, kUnpublish, kAttach and kListPublished.
struct PublicationRecord {
  std::string name;  // of kListPublished the one before the first
  std::vector<std::pair<std::string, uint64_t>> tensors;
  std::vector<std::string> readers;
};

struct Record {
  enum class Kind : uint8_t {
    kCall,
    kUpload,
    kDownload,
    kWatch,
    kDrop,
    kCommBegin,
    kCommEnd,
    kCancel,
    kRelease,
    kName,
    kCancelled,
    kJoinGroup,
    kCollective,
    kLeaveGroup,
    kPublish,
    kUnpublish,
    kAttach,
    kListPublished
  };
  Kind kind = Kind::kCall;
  bool allow_inline = false;           // kDownload
  CalledAs called_as = CalledAs::kOp;  // kCall
  uint64_t number = 0;                 // in the order in which records were queued
  uint64_t request = 0;                // kUpload kDownload kWatch kCommEnd kCancel; of kRelease the ticket
  uint64_t handle = 0;  // the result of kCall and kUpload; what kDownload and kWatch name; a comm's number
  std::vector<uint64_t> more_results;  // kCall, kUpload: after `handle`
  std::shared_ptr<const OpCall> call;
  std::vector<RecordOperand> operands;
  std::shared_ptr<const TensorSpec> spec;                     // kUpload
  std::vector<std::shared_ptr<const TensorSpec>> more_specs;  // kUpload: of more_results
  std::string bytes;                                          // kUpload: all elements, where there is no ticket
  std::vector<uint64_t> drops;               // kDrop; the results of kCancelled; what kCancel of all calls leaves
  absl::Status reason;                       // kRelease: why an upload is given up
  std::string name;                          // kName: of `handle`; empty: it has none any more
  std::shared_ptr<const GroupRecord> group;  // kJoinGroup, kCollective (its result is `handle`, of `spec`), kLeaveGroup
  std::shared_ptr<const PublicationRecord> publication;  // of kAttach `handle` is the first result
};

struct ClientEvent {
  enum class Kind : uint8_t {
    kSettled,
    kTicket,
    kInlineValue,
    kComm,
    kFailed,
    kWorkerLost,
    kWorkerJoined,
    kUploadDone,
    kGroupJoined,
    kMatched,
    kPublications
  };
  Kind kind = Kind::kSettled;
  uint64_t request = 0;
  uint64_t handle = 0;  // kFailed; kPublications: the first that an attach made, 0: none
  absl::Status status;  // kSettled kFailed
  uint64_t ticket = 0;
  uint64_t secret = 0;
  std::string bytes;  // kInlineValue
  CommReport comm;
  int32_t worker = 0;                    // kWorkerLost, kWorkerJoined
  DeviceKind device = DeviceKind::kCpu;  // kWorkerJoined
  std::string reason;
  uint64_t group = 0;                           // kGroupJoined
  std::vector<GroupMemberReport> members;       // kGroupJoined
  int32_t source = 0;                           // kMatched
  std::vector<PublicationReport> publications;  // kPublications
  bool has_more = false;                        // than those
};

}  // namespace tessera
