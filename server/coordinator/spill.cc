// Spilling: which buffers leave the arenas for files, and how they come back (spill_desk.h).

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "schemas/types/contains.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/failure.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/worker_sets.h"

namespace tessera {

void StateMachine::SpillDesk::Watch(const BufferPointer& buffer) {
  if (buffer->bytes < machine_.config_.min_spill_bytes) return;
  for (const WorkerIndex worker : *buffer->workers) {
    if (machine_.workers_.at(worker).info.spill_bytes <= 0) return;
  }
  buffer->spill_slot = table_.Add(buffer.number());
  table_.at(buffer->spill_slot).last_use = machine_.next_ordinal_;
}

void StateMachine::SpillDesk::Track(const TensorPointer& tensor) {
  if (tensor->buffer && tensor->buffer->spill_slot != 0) {
    table_.at(tensor->buffer->spill_slot).tensors.push_back(tensor.number());
  }
}

bool StateMachine::SpillDesk::LetGo(BufferEntry& buffer) {
  const uint32_t slot = std::exchange(buffer.spill_slot, 0);
  if (slot == 0) return false;
  const bool is_away = table_.at(slot).place == SpillPlace::kAway;
  if (is_away) ForgetFile(buffer, table_.at(slot));
  table_.Release(slot);
  return is_away;
}

SpillPlace MachineTables::PlaceOf(const TensorEntry& tensor) const {
  const uint32_t slot = tensor.buffer ? tensor.buffer->spill_slot : 0;
  return slot == 0 ? SpillPlace::kHere : spills_.at(slot).place;
}

bool MachineTables::IsInHostMemory(const TensorEntry& tensor) const {
  if (PlaceOf(tensor) != SpillPlace::kAway) return false;
  const BufferEntry& buffer = *tensor.buffer;
  return std::all_of(buffer.workers->begin(), buffer.workers->end(), [&](WorkerIndex worker) {
    return Contains(spills_.at(buffer.spill_slot).in_host_memory, worker) || !Holds(workers_.at(worker), buffer);
  });
}

// ---- making room --------------------------------------------------------------------------------

std::vector<MemoryMap::Request> StateMachine::SpillDesk::RequestsOf(const Plan& plan) {
  std::vector<MemoryMap::Request> requests;
  for (const PlanBuffer::Kind kind : {PlanBuffer::Kind::kOutput, PlanBuffer::Kind::kTemporary}) {
    for (const PlanBuffer& buffer : plan.buffers) {
      if (buffer.kind == kind) requests.push_back({buffer.mesh.workers(), buffer.bytes});
    }
  }
  return requests;
}

bool StateMachine::SpillDesk::AwaitsMemory(SessionEntry& session, absl::Span<const MemoryMap::Request> requests) {
  std::vector<WorkerIndex> workers;
  for (const MemoryMap::Request& request : requests) {
    workers.insert(workers.end(), request.workers.begin(), request.workers.end());
  }
  if (IntakeDesk(machine_).AwaitsWindows(session, *MakeGroup(std::move(workers)))) return true;
  if (table_.size() == 0) return false;
  if (IsOthersTurn(session.info.session)) return true;
  const bool is_made = MakesRoom(session, requests);
  if (!is_made) HandTurnOn(session.info.session);
  if (is_made) table_.turn = session.info.session;
  return is_made;
}

// The buffer's workers that have its bytes: not one that was lost, nor a process that came in its place.
std::vector<WorkerIndex> StateMachine::SpillDesk::HoldersOf(const BufferEntry& buffer) const {
  std::vector<WorkerIndex> holders = *buffer.workers;
  std::erase_if(holders, [&](WorkerIndex worker) { return !Holds(machine_.workers_.at(worker), buffer); });
  return holders;
}

bool StateMachine::SpillDesk::HasPlace(const BufferEntry& buffer) const {
  const TenantEntry* const tenant = buffer.tenant;
  const int64_t size = machine_.memory_.RoundUp(buffer.bytes);
  if (tenant != nullptr && tenant->limits.max_spilled_bytes != kUnlimited &&
      tenant->spilled_bytes + size > tenant->limits.max_spilled_bytes) {
    return false;
  }
  return std::all_of(buffer.workers->begin(), buffer.workers->end(), [&](WorkerIndex worker) {
    const WorkerEntry& entry = machine_.workers_.at(worker);
    return entry.state == WorkerState::kAlive && entry.spilled_bytes + size <= entry.info.spill_bytes &&
           (entry.spill_failed_us == 0 || machine_.now_us_ - entry.spill_failed_us >= machine_.config_.spill_retry_us);
  });
}

StateMachine::SpillDesk::Ease StateMachine::SpillDesk::EaseOf(SpillEntry& entry, const BufferPointer& buffer) {
  Ease ease = Ease::kIdle;
  uint32_t known = 1;  // references to the buffer: the caller's
  std::erase_if(entry.tensors, [this](EntryNumber number) { return !machine_.tensors_.Find(number); });
  for (const EntryNumber number : entry.tensors) {
    const TensorPointer tensor = machine_.tensors_.Find(number);
    ++known;
    const bool is_busy = machine_.ProducerOf(*tensor) != nullptr;
    // Its session's table and this pointer alone have it, or else a transfer does, or a call of a group.
    if (!tensor->status.ok() || tensor->is_awaited() || (!is_busy && tensor.use_count() != 2)) return Ease::kHeld;
    if (is_busy) ease = Ease::kBusy;
  }
  if (ease == Ease::kIdle && buffer.use_count() != known) return Ease::kHeld;
  if (buffer->history && !machine_.HistoryOf(buffer).empty()) ease = Ease::kBusy;
  return ease;
}

// Has idle buffers leave. True: some do, or are still busy and may do so later; false: there will not be enough.
bool StateMachine::SpillDesk::MakesRoom(const SessionEntry& session, absl::Span<const MemoryMap::Request> requests) {
  const MemoryMap& memory = machine_.memory_;
  std::map<WorkerIndex, int64_t> wanted, lacking;
  for (const MemoryMap::Request& request : requests) {
    for (const WorkerIndex worker : request.workers) wanted[worker] += memory.RoundUp(request.bytes);
  }
  bool is_short = false;
  for (const auto& [worker, bytes] : wanted) {
    lacking[worker] = bytes - (memory.TotalBytes(worker) - memory.UsedBytes(worker));
    is_short = is_short || lacking[worker] > 0;
  }
  // There is room, in pieces; or the tenant's limits forbid it.
  std::map<WorkerIndex, int64_t> missing = is_short ? lacking : wanted;
  struct Leaver {
    bool has_client;
    uint64_t last_use;
    int64_t offset_bytes;
    BufferPointer buffer;
  };
  std::vector<Leaver> leavers;
  std::map<WorkerIndex, int64_t> later;  // bytes that may become free
  bool is_leaving = false, is_busy = false;
  for (SpillEntry& entry : table_.entries()) {
    if (entry.buffer == EntryNumber{} || entry.place == SpillPlace::kAway) continue;
    BufferPointer buffer = machine_.buffers_.Find(entry.buffer);
    const bool is_of_others = buffer->tenant != session.tenant;
    const auto may_leave_from = [&](WorkerIndex worker) {
      return !is_of_others || buffer->tenant == nullptr ||
             buffer->tenant->UsedOn(worker) > buffer->tenant->limits.guaranteed_bytes;
    };
    const auto helps = [&](WorkerIndex worker) { return wanted.contains(worker); };
    const std::vector<WorkerIndex>& workers = *buffer->workers;
    if (std::none_of(workers.begin(), workers.end(), helps) || buffer->is_published) continue;
    if (!std::all_of(workers.begin(), workers.end(), may_leave_from)) continue;
    if (!is_short && is_of_others && session.tenant->limits.max_bytes != kUnlimited) continue;
    if (entry.wanted_by == session.info.session) continue;
    const Ease ease = entry.place == SpillPlace::kHere ? EaseOf(entry, buffer) : Ease::kBusy;
    if (ease == Ease::kHeld || (entry.place == SpillPlace::kHere && !HasPlace(*buffer))) continue;
    for (const WorkerIndex worker : workers) later[worker] += memory.RoundUp(buffer->bytes);
    if (entry.place == SpillPlace::kLeaving) {
      is_leaving = true;
      for (const WorkerIndex worker : workers) missing[worker] -= memory.RoundUp(buffer->bytes);
    } else if (ease == Ease::kBusy) {
      is_busy = true;
    } else {
      const auto owner = machine_.sessions_.find(buffer->owner);
      const bool has_client = owner != machine_.sessions_.end() && owner->second.connected;
      leavers.push_back({has_client, entry.last_use, buffer->offset_bytes, std::move(buffer)});
    }
  }
  for (const auto& [worker, bytes] : lacking) {
    if (is_short && later[worker] < bytes) return false;
  }
  std::sort(leavers.begin(), leavers.end(), [](const Leaver& a, const Leaver& b) {
    return std::tie(a.has_client, a.last_use, a.offset_bytes, *a.buffer->workers) <
           std::tie(b.has_client, b.last_use, b.offset_bytes, *b.buffer->workers);
  });
  for (Leaver& leaver : leavers) {
    const std::vector<WorkerIndex>& workers = *leaver.buffer->workers;
    const auto is_missed = [&](WorkerIndex worker) { return wanted.contains(worker) && missing[worker] > 0; };
    if (std::none_of(workers.begin(), workers.end(), is_missed)) continue;
    for (const WorkerIndex worker : workers) missing[worker] -= memory.RoundUp(leaver.buffer->bytes);
    BeginLeaving(leaver.buffer);
    is_leaving = true;
  }
  return is_leaving || is_busy;
}

// ---- coming back --------------------------------------------------------------------------------

absl::StatusOr<Progress> StateMachine::SpillDesk::BringBack(SessionEntry& session,
                                                            absl::Span<const TensorPointer> tensors) {
  std::vector<uint32_t> away;  // in the record's order: a snapshot gives slots other numbers
  bool is_coming = false;
  for (const TensorPointer& tensor : tensors) {
    const uint32_t slot = tensor->buffer ? tensor->buffer->spill_slot : 0;
    if (slot == 0) continue;
    SpillEntry& entry = table_.at(slot);
    if (entry.place == SpillPlace::kComing) is_coming = true;
    if (entry.place != SpillPlace::kAway) continue;
    if (!entry.failure.ok()) {
      const absl::Status failure = std::exchange(entry.failure, absl::OkStatus());
      return WithMessage(failure, StrCat(ToText(tensor->spec()), " is in files of its workers and did not come back: ",
                                         StdView(failure.message())));
    }
    if (std::find(away.begin(), away.end(), slot) == away.end()) away.push_back(slot);
  }
  if (away.empty() && !is_coming) return Progress::kDone;
  for (const TensorPointer& tensor : tensors) {
    const uint32_t slot = tensor->buffer ? tensor->buffer->spill_slot : 0;
    if (slot == 0) continue;
    table_.at(slot).wanted_by = session.info.session;
    session.wants_spilled = true;
  }
  if (away.empty() || IsOthersTurn(session.info.session)) return Progress::kBlocked;
  // All of them or none: what is held while another one finds no room helps nobody.
  std::vector<std::pair<BufferPointer, BufferPointer>> placed;
  std::vector<WorkerGroup> groups;
  std::vector<MemoryMap::Request> requests;
  absl::Status status;
  for (const uint32_t slot : away) {
    BufferPointer buffer = machine_.buffers_.Find(table_.at(slot).buffer);
    const WorkerGroup& workers = groups.emplace_back(MakeGroup(HoldersOf(*buffer)));
    requests.push_back({*workers, buffer->bytes});
    if (!status.ok()) continue;
    auto made = workers->empty() ? absl::UnavailableError("all workers that had it were lost")
                                 : machine_.NewBuffer(buffer->owner, workers, buffer->bytes, "spill");
    status = made.status();
    if (made.ok()) placed.emplace_back(std::move(buffer), *std::move(made));
  }
  if (status.ok()) {
    for (const auto& [buffer, range] : placed) BeginComing(buffer, range);
    return Progress::kBlocked;
  }
  placed.clear();
  if (absl::IsResourceExhausted(status) && AwaitsMemory(session, requests)) return Progress::kBlocked;
  return WithMessage(status, StrCat("a tensor is in files of its workers, and there is no room to bring it back: ",
                                    StdView(status.message())));
}

// One that is leaving stays. A record that only tries, and gets no memory, must not keep it: the one for which it
// leaves would never get its own.
void StateMachine::SpillDesk::Use(absl::Span<const TensorPointer> tensors) {
  for (const TensorPointer& tensor : tensors) {
    const uint32_t slot = tensor->buffer ? tensor->buffer->spill_slot : 0;
    if (slot == 0) continue;
    SpillEntry& entry = table_.at(slot);
    entry.last_use = machine_.next_ordinal_;
    if (entry.place == SpillPlace::kLeaving) entry.place = SpillPlace::kHere;
  }
}

void StateMachine::SpillDesk::Taken(SessionEntry& session) {
  HandTurnOn(session.info.session);
  if (!std::exchange(session.wants_spilled, false)) return;
  for (SpillEntry& entry : table_.entries()) {
    if (entry.wanted_by == session.info.session) entry.wanted_by = SessionId();
  }
}

void StateMachine::SpillDesk::HandTurnOn(SessionId session) {
  if (table_.turn != session) return;
  table_.turn = SessionId();
  ++machine_.closed_windows_;  // others may have their memory now
  for (const auto& [id, other] : machine_.sessions_) {
    if (id != session && (other.memory_wait.has_value() || other.wants_spilled)) machine_.turns_.Retry(id);
  }
}

bool StateMachine::SpillDesk::IsOthersTurn(SessionId session) const {
  return table_.turn != SessionId() && table_.turn != session && machine_.sessions_.contains(table_.turn);
}

// ---- windows ------------------------------------------------------------------------------------

// As a window of a tensor of bytes that is the whole buffer on each worker. Its ticket is no client's.
void StateMachine::SpillDesk::Open(const BufferPointer& buffer, const WorkerGroup& workers,
                                   TransferDirection direction) {
  const SpillEntry& entry = table_.at(buffer->spill_slot);
  const bool leaves = direction == TransferDirection::kDownload;
  const Mesh mesh = *Mesh::Make({static_cast<int64_t>(workers->size())}, {}, *workers);
  const auto spec = TensorSpec::Make("spill", DType::kU8, {buffer->bytes}, mesh, {Placement::Replicate()});
  TESSERA_CHECK(spec.ok());
  TensorPointer whole = machine_.tensors_.Add();
  whole->layout = machine_.layouts_.Of(*spec, {1});
  whole->buffer = buffer;
  whole->offset_bytes = buffer->offset_bytes;
  const OpPointer op = machine_.NewOp(OpEntry::Kind::kWindow, "spill", SessionId(), workers, 1, Lane::kBatch);
  TransferWindow window;
  window.ordinal = op->ordinal;
  window.ticket = TicketId(machine_.next_ticket_++);
  window.session = buffer->owner;
  window.spill_file = entry.file;
  window.ranges.push_back({direction, *spec, buffer->offset_bytes, {1}});
  window.stream = IssueDesk(machine_).ChooseStream(*op, StreamId::kIo, window.waits, [&](uint8_t stream, auto& waits) {
    const History& history = machine_.HistoryOf(buffer);
    leaves ? history.WaitsForRead(stream, 1, waits) : history.WaitsForWrite(stream, 1, waits);
  });
  if (!leaves) machine_.HistoryOf(buffer).AddWrite({window.stream, op->ordinal, workers});
  op->ticket = window.ticket;
  op->tensor = whole;
  TicketEntry& ticket = machine_.tickets_[window.ticket];
  ticket.window = op;
  ticket.direction = direction;
  ticket.tensors.push_back(std::move(whole));
  ticket.workers = workers;
  ticket.missing = *workers;
  machine_.ToGroup(workers, std::move(window));
}

void StateMachine::SpillDesk::BeginLeaving(const BufferPointer& buffer) {
  SpillEntry& entry = table_.at(buffer->spill_slot);
  entry.place = SpillPlace::kLeaving;
  entry.file = table_.next_file++;
  Count(*buffer, 1);
  Open(buffer, buffer->workers, TransferDirection::kDownload);
}

// `placed` is the range that it comes to, which it takes over.
void StateMachine::SpillDesk::BeginComing(const BufferPointer& buffer, const BufferPointer& placed) {
  SpillEntry& entry = table_.at(buffer->spill_slot);
  const int64_t moved = placed->offset_bytes - buffer->offset_bytes;
  for (const EntryNumber number : entry.tensors) {
    if (const TensorPointer tensor = machine_.tensors_.Find(number)) tensor->offset_bytes += moved;
  }
  buffer->offset_bytes = placed->offset_bytes;
  buffer->workers = placed->workers;
  buffer->tenant = placed->tenant;
  // Instructions of the range's former owners may still run.
  if (placed->history) machine_.HistoryOf(buffer).Merge(*placed->history);
  placed->history = nullptr;
  placed->bytes = 0;
  placed->tenant = nullptr;
  entry.place = SpillPlace::kComing;
  entry.last_use = machine_.next_ordinal_;
  Open(buffer, buffer->workers, TransferDirection::kUpload);
}

// The range leaves in an entry of its own, as that of a buffer which nobody has any more.
void StateMachine::SpillDesk::GiveRangeBack(BufferEntry& buffer) {
  const BufferPointer range = machine_.buffers_.Add();
  range->workers = buffer.workers;
  range->offset_bytes = buffer.offset_bytes;
  range->bytes = buffer.bytes;
  range->tenant = buffer.tenant;
  range->owner = buffer.owner;
  range->born = buffer.born;
  range->history = std::exchange(buffer.history, nullptr);
}

void StateMachine::SpillDesk::Count(const BufferEntry& buffer, int64_t sign) {
  const int64_t bytes = sign * machine_.memory_.RoundUp(buffer.bytes);
  for (const WorkerIndex worker : HoldersOf(buffer)) machine_.workers_.at(worker).spilled_bytes += bytes;
  if (buffer.tenant != nullptr) buffer.tenant->spilled_bytes += bytes;
  const auto owner = machine_.sessions_.find(buffer.owner);
  if (owner != machine_.sessions_.end()) owner->second.spilled_bytes += sign * buffer.bytes;
}

void StateMachine::SpillDesk::ForgetFile(const BufferEntry& buffer, SpillEntry& entry) {
  std::vector<WorkerIndex> holders = HoldersOf(buffer);
  for (const WorkerIndex worker : holders) {
    if (!Contains(entry.in_host_memory, worker)) continue;
    machine_.workers_.at(worker).spilled_to_host_bytes -= machine_.memory_.RoundUp(buffer.bytes);
  }
  entry.in_host_memory.clear();
  if (!holders.empty()) machine_.ToGroup(MakeGroup(std::move(holders)), ForgetSpilled{entry.file});
  Count(buffer, -1);
  entry.file = 0;
}

void StateMachine::SpillDesk::KeptByHost(const TicketEntry& ticket, WorkerIndex worker) {
  const BufferPointer& buffer = ticket.tensors.front()->buffer;
  table_.at(buffer->spill_slot).in_host_memory.push_back(worker);
  machine_.workers_.at(worker).spilled_to_host_bytes += machine_.memory_.RoundUp(buffer->bytes);
}

void StateMachine::SpillDesk::Ended(TicketEntry& ticket) {
  const BufferPointer buffer = ticket.tensors.front()->buffer;
  ticket.tensors.clear();
  SpillEntry& entry = table_.at(buffer->spill_slot);
  const bool is_done = ticket.status.ok() && !ticket.closing;
  if (ticket.direction == TransferDirection::kDownload) {
    if (is_done && entry.place == SpillPlace::kLeaving) {
      entry.place = SpillPlace::kAway;
      GiveRangeBack(*buffer);
      return;
    }
    entry.place = SpillPlace::kHere;  // it was wanted meanwhile, or some worker has no file of it
    ForgetFile(*buffer, entry);
    return;
  }
  if (is_done) {
    entry.place = SpillPlace::kHere;
    ForgetFile(*buffer, entry);
    return;
  }
  GiveRangeBack(*buffer);
  entry.place = SpillPlace::kAway;
  // One that was lost takes its part with it, and those that have copies are asked again.
  const bool is_whole = HoldersOf(*buffer).size() == buffer->workers->size();
  if (is_whole) entry.failure = ticket.status.ok() ? absl::UnavailableError("it was given up") : ticket.status;
}

void StateMachine::SpillDesk::Failed(WorkerIndex worker) {
  machine_.workers_.at(worker).spill_failed_us = machine_.now_us_;
}

}  // namespace tessera
