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
#include "server/coordinator/machine_tables.h"
#include "server/coordinator/unit.h"
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
  // stalls.cc
  void WatchWork();
  void Probe(WorkerIndex worker);
  void AskIdle();
  Ordinal ReadByte(WorkerIndex worker, std::string_view name, StreamId stream, Lane lane);
  std::string WhyStalled(WorkerIndex index, const WorkerEntry& worker) const;
  // A call that says where its result is to be goes where a tensor that was there went, if its client had not heard.
  void KeepFromLost(Record& record) const;
  // long_work.cc
  bool HasLongWork() const;
  void GoOnWithLongWork();  // for about a millisecond
  std::optional<SessionId> NextToSweep() const;
  bool IsSwept(const SessionEntry& session) const;
  int64_t Sweep(SessionId session, int64_t max_cost);
  // Goes on where all shards have living copies (schemas/types/living_mesh.h), or fails. False: it loses nothing.
  bool LoseShard(TensorEntry& tensor, const WorkerLoss& loss);
  // turns.cc: whose turn it is, and what it costs.
  void Pump();
  void TakeTurn(SessionEntry& session);
  void Charge(SessionEntry& session, int64_t own_us);
  int64_t WindowUs();
  bool IsOpen(WorkerIndex worker, Lane lane);
  bool HasRoom(absl::Span<const WorkerIndex> workers, Lane lane);
  bool HasRoomFor(const PlanTemplate& plan, Lane lane);
  OpPointer NewRun(std::string_view name, SessionId session, const PlanTemplate& plan, Lane lane);
  void EndWork(OpEntry& op);
  void PayForRuns(SessionEntry& session, const ProfiledRuns& runs);
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
  // intake.cc: records in session order, as far as limits let them. `taken` counts those that it took from the front.
  Progress Take(SessionEntry& session, size_t& taken);
  Progress TakeRecord(SessionEntry& session, UploadRecord& record);
  // Memory and names for all of its tensors, or for none of them.
  absl::StatusOr<std::vector<TensorPointer>> PlaceUploads(SessionEntry& session, const UploadRecord& record,
                                                          const WorkerGroup& workers);
  absl::Status CheckInline(const UploadRecord& record) const;  // that its bytes are those of its tensor
  Progress TakeRecord(SessionEntry& session, DownloadRecord& record);
  Progress TakeRecord(SessionEntry& session, WatchRecord& record);
  Progress TakeRecord(SessionEntry& session, DropRecord& record);
  Progress TakeRecord(SessionEntry& session, NamingRecord& record);
  Progress TakeRecord(SessionEntry& session, CommBeginRecord& record);
  Progress TakeRecord(SessionEntry& session, CommEndRecord& record);
  Progress TakeRecord(SessionEntry& session, CancelRecord& record);
  Progress TakeRecord(SessionEntry& session, CancelCallsRecord& record);
  // By record of the queue up to `calls_before`, whether it leads to what is needed.
  static std::vector<bool> FindNeeded(const SessionEntry& session, const Cancels& cancels);
  void Cancel(SessionEntry& session, const Cancels& cancels);
  void CancelWaiters(SessionEntry& session, const std::set<uint64_t>& requests);
  void ReleaseTicket(const SessionEntry& session, const ReleaseRecord& release);
  absl::Status CheckTickets(std::string_view op, const SessionEntry& session) const;
  Progress TakeRecord(SessionEntry& session, ReleaseRecord& record);
  Progress TakeRecord(SessionEntry& session, JoinGroupRecord& record);
  Progress TakeRecord(SessionEntry& session, LeaveGroupRecord& record);
  Progress TakeRecord(SessionEntry& session, CollectiveRecord& record);
  Progress TakeRecord(SessionEntry& session, PublicationRecord& record);
  class PublicationDesk;  // publications.cc
  class SpillDesk;        // spill_desk.h
  Progress TakeRecord(SessionEntry& session, BadRecord& record);
  Progress TakeRecord(SessionEntry& session, BatchEndRecord& record);
  absl::StatusOr<TensorPointer> FindTensor(const SessionEntry& session, HandleId handle, std::string_view op) const;
  absl::Status AddTensor(SessionEntry& session, HandleId handle, TensorPointer tensor);
  // One entry may stand for several handles that failed together.
  TensorPointer MakeFailedTensor(const SessionEntry& session, HandleId first, const absl::Status& cause,
                                 const TensorSpec* spec = nullptr);
  void AddFailedTensor(SessionEntry& session, HandleId handle, TensorPointer failed);
  void RefuseCall(SessionEntry& session, const CallRecord& record, const absl::Status& status);
  // Whether a window is being closed on these workers, which refused memory, of those that the session's first record
  // may wait for. A window that a client may still use is none of them.
  bool AwaitsWindows(SessionEntry& session, absl::Span<const WorkerIndex> workers);

  // rank_groups.cc: process groups. collectives.cc: the calls of their members; issue_collective.cc: onto the workers.
  absl::Status CheckJoin(const SessionEntry& session, const JoinGroupRecord& record) const;
  void AnswerJoins(ProcessGroupEntry& group);
  void FailJoins(ProcessGroupEntry& group, const absl::Status& status);
  void LeaveGroup(ProcessGroupEntry& group, int32_t rank, const std::string& why);
  void LeaveGroups(SessionId session, const std::set<uint64_t>& groups, const std::string& why);
  void WatchGroups();
  void CancelGroupRequests(SessionEntry& session, const std::set<uint64_t>& requests);
  absl::StatusOr<ArrivedCall> ArriveAt(SessionEntry& session, const ProcessGroupEntry& group, int32_t rank,
                                       const CollectiveRecord& record);
  absl::StatusOr<TensorPointer> RowMajorCopyOf(SessionEntry& session, HandleId handle);
  void RefuseCollective(SessionEntry& session, const CollectiveRecord& record, const absl::Status& status);
  Progress TakeCall(SessionEntry& session, ProcessGroupEntry& group, int32_t rank, const CollectiveRecord& record);
  absl::StatusOr<WaitingMessage> MessageOf(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                           const CollectiveRecord& record);
  Progress TakeMessage(SessionEntry& session, ProcessGroupEntry& group, int32_t rank, const CollectiveRecord& record);
  absl::Status WhyNotMatched(const ProcessGroupEntry& group, const GroupCall& call) const;
  void EndArrived(const ArrivedCall& call, const absl::Status& status);
  void FailGroupCall(ProcessGroupEntry& group, GroupCall& call, const absl::Status& status);
  // Plans and issues the members' calls as one op; kBlocked while some worker has no room for it.
  absl::StatusOr<Progress> IssueCollective(SessionEntry& session, ProcessGroupEntry& group,
                                           const CollectiveParts& parts, std::vector<ArrivedCall>& calls);
  absl::Status RunCollective(std::string_view name, const ProcessGroupEntry& group,
                             const std::vector<ArrivedCall*>& givers, const std::vector<ArrivedCall*>& takers,
                             PlanTemplate& plan);
  void AddShare(OpEntry& op, const ArrivedCall& call, const PlanTemplate& plan);
  Progress Park(SessionEntry& session, HandleId handle, Record record);
  void Unpark(SessionId session, HandleId handle);
  void TakeBackParked();
  bool MakesCalls(const PlanTemplate& plan) const;

  // segments.cc: which records of a queue are planned as one.
  absl::StatusOr<Unit> UnitOf(const SessionEntry& session, const CallRecord& record) const;
  // The segment that begins with the first record of the queue; nullopt where nothing is gained.
  std::optional<Unit> FindSegment(SessionEntry& session) const;
  class SegmentGatherer;
  static void AddDropsBehind(const SessionEntry& session, Unit& unit);  // what the drop behind it names, it uses last
  static Segment SegmentFor(const Unit& unit);
  Progress TakeCalls(SessionEntry& session, CallRecord& record, size_t& taken);
  absl::StatusOr<Progress> TakeSegment(SessionEntry& session, Unit& unit);
  void FinishUnit(SessionEntry& session, const Unit& unit);

  // issue.cc: one unit onto the workers, which would refuse what they can't take.
  absl::StatusOr<std::string> CheckedPlanText(std::string_view op, const Plan& plan) const;
  absl::StatusOr<PlanTemplate*> TemplateOf(SessionEntry& session, const Unit& unit, std::vector<Scalar>& scalars);
  enum class Meshes : uint8_t { kChecked, kKnown };  // kKnown: they were checked when the plan was made first
  absl::StatusOr<OpPlan> PlanUnit(const Unit& unit, Meshes meshes) const;
  void FillTemplate(const Unit& unit, OpPlan planned, PlanTemplate& made);
  absl::Status MakeAgain(const Unit& unit, PlanTemplate& known);  // of a snapshot's template: its plan
  // By its plan; a contraction whose temporaries don't fit, by one that keeps to what is free.
  absl::StatusOr<PlanTemplate*> IssueWhatFits(SessionEntry& session, Unit& unit, PlanTemplate& plan,
                                              std::vector<Scalar> scalars);
  // Whether there is room for all that the plan adds, nothing being donated.
  bool FitsNow(const Plan& plan, const std::vector<MemoryMap::Request>& held) const;
  // Limits for the temporaries of a contraction, or of a conversion: what is free, rounded down; and to the byte, for
  // plans that the rounding would refuse. None when it has none, or its other buffers don't fit.
  std::vector<PlanLimits> LimitsFor(const Plan& plan, const std::vector<MemoryMap::Request>& held = {}) const;
  absl::Status Issue(SessionEntry& session, const Unit& unit, PlanTemplate& plan, std::vector<Scalar> scalars);
  DeviceKind KindOf(WorkerIndex worker) const;
  // For an op between workers of two kinds: OK where it only moves bytes, and all have messages to move them in.
  absl::Status CheckMove(OpId op, WorkerIndex one, WorkerIndex other, absl::Span<const Mesh* const> meshes) const;
  absl::Status CheckWorkers(std::string_view op, absl::Span<const WorkerIndex> workers) const;
  // Checks that all workers which the op names are there, and of one kind; returns their topology.
  absl::StatusOr<const Topology*> CheckMeshes(const OpCall& call, absl::Span<const PlanOperand> operands,
                                              Meshes meshes = Meshes::kChecked) const;
  // The refusal of a plan's buffer, with what would fit in an output's place.
  absl::Status DoesNotFit(const PlanTemplate& plan, size_t buffer, const absl::Status& status);
  absl::StatusOr<std::vector<BufferPointer>> PlaceBuffers(SessionId owner, const Unit& unit, const PlanTemplate& plan,
                                                          Instance& instance);
  void AddWaits(OpEntry& op, const PlanTemplate& plan, const std::vector<BufferPointer>& buffers,
                const BuffersApart& apart, Instance& instance);
  static std::shared_ptr<const std::vector<WayStep>> WayOf(const Unit& unit, const PlanTemplate& plan);
  static bool MayDonate(const Unit& unit, size_t input, int64_t output_bytes);
  void AddOutputs(SessionEntry& session, const Unit& unit, const PlanTemplate& plan,
                  const std::vector<BufferPointer>& buffers, const OpPointer& op);
  void Define(PlanTemplate& plan);
  absl::StatusOr<BufferPointer> NewBuffer(SessionId owner, const WorkerGroup& workers, int64_t bytes,
                                          std::string_view op, Lane lane = Lane::kBatch);
  void GiveBack(BufferEntry& buffer);
  void FillFreed();                                 // debug_fill.cc
  History& HistoryOf(const BufferPointer& buffer);  // of what is under way
  void ForgetHistories(size_t completions);
  OpPointer NewOp(OpEntry::Kind kind, std::string_view name, SessionId session, const WorkerGroup& workers,
                  int64_t cost_us, Lane lane = Lane::kBatch);
  void AddParent(const OpPointer& op, const TensorEntry& tensor);
  void OpenWindow(SessionEntry& session, std::vector<TensorPointer> tensors, TransferDirection direction,
                  uint64_t request);
  void ReadInline(SessionEntry& session, TensorPointer tensor, uint64_t request);
  void WriteInline(SessionEntry& session, const TensorPointer& tensor, std::string bytes);
  static ScopeNumbers EnterScopes(SessionEntry& session);  // the open blocks; none of them ends before LeaveScopes
  WorkerGroup AliveOf(const WorkerGroup& workers);
  void ToGroup(const WorkerGroup& workers, WorkerMessage message);
  bool IsComplete(Ordinal ordinal) const;
  bool IsWrittenIn(Lane lane, const BufferPointer& buffer) const;  // by what is under way
  Lane LaneFor(SessionEntry& session, const PlanTemplate& plan, absl::Span<const TensorPointer> inputs) const;
  Lane UsualLane(SessionEntry& session) const;  // by what it had of late
  Lane LaneForRead(SessionEntry& session, const TensorEntry& tensor) const;
  uint8_t ChooseStream(OpEntry& op, StreamId stream, std::vector<InstanceWait>& waits, CollectWaits collect);
  int64_t QuietPlace(absl::Span<const WorkerIndex> workers, int64_t bytes);  // for a light op; 0 where there is none
  // completion.cc: what workers say.
  void On(const WorkerReportEvent& event);
  void Complete(const OpPointer& op, WorkerIndex worker, const CompletionReport& report);
  void LeaveScopes(SessionId session, const ScopeNumbers& scopes);
  void CountTraffic(const OpEntry& op, WorkerIndex worker, const CompletionReport& report);
  // Bytes that went between a worker's shard and the client or a file.
  void CountTransfer(SessionId session, const ScopeNumbers& scopes, TransferDirection direction, WorkerIndex worker,
                     int64_t bytes);
  std::vector<CommScope*> ScopesOf(SessionId session, const ScopeNumbers& scopes);
  void Blame(const OpPointer& op, const absl::Status& cause);
  void Poison(const OpPointer& op, const absl::Status& cause);
  void PoisonTensor(TensorEntry& tensor, const absl::Status& cause);
  void SettleIfDone(const OpPointer& op);
  void Settled(const OpPointer& op);
  void AnswerRequest(OpEntry& op);
  void ForgetRequest(OpEntry& op);  // it has been answered, which its ticket is told: nothing answers twice
  void AddRun(OpEntry& op, WorkerIndex worker, const CompletionReport& report);
  void Remember(OpEntry& op);
  void TransferDone(WorkerIndex worker, const TransferReport& report);
  void FinishTicket(TicketId id, TicketEntry& ticket);
};

}  // namespace tessera
