#include "server/coordinator/rpc/snapshot_encoder.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <capnp/serialize-packed.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/snapshot_pieces.h"
#include "server/coordinator/rpc/tenants_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {

absl::Status Snapshot::Save(const Core& core, const Place& place, const Write& write) {
  Encoder encoder(core, write);
  encoder.Header(place);
  encoder.Machine();
  encoder.Lines();
  encoder.End();
  return encoder.status();
}

uint64_t Snapshot::Digest(const Core& core) {
  XXH3_state_t* const state = XXH3_createState();
  KJ_DEFER(XXH3_freeState(state));
  XXH3_64bits_reset(state);
  const Write write = [state](kj::ArrayPtr<const kj::byte> bytes) {
    XXH3_64bits_update(state, bytes.begin(), bytes.size());
    return absl::OkStatus();
  };
  Encoder encoder(core, write);
  encoder.Machine();
  return XXH3_64bits_digest(state);
}

void Snapshot::Encoder::Put(capnp::MessageBuilder& message) {
  ++parts_;
  if (!status_.ok()) return;
  kj::VectorOutputStream packed;
  capnp::writePackedMessage(packed, message);
  const auto bytes = packed.getArray();
  const uint64_t head[2] = {bytes.size(), XXH3_64bits(bytes.begin(), bytes.size())};
  status_ = write_(kj::arrayPtr(reinterpret_cast<const kj::byte*>(head), sizeof(head)));
  if (status_.ok()) status_ = write_(bytes);
}

void Snapshot::Encoder::Header(const Place& place) {
  One([&](Part::Builder part) {
    auto header = part.initHeader();
    header.setVersion(place.version);
    header.setConfig(ToJson(machine_.config_));
    header.setSegment(place.segment);
    header.setEvents(place.events);
  });
}

void Snapshot::Encoder::End() {
  const uint64_t before = parts_;
  One([before](Part::Builder part) { part.setEnd(before); });
}

void Snapshot::Encoder::Machine() {
  Number();
  Numbers();
  Tenants();
  Workers();
  JoinTokens();
  Shared();
  Buffers();
  Tensors();
  Sessions();
  Held();
  Publications();
  Queues();
  Plans();
  Ops();
  Tickets();
  Freed();
  Turns();
  LongWorks();
  Groups();
}

// ---- numbers ------------------------------------------------------------------------------------

namespace {

uint64_t KeyOf(EntryNumber number) { return uint64_t{number.slot} << 32 | number.generation; }

}  // namespace

// All that is there is met here, so that tables can be written before what names them.
void Snapshot::Encoder::Number() {
  for (const auto& [ordinal, op] : machine_.ops_) ops_.push_back(op.get());
  std::sort(ops_.begin(), ops_.end(), [](const OpEntry* a, const OpEntry* b) { return a->ordinal < b->ordinal; });
  for (const auto& [id, session] : machine_.sessions_) {
    for (const auto& [handle, tensor] : session.tensors) NumberTensor(tensor);
  }
  for (const auto& given_up : machine_.long_work_.given_up) {
    for (const auto& [handle, tensor] : given_up) NumberTensor(tensor);
  }
  for (const auto& [name, publication] : machine_.publications_.entries_) {
    for (const PublishedEntry::Tensor& one : publication.tensors) NumberTensor(one.tensor);
  }
  for (const OpEntry* op : ops_) {
    NumberTensor(op->tensor);
    for (const Waiter& waiter : op->waiters) NumberTensor(waiter.tensor);
    GroupNumber(op->workers);
    MeasuredNumber(op->measured);
  }
  for (const auto& [id, ticket] : machine_.tickets_) {
    for (const TensorPointer& tensor : ticket.tensors) NumberTensor(tensor);
    GroupNumber(ticket.workers);
  }
  for (const auto& [id, group] : machine_.process_groups_.groups_) {
    for (const GroupCall& call : group.calls) {
      for (const ArrivedCall& arrived : call.arrived) NumberArrived(arrived);
    }
    for (const WaitingMessage& message : group.messages) NumberArrived(message.call);
  }
  for (const FreedRange& range : machine_.freed_) {
    GroupNumber(range.workers);
    NumberHistory(range.history);
  }
  for (const PlanCache::Entry& entry : machine_.plans_.entries_) {
    for (const PlanKeyInput& input : entry.key.inputs) LayoutNumber(input.layout);
    MeasuredNumber(entry.value.measured);
  }
}

void Snapshot::Encoder::NumberTensor(const TensorPointer& tensor) {
  if (!tensor || !tensor_numbers_.try_emplace(tensor.get(), static_cast<uint32_t>(tensors_.size() + 1)).second) return;
  tensors_.push_back(tensor);
  tensor_entries_[KeyOf(tensor.number())] = static_cast<uint32_t>(tensors_.size());
  LayoutNumber(tensor->layout);
  const BufferPointer& buffer = tensor->buffer;
  if (!buffer || !buffer_numbers_.try_emplace(buffer.get(), static_cast<uint32_t>(buffers_.size() + 1)).second) return;
  buffers_.push_back(buffer);
  buffer_entries_[KeyOf(buffer.number())] = static_cast<uint32_t>(buffers_.size());
  GroupNumber(buffer->workers);
  if (buffer->history) NumberHistory(*buffer->history);
}

void Snapshot::Encoder::NumberHistory(const History& history) {
  const auto number = [this](const auto& list) {
    for (const Access& access : list) GroupNumber(access.workers);
  };
  number(history.writes_);
  number(history.reads_);
  number(history.peer_reads_);
}

void Snapshot::Encoder::NumberArrived(const ArrivedCall& call) {
  NumberTensor(call.operand);
  NumberTensor(call.result);
}

uint32_t Snapshot::Encoder::NumberOf(const TensorPointer& tensor) const {
  return tensor ? tensor_numbers_.at(tensor.get()) : 0;
}

uint32_t Snapshot::Encoder::NumberOf(EntryNumber tensor) const {
  const auto found = tensor_entries_.find(KeyOf(tensor));
  return found == tensor_entries_.end() ? 0 : found->second;
}

uint32_t Snapshot::Encoder::LayoutNumber(const SharedLayout& layout) {
  if (*layout == *UnknownLayout()) return 0;
  if (const auto known = layout_numbers_.find(layout.get()); known != layout_numbers_.end()) return known->second;
  std::vector<uint32_t>& alike = layouts_by_hash_[layout->hash];
  uint32_t number = 0;
  for (const uint32_t other : alike) {
    if (*layouts_[other - 1] == *layout) number = other;
  }
  if (number == 0) {
    layouts_.push_back(layout);
    number = static_cast<uint32_t>(layouts_.size());
    alike.push_back(number);
  }
  return layout_numbers_[layout.get()] = number;
}

uint32_t Snapshot::Encoder::GroupNumber(const WorkerGroup& group) {
  if (group == nullptr) return 0;
  const auto [known, is_new] = group_numbers_.try_emplace(*group, static_cast<uint32_t>(groups_.size() + 1));
  if (is_new) groups_.push_back(group);
  return known->second;
}

uint32_t Snapshot::Encoder::MeasuredNumber(const std::shared_ptr<MeasuredCost>& measured) {
  if (measured == nullptr) return 0;
  const auto [known, is_new] =
      measured_numbers_.try_emplace(measured.get(), static_cast<uint32_t>(measured_.size() + 1));
  if (is_new) measured_.push_back(measured);
  return known->second;
}

// ---- tables -------------------------------------------------------------------------------------

void Snapshot::Encoder::Numbers() {
  One([this](Part::Builder part) {
    auto out = part.initNumbers();
    out.setNowUs(machine_.now_us_);
    out.setEpoch(machine_.given_.epoch);
    out.setSession(machine_.given_.session);
    out.setConnection(machine_.given_.connection);
    out.setIncarnation(machine_.given_.incarnation);
    out.setJoins(machine_.joins_);
    out.setHasLost(machine_.has_lost_);
    out.setRejoined(machine_.rejoined_);
    out.setHasMore(machine_.has_more_);
    out.setLossesAreSeen(machine_.long_work_.is_seen);
    out.setClosedWindows(machine_.closed_windows_);
    out.setNextOrdinal(machine_.next_ordinal_);
    out.setNextTemplate(machine_.next_template_);
    out.setNextTicket(machine_.next_ticket_);
    out.setNextGroup(machine_.process_groups_.next_);
    out.setTopologyVersion(machine_.topologies_[0].version);
    FillList(machine_.topologies_[0].host_of_worker, [&](unsigned n) { return out.initHosts(n); });
    out.setPeerKey(core_.peer_key_);
    out.setPlanHits(machine_.plans_.hits_);
    out.setPlanMisses(machine_.plans_.misses_);
    out.setNextSpillFile(machine_.spills_.next_file);
    out.setSpillTurn(machine_.spills_.turn.value);
  });
}

void Snapshot::Encoder::Tenants() {
  Table(
      machine_.tenants_.by_number_, [](Part::Builder part, unsigned n) { return part.initTenants(n); },
      [](const TenantEntry* tenant, wire::SnapshotTenant::Builder out) {
        EncodeTenantLimits(tenant->limits, out.initLimits());
        out.setIsRemoved(tenant->is_removed);
        out.setSessions(tenant->sessions);
        out.setDeviceNs(tenant->device_ns);
        out.setSpilledBytes(tenant->spilled_bytes);
        out.setShareTicks(tenant->share.level_ticks_);
        out.setShareAtUs(tenant->share.at_us_);
        FillList(tenant->used_bytes, [&](unsigned n) { return out.initUsedBytes(n); });
      });
  One([this](Part::Builder part) {
    auto list = part.initListedTenants(static_cast<unsigned>(machine_.tenants_.listed_.size()));
    unsigned i = 0;
    for (const auto& [name, is] : machine_.tenants_.listed_) list.set(i++, Text(name));
  });
}

void Snapshot::Encoder::Workers() {
  Table(
      machine_.workers_, [](Part::Builder part, unsigned n) { return part.initWorkers(n); },
      [](const auto& item, wire::SnapshotWorker::Builder out) {
        const WorkerEntry& worker = item.second;
        EncodeEvent(0, worker.info, nullptr, out.initJoined());
        out.setState(static_cast<uint8_t>(worker.state));
        out.setLastHeardUs(worker.last_heard_us);
        out.setLastKillUs(worker.last_kill_us);
        auto lanes = out.initLanes(kLaneCount);
        for (unsigned i = 0; i < kLaneCount; ++i) {
          lanes[i].setOutstanding(worker.windows.lanes[i].outstanding);
          lanes[i].setOutstandingUs(worker.windows.lanes[i].outstanding_us);
          lanes[i].setFull(worker.windows.lanes[i].full);
        }
        out.setReceivedBytes(worker.received_bytes);
        out.setWorkingSinceUs(worker.working_since_us);
        out.setAtWorkUs(worker.at_work_us);
        out.setProbe(worker.probe.value);
        out.setProbedUs(worker.probed_us);
        out.setStalled(Text(worker.stalled));
        out.setLostReason(Text(worker.lost_reason));
        out.setDoneUs(worker.done_us);
        out.setJoinNumber(worker.join_number);
        out.setFirstOrdinal(worker.first_ordinal.value);
        out.setAdmits(static_cast<uint8_t>(worker.admits));
        out.setNewestAdmitted(worker.newest_admitted.value);
        out.setSpilledBytes(worker.spilled_bytes);
        out.setSpilledToHostBytes(worker.spilled_to_host_bytes);
        out.setSpillFailedUs(worker.spill_failed_us);
      });
}

void Snapshot::Encoder::JoinTokens() {
  Table(
      machine_.join_token_uses_, [](Part::Builder part, unsigned n) { return part.initJoinTokens(n); },
      [](const auto& item, wire::SnapshotJoinToken::Builder out) {
        out.setId(Text(item.first));
        const std::vector<WorkerIndex> workers(item.second.begin(), item.second.end());
        FillIds(workers, [&](unsigned n) { return out.initWorkers(n); });
      });
}

void Snapshot::Encoder::Shared() {
  Table(
      layouts_, [](Part::Builder part, unsigned n) { return part.initLayouts(n); },
      [](const SharedLayout& layout, wire::SnapshotLayout::Builder out) {
        EncodeTensorSpec(layout->spec, out.initSpec());
        FillList(layout->strides, [&](unsigned n) { return out.initStrides(n); });
      });
  One([this](Part::Builder part) {
    auto list = part.initGroups(static_cast<unsigned>(groups_.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      FillIds(*groups_[i], [&](unsigned n) { return list.init(i, n); });
    }
  });
  Table(
      measured_, [](Part::Builder part, unsigned n) { return part.initMeasured(n); },
      [](const std::shared_ptr<MeasuredCost>& measured, wire::SnapshotMeasured::Builder out) {
        out.setTicks(measured->ticks);
        out.setUnderWay(measured->under_way);
      });
}

void Snapshot::Encoder::EncodeHistory(const History& history, wire::SnapshotHistory::Builder out) {
  const auto fill = [this](const auto& accesses, auto list) {
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setStream(accesses[i].stream);
      list[i].setOrdinal(accesses[i].ordinal.value);
      list[i].setGroup(GroupNumber(accesses[i].workers));
    }
  };
  fill(history.writes_, out.initWrites(static_cast<unsigned>(history.writes_.size())));
  fill(history.reads_, out.initReads(static_cast<unsigned>(history.reads_.size())));
  fill(history.peer_reads_, out.initPeerReads(static_cast<unsigned>(history.peer_reads_.size())));
}

void Snapshot::Encoder::Buffers() {
  Table(
      buffers_, [](Part::Builder part, unsigned n) { return part.initBuffers(n); },
      [this](const BufferPointer& buffer, wire::SnapshotBuffer::Builder out) {
        out.setGroup(GroupNumber(buffer->workers));
        out.setTenant(buffer->tenant == nullptr ? 0 : static_cast<uint32_t>(buffer->tenant->number) + 1);
        out.setOffsetBytes(buffer->offset_bytes);
        out.setBytes(buffer->bytes);
        out.setOwner(buffer->owner.value);
        out.setBorn(buffer->born);
        out.setIsPublished(buffer->is_published);
        if (buffer->history) EncodeHistory(*buffer->history, out.initHistory());
        if (buffer->spill_slot == 0) return;
        const SpillEntry& entry = machine_.spills_.at(buffer->spill_slot);
        auto spill = out.initSpill();
        spill.setPlace(static_cast<uint8_t>(entry.place));
        spill.setFile(entry.file);
        spill.setLastUse(entry.last_use);
        spill.setWantedBy(entry.wanted_by.value);
        if (!entry.failure.ok()) EncodeStatus(entry.failure, spill.initFailure());
        auto hosts = spill.initInHostMemory(static_cast<unsigned>(entry.in_host_memory.size()));
        for (unsigned i = 0; i < hosts.size(); ++i) hosts.set(i, entry.in_host_memory[i].value);
      });
  One([this](Part::Builder part) {
    auto list = part.initTouched(static_cast<unsigned>(machine_.touched_.size()));
    for (unsigned i = 0; i < list.size(); ++i) {
      const auto found = buffer_entries_.find(KeyOf(machine_.touched_[i]));
      list.set(i, found == buffer_entries_.end() ? 0 : found->second);
    }
  });
}

void Snapshot::Encoder::Tensors() {
  Table(
      tensors_, [](Part::Builder part, unsigned n) { return part.initTensors(n); },
      [this](const TensorPointer& tensor, wire::SnapshotTensor::Builder out) {
        out.setLayout(LayoutNumber(tensor->layout));
        out.setBuffer(tensor->buffer ? buffer_numbers_.at(tensor->buffer.get()) : 0);
        out.setSession(tensor->session.value);
        out.setHandle(tensor->handle.value);
        out.setOffsetBytes(tensor->offset_bytes);
        out.setProducer(tensor->producer.value);
        out.setIsUploading(tensor->uploading);
        out.setIsUnmatched(tensor->unmatched);
        const auto session = machine_.sessions_.find(tensor->session);
        if (session != machine_.sessions_.end()) {
          const auto held = session->second.tensors.find(tensor->handle);
          out.setIsHeld(held != session->second.tensors.end() && held->second == tensor);
        }
        if (!tensor->status.ok()) EncodeStatus(tensor->status, out.initStatus());
        if (tensor->former == nullptr) return;
        auto former = out.initFormer();
        EncodeMesh(tensor->former->mesh, former.initMesh());
        FillIds(tensor->former->lost, [&](unsigned n) { return former.initLost(n); });
      });
}

void Snapshot::Encoder::Held() {
  struct Row {
    SessionId session;
    HandleId handle;
    uint32_t tensor = 0;
  };
  std::vector<Row> rows;
  for (const auto& [id, session] : machine_.sessions_) {
    for (const auto& [handle, tensor] : session.tensors) {
      if (tensor->session != id || tensor->handle != handle) rows.push_back({id, handle, NumberOf(tensor)});
    }
  }
  Table(
      rows, [](Part::Builder part, unsigned n) { return part.initHeldTensors(n); },
      [](const Row& row, wire::SnapshotHeld::Builder out) {
        out.setSession(row.session.value);
        out.setHandle(row.handle.value);
        out.setTensor(row.tensor);
      });
}

void Snapshot::Encoder::EncodePlan(const PlanCache::Entry& entry, wire::SnapshotPlan::Builder out) {
  const auto encode_operands = [](const auto& operands, auto list) {
    for (unsigned i = 0; i < list.size(); ++i) {
      list[i].setValue(operands[i].value);
      list[i].setScalarDtype(static_cast<uint8_t>(operands[i].scalar_dtype));
      list[i].setScalarStrength(static_cast<uint8_t>(operands[i].scalar_strength));
      list[i].setSpecialDtypes(operands[i].scalar_special_dtypes);
      list[i].setIsNegative(operands[i].scalar_is_negative);
    }
  };
  const PlanKey& key = entry.key;
  out.setId(entry.value.id.value);
  auto inputs = out.initInputs(static_cast<unsigned>(key.inputs.size()));
  for (unsigned i = 0; i < inputs.size(); ++i) inputs.set(i, LayoutNumber(key.inputs[i].layout));
  auto calls = out.initCalls(static_cast<unsigned>(key.calls.size()));
  for (unsigned i = 0; i < calls.size(); ++i) {
    const PlanKeyCall& call = key.calls[i];
    EncodeOpCall({.op = call.op, .attributes = call.attributes, .scalars = {}}, calls[i].initCall());
    encode_operands(call.operands, calls[i].initOperands(static_cast<unsigned>(call.operands.size())));
    encode_operands(call.scalars, calls[i].initScalars(static_cast<unsigned>(call.scalars.size())));
  }
  FillList(key.kept, [&](unsigned n) { return out.initKept(n); });
  out.setTopologyVersion(key.topology_version);
  out.setTemporaryBytes(key.temporary_bytes);
  out.setBytes(entry.bytes);
  out.setMeasured(MeasuredNumber(entry.value.measured));
  FillIds(entry.value.defined_on, [&](unsigned n) { return out.initDefinedOn(n); });
  out.setTextHash(entry.value.text_hash);
}

void Snapshot::Encoder::Plans() {
  Table(
      machine_.plans_.entries_, [](Part::Builder part, unsigned n) { return part.initPlans(n); },
      [this](const PlanCache::Entry& entry, wire::SnapshotPlan::Builder out) { EncodePlan(entry, out); });
}

// ---- outboxes -----------------------------------------------------------------------------------

void Snapshot::Encoder::Lines() {
  // Events may be large, as inline values are: a part for each session's.
  for (const auto& [id, line] : core_.sessions_) {
    One([&](Part::Builder part) {
      auto out = part.initSessionLines(1)[0];
      out.setSession(id.value);
      out.setLogged(line.logged);
      auto events = out.initEvents(static_cast<unsigned>(line.outbox.events_.size()));
      for (unsigned i = 0; i < events.size(); ++i) EncodeSessionEvent(line.outbox.events_[i], events[i]);
    });
  }
  for (const auto& [index, line] : core_.workers_) {
    One([&](Part::Builder part) {
      auto out = part.initWorkerLines(1)[0];
      out.setWorker(index.value);
      out.setIncarnation(line.incarnation);
      out.setReports(line.reports);
      out.setEpoch(line.epoch);
      out.setFirst(line.outbox.first_);
      auto messages = out.initMessages(static_cast<unsigned>(line.outbox.messages_.size()));
      for (unsigned i = 0; i < messages.size(); ++i) EncodeWorkerMessage(*line.outbox.messages_[i], messages[i]);
    });
  }
}

}  // namespace tessera
