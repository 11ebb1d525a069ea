#pragma once

// Options of a coordinator process: where to listen, the tokens, the limits.

#include <cstdint>
#include <string>
#include <vector>

#include "schemas/link/tls_files.h"
#include "server/coordinator/config.h"
#include "server/process/log.h"

namespace tessera {

struct CoordinatorOptions {
  std::vector<std::string> listen;          // "unix:/path", "tls://host:port"
  std::vector<std::string> listen_workers;  // "tls://host:port": with certificates
  TlsFiles tls;
  std::string token;              // clients show it
  std::string join_token;         // workers show it
  std::string admin_token;        // admins show it; empty: there are none
  std::string viewer_token;       // who reads metrics and the page from other hosts shows it; empty: there is none
  uint64_t epoch = 0;             // of this process: larger than that of any before
  double lease_s = 0;             // default of a session on a unix socket without a name
  std::string state_folder;       // of the log that a restart goes on with; empty: none is kept
  bool syncs_state = false;       // the log survives the machine, too: the level `disk`
  double snapshot_after_s = 1.5;  // of work behind the last snapshot; docs/limits.md: snapshot_after
  double long_lease_s = 3600;     // of one with a name, or from elsewhere
  // A client that says nothing for so long loses its connection; 0: never.
  double session_silence_s = 60;
  double max_lease_s = 3600;
  double heartbeat_s = 0.25;
  int64_t max_connections = 4096;
  int64_t flow_limit_bytes = 16 << 20;  // of one connection's calls that have not been taken up
  int64_t handshake_timeout_ms = 10'000;
  std::string tenants_path;        // of the tenants file; empty: all tokens are of the tenant "default"
  std::string journal_path;        // empty: none
  bool keeps_digest = false;       // of the journal's effects
  std::string listen_http;         // "127.0.0.1:9464" or "tls://host:port": metrics and health; empty: none
  std::string audit_path;          // of the audit's database; empty: none is kept
  int64_t audit_rows = 1'000'000;  // that each of its tables keeps; docs/limits.md: max_audit_rows
  double stop_timeout_s = 10;      // in which what was issued may end when the coordinator, or a worker, is to stop
  std::string inspected;           // a state folder that is to be described, and nothing else; empty: none
  std::string replay;              // of a journal that is to be replayed, and nothing else; empty: none
  LogOptions log;
  int exit_with_parent_fd = -1;
  double outlive_parent_s = 0;  // for another one that takes this process over
  CoordinatorConfig config;
};

inline constexpr char kServerVersion[] = "0.1.0";

}  // namespace tessera
