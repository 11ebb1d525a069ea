#pragma once

// MachineTables: all that the state machine knows. StateMachine alone reads and writes it.

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/coordinator/config.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/coordinator/fair_turns.h"
#include "server/coordinator/layout_table.h"
#include "server/coordinator/long_work.h"
#include "server/coordinator/memory_map.h"
#include "server/coordinator/metrics.h"
#include "server/coordinator/plan_cache.h"
#include "server/coordinator/process_groups.h"
#include "server/coordinator/publications.h"
#include "server/coordinator/spill_table.h"
#include "server/coordinator/tables.h"
#include "server/coordinator/tenants/tenant_table.h"
#include "server/coordinator/worker_sets.h"
#include "server/planner/planner.h"

namespace tessera {

// By the id of a join token with `uses`: the workers' numbers for which it is used.
using JoinTokenUses = std::map<std::string, std::set<WorkerIndex>>;

class MachineTables {
 protected:
  // `give_back` gets a buffer that nobody refers to any more.
  MachineTables(const CoordinatorConfig& config, std::function<void(BufferEntry&)> give_back)
      : config_(config),
        memory_(config.alignment_bytes),
        buffers_(std::move(give_back)),
        plans_(config.max_cached_plans, config.max_cached_plan_bytes) {}
  // spill.cc
  SpillPlace PlaceOf(const TensorEntry& tensor) const;  // kHere, unless its buffer may leave for files
  // Whether the tensor is away, and all that is left of it lies in memory of its workers' hosts.
  bool IsInHostMemory(const TensorEntry& tensor) const;
  // long_work.cc: gives back the memory that a tensor has beside its lost shards. A window that a client may still use
  // keeps it, and is asked again when it is closed; so does memory that may leave for files.
  void GiveUpRest(TensorEntry& tensor) const;
  // turns.cc: a tenant's device_share (tenants/device_share.h). `ticks` is device time, summed over workers.
  DeviceShare::Rate RateOf(const TenantEntry& tenant) const;
  void AddToShare(TenantEntry& tenant, int64_t ticks);
  bool IsOverShare(const TenantEntry& tenant) const;

  CoordinatorConfig config_;
  int64_t now_us_ = 0;
  std::array<Topology, 2> topologies_ = {Topology::Of(DeviceKind::kCpu), Topology::Of(DeviceKind::kCuda)};  // by kind
  MemoryMap memory_;
  bool is_ending_ = false;  // what is given back comes to nobody
  HistoryTable histories_;
  std::deque<EntryNumber> touched_;  // buffers that have a history
  BufferTable buffers_;
  TensorTable tensors_;
  LayoutTable layouts_;
  PlanCache plans_;
  std::map<WorkerIndex, WorkerEntry> workers_;
  std::map<SessionId, SessionEntry> sessions_;
  GivenNumbers given_;
  uint64_t joins_ = 0;
  bool has_lost_ = false;  // some worker was lost
  bool rejoined_ = false;  // some worker number was used again
  TenantTable tenants_;
  JoinTokenUses join_token_uses_;
  FairTurns turns_;
  SessionId turn_;              // whose turn it is; 0: nobody's
  int32_t gate_ = 0;            // of FairTurns: what blocks it
  int64_t intake_left_us_ = 0;  // of the event that is being applied
  bool has_more_ = false;
  absl::flat_hash_map<Ordinal, OpPointer> ops_;  // until they are settled
  std::map<TicketId, TicketEntry> tickets_;
  std::set<TicketId> closing_;   // of them: nothing but workers' answers is missing
  uint64_t closed_windows_ = 0;  // so far
  LongWork long_work_;
  WorkerSets groups_;
  ProcessGroups process_groups_;
  PublicationTable publications_;
  std::vector<std::pair<SessionId, Record>> unparked_;  // to go back to their queues
  SpillTable spills_;
  std::vector<FreedRange> freed_;        // given back, and perhaps still touched by what was issued
  std::vector<BufferPointer> unfilled_;  // given back, and not filled (debug_fill.cc)
  SessionEntry nobody_;                  // whose fills are
  uint64_t next_ordinal_ = 1;
  uint64_t next_template_ = 1;
  uint64_t next_ticket_ = 1;
  Metrics metrics_;
  Effects effects_;
};

}  // namespace tessera
