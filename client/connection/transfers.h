#pragma once

// TransferTable: the open uploads and downloads of a connection, and the connections to workers' data
// sockets that they use. Lives on the connection's thread.

#include <memory>
#include <string>
#include <vector>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "client/connection/connection.h"
#include "schemas/worker.capnp.h"

namespace tessera {

// A connected unix socket; Unavailable when nobody listens. `what` opens the message.
absl::StatusOr<int> ConnectUnixSocket(std::string_view what, const std::string& path);

class TransferTable : private kj::TaskSet::ErrorHandler {
 public:
  explicit TransferTable(kj::LowLevelAsyncIoProvider& provider) : provider_(provider), tasks_(*this) {}

  void SetWorkers(const std::vector<WorkerReport>& workers);
  void SetWorker(int32_t worker, const std::string& data_address);
  void Begin(uint64_t transfer, uint64_t ticket, uint64_t secret, std::shared_ptr<HostMemory> memory,
             const std::vector<WorkerIndex>& workers);
  void Copy(uint64_t transfer, WorkerIndex worker, const Box& box, uint64_t offset_bytes, DoneCallback done);
  void Finish(uint64_t transfer, DoneCallback done);

 private:
  struct Link;      // to one worker's data socket
  struct Transfer;  // one ticket
  absl::StatusOr<std::shared_ptr<Link>> LinkTo(WorkerIndex worker);
  void Fail(uint64_t transfer, WorkerIndex worker, const absl::Status& status);
  void taskFailed(kj::Exception&& exception) override;

  kj::LowLevelAsyncIoProvider& provider_;
  absl::flat_hash_map<int32_t, std::string> addresses_;
  absl::flat_hash_map<int32_t, std::shared_ptr<Link>> links_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  kj::TaskSet tasks_;
};

}  // namespace tessera
