// Issue: one operation onto the workers. Plan (from the cache), memory, ordinal, waits, message.

#include <algorithm>
#include <utility>

#include <xxhash.h>

#include "schemas/ops/catalog.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/segment_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"
#include "server/plan/lower/collective_calls.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/pieces_of_plan.h"
#include "server/plan/verify.h"
#include "server/planner/fitting.h"
#include "server/planner/smaller_way.h"

namespace tessera {
namespace {

// About what a plan takes to make: the coordinator's own work, which the session that asks for it pays.
constexpr int64_t kPlanUs = 100;
constexpr int64_t kPlanBytesPerUs = 10;  // of its text

bool OnlyExchanges(const Plan& plan) {
  return std::all_of(plan.steps.begin(), plan.steps.end(),
                     [](const Step& step) { return std::holds_alternative<ExchangeStep>(step); });
}

// A share is the second half of a collective within a host, a round that is in place and of another digit than the
// first goes on with one.
bool BeginsCollective(const Exchange& exchange) {
  if (exchange.role == ExchangeRole::kHostGather) return false;
  if (!exchange.is_by_rounds() || exchange.role == ExchangeRole::kMove) return true;
  return exchange.reduces() ? exchange.rounds.digit == 0 : exchange.rounds.is_last();
}

// One step, or one operand that a contraction reads in pieces or whose runs are merged or whose rows are gathered, is
// one collective; a reduction into place and its spreading are two. All rounds of either are one.
std::vector<std::pair<std::string, uint64_t>> CollectivesOf(const Plan& plan) {
  std::map<std::string, uint64_t> counts;
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange != nullptr && BeginsCollective(exchange->exchange)) {
      ++counts[std::string(ToText(exchange->name))];
    }
    const auto* local = std::get_if<LocalStep>(&step);
    if (local != nullptr && InputsAtPeers(plan, *local) > 0) {
      counts[std::string(ToText(Collective::kExchange))] += InputsAtPeers(plan, *local);
    }
    const auto* contract = std::get_if<ContractStep>(&step);
    if (contract == nullptr) continue;
    for (const ContractOperand& operand : contract->operands) {
      if (operand.pieces.has_value()) ++counts[std::string(ToText(operand.name))];
    }
  }
  return {counts.begin(), counts.end()};
}

PlanLimits LimitsOf(const PlanKey& key) {
  return key.temporary_bytes == PlanKey::kNoLimit ? PlanLimits{} : PlanLimits{key.temporary_bytes};
}

}  // namespace

absl::StatusOr<std::string> StateMachine::IssueDesk::CheckedPlanText(std::string_view op, const Plan& plan) const {
  std::string text = ToText(plan);
  if (static_cast<int64_t>(text.size()) <= config_.max_plan_text_bytes) return text;
  return absl::ResourceExhaustedError(
      StrCat(op, ": its plan has ", text.size(), " bytes; max_plan_text_bytes is ", config_.max_plan_text_bytes));
}

absl::StatusOr<OpPlan> StateMachine::IssueDesk::PlanUnit(const IssueUnit& unit, Meshes meshes) const {
  const Segment segment = SegmentDesk(machine_).SegmentFor(unit);
  std::vector<PlanOperand> inputs;
  for (const OperandLayout& input : segment.inputs) inputs.emplace_back(input);
  const Topology* topology = nullptr;
  for (const SegmentCall& call : segment.calls) {
    TESSERA_ASSIGN_OR_RETURN(topology, machine_.CheckMeshes(call.call, inputs, meshes));
  }
  const PlanLimits limits = LimitsOf(unit.key);
  if (segment.calls.size() > 1) return PlanSegment(segment, *topology, limits);
  std::vector<PlanOperand> operands;
  for (const GraphOperand& operand : segment.calls[0].operands) {
    if (const int* input = std::get_if<int>(&operand)) {
      operands.emplace_back(segment.inputs[static_cast<size_t>(*input)]);
    } else {
      operands.emplace_back(std::get<Scalar>(operand));
    }
  }
  return PlanOp(segment.calls[0].call, operands, *topology, limits);
}

void StateMachine::IssueDesk::FillTemplate(const IssueUnit& unit, OpPlan planned, PiecesOfPlan& pieces,
                                           PlanTemplate& made) {
  made.uses = BufferUses(planned.plan);
  std::vector<WorkerIndex> all;
  for (const PlanBuffer& buffer : planned.plan.buffers) {
    made.buffer_workers.push_back(machine_.groups_.Of(buffer.mesh));
    all.insert(all.end(), buffer.mesh.workers().begin(), buffer.mesh.workers().end());
  }
  made.workers = MakeGroup(std::move(all));
  for (const WorkerGroup& group : made.buffer_workers) {
    if (*group == *made.workers) made.workers = group;  // one list, compared by pointer later
  }
  made.collectives = CollectivesOf(planned.plan);
  const double predicted_s = PredictSeconds(planned.plan, machine_.TopologyOf(planned.plan.buffers[0].mesh), pieces);
  made.cost_us = std::max<int64_t>(1, static_cast<int64_t>(predicted_s * 1e6));
  made.stream = OnlyExchanges(planned.plan) ? StreamId::kExchange : StreamId::kCompute;
  made.recipes = std::move(planned.scalars.recipes);
  if (unit.calls.size() > 1) {
    std::vector<WayStep> way;
    for (size_t c = 0; c < unit.calls.size(); ++c) {
      way.push_back({NameOf(unit.calls[c]->call.op), planned.call_results[c]});
    }
    made.way = std::make_shared<const std::vector<WayStep>>(std::move(way));
  }
  for (const int output : planned.plan.outputs) {
    const PlanValue& value = planned.plan.values[static_cast<size_t>(output)];
    made.results.push_back(machine_.layouts_.Of(value.spec, value.strides));
  }
  made.plan = std::make_shared<const Plan>(std::move(planned.plan));
}

// Workers know a plan by its id. A coordinator of another version may plan the call otherwise: that plan has an id of
// its own.
absl::Status StateMachine::IssueDesk::MakeAgain(const IssueUnit& unit, PlanTemplate& known) {
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, PlanUnit(unit, Meshes::kKnown));
  TESSERA_ASSIGN_OR_RETURN(std::string text, CheckedPlanText(NameOf(unit.calls.back()->call.op), planned.plan));
  const uint64_t text_hash = XXH3_64bits(text.data(), text.size());
  PiecesOfPlan pieces;
  if (text_hash != known.text_hash) {
    TESSERA_RETURN_IF_ERROR(VerifyPlan(planned.plan, {.pieces = &pieces}));
    ForgetOnWorkers(known);
    known.id = TemplateId(machine_.next_template_++);
    known.text = std::make_shared<const std::string>(std::move(text));
    known.text_hash = text_hash;
    known.defined_on.clear();
  }
  FillTemplate(unit, std::move(planned), pieces, known);
  return absl::OkStatus();
}

void StateMachine::IssueDesk::ForgetOnWorkers(const PlanTemplate& gone) {
  std::vector<WorkerIndex> present;
  for (WorkerIndex worker : gone.defined_on) {
    if (machine_.workers_.at(worker).state != WorkerState::kDead) present.push_back(worker);
  }
  if (!present.empty()) machine_.ToGroup(MakeGroup(std::move(present)), ForgetTemplate{gone.id});
}

absl::StatusOr<PlanTemplate*> StateMachine::IssueDesk::TemplateOf(SessionEntry& session, const IssueUnit& unit,
                                                                  std::vector<Scalar>& scalars) {
  if (PlanTemplate* known = machine_.plans_.Find(unit.key)) {
    if (known->plan == nullptr) TESSERA_RETURN_IF_ERROR(MakeAgain(unit, *known));
    if (known->recipes.Evaluate(unit.numbers, scalars)) return known;
    TESSERA_ASSIGN_OR_RETURN(PlanScalars resolved,
                             ScalarsOf(SegmentDesk(machine_).SegmentFor(unit), LimitsOf(unit.key)));
    scalars = std::move(resolved.values);
    known->recipes = std::move(resolved.recipes);
    return known;
  }
  TurnDesk(machine_).Charge(session, kPlanUs);
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, PlanUnit(unit, Meshes::kChecked));
  scalars = std::move(planned.scalars.values);
  TESSERA_ASSIGN_OR_RETURN(std::string text, CheckedPlanText(NameOf(unit.calls.back()->call.op), planned.plan));
  TurnDesk(machine_).Charge(session, static_cast<int64_t>(text.size()) / kPlanBytesPerUs);
  PiecesOfPlan pieces;
  TESSERA_RETURN_IF_ERROR(VerifyPlan(planned.plan, {.pieces = &pieces}));
  PlanTemplate made;
  made.id = TemplateId(machine_.next_template_++);
  FillTemplate(unit, std::move(planned), pieces, made);
  made.text_hash = XXH3_64bits(text.data(), text.size());
  made.text = std::make_shared<const std::string>(std::move(text));
  std::vector<PlanTemplate> evicted;
  PlanTemplate* kept = machine_.plans_.Insert(unit.key, std::move(made), evicted);
  for (const PlanTemplate& gone : evicted) ForgetOnWorkers(gone);
  return kept;
}

bool StateMachine::IssueDesk::MayDonate(const IssueUnit& unit, size_t input, int64_t output_bytes) {
  // The session's table and this unit alone know the tensor; the tensor and this unit's list of buffers alone know the
  // buffer: no view of it exists. A published buffer stays as it is, whoever has it.
  const TensorPointer& tensor = unit.tensors[input];
  return unit.last_uses[input] && tensor.use_count() == 2 && tensor->buffer.use_count() == 2 &&
         !tensor->buffer->is_published && tensor->offset_bytes == tensor->buffer->offset_bytes &&
         tensor->buffer->bytes == output_bytes;
}

absl::Status StateMachine::IssueDesk::DoesNotFit(const PlanTemplate& plan, size_t buffer, const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  const std::vector<int>& outputs = plan.plan->outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const PlanValue& value = plan.plan->values[static_cast<size_t>(outputs[i])];
    if (static_cast<size_t>(value.buffer) != buffer) continue;
    const int64_t free_bytes = machine_.memory_.LargestFit(*plan.buffer_workers[buffer]);
    // The results before it have their memory, until the op is refused.
    const std::string which =
        outputs.size() > 1 ? StrCat("; result ", i, " of ", outputs.size(), " beside the others") : "";
    return absl::ResourceExhaustedError(
        StrCat(StdView(status.message()), which, "; ", WhatWouldFit(value.spec, free_bytes)));
  }
  return status;
}

absl::StatusOr<std::vector<BufferPointer>> StateMachine::IssueDesk::PlaceBuffers(SessionId owner, const IssueUnit& unit,
                                                                                 const PlanTemplate& plan,
                                                                                 Instance& instance) {
  const Plan& p = *plan.plan;
  std::vector<BufferPointer> buffers(p.buffers.size());
  instance.buffer_offsets.resize(p.buffers.size());
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const auto b = static_cast<size_t>(p.values[static_cast<size_t>(p.inputs[i])].buffer);
    buffers[b] = unit.tensors[i]->buffer;
    instance.buffer_offsets[b] = unit.tensors[i]->offset_bytes;
  }
  for (const Donation& donation : p.donations) {
    const auto out =
        static_cast<size_t>(p.values[static_cast<size_t>(p.outputs[static_cast<size_t>(donation.output)])].buffer);
    const auto input = static_cast<size_t>(donation.input);
    if (buffers[out] || !MayDonate(unit, input, p.buffers[out].bytes)) continue;
    buffers[out] = unit.tensors[input]->buffer;
    instance.buffer_offsets[out] = buffers[out]->offset_bytes;
  }
  // Outputs first: they stay.
  for (const PlanBuffer::Kind kind : {PlanBuffer::Kind::kOutput, PlanBuffer::Kind::kTemporary}) {
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (buffers[b] || p.buffers[b].kind != kind) continue;
      absl::StatusOr<BufferPointer> made = machine_.NewBuffer(owner, plan.buffer_workers[b], p.buffers[b].bytes,
                                                              NameOf(unit.calls.back()->call.op), unit.lane);
      if (!made.ok()) return DoesNotFit(plan, b, made.status());
      buffers[b] = *std::move(made);
      instance.buffer_offsets[b] = buffers[b]->offset_bytes;
    }
  }
  return buffers;
}

bool StateMachine::FitsNow(const Plan& plan, const std::vector<MemoryMap::Request>& held) const {
  std::vector<MemoryMap::Request> requests = held;
  for (const MemoryMap::Request& request : SpillDesk::RequestsOf(plan)) requests.push_back(request);
  return memory_.LargestFitAfter(requests, {}).has_value();
}

std::vector<PlanLimits> StateMachine::LimitsFor(const Plan& plan, const std::vector<MemoryMap::Request>& held) const {
  constexpr int kKeptBits = 3;  // free bytes differ from call to call; limits, and so plans, are few
  std::vector<MemoryMap::Request> outputs = held;
  std::vector<WorkerIndex> workers;
  int64_t temporaries = 0;
  for (const PlanBuffer& buffer : plan.buffers) {
    if (buffer.kind == PlanBuffer::Kind::kInput || buffer.kind == PlanBuffer::Kind::kTransit) continue;
    workers.insert(workers.end(), buffer.mesh.workers().begin(), buffer.mesh.workers().end());
    temporaries += buffer.kind == PlanBuffer::Kind::kTemporary ? 1 : 0;
    if (buffer.kind == PlanBuffer::Kind::kOutput) outputs.push_back({buffer.mesh.workers(), buffer.bytes});
  }
  if (!HasSmallerWay(plan) || temporaries == 0) return {};
  const std::optional<int64_t> free_bytes = memory_.LargestFitAfter(outputs, workers);
  if (!free_bytes.has_value()) return {};
  // Each temporary may be rounded up, and there are no more of them in a split.
  const int64_t usable_bytes = std::max<int64_t>(0, *free_bytes - temporaries * config_.alignment_bytes);
  int dropped_bits = 0;
  while (usable_bytes >> dropped_bits >= int64_t{1} << kKeptBits) ++dropped_bits;
  std::vector<PlanLimits> limits = {PlanLimits{usable_bytes >> dropped_bits << dropped_bits}};
  if (*limits[0].temporary_bytes != usable_bytes) limits.push_back(PlanLimits{usable_bytes});
  return limits;
}

absl::StatusOr<PlanTemplate*> StateMachine::IssueDesk::IssueWhatFits(SessionEntry& session, IssueUnit& unit,
                                                                     PlanTemplate& plan, std::vector<Scalar> scalars) {
  const absl::Status status = Issue(session, unit, plan, scalars);
  if (status.ok()) return &plan;
  if (!absl::IsResourceExhausted(status)) return status;
  absl::Status last = status;
  for (const PlanLimits& limits : machine_.LimitsFor(*plan.plan)) {
    unit.key.temporary_bytes = *limits.temporary_bytes;
    absl::StatusOr<PlanTemplate*> smaller = TemplateOf(session, unit, scalars);
    last = smaller.ok() ? Issue(session, unit, **smaller, scalars) : smaller.status();
    if (last.ok()) return smaller;
    if (!absl::IsResourceExhausted(last)) return last;
  }
  return last;
}

void StateMachine::IssueDesk::AddWaits(OpEntry& op, const PlanTemplate& plan, const std::vector<BufferPointer>& buffers,
                                       const BuffersApart& apart, Instance& instance) {
  const Plan& p = *plan.plan;
  const auto visit_all = [&](const auto& visit) {
    for (size_t b = 0; b < buffers.size(); ++b) {
      if (buffers[b]) visit(b, machine_.HistoryOf(buffers[b]));  // else it passes on, or lies apart
    }
    for (const auto& [b, buffer] : apart) visit(b, machine_.HistoryOf(buffer));
  };
  const auto collect = [&](uint8_t stream, std::vector<InstanceWait>& waits) {
    instance.writes_are_free = true;
    visit_all([&](size_t b, History& history) {
      const BufferUse& use = plan.uses[b];
      if (p.buffers[b].kind == PlanBuffer::Kind::kInput) {
        if (use.first_read > 0) history.WaitsForRead(stream, use.first_read, waits);
        if (use.first_peer_read > 0) history.WaitsForPeerRead(use.first_peer_read, plan.workers, waits);
      }
      if (use.first_write == 0) return;
      history.WaitsForWrite(stream, use.first_write, waits);
      instance.writes_are_free = instance.writes_are_free && history.empty();
    });
  };
  instance.stream = ChooseStream(op, plan.stream, instance.waits, collect);
  const Access access{instance.stream, instance.ordinal, plan.workers};
  // All waits are known before any access of this instruction is recorded: a donated buffer is in twice.
  visit_all([&](size_t b, History& history) {
    if (plan.uses[b].first_write > 0) history.AddWrite(access);
  });
  visit_all([&](size_t b, History& history) {
    if (plan.uses[b].first_read > 0) history.AddRead(access);
    if (plan.uses[b].first_peer_read > 0) history.AddPeerRead(access);
  });
}

void StateMachine::IssueDesk::Define(PlanTemplate& plan) {
  std::vector<WorkerIndex> news;
  std::set_difference(plan.workers->begin(), plan.workers->end(), plan.defined_on.begin(), plan.defined_on.end(),
                      std::back_inserter(news));
  if (news.empty()) return;
  machine_.ToGroup(news.size() == plan.workers->size() ? plan.workers : MakeGroup(news),
                   DefineTemplate{plan.id, plan.plan, std::move(plan.text)});
  plan.text = nullptr;
  plan.defined_on = *plan.workers;
}

// The ops of a segment as those say them who were called.
std::shared_ptr<const std::vector<WayStep>> StateMachine::IssueDesk::WayOf(const IssueUnit& unit,
                                                                           const PlanTemplate& plan) {
  const auto is_own = [](const CallRecord* call) { return call->called_as == CalledAs::kOp; };
  if (plan.way == nullptr || std::all_of(unit.calls.begin(), unit.calls.end(), is_own)) return plan.way;
  std::vector<WayStep> way = *plan.way;
  for (size_t c = 0; c < way.size(); ++c) way[c].name = NameOf(unit.calls[c]->call.op, unit.calls[c]->called_as);
  return std::make_shared<const std::vector<WayStep>>(std::move(way));
}

bool StateMachine::IssueDesk::MakesCalls(const PlanTemplate& plan) const {
  const Topology& topology = machine_.TopologyOf(plan.plan->buffers[0].mesh);
  const auto has_nccl = [this](WorkerIndex worker) {
    const auto known = machine_.workers_.find(worker);
    return known != machine_.workers_.end() && known->second.info.has_nccl;
  };
  return MayMakeCalls(*plan.workers, has_nccl, [&](WorkerIndex worker) { return topology.HostOf(worker); });
}

absl::Status StateMachine::IssueDesk::Issue(SessionEntry& session, const IssueUnit& unit, PlanTemplate& plan,
                                            std::vector<Scalar> scalars) {
  const std::string_view name = unit.name;
  if (unit.results.size() != plan.plan->outputs.size()) {
    return absl::InvalidArgumentError(
        StrCat(name, ": ", unit.results.size(), " result handles for ", plan.plan->outputs.size(), " outputs"));
  }
  TESSERA_RETURN_IF_ERROR(machine_.CheckWorkers(name, *plan.workers));
  for (const TensorPointer& tensor : unit.tensors) {
    if (!IsInMemory(machine_.PlaceOf(*tensor)))
      return absl::InternalError(StrCat(name, ": an operand is in files, and was not awaited"));
  }
  Instance instance;
  instance.plan = plan.id;
  instance.scalars = std::move(scalars);
  instance.makes_calls = MakesCalls(plan);
  TESSERA_ASSIGN_OR_RETURN(std::vector<BufferPointer> buffers,
                           PlaceBuffers(session.info.session, unit, plan, instance));
  OpPointer op;
  if (!plan.plan->steps.empty()) {  // else a view: nothing runs
    Define(plan);
    op = TurnDesk(machine_).NewRun(name, session.info.session, plan, unit.lane);
    session.recent_use.Add(machine_.now_us_, op->cost_us, config_);
    op->way = WayOf(unit, plan);
    op->works_alone = plan.collectives.empty();
    if (const auto& results = unit.calls.back()->results; !results.empty()) op->first_result = results[0];
    op->profile_number = session.profile.TakeNumber();
    for (const TensorPointer& tensor : unit.tensors) machine_.AddParent(op, *tensor);
    op->comm_scopes = EnterScopes(session);
    for (const uint64_t open : op->comm_scopes) {
      CommScope& scope = session.scopes.at(open);
      for (const auto& [collective, count] : plan.collectives) scope.collectives[collective] += count;
    }
    instance.ordinal = op->ordinal;
    AddWaits(*op, plan, buffers, /*apart=*/{}, instance);
    machine_.ToGroup(plan.workers, std::move(instance));
  }
  AddOutputs(session, unit, plan, buffers, op);
  return absl::OkStatus();
}

void StateMachine::IssueDesk::AddOutputs(SessionEntry& session, const IssueUnit& unit, const PlanTemplate& plan,
                                         const std::vector<BufferPointer>& buffers, const OpPointer& op) {
  const Plan& p = *plan.plan;
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    const PlanValue& value = p.values[static_cast<size_t>(p.outputs[i])];
    TensorPointer tensor = machine_.tensors_.Add();
    tensor->session = session.info.session;
    tensor->handle = unit.results[i];
    tensor->layout = plan.results[i];
    tensor->buffer = buffers[static_cast<size_t>(value.buffer)];
    SpillDesk(machine_).Track(tensor);
    const int64_t element_bytes = SizeBytes(value.spec.dtype);
    tensor->offset_bytes = tensor->buffer->offset_bytes + value.offset * element_bytes;
    if (op != nullptr) tensor->producer = op->ordinal;
    for (size_t j = 0; j < p.inputs.size(); ++j) {
      if (p.values[static_cast<size_t>(p.inputs[j])].buffer != value.buffer) continue;
      // A view lies in its operand, and is ready, or poisoned, when that is; beside results of an op, when they are.
      tensor->offset_bytes = unit.tensors[j]->offset_bytes + value.offset * element_bytes;
      if (op == nullptr || p.outputs.size() == 1) tensor->producer = unit.tensors[j]->producer;
    }
    if (absl::Status status = IntakeDesk(machine_).AddTensor(session, unit.results[i], tensor); !status.ok()) {
      machine_.SendTo(session.info.session, FailedHandleEvent{unit.results[i], status});
      continue;
    }
    if (OpEntry* producer = machine_.ProducerOf(*tensor)) producer->outputs.push_back(tensor.number());
  }
}

ScopeNumbers StateMachine::IssueDesk::EnterScopes(SessionEntry& session) {
  for (const uint64_t open : session.open_scopes) ++session.scopes.at(open).pending;
  return {session.open_scopes.begin(), session.open_scopes.end()};
}

void StateMachine::IssueDesk::OpenWindow(SessionEntry& session, std::vector<TensorPointer> tensors,
                                         TransferDirection direction, uint64_t request) {
  // A lost worker of a tensor that is still good has nothing of it.
  const WorkerGroup workers = machine_.AliveOf(machine_.groups_.Of(tensors[0]->spec().mesh));
  const bool upload = direction == TransferDirection::kUpload;
  const Lane lane = upload ? UsualLane(session) : LaneForRead(session, *tensors[0]);
  OpPointer op =
      machine_.NewOp(OpEntry::Kind::kWindow, upload ? "upload" : "download", session.info.session, workers, 1, lane);
  TransferWindow window;
  window.ordinal = op->ordinal;
  window.ticket = TicketId(machine_.next_ticket_++);
  window.session = session.info.session;
  // The secret keeps other sessions out; it comes from the session's own, which they don't know.
  window.secret = XXH64(&window.ticket.value, sizeof(window.ticket.value), session.info.secret);
  for (const TensorPointer& tensor : tensors) {
    window.ranges.push_back({direction, tensor->spec(), tensor->offset_bytes, tensor->strides()});
    if (!upload) machine_.AddParent(op, *tensor);
  }
  window.stream = ChooseStream(*op, StreamId::kIo, window.waits, [&](uint8_t stream, std::vector<InstanceWait>& waits) {
    for (const TensorPointer& tensor : tensors) {
      const History& history = machine_.HistoryOf(tensor->buffer);
      upload ? history.WaitsForWrite(stream, 1, waits) : history.WaitsForRead(stream, 1, waits);
    }
  });
  for (const TensorPointer& tensor : tensors) {
    if (upload) machine_.HistoryOf(tensor->buffer).AddWrite({window.stream, op->ordinal, workers});
  }
  op->request = request;
  op->ticket = window.ticket;
  op->tensor = tensors[0];
  ++session.tickets;
  TicketEntry& ticket = machine_.tickets_[window.ticket];
  ticket.session = session.info.session;
  ticket.secret = window.secret;
  ticket.request = request;
  ticket.window = op;
  ticket.direction = direction;
  ticket.tensors = std::move(tensors);
  ticket.workers = workers;
  ticket.missing = *workers;
  ticket.profile_number = session.profile.TakeNumber();
  ticket.comm_scopes = EnterScopes(session);
  machine_.ToGroup(workers, std::move(window));
}

void StateMachine::IssueDesk::ReadInline(SessionEntry& session, TensorPointer tensor, uint64_t request) {
  const TensorSpec& spec = tensor->spec();
  std::vector<WorkerIndex> holders;  // one for each distinct shard
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Position position = spec.mesh.PositionAt(flat);
    bool first = true;
    for (int m = 0; m < spec.mesh.ndim(); ++m) {
      const auto d = static_cast<size_t>(m);
      first = first && (position[d] == 0 || !spec.placements[d].is_replicate());
    }
    if (first && !IsEmpty(LocalBox(spec, position))) holders.push_back(spec.mesh.WorkerAt(position));
  }
  const WorkerGroup workers = machine_.AliveOf(MakeGroup(std::move(holders)));
  const Lane lane = LaneForRead(session, *tensor);
  OpPointer op = machine_.NewOp(OpEntry::Kind::kInlineRead, "download", session.info.session, workers, 1, lane);
  machine_.AddParent(op, *tensor);
  InlineRead read;
  read.ordinal = op->ordinal;
  read.spec = spec;
  read.offset_bytes = tensor->offset_bytes;
  read.strides = tensor->strides();
  read.stream = ChooseStream(*op, StreamId::kIo, read.waits, [&](uint8_t stream, std::vector<InstanceWait>& waits) {
    machine_.HistoryOf(tensor->buffer).WaitsForRead(stream, 1, waits);
  });
  op->request = request;
  op->profile_number = session.profile.TakeNumber();
  op->mesh = spec.mesh;
  op->tensor = std::move(tensor);
  if (!workers->empty()) {
    op->comm_scopes = EnterScopes(session);
    machine_.ToGroup(workers, std::move(read));
  }
  if (workers->empty()) {
    TurnDesk(machine_).EndWork(*op);
    CompletionDesk(machine_).Remember(*op);
  }
  CompletionDesk(machine_).SettleIfDone(op);
}

void StateMachine::IssueDesk::WriteInline(SessionEntry& session, const TensorPointer& tensor, std::string bytes) {
  const WorkerGroup& workers = tensor->buffer->workers;
  OpPointer op =
      machine_.NewOp(OpEntry::Kind::kInlineWrite, "upload", session.info.session, workers, 1, UsualLane(session));
  op->works_alone = true;
  op->first_result = tensor->handle;
  InlineWrite write;
  write.ordinal = op->ordinal;
  write.spec = tensor->spec();
  write.offset_bytes = tensor->offset_bytes;
  write.strides = tensor->strides();
  write.bytes = std::move(bytes);
  History& history = machine_.HistoryOf(tensor->buffer);
  write.stream = ChooseStream(*op, StreamId::kIo, write.waits, [&](uint8_t stream, std::vector<InstanceWait>& waits) {
    history.WaitsForWrite(stream, 1, waits);
  });
  history.AddWrite({write.stream, op->ordinal, workers});
  op->profile_number = session.profile.TakeNumber();
  op->tensor = tensor;
  op->comm_scopes = EnterScopes(session);
  op->outputs.push_back(tensor.number());
  tensor->producer = op->ordinal;
  machine_.ToGroup(workers, std::move(write));
}

}  // namespace tessera
