#pragma once

// A worker process's command line, and the parts that are made of it before the worker joins.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "schemas/link/tls_files.h"
#include "schemas/types/limits.h"
#include "schemas/types/message_network.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/transports.h"
#include "server/device/cpu/cpu_device.h"
#include "server/process/log.h"
#include "server/transport/tls/tls_transport.h"
#include "server/transport/ucx/ucx_transport.h"
#include "server/worker/files/decoder.h"
#include "server/worker/rpc/await_coordinator.h"
#include "server/worker/rpc/file_calls.h"
#include "server/worker/rpc/file_limits.h"

namespace tessera {

// Whether there is a network on which messages may go to other hosts: UCX's port does what any sender says.
enum class TrustedNetwork : uint8_t { kNone, kNetDevices };

struct WorkerOptions {
  std::string coordinator;  // "unix:/path", "tls://host:port"
  TlsFiles tls;
  std::string data_listen;        // "tls://host:port"; empty: clients of this host alone
  std::string data_advertise;     // the host and port by which clients reach it, where they are others
  std::string message_listen;     // host, or host:port; empty: no messages over TLS
  std::string message_advertise;  // by which others reach it; empty: the host of message_listen
  std::string join;               // "tls://host:port": it enrols there, and TLS's files come from the coordinator
  std::string ca_pin;             // "sha256:HEX" of the CA that has signed the coordinator's certificate
  std::string advertise;          // by which others reach this host; empty: the address that reaches the coordinator
  std::string index_from;         // a variable, or "hostname-ordinal"
  std::string join_token;
  std::string join_token_file;
  double join_timeout_s = kJoinTimeoutS;
  int index = -1;
  std::string memory;        // as it was written: bytes, or a share
  int64_t memory_bytes = 0;  // 0: as many as its kind of device takes by itself
  std::string device = "cpu";
  int gpu = -1;
  std::string transport = "shm";
  TrustedNetwork trusted_network = TrustedNetwork::kNone;
  std::string net_devices = UcxOptions{}.net_devices;
  std::string socket_dir = "/tmp";
  std::string host_id;
  int threads = 0;
  int batch_nice = kBatchNice;
  int workers_on_host = 1;
  std::vector<std::string> files;
  std::string decoder;
  int64_t decoder_memory_bytes = kDecoderMemoryBytes;
  bool may_decode_unconfined = false;
  double file_timeout_s = std::chrono::duration<double>(kFileTimeout).count();
  std::string spill;               // the folder of buffers whose memory is wanted; empty: there is none
  int64_t spill_bytes = 0;         // that they may have there; 0: most of what is free
  int64_t spill_memory_bytes = 0;  // of the host, that they may have before
  HostFiles host_files;
  double message_stall_timeout_s = kMessageStallTimeoutMs / 1e3;
  double outlive_s = 0;  // without a coordinator
  double grace_s = 5;    // for transfers that are under way when it is to end; docs/limits.md: grace
  int exit_with_parent_fd = -1;
  double outlive_parent_s = 0;  // for another one that takes this process over
  LogOptions log;
};

// Its flag takes no other name.
inline const Transport& TransportOf(const WorkerOptions& options) {
  const Transport* const found = FindTransport(options.transport);
  TESSERA_CHECK(found != nullptr);
  return *found;
}
inline bool UsesNccl(const WorkerOptions& options) { return TransportOf(options).has_nccl; }
inline bool UsesTls(const WorkerOptions& options) { return NeedsCertificates(TransportOf(options)); }

}  // namespace tessera
