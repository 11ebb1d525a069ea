#pragma once

// CoordinatorConfig: the limits and times of the state machine. Every one is in docs/limits.md, and is
// part of the journal, so that a replay runs with the same.

#include <cstdint>
#include <string>

namespace tessera {

struct CoordinatorConfig {
  int64_t max_outstanding_per_worker = 64;              // instructions issued and not reported
  int64_t max_outstanding_us_per_worker = 10'000;       // predicted work issued and not reported
  int64_t max_outstanding_us_shared = 2'000;            // the same while two tenants compete
  int64_t max_unmeasured_instances = 4;                 // of a plan whose cost no worker has measured yet, under way
  int64_t max_outstanding_light_us_per_worker = 2'000;  // the same of its light lane
  int64_t max_light_us = 500;                           // what an op may take that is in the light lane
  int64_t light_window_us = 100'000;                    // of late a session had no more than
  int64_t light_share_percent = 10;                     // of a device, if its ops are light
  int64_t max_light_place_bytes = 64 << 10;             // memory for which a light op looks where no batch op is about
  int64_t max_queued_records = 100'000;                 // per session; more is ResourceExhausted
  int64_t max_sessions = 1024;                          // of clients
  int64_t max_sessions_per_uid = 768;                   // of them, of one user's clients on unix sockets
  int64_t max_admin_sessions = 16;                      // beside them: clients can't lock an admin out
  int64_t max_tensors_per_session = 1'000'000;
  int64_t max_cached_plans = 16'384;
  int64_t max_cached_plan_bytes = int64_t{256} << 20;
  int64_t max_segment_ops = 32;  // calls that are planned as one
  int64_t max_plan_text_bytes = int64_t{16} << 20;
  int64_t max_pending_events = 100'000;                  // per session, not acknowledged; and one per tensor
  int64_t max_pending_event_bytes = int64_t{128} << 20;  // the same in bytes; and 1 KiB per tensor
  int64_t max_all_event_bytes = int64_t{512} << 20;      // the same of all sessions together
  int64_t max_comm_blocks = 1024;                        // open comm_debug blocks per session
  int64_t max_profiled_runs = 8192;                      // workers' parts of ops that are remembered, per session
  int64_t max_tickets_per_session = 16'384;              // uploads and downloads that are not over
  int64_t max_groups = 16'384;                           // process groups
  int64_t max_groups_per_session = 1024;                 // that it is a member of
  int64_t max_group_size = 1024;                         // ranks of one
  int64_t max_flight_calls = 64;                         // of a process group that are remembered
  int64_t max_calls_ahead = 1024;   // collectives of a member, and messages of a group, that wait for others
  int64_t max_publications = 1024;  // of a tenant
  int64_t max_inline_bytes = 4096;
  int64_t alignment_bytes = 256;           // of every buffer
  int64_t suspect_us = 1'000'000;          // a silent worker is shown as suspect
  int64_t worker_timeout_us = 10'000'000;  // and then is dead
  int64_t work_timeout_us = 60'000'000;    // without progress of a worker that has work; then it is probed
  int64_t idle_check_us = 0;               // of an idle worker, after which it is asked for a byte; 0: never
  int64_t max_intake_us = 2'000;           // of own work in answer to one event
  int64_t debug_fill = 0;                  // 1: memory that is given back is filled (debug_fill.cc)
  int64_t min_spill_bytes = 1 << 20;       // of a buffer that may leave for files of its workers
  int64_t spill_retry_us = 10'000'000;     // a worker that could not write one is left alone for so long
  int64_t max_slice_looks = 8'000;         // at tensors, a slice of long work: about a millisecond (long_work.cc)

  bool operator==(const CoordinatorConfig&) const = default;
};

std::string ToJson(const CoordinatorConfig& config);
// Fields that the text doesn't have, or that are no integers of 1 to 2^50, keep their defaults.
CoordinatorConfig ConfigFromJson(const std::string& text);

}  // namespace tessera
