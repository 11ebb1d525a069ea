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
#include "schemas/worker.capnp.h"

namespace tessera {

// A connected unix socket; Unavailable when nobody listens. `what` opens the message.
absl::StatusOr<int> ConnectUnixSocket(std::string_view what, const std::string& path);

class TransferTable : private kj::TaskSet::ErrorHandler {
 public:
  explicit TransferTable(kj::LowLevelAsyncIoProvider& provider) : provider_(provider), tasks_(*this) {}

  void SetWorkers(const std::vector<WorkerReport>& workers);
  void SetWorker(int32_t worker, const std::string& data_address);
  // `memory` may be null: of a transfer with a file, or without either.
  void Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, std::shared_ptr<HostMemory> memory,
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
  absl::StatusOr<std::shared_ptr<Link>> LinkTo(WorkerIndex worker);
  // Null, and done is told why, where the transfer has no such part.
  Transfer* FindPart(uint64_t transfer, WorkerIndex worker, absl::Status* why);
  template <typename Request>
  void Await(Request request, uint64_t transfer, WorkerIndex worker, DoneCallback done);
  void Fail(uint64_t transfer, WorkerIndex worker, const absl::Status& status);
  void taskFailed(kj::Exception&& exception) override;

  kj::LowLevelAsyncIoProvider& provider_;
  absl::flat_hash_map<int32_t, std::string> addresses_;
  absl::flat_hash_map<int32_t, std::shared_ptr<Link>> links_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
