// A group's call onto the workers: the members' tensors are the shards of one (collective_parts.h), each at its own
// offset.

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/failure.h"
#include "server/coordinator/group_desk.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/segment_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

absl::StatusOr<Mesh> MeshOf(const ProcessGroupEntry& group, const std::vector<int32_t>& ranks) {
  std::vector<WorkerIndex> workers;
  for (const int32_t rank : ranks) workers.push_back(group.members[static_cast<size_t>(rank)].worker);
  return Mesh::Make({static_cast<int64_t>(ranks.size())}, {}, workers);
}

std::vector<ArrivedCall*> CallsOf(const std::vector<int32_t>& ranks, std::vector<ArrivedCall>& calls) {
  std::vector<ArrivedCall*> found;
  for (const int32_t rank : ranks) {
    for (ArrivedCall& call : calls) {
      if (call.rank == rank) found.push_back(&call);
    }
  }
  return found;
}

}  // namespace

absl::StatusOr<TensorPointer> StateMachine::GroupDesk::RowMajorCopyOf(SessionEntry& session, HandleId handle) {
  constexpr HandleId kCopy(UINT64_MAX);  // which no client gives a tensor; it has it for a moment
  CallRecord record;
  record.call.op = OpId::kConcat;
  record.call.attributes.Set(attribute::dims, std::vector<int64_t>{0});
  record.operands.push_back({handle, false});
  record.results.push_back(kCopy);
  TESSERA_ASSIGN_OR_RETURN(IssueUnit unit, SegmentDesk(machine_).UnitOf(session, record));
  std::vector<Scalar> scalars;
  TESSERA_ASSIGN_OR_RETURN(PlanTemplate* const plan, IssueDesk(machine_).TemplateOf(session, unit, scalars));
  TESSERA_RETURN_IF_ERROR(IssueDesk(machine_).Issue(session, unit, *plan, std::move(scalars)));
  const auto made = session.tensors.find(kCopy);
  if (made == session.tensors.end())
    return absl::ResourceExhaustedError("the session holds too many tensors for a copy");
  TensorPointer copy = std::move(made->second);
  session.tensors.erase(made);
  return copy;
}

absl::StatusOr<Progress> StateMachine::GroupDesk::IssueCollective(SessionEntry& session, ProcessGroupEntry& group,
                                                                  const CollectiveParts& parts,
                                                                  std::vector<ArrivedCall>& calls) {
  const std::string_view name = ToText(calls[0].signature.kind);
  const auto tell = [&] {
    int32_t source = 0;
    for (const ArrivedCall& call : calls) {
      if (call.signature.kind == CollectiveKind::kSend) source = call.rank;
    }
    for (const ArrivedCall& call : calls) {
      if (call.request != 0) machine_.SendTo(call.session, MatchedEvent{call.request, source});
    }
    return Progress::kDone;
  };
  if (parts.takers.empty()) return tell();
  const std::vector<ArrivedCall*> givers = CallsOf(parts.givers, calls), takers = CallsOf(parts.takers, calls);
  for (const ArrivedCall* giver : givers) {
    if (giver->operand->status.ok()) continue;
    return WithMessage(giver->operand->status, StrCat("the tensor of ", group.NameOf(giver->rank),
                                                      " has failed: ", StdView(giver->operand->status.message())));
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh from, MeshOf(group, parts.givers));
  TESSERA_ASSIGN_OR_RETURN(const Mesh to, MeshOf(group, parts.takers));
  TESSERA_RETURN_IF_ERROR(machine_.CheckWorkers(name, from.workers()));
  TESSERA_RETURN_IF_ERROR(machine_.CheckWorkers(name, to.workers()));
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec,
                           TensorSpec::Make(name, calls[0].signature.dtype, parts.shape, from, {parts.from}));
  TensorPointer whole = machine_.tensors_.Add();
  whole->layout = machine_.layouts_.Of(spec, RowMajorStrides(MaxShardShape(spec)));
  CallRecord record;
  record.call.op = OpId::kRedistribute;
  record.call.attributes.Set(attribute::mesh, to);
  record.call.attributes.Set(attribute::placements, Placements{parts.to});
  record.operands.push_back({HandleId(), false});
  IssueUnit unit;
  unit.calls.push_back(&record);
  unit.name = name;
  unit.key.topology_version = machine_.topologies_[0].version;
  unit.key.inputs.push_back({whole->layout});
  PlanKeyCall& key = unit.key.calls.emplace_back();
  key.op = record.call.op;
  key.attributes = record.call.attributes;
  key.operands.emplace_back().value = 0;
  unit.tensors.push_back(std::move(whole));
  unit.last_uses.push_back(false);
  std::vector<Scalar> scalars;
  absl::StatusOr<PlanTemplate*> plan = IssueDesk(machine_).TemplateOf(session, unit, scalars);
  if (!plan.ok()) return SaidBy(name, NameOf(record.call.op), plan.status());
  if (!TurnDesk(machine_).HasRoomFor(**plan, Lane::kBatch)) return Progress::kBlocked;
  const absl::Status run = RunCollective(name, group, givers, takers, **plan);
  if (absl::IsResourceExhausted(run) &&
      SpillDesk(machine_).AwaitsMemory(session, SpillDesk::RequestsOf(*(*plan)->plan)))
    return Progress::kBlocked;
  TESSERA_RETURN_IF_ERROR(run);
  return tell();
}

absl::Status StateMachine::GroupDesk::RunCollective(std::string_view name, const ProcessGroupEntry& group,
                                                    const std::vector<ArrivedCall*>& givers,
                                                    const std::vector<ArrivedCall*>& takers, PlanTemplate& plan) {
  const Plan& p = *plan.plan;
  const PlanValue& input = p.values[static_cast<size_t>(p.inputs[0])];
  const PlanValue& output = p.values[static_cast<size_t>(p.outputs[0])];
  Instance instance;
  instance.plan = plan.id;
  instance.makes_calls = IssueDesk(machine_).MakesCalls(plan);
  instance.buffer_offsets.resize(p.buffers.size());
  BuffersApart apart;
  const auto place_apart = [&](int buffer) -> PlacedBuffer& {
    return instance.placed_apart.emplace_back(PlacedBuffer{buffer, {}});
  };
  const auto worker_of = [&group](const ArrivedCall& call) {
    return group.members[static_cast<size_t>(call.rank)].worker;
  };
  PlacedBuffer& read = place_apart(input.buffer);
  for (const ArrivedCall* giver : givers) {
    apart.emplace_back(input.buffer, giver->operand->buffer);
    read.offsets.emplace_back(worker_of(*giver), giver->operand->offset_bytes);
  }
  // A result of its own for each, so that nobody's memory waits for another's.
  std::vector<std::pair<BufferPointer, int64_t>> results;  // and the offset of its first element
  const int64_t skipped_bytes = output.offset * SizeBytes(output.spec.dtype);
  if (output.buffer == input.buffer) {
    for (const ArrivedCall* taker : takers) {
      const auto own = std::find(givers.begin(), givers.end(), taker);
      if (own == givers.end()) return absl::InternalError(StrCat(name, ": a result lies in another rank's tensor"));
      results.emplace_back((*own)->operand->buffer, (*own)->operand->offset_bytes + skipped_bytes);
    }
  } else {
    PlacedBuffer& written = place_apart(output.buffer);
    for (const ArrivedCall* taker : takers) {
      TESSERA_ASSIGN_OR_RETURN(BufferPointer made,
                               machine_.NewBuffer(taker->session, MakeGroup({worker_of(*taker)}),
                                                  p.buffers[static_cast<size_t>(output.buffer)].bytes, name));
      written.offsets.emplace_back(worker_of(*taker), made->offset_bytes);
      results.emplace_back(made, made->offset_bytes + skipped_bytes);
      apart.emplace_back(output.buffer, std::move(made));
    }
  }
  std::vector<BufferPointer> buffers(p.buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (p.buffers[b].kind != PlanBuffer::Kind::kTemporary) continue;
    TESSERA_ASSIGN_OR_RETURN(buffers[b],
                             machine_.NewBuffer(SessionId(), plan.buffer_workers[b], p.buffers[b].bytes, name));
    instance.buffer_offsets[b] = buffers[b]->offset_bytes;
  }
  OpPointer op;
  if (!p.steps.empty()) {
    IssueDesk(machine_).Define(plan);
    op = TurnDesk(machine_).NewRun(name, SessionId(), plan, Lane::kBatch);
    for (const ArrivedCall* giver : givers) machine_.AddParent(op, *giver->operand);
    for (const auto& calls : {givers, takers}) {
      for (const ArrivedCall* call : calls) AddShare(*op, *call, plan);
    }
    instance.ordinal = op->ordinal;
    IssueDesk(machine_).AddWaits(*op, plan, buffers, apart, instance);
    machine_.ToGroup(plan.workers, std::move(instance));
  }
  for (size_t t = 0; t < takers.size(); ++t) {
    const TensorPointer& result = takers[t]->result;
    result->buffer = results[t].first;
    result->offset_bytes = results[t].second;
    SpillDesk(machine_).Track(result);
    result->unmatched = false;
    if (op == nullptr) {
      const auto own = std::find(givers.begin(), givers.end(), takers[t]);
      if (own != givers.end()) result->producer = (*own)->operand->producer;
    } else {
      result->producer = op->ordinal;
    }
    if (OpEntry* producer = machine_.ProducerOf(*result)) producer->outputs.push_back(result.number());
    Unpark(takers[t]->session, result->handle);
  }
  return absl::OkStatus();
}

// The calling member's session has one share, though it gives and takes.
void StateMachine::GroupDesk::AddShare(OpEntry& op, const ArrivedCall& call, const PlanTemplate& plan) {
  const auto is_same = [&call](const OpShare& share) { return share.session == call.session; };
  const auto found = machine_.sessions_.find(call.session);
  if (found == machine_.sessions_.end() || std::any_of(op.shares.begin(), op.shares.end(), is_same)) return;
  SessionEntry& session = found->second;
  OpShare share;
  share.session = call.session;
  share.comm_scopes = IssueDesk(machine_).EnterScopes(session);
  share.profile_number = session.profile.TakeNumber();
  if (call.result != nullptr) share.result = call.result->handle;
  for (const uint64_t open : share.comm_scopes) {
    CommScope& scope = session.scopes.at(open);
    for (const auto& [collective, count] : plan.collectives) scope.collectives[collective] += count;
  }
  op.shares.push_back(std::move(share));
}

}  // namespace tessera
