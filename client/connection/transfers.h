#pragma once

// TransferTable: the open uploads and downloads of a connection, and the connections to workers' data
// sockets that they use. Lives on the connection's thread.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "client/connection/connection.h"
#include "client/connection/file_place.h"
#include "schemas/codec/host_identity.h"
#include "schemas/worker.capnp.h"

namespace tessera {

class TransferTable : private kj::TaskSet::ErrorHandler {
 public:
  TransferTable(kj::AsyncIoContext& io, const TlsFiles& tls) : io_(io), tls_(tls), tasks_(*this) {}

  void SetWorkers(const std::vector<WorkerReport>& workers);
  // A worker that is told only by events is of the host that it was of.
  void SetWorker(int32_t worker, const std::string& data_address, const std::string& remote_address);
  void Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, const HostSide& host,
             const std::vector<WorkerIndex>& workers);
  // The file takes the memory's place, at all its workers. What fails shows at Finish.
  void OpenFile(uint64_t transfer, const FilePlace& place);
  void LookAtFile(uint64_t transfer, WorkerIndex worker, const std::string& path, uint64_t offset, uint32_t count,
                  std::function<void(absl::StatusOr<FilePart>)> done);
  void CreateFile(uint64_t transfer, WorkerIndex worker, const std::string& path, const std::string& name,
                  int64_t bytes, const std::string& head, DoneCallback done);
  void CommitFile(uint64_t transfer, WorkerIndex worker, DoneCallback done);
  void Copy(uint64_t transfer, WorkerIndex worker, const Box& box, uint64_t offset_bytes, DoneCallback done);
  void Finish(uint64_t transfer, DoneCallback done);

 private:
  struct Link;      // to one worker's data socket
  struct Transfer;  // one ticket
  struct Place {
    std::string host;
    std::string data_address;    // of a unix socket
    std::string remote_address;  // of TLS; may be empty
  };
  // By TLS, from another host than the worker's.
  bool IsRemote(const Place& place) const;
  absl::StatusOr<std::shared_ptr<Link>> LinkTo(WorkerIndex worker);
  // Null, and done is told why, where the transfer has no such part.
  Transfer* FindPart(uint64_t transfer, WorkerIndex worker, absl::Status* why);
  template <typename Request>
  void Await(Request request, uint64_t transfer, WorkerIndex worker, DoneCallback done);
  void Fail(uint64_t transfer, WorkerIndex worker, const absl::Status& status);
  void taskFailed(kj::Exception&& exception) override;

  kj::AsyncIoContext& io_;
  const TlsFiles tls_;
  const std::string own_host_ = HostIdentity();
  absl::flat_hash_map<int32_t, Place> places_;
  absl::flat_hash_map<int32_t, std::shared_ptr<Link>> links_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
