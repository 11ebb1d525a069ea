#pragma once

// Connection: one session's connection to a coordinator, and its connections to workers' data sockets.
// It owns a thread that runs the event loop; every method may be called from any thread and none
// blocks but Open and the destructor. No type of the wire shows here.
//
// Records that the coordinator has not taken up yet are at most kMaxRecordsInFlight; the rest queues here.
//
// Law: records reach the coordinator in the order in which Enqueue took them, once, over whatever connections there are
// (session_core.h), and what `AfterRecords` calls ask (status, explain) is asked after them. After the first
// OnDisconnect nothing is sent.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "client/host_memory.h"
#include "client/record.h"
#include "client/report.h"
#include "schemas/link/tls_files.h"
#include "schemas/types/address.h"
#include "schemas/types/book.h"
#include "schemas/types/ids.h"

namespace tessera {

inline constexpr size_t kMaxBatchRecords = 256;       // docs/limits.md: max_batch_records
inline constexpr size_t kMaxBatchHandles = 16'384;    // docs/limits.md: max_handles_per_batch
inline constexpr size_t kMaxQueuedRecords = 65536;    // docs/limits.md: max_queued_records
inline constexpr size_t kMaxRecordsInFlight = 16384;  // docs/limits.md: max_records_in_flight
inline constexpr int64_t kBatchWindowNs = 50000;      // docs/limits.md: batch_window

// Where a session comes back to.
struct ResumeToken {
  uint64_t session_id = 0;
  uint64_t secret = 0;
  uint64_t last_event = 0;
};

struct ConnectionOptions {
  Address address;
  TlsFiles tls;
  std::string token;
  std::string tenant;
  std::string client;
  std::string host_id;  // "": HostIdentity()
  std::string door;     // "tls://host:port" of some worker, by way of which all bytes go; "": each worker's own address
  double lease_s = -1;  // negative: the server's default
  std::string name;     // of the session; may be empty
  std::optional<ResumeToken> resume;
  double timeout_s = 10;
};

// Called on the connection's thread; must not block.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  virtual void OnEvents(std::vector<ClientEvent> events) = 0;
  // The queue was handed to the coordinator; room for more.
  virtual void OnDrained() = 0;
  // The line to the coordinator broke, and is made again for as long as the session's lease runs; or it is there again.
  // Nothing is lost and nothing happens twice.
  enum class Line : uint8_t { kThere, kLost };
  virtual void OnLine(Line line) = 0;
  // Once. Everything pending has failed with this.
  virtual void OnDisconnect(const absl::Status& status) = 0;
};

// The client's memory of a transfer, and what of it is passed; empty for a transfer with a file, or without either.
struct HostSide {
  enum class Direction : uint8_t { kUpload, kDownload };
  std::shared_ptr<HostMemory> memory;
  std::shared_ptr<const TensorSpec> spec;
  Direction direction = Direction::kUpload;
};

// The client that goes on with a session: another process, or the same one, whose connection broke.
enum class Returning : uint8_t { kNewClient, kSameClient };

using HandleSet = absl::flat_hash_set<uint64_t>;

class ConnectionLoop;
class TransferTable;
using DoneCallback = std::function<void(absl::Status)>;

class Connection {
 public:
  // Connects, opens a session and starts the thread. Unavailable: nobody listens; DeadlineExceeded:
  // no answer in timeout_s; else the coordinator's refusal. `listener` outlives the connection.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(ConnectionOptions options, ConnectionListener* listener);
  // Shutdown, then the end.
  ~Connection();
  // Whether the caller is the connection's thread, which can't shut it down.
  bool IsOwnThread() const;
  // Ends the thread and closes the sockets. No callback runs after it; records enqueued then are lost.
  void Shutdown();

  const WelcomeReport& welcome() const;
  uint64_t last_event() const;

  // How many records wait here. Enqueue never refuses; a caller keeps to kMaxQueuedRecords.
  size_t Enqueue(Record record);
  // One after the other, with no others between.
  size_t EnqueueAll(std::vector<Record> records);
  // One drop; it joins the drop that was queued last.
  void EnqueueDrop(uint64_t handle);
  size_t queued() const;
  // Ahead of what waits here, and though the coordinator has enough to take up. For records that act as they arrive.
  void SendAhead(Record record);
  // The number of the record that was queued last.
  uint64_t last_number() const;
  // Takes back the calls that wait here, up to a record's number, and cancels what the coordinator has not issued.
  // Their results fail with Cancelled. Calls that lead to a handle of `needed` are left.
  void CancelAll(uint64_t last_number, HandleSet needed);
  // Sends what is queued without waiting for the batch window.
  void Flush();
  // Calls it on the connection's thread when the time has passed, unless the thread ends before.
  void After(double seconds, std::function<void()> then);

  // Callbacks run on the connection's thread.
  void GetStatus(TensorRange tensors, std::function<void(absl::StatusOr<ClusterReport>)> done);
  // When the coordinator has taken up all records that were enqueued before, or the session has ended. An answer to a
  // call says less: calls have a line of their own, which may be ahead of that of the records.
  void WhenTakenUp(std::function<void()> done);
  void Profile(const OpRange& ops, std::function<void(absl::StatusOr<ProfileReport>)> done);
  void GroupStatus(uint64_t group, uint32_t last_calls, std::function<void(absl::StatusOr<FlightReport>)> done);
  void Explain(OpCall call, std::vector<ExplainOperand> operands, std::vector<HeldMemory> held,
               std::function<void(absl::StatusOr<PlanReport>)> done);
  // Drops everything that the session has.
  void CloseSession(DoneCallback done);
  // Another one, as an admin may.
  void CloseOther(uint64_t session, DoneCallback done);
  // Its own tenant, or as an admin all of them.
  void GetTenants(std::function<void(absl::StatusOr<std::vector<TenantReport>>)> done);
  // One limit of a tenant, as an admin may.
  void SetLimit(const std::string& tenant, const std::string& key, const std::string& value, DoneCallback done);
  // As an admin may: all sessions of a tenant, how many there were; a worker for sessions that begin; a worker's drain.
  void EvictTenant(const std::string& tenant, const std::string& reason,
                   std::function<void(absl::StatusOr<uint32_t>)> done);
  void CordonWorker(int32_t worker, bool cordoned, DoneCallback done);
  void DrainWorker(int32_t worker, bool lose, std::function<void(absl::StatusOr<DrainStep>)> done);
  // As an admin may: a page of the coordinator's book; nullopt: it is being read, ask again. An upgrade in place.
  void ReadBook(const BookQuery& query, std::function<void(absl::StatusOr<std::optional<BookPage>>)> done);
  void Upgrade(bool begin, std::function<void(absl::StatusOr<UpgradeState>)> done);
  // A worker, as an admin may.
  void KillWorker(int32_t worker, const std::string& reason, DoneCallback done);

  // Bytes between `memory` and workers, under a ticket. A transfer is numbered by the caller.
  // Each worker's calls run in order; workers run beside each other. Errors name the worker.
  void BeginTransfer(uint64_t transfer, uint64_t ticket, uint64_t secret, HostSide host,
                     absl::Span<const WorkerIndex> workers);
  void Copy(uint64_t transfer, WorkerIndex worker, Box box, uint64_t offset_bytes, DoneCallback done);
  // Makes other calls of a transfer (transfers.h), on the connection's thread.
  void OnTransfers(std::function<void(TransferTable&)> call);
  // Ends it on all its workers and forgets it. `done` gets the first error of any call of it.
  void FinishTransfer(uint64_t transfer, DoneCallback done);

 private:
  friend class ConnectionLoop;
  class Impl;
  explicit Connection(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
