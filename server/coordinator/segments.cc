// Segments: which calls of a session's queue are planned as one (server/planner/segment.h). It follows from the queue
// and the tables alone: the same events give the same segments.
//
// A segment is a run of calls, and of drops between them, at the front of the queue: each but the first takes a result
// of one before it, and some result is dropped before the run ends. That one is internal: it gets no handle. The run
// ends where a record is neither, or names what no plan could be made of; and with the batch. Then it is cut anywhere:
// one of more than kAnyLength calls has a power of two of them, so that few plans stand for all lengths.

#include <algorithm>
#include <bit>
#include <utility>

#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "server/coordinator/segment_desk.h"

namespace tessera {
namespace {

constexpr size_t kMaxSegmentInputs = 32;       // docs/limits.md: max_segment_inputs
constexpr size_t kMaxDropsWithinSegment = 64;  // docs/limits.md: max_drops_within_segment
constexpr size_t kAnyLength = 8;

PlanKeyOperand NumberKey(const Scalar& scalar) {
  PlanKeyOperand key;
  key.scalar_dtype = scalar.dtype();
  key.scalar_strength = scalar.strength();
  key.scalar_special_dtypes = scalar.SpecialDTypes();
  return key;
}

bool HasExtreme(const TensorSpec& spec) {
  return std::any_of(spec.placements.begin(), spec.placements.end(), [](const Placement& placement) {
    return placement.is_partial() &&
           (placement.reduce_op() == ReduceOp::kMax || placement.reduce_op() == ReduceOp::kMin);
  });
}

// A pending maximum times a number below 0 is a pending minimum: where there may be one the sign of a number is in the
// key. An op on each element makes no pending extreme of what has none, nor does a sum.
void TellSigns(PlanKey& key, absl::Span<const CallRecord* const> records) {
  const bool has_extreme = std::any_of(key.inputs.begin(), key.inputs.end(),
                                       [](const PlanKeyInput& input) { return HasExtreme(input.layout->spec); });
  const auto makes_extreme = [](const PlanKeyCall& call) {
    const SegmentRole role = SegmentRoleOf(call.op);
    if (role == SegmentRole::kMap || role == SegmentRole::kContraction) return false;
    return call.op != OpId::kSum && call.op != OpId::kMean;
  };
  if (!has_extreme && std::none_of(key.calls.begin(), key.calls.end(), makes_extreme)) return;
  for (size_t c = 0; c < key.calls.size(); ++c) {
    PlanKeyCall& call = key.calls[c];
    const CallRecord& record = *records[c];
    for (size_t i = 0; i < call.scalars.size(); ++i) {
      call.scalars[i].scalar_is_negative = record.call.scalars[i].AsDouble() < 0;
    }
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const auto* scalar = std::get_if<Scalar>(&record.operands[i].value);
      call.operands[i].scalar_is_negative = scalar != nullptr && scalar->AsDouble() < 0;
    }
  }
}

}  // namespace

// Takes up one record after the other, as long as they may be of the segment.
class StateMachine::SegmentDesk::Gatherer {
 public:
  Gatherer(const StateMachine& machine, const SessionEntry& session, uint64_t topology_version)
      : machine_(machine), session_(session) {
    unit_.key.topology_version = topology_version;
  }

  bool Add(const CallRecord& record) {
    const SegmentRole role = SegmentRoleOf(record.call.op);
    if (role == SegmentRole::kAlone || (role == SegmentRole::kContraction && !unit_.calls.empty())) return false;
    if (record.results.size() != 1 || !record.call.scalars.empty()) return false;
    if (FindMade(record.results[0]) != nullptr || session_.tensors.contains(record.results[0])) return false;
    PlanKeyCall call{record.call.op, record.call.attributes, {}, {}};
    absl::InlinedVector<TensorPointer, 2> tensors;
    bool is_linked = unit_.calls.empty();
    for (const OperandReference& operand : record.operands) {
      if (const auto* scalar = std::get_if<Scalar>(&operand.value)) {
        call.operands.push_back(NumberKey(*scalar));
        continue;
      }
      const HandleId handle = std::get<HandleId>(operand.value);
      PlanKeyOperand& key = call.operands.emplace_back();
      if (const Made* made = FindMade(handle); made != nullptr) {
        if (made->is_dropped) return false;
        is_linked = true;
        key.value = -1 - static_cast<int32_t>(made - made_.data());
        continue;
      }
      const std::optional<int32_t> input = InputOf(handle, tensors);
      if (!input.has_value()) return false;
      key.value = *input;
    }
    if (!is_linked || unit_.tensors.size() + tensors.size() > kMaxSegmentInputs) return false;
    for (const PlanKeyOperand& key : call.operands) {
      if (key.value < 0 && key.value != PlanKeyOperand::kNumber)
        made_[static_cast<size_t>(-1 - key.value)].is_used = true;
    }
    for (TensorPointer& tensor : tensors) {
      unit_.key.inputs.push_back({tensor->layout});
      unit_.tensors.push_back(std::move(tensor));
    }
    unit_.key.calls.push_back(std::move(call));
    unit_.calls.push_back(&record);
    made_.push_back({record.results[0]});
    for (const OperandReference& operand : record.operands) {
      if (const auto* scalar = std::get_if<Scalar>(&operand.value)) {
        unit_.numbers.push_back(*scalar);
      } else if (operand.last_use) {
        Drop(std::get<HandleId>(operand.value));
      }
    }
    return true;
  }

  bool Add(const DropRecord& record) {
    if (record.handles.size() > kMaxDropsWithinSegment) return false;
    for (const HandleId handle : record.handles) Drop(handle);
    return true;
  }

  size_t call_count() const { return made_.size(); }
  // Whether something is fused, and something is kept.
  bool Gains() const {
    const auto is_internal = [](const Made& made) { return made.is_dropped && made.is_used; };
    return made_.size() > 1 && std::any_of(made_.begin(), made_.end(), is_internal) &&
           !std::all_of(made_.begin(), made_.end(), [](const Made& made) { return made.is_dropped; });
  }

  IssueUnit Finish(size_t record_count) && {
    for (size_t c = 0; c < made_.size(); ++c) {
      if (made_[c].is_dropped) continue;
      unit_.key.kept.push_back(static_cast<int32_t>(c));
      unit_.results.push_back(made_[c].handle);
    }
    for (size_t i = 0; i < unit_.tensors.size(); ++i) {
      const auto& dropped = unit_.dropped;
      unit_.last_uses.push_back(std::find(dropped.begin(), dropped.end(), handles_[i]) != dropped.end());
    }
    unit_.record_count = record_count;
    TellSigns(unit_.key, unit_.calls);
    unit_.name = NameOf(unit_.calls.back()->call.op, unit_.calls.back()->called_as);
    return std::move(unit_);
  }

 private:
  struct Made {
    HandleId handle;
    bool is_used = false;
    bool is_dropped = false;
  };

  Made* FindMade(HandleId handle) {
    // The last ones are asked for most.
    for (size_t c = made_.size(); c-- > 0;) {
      if (made_[c].handle == handle) return &made_[c];
    }
    return nullptr;
  }

  void Drop(HandleId handle) {
    if (Made* made = FindMade(handle); made != nullptr) {
      made->is_dropped = true;
    } else {
      unit_.dropped.push_back(handle);
    }
  }

  // The number of an input that is there, or comes to be with `tensors`.
  std::optional<int32_t> InputOf(HandleId handle, absl::InlinedVector<TensorPointer, 2>& tensors) {
    if (std::find(unit_.dropped.begin(), unit_.dropped.end(), handle) != unit_.dropped.end()) return std::nullopt;
    handles_.resize(unit_.tensors.size() + tensors.size());
    if (const auto at = std::find(handles_.begin(), handles_.end(), handle); at != handles_.end()) {
      return static_cast<int32_t>(at - handles_.begin());
    }
    const auto found = session_.tensors.find(handle);
    if (found == session_.tensors.end() || !found->second->status.ok() || found->second->is_awaited() ||
        !IsInMemory(machine_.PlaceOf(*found->second))) {
      return std::nullopt;
    }
    tensors.push_back(found->second);
    handles_.push_back(handle);
    return static_cast<int32_t>(handles_.size()) - 1;
  }

  const StateMachine& machine_;
  const SessionEntry& session_;
  IssueUnit unit_;
  absl::InlinedVector<Made, 8> made_;         // by call
  absl::InlinedVector<HandleId, 4> handles_;  // by input
};

std::optional<IssueUnit> StateMachine::SegmentDesk::FindSegment(SessionEntry& session) const {
  if (session.lone_calls > 0) return std::nullopt;
  const auto max_calls = static_cast<size_t>(machine_.config_.max_segment_ops);
  if (max_calls < 2 || session.queue.size() < 3) return std::nullopt;
  for (size_t limit = max_calls;;) {
    Gatherer gatherer(machine_, session, machine_.topologies_[0].version);
    size_t records = 0;
    bool is_cut = false;
    for (; records < session.queue.size(); ++records) {
      const Record& record = session.queue[records];
      if (const auto* call = std::get_if<CallRecord>(&record)) {
        is_cut = gatherer.call_count() == limit;
        if (is_cut || !gatherer.Add(*call)) break;
      } else if (const auto* drop = std::get_if<DropRecord>(&record)) {
        if (!gatherer.Add(*drop)) break;
      } else {
        is_cut = std::holds_alternative<BatchEndRecord>(record);
        break;
      }
    }
    const size_t calls = gatherer.call_count();
    if (is_cut && calls < limit && calls > kAnyLength && !std::has_single_bit(calls)) {
      limit = std::bit_floor(calls);
      continue;
    }
    if (gatherer.Gains()) return std::move(gatherer).Finish(records);
    session.lone_calls = calls;  // no use to look at each of them again
    return std::nullopt;
  }
}

absl::StatusOr<IssueUnit> StateMachine::SegmentDesk::UnitOf(const SessionEntry& session,
                                                            const CallRecord& record) const {
  IssueUnit unit;
  unit.calls.push_back(&record);
  unit.name = NameOf(record.call.op, record.called_as);
  unit.results.assign(record.results.begin(), record.results.end());
  unit.numbers.assign(record.call.scalars.begin(), record.call.scalars.end());
  unit.key.topology_version = machine_.topologies_[0].version;
  PlanKeyCall& call = unit.key.calls.emplace_back();
  call.op = record.call.op;
  call.attributes = record.call.attributes;
  for (const Scalar& scalar : record.call.scalars) call.scalars.push_back(NumberKey(scalar));
  for (const OperandReference& operand : record.operands) {
    if (const auto* scalar = std::get_if<Scalar>(&operand.value)) {
      call.operands.push_back(NumberKey(*scalar));
      unit.numbers.push_back(*scalar);
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor,
                             machine_.FindTensor(session, std::get<HandleId>(operand.value), NameOf(record.call.op)));
    call.operands.emplace_back().value = static_cast<int32_t>(unit.tensors.size());
    unit.key.inputs.push_back({tensor->layout});
    unit.last_uses.push_back(operand.last_use);
    unit.tensors.push_back(std::move(tensor));
  }
  TellSigns(unit.key, unit.calls);
  return unit;
}

void StateMachine::SegmentDesk::AddDropsBehind(const SessionEntry& session, IssueUnit& unit) {
  if (session.queue.size() < 2) return;
  const auto* drop = std::get_if<DropRecord>(&session.queue[1]);
  if (drop == nullptr || drop->handles.size() > kMaxDropsWithinSegment) return;
  size_t input = 0;
  for (const OperandReference& operand : unit.calls[0]->operands) {
    const auto* handle = std::get_if<HandleId>(&operand.value);
    if (handle == nullptr) continue;
    if (std::find(drop->handles.begin(), drop->handles.end(), *handle) != drop->handles.end()) {
      unit.last_uses[input] = true;
      unit.dropped.push_back(*handle);
    }
    ++input;
  }
}

Segment StateMachine::SegmentDesk::SegmentFor(const IssueUnit& unit) {
  Segment segment;
  for (const TensorPointer& tensor : unit.tensors) segment.inputs.push_back({tensor->spec(), tensor->strides()});
  const auto inputs = static_cast<int>(segment.inputs.size());
  for (size_t c = 0; c < unit.calls.size(); ++c) {
    const CallRecord& record = *unit.calls[c];
    SegmentCall& call = segment.calls.emplace_back(SegmentCall{record.call, {}});
    for (size_t i = 0; i < record.operands.size(); ++i) {
      const int32_t value = unit.key.calls[c].operands[i].value;
      if (value == PlanKeyOperand::kNumber) {
        call.operands.emplace_back(std::get<Scalar>(record.operands[i].value));
      } else {
        call.operands.emplace_back(value >= 0 ? value : inputs - 1 - value);
      }
    }
  }
  for (const int32_t kept : unit.key.kept) segment.kept.push_back(inputs + kept);
  return segment;
}

}  // namespace tessera
