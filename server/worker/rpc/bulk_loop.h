#pragma once

// BulkLoop: the thread and event loop of the worker's bulk server: what clients, and peers of the own host, ask this
// worker directly. The loop of the coordinator's link does nothing for them, so a flood of uploads holds up no op.
//
//   TESSERA_ASSIGN_OR_RETURN(BulkLoop * bulk, BulkLoop::Start(options));   // listens; nobody is served yet
//   bulk->Serve({self, tickets, device, peer_key});                        // once the worker has a number
//   tasks.add(bulk->AddPeer(peer));
//
// It lasts as long as the process: jobs that hang on a disk hold what is its. Calls are those of the link's thread.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include <kj/async.h>

#include "absl/status/statusor.h"
#include "schemas/link/tls_files.h"
#include "server/plan/worker_message.h"
#include "server/worker/rpc/bulk_parts.h"

namespace tessera {

struct BulkOptions {
  std::string data_address;    // "unix:/path": of clients and peers of this host
  std::string data_listen;     // "tls://host:port": of clients of others; empty: there are none
  std::string data_advertise;  // the host[:port] by which they reach it, where that is another
  TlsFiles tls;
  std::string host_id;
  const HostFiles* files = nullptr;  // outlives the process's last job
  std::chrono::milliseconds file_timeout{0};
  std::function<void(const absl::Status&)> failed;  // of its thread: the bulk server takes no connection any more
};

class BulkLoop {
 public:
  // All of it lasts as long as the process.
  struct Worker {
    TicketTable& tickets;
    Device& device;
    uint64_t peer_key;
  };

  // Unavailable where it can't listen, InvalidArgument for an address that is none.
  static absl::StatusOr<BulkLoop*> Start(const BulkOptions& options);
  // As clients of other hosts are told it; empty where they don't reach it.
  const std::string& remote_address() const { return remote_address_; }

  kj::Promise<void> Serve(const Worker& worker);
  kj::Promise<void> AddPeer(const PeerJoined& peer);
  kj::Promise<void> RemovePeer(WorkerIndex peer);
  kj::Promise<void> CloseTicket(TicketId ticket);
  // The window of a spilled buffer is open: its bytes go to a file of this worker, or come from it.
  kj::Promise<void> Spill(TicketId ticket);
  kj::Promise<void> ForgetSpilled(uint64_t file);
  // The files of TLS have changed: connections that come from now on see the new certificate. Any thread's call, once
  // the bulk server serves; errors of the files are said in the log, and the old ones stay.
  void Renew();

 private:
  class Loop;
  using Started = std::promise<absl::Status>;

  explicit BulkLoop(const BulkOptions& options) : options_(options) {}
  void Run(Started started);

  const BulkOptions options_;
  std::string remote_address_;            // from Start on
  kj::Own<const kj::Executor> executor_;  // likewise
  Loop* loop_ = nullptr;                  // likewise; of its thread
  std::thread thread_;
};

}  // namespace tessera
