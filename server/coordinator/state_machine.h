#pragma once

// StateMachine: the coordinator without clock, I/O or threads. `Apply(event) -> effects`; the same events in the same
// order give the same effects, bit for bit, so that a journal of events is a full account of what happened.
//
// It holds every session, tensor, buffer and issued operation; turns records into plans and plans into instances with
// an ordinal, memory offsets and waits; and keeps the laws: an instruction waits only for smaller ordinals, what
// doesn't fit is refused before anything runs, no byte leaves before all that led to it has ended well.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"
#include "server/coordinator/issue_unit.h"
#include "server/coordinator/machine_tables.h"
#include "server/planner/planner.h"

namespace tessera {

class StateMachine final : private MachineTables {
 public:
  explicit StateMachine(const CoordinatorConfig& config);
  ~StateMachine();

  Effects Apply(int64_t now_us, Event event);
  // Queued records could be taken up, and wait for ContinuedEvent, so that other events have their turn.
  bool has_more() const { return has_more_ || HasLongWork(); }

  // ---- questions; they change nothing -----------------------------------------------------------------
  // The plan by which the call would be issued now. NotFound for unknown handles, the cause for poisoned ones.
  // A layout is that of a tensor that isn't there. `held`: memory that such tensors would have.
  absl::StatusOr<OpPlan> Explain(SessionId session, const OpCall& call,
                                 const std::vector<std::variant<HandleId, Scalar, OperandLayout>>& operands,
                                 const std::vector<MemoryMap::Request>& held = {}) const;
  const std::map<WorkerIndex, WorkerEntry>& workers() const { return workers_; }
  const std::map<SessionId, SessionEntry>& sessions() const { return sessions_; }
  const CoordinatorConfig& config() const { return config_; }
  const PlanCache& plans() const { return plans_; }
  const MemoryMap& memory() const { return memory_; }
  const Metrics& metrics() const { return metrics_; }
  const TenantTable& tenants() const { return tenants_; }
  const JoinTokenUses& join_token_uses() const { return join_token_uses_; }
  const FairTurns& turns() const { return turns_; }
  int64_t QueuedBy(const TenantEntry& tenant) const;  // records of all its sessions, as they count in their queues
  const PublicationTable& publications() const { return publications_; }
  const ProcessGroups& process_groups() const { return process_groups_; }
  const Topology& TopologyOf(const Mesh& mesh) const;  // of the workers of this mesh, which are of one kind
  uint64_t next_ordinal() const { return next_ordinal_; }
  int64_t now_us() const { return now_us_; }  // of the last event
  const GivenNumbers& given() const { return given_; }
  int64_t unsettled_ops() const { return static_cast<int64_t>(ops_.size()); }
  bool IsMappedByPeers(WorkerIndex worker) const;  // whether it and another one that is there map each other's memory
  // Whether nothing of a session runs, and what it queued waits for bytes that its client is to bring.
  bool AwaitsClient(SessionId session) const;
  bool AwaitsRanks(SessionId session) const;  // whether some collective of it waits for other ranks
  using MachineTables::IsInHostMemory, MachineTables::PlaceOf;
  OpEntry* ProducerOf(const TensorEntry& tensor) const;  // the op that it waits for; null once that is settled
  // How many of a session's ops [first_op, end_op), by the numbers of its profile, have not ended.
  uint64_t CountUnderWay(SessionId session, uint64_t first_op, uint64_t end_op) const;

 private:
  friend class Snapshot;
  // Parts of the machine, each with the records, reports or duties that are its own. A desk is made where it is needed:
  // the tables have what it knows.
  class CompletionDesk;   // completion_desk.h: what workers report
  class GroupDesk;        // group_desk.h: process groups and their calls
  class IntakeDesk;       // intake_desk.h: records of a session in their order
  class IssueDesk;        // issue_desk.h: one unit of work onto the workers
  class LossDesk;         // loss_desk.h: tensors of workers that were lost
  class PublicationDesk;  // publications.cc
  class SegmentDesk;      // segment_desk.h: records that are planned as one
  class SpillDesk;        // spill_desk.h: room in arenas, by files
  class StallDesk;        // stall_desk.h: workers that do no work
  class TurnDesk;         // turn_desk.h: whose turn it is, and what it costs

  // sessions.cc
  void On(const StartedEvent& event);
  void On(const SessionOpenedEvent& event);
  void On(const SessionClosedEvent& event);
  void On(const ConnectionLostEvent& event);
  void On(const SessionResumedEvent& event);
  void On(BatchEvent& event);
  void On(const TickEvent& event);
  void On(const ContinuedEvent& event);
  static void Queue(SessionEntry& session, Record record);
  void CloseSession(SessionId id, const absl::Status& reason);
  bool MakeRoomFor(Role role, std::optional<int64_t> uid);  // ends a session of no use to anyone, if there is one
  void DropHandle(SessionEntry& session, HandleId handle);
  void LoseName(SessionEntry& session, HandleId handle);
  void Send(SessionEntry& session, SessionEventBody body);
  void SendTo(SessionId session, SessionEventBody body);  // nothing when the session is gone
  void EndTransfers(SessionEntry& session);
  void CloseTicketOf(TicketId id, TicketEntry& ticket);
  void EndScopeIfDone(SessionEntry& session, uint64_t scope);
  // workers.cc
  void On(const WorkerJoinedEvent& event);
  void On(const WorkerLostEvent& event);
  void On(const WorkerHeardEvent& event);
  void On(const WorkerAdmitsEvent& event);
  void On(const WorkerDrainedEvent& event);
  void On(const JoinTokenUsedEvent& event);
  void On(const JoinTokenForgottenEvent& event);
  void LoseWorker(WorkerIndex worker, const std::string& reason);
  void DropRejoined(std::vector<InstanceWait>& waits) const;  // of processes that a later one of their number replaced
  bool IsDead(WorkerIndex worker) const;
  // A call that says where its result is to be goes where a tensor that was there went, if its client had not heard.
  void KeepFromLost(Record& record) const;
  bool HasLongWork() const;  // long_work.cc
  // tenants.cc
  void On(const TenantsChangedEvent& event);
  void On(const TenantEvictedEvent& event);
  void On(const SessionChargedEvent& event);
  absl::StatusOr<TenantEntry*> ChargeMemory(SessionId owner, absl::Span<const WorkerIndex> workers, int64_t bytes,
                                            std::string_view op);
  absl::Status Unplaced(SessionId owner, TenantEntry* tenant, absl::Span<const WorkerIndex> workers, int64_t bytes,
                        const absl::Status& why);
  void EndBeyondDetached(const TenantEntry& tenant);  // sessions without a client, the first to lose it first
  void RefuseBeyondQueue(const SessionEntry& session, int64_t weight, std::vector<Record>& records) const;
  absl::StatusOr<TensorPointer> FindTensor(const SessionEntry& session, HandleId handle, std::string_view op) const;

  enum class Meshes : uint8_t { kChecked, kKnown };  // kKnown: they were checked when the plan was made first
  // Whether there is room for all that the plan adds, nothing being donated.
  bool FitsNow(const Plan& plan, const std::vector<MemoryMap::Request>& held) const;
  // Limits for the temporaries of a contraction, or of a conversion: what is free, rounded down; and to the byte, for
  // plans that the rounding would refuse. None when it has none, or its other buffers don't fit.
  std::vector<PlanLimits> LimitsFor(const Plan& plan, const std::vector<MemoryMap::Request>& held = {}) const;
  DeviceKind KindOf(WorkerIndex worker) const;
  // For an op between workers of two kinds: OK where it only moves bytes, and all have messages to move them in.
  absl::Status CheckMove(OpId op, WorkerIndex one, WorkerIndex other, absl::Span<const Mesh* const> meshes) const;
  absl::Status CheckWorkers(std::string_view op, absl::Span<const WorkerIndex> workers) const;
  // Checks that all workers which the op names are there, and of one kind; returns their topology.
  absl::StatusOr<const Topology*> CheckMeshes(const OpCall& call, absl::Span<const PlanOperand> operands,
                                              Meshes meshes = Meshes::kChecked) const;
  absl::StatusOr<BufferPointer> NewBuffer(SessionId owner, const WorkerGroup& workers, int64_t bytes,
                                          std::string_view op, Lane lane = Lane::kBatch);
  void GiveBack(BufferEntry& buffer);
  void FillFreed();                                 // debug_fill.cc
  History& HistoryOf(const BufferPointer& buffer);  // of what is under way
  void ForgetHistories(size_t completions);
  OpPointer NewOp(OpEntry::Kind kind, std::string_view name, SessionId session, const WorkerGroup& workers,
                  int64_t cost_us, Lane lane = Lane::kBatch);
  void AddParent(const OpPointer& op, const TensorEntry& tensor);
  WorkerGroup AliveOf(const WorkerGroup& workers);
  void ToGroup(const WorkerGroup& workers, WorkerMessage message);
  bool IsComplete(Ordinal ordinal) const;
  // completion.cc: what workers say.
  void On(const WorkerReportEvent& event);
};

}  // namespace tessera
