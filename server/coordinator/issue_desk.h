#pragma once

// IssueDesk: one unit of work onto the workers. It finds or makes the unit's plan, gives its buffers memory, chooses
// lane and stream, and tells the workers to run it behind all that it reads and overwrites.
//
// Law: what workers would refuse is refused here, before anything runs.

#include "server/coordinator/state_machine.h"

namespace tessera {

class PiecesOfPlan;

class StateMachine::IssueDesk {
 public:
  explicit IssueDesk(StateMachine& machine) : machine_(machine), config_(machine.config_) {}

  absl::StatusOr<PlanTemplate*> TemplateOf(SessionEntry& session, const IssueUnit& unit, std::vector<Scalar>& scalars);
  absl::Status MakeAgain(const IssueUnit& unit, PlanTemplate& known);  // of a snapshot's template: its plan
  void ForgetOnWorkers(const PlanTemplate& gone);
  // By its plan; a contraction whose temporaries don't fit, by one that keeps to what is free.
  absl::StatusOr<PlanTemplate*> IssueWhatFits(SessionEntry& session, IssueUnit& unit, PlanTemplate& plan,
                                              std::vector<Scalar> scalars);
  absl::Status Issue(SessionEntry& session, const IssueUnit& unit, PlanTemplate& plan, std::vector<Scalar> scalars);
  void AddWaits(OpEntry& op, const PlanTemplate& plan, const std::vector<BufferPointer>& buffers,
                const BuffersApart& apart, Instance& instance);
  void Define(PlanTemplate& plan);
  void OpenWindow(SessionEntry& session, std::vector<TensorPointer> tensors, TransferDirection direction,
                  uint64_t request);
  void ReadInline(SessionEntry& session, TensorPointer tensor, uint64_t request);
  void WriteInline(SessionEntry& session, const TensorPointer& tensor, std::string bytes);
  static ScopeNumbers EnterScopes(SessionEntry& session);  // the open blocks; none of them ends before LeaveScopes
  bool MakesCalls(const PlanTemplate& plan) const;
  Lane LaneFor(SessionEntry& session, const PlanTemplate& plan, absl::Span<const TensorPointer> inputs) const;
  Lane UsualLane(SessionEntry& session) const;  // by what it had of late
  Lane LaneForRead(SessionEntry& session, const TensorEntry& tensor) const;
  uint8_t ChooseStream(OpEntry& op, StreamId stream, std::vector<InstanceWait>& waits, CollectWaits collect);
  int64_t QuietPlace(absl::Span<const WorkerIndex> workers, int64_t bytes);  // for a light op; 0 where there is none

 private:
  absl::StatusOr<std::string> CheckedPlanText(std::string_view op, const Plan& plan) const;
  absl::StatusOr<OpPlan> PlanUnit(const IssueUnit& unit, Meshes meshes) const;
  void FillTemplate(const IssueUnit& unit, OpPlan planned, PiecesOfPlan& pieces, PlanTemplate& made);
  // The refusal of a plan's buffer, with what would fit in an output's place.
  absl::Status DoesNotFit(const PlanTemplate& plan, size_t buffer, const absl::Status& status);
  absl::StatusOr<std::vector<BufferPointer>> PlaceBuffers(SessionId owner, const IssueUnit& unit,
                                                          const PlanTemplate& plan, Instance& instance);
  static std::shared_ptr<const std::vector<WayStep>> WayOf(const IssueUnit& unit, const PlanTemplate& plan);
  static bool MayDonate(const IssueUnit& unit, size_t input, int64_t output_bytes);
  void AddOutputs(SessionEntry& session, const IssueUnit& unit, const PlanTemplate& plan,
                  const std::vector<BufferPointer>& buffers, const OpPointer& op);
  bool IsWrittenIn(Lane lane, const BufferPointer& buffer) const;  // by what is under way

  StateMachine& machine_;
  const CoordinatorConfig& config_;
};

}  // namespace tessera
