#pragma once

// TransferTable: the open uploads and downloads of a connection, and the connections to workers' data sockets that they
// use. A worker whose address doesn't answer is reached by way of another one. Lives on the connection's thread.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "client/connection/connection.h"
#include "client/connection/file_place.h"
#include "client/connection/remote_part.h"
#include "schemas/host/host_identity.h"
#include "schemas/link/dialed_line.h"
#include "schemas/worker.capnp.h"

namespace tessera {

// Limit for each address of a worker. docs/limits.md: reach_timeout
inline constexpr kj::Duration kReachTimeout = 5 * kj::SECONDS;

class TransferTable : private kj::TaskSet::ErrorHandler {
 public:
  // `door`: an address of some worker, by way of which those of other hosts are tried first; "": there is none.
  TransferTable(kj::AsyncIoContext& io, const TlsFiles& tls, const std::string& host_id, std::string door)
      : io_(io),
        tls_(tls),
        own_host_(host_id.empty() ? HostIdentity() : host_id),
        door_(std::move(door)),
        tasks_(*this) {}

  void SetWorkers(const std::vector<WorkerReport>& workers);
  // A worker that is told only by events is of the host that it was of.
  void SetWorker(int32_t worker, const std::string& data_address, const std::string& remote_address);
  void Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, const HostSide& host,
             absl::Span<const WorkerIndex> workers);
  // The file takes the memory's place for this tensor of the ticket, at all its workers. A failure shows at Finish.
  void OpenFile(uint64_t transfer, size_t tensor, const FilePlace& place);
  // Between the file and the shard of this tensor.
  void CopyFile(uint64_t transfer, WorkerIndex worker, size_t tensor, const Box& box, DoneCallback done);
  void LookAtFile(uint64_t transfer, WorkerIndex worker, const std::string& path, uint64_t offset, uint32_t count,
                  std::function<void(absl::StatusOr<FilePart>)> done);
  void CreateFile(uint64_t transfer, WorkerIndex worker, const std::string& path, const std::string& name,
                  int64_t bytes, const std::string& head, DoneCallback done);
  // The tensors in the file, as the worker's decoder says: JSON, in `part`.
  void DescribeFile(uint64_t transfer, WorkerIndex worker, const std::string& path,
                    std::function<void(absl::StatusOr<FilePart>)> done);
  void CreateFolder(uint64_t transfer, WorkerIndex worker, const std::string& path, const std::string& name,
                    const std::string& json, DoneCallback done);
  void CommitFile(uint64_t transfer, WorkerIndex worker, DoneCallback done);
  void Copy(uint64_t transfer, WorkerIndex worker, const Box& box, uint64_t offset_bytes, DoneCallback done);
  void Finish(uint64_t transfer, DoneCallback done);

 private:
  struct Way;       // to one worker's bulk server
  struct Transfer;  // one ticket
  struct Place {
    std::string host;
    std::string data_address;      // of a unix socket
    std::string remote_address;    // of TLS; may be empty
    std::optional<int32_t> relay;  // the door that passes on what is for this one, when that was last reached so
    bool is_remote = false;        // reached by TLS
  };
  // The one that there is, or a new one: over the worker's unix socket on its own host, and where no worker has another
  // address; else over TLS to its address, or by way of a worker that reaches it.
  absl::StatusOr<std::shared_ptr<Way>> WayTo(int32_t worker, Trying trying);
  absl::StatusOr<std::shared_ptr<Way>> WayOnHost(Place& place);
  absl::StatusOr<std::shared_ptr<DialedLine>> RemoteLineTo(int32_t worker);
  static constexpr int32_t kNamedDoor = -1;  // in place of a worker's number: whose it is nobody has said
  // Workers at whose addresses to try, in turn.
  std::vector<int32_t> DoorsTo(int32_t worker) const;
  struct Refusals {
    std::string words;
    bool is_lost = false;  // one was a connection that was there
  };
  kj::Promise<wire::BulkServer::Client> Try(int32_t worker, std::weak_ptr<Way> way, std::vector<int32_t> doors,
                                            size_t at, Refusals refusals);
  static kj::Promise<wire::BulkServer::Client> RelayedBy(wire::BulkServer::Client door, int32_t worker);
  // Null, and done is told why, where the transfer has no such part.
  Transfer* FindPart(uint64_t transfer, WorkerIndex worker, absl::Status* why);
  void AskToCopy(Transfer& state, uint64_t transfer, WorkerIndex worker, size_t tensor, const Box& box,
                 uint64_t offset_bytes, DoneCallback done);
  template <typename Request>
  void Await(Request request, uint64_t transfer, WorkerIndex worker, DoneCallback done);
  void Fail(uint64_t transfer, WorkerIndex worker, const absl::Status& status);
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  const TlsFiles tls_;
  const std::string own_host_;
  const std::string door_;
  absl::flat_hash_map<int32_t, Place> places_;
  absl::flat_hash_map<int32_t, std::shared_ptr<DialedLine>> lines_;  // over TLS, to workers' own addresses
  absl::flat_hash_map<int32_t, std::shared_ptr<Way>> ways_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
