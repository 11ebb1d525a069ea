// The writing half of snapshot.h: sessions, what they have under way, and turns.

#include <algorithm>
#include <string>
#include <variant>

#include "schemas/codec/values.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/record_encoder.h"
#include "server/coordinator/rpc/snapshot_encoder.h"
#include "server/coordinator/rpc/snapshot_pieces.h"

namespace tessera {
namespace {

void EncodeRuns(const ProfiledRuns& runs, capnp::List<wire::SnapshotRun>::Builder list) {
  for (unsigned i = 0; i < list.size(); ++i) {
    const ProfiledRun& run = runs[i];
    list[i].setWorker(run.worker.value);
    auto times = list[i].initTimes();
    times.setStartedNs(run.times.started_ns);
    times.setEndedNs(run.times.ended_ns);
    times.setWorkNs(run.times.work_ns);
    times.setBusyNs(run.times.busy_ns);
    list[i].setReceivedBytes(run.received_bytes);
    list[i].setPushedBytes(run.pushed_bytes);
    list[i].setTransferredBytes(run.transferred_bytes);
  }
}

void EncodeScope(uint64_t number, const CommScope& scope, wire::SnapshotScope::Builder out) {
  out.setNumber(number);
  FillList(scope.received_bytes, [&](unsigned n) { return out.initReceivedBytes(n); });
  FillList(scope.sent_bytes, [&](unsigned n) { return out.initSentBytes(n); });
  FillList(scope.uploaded_bytes, [&](unsigned n) { return out.initUploadedBytes(n); });
  FillList(scope.downloaded_bytes, [&](unsigned n) { return out.initDownloadedBytes(n); });
  auto counts = out.initCollectives(static_cast<unsigned>(scope.collectives.size()));
  unsigned i = 0;
  for (const auto& [name, count] : scope.collectives) {
    counts[i].setName(Text(name));
    counts[i++].setCount(count);
  }
  out.setFirstOp(scope.first_op);
  out.setEndOp(scope.end_op);
  out.setPending(scope.pending);
  out.setEnded(scope.ended);
  out.setRequest(scope.request);
}

// Handles of a flat map in their order.
template <typename Map>
std::vector<HandleId> KeysOf(const Map& map) {
  std::vector<HandleId> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

void Snapshot::Encoder::EncodeSession(const SessionEntry& session, wire::SnapshotSession::Builder out) {
  EncodeEvent(0, session.info, nullptr, out.initOpened());
  out.setTenant(session.tenant == nullptr ? 0 : static_cast<uint32_t>(session.tenant->number) + 1);
  out.setSeenLosses(session.seen_losses);
  auto names = out.initNames(static_cast<unsigned>(session.names.size()));
  unsigned i = 0;
  for (const auto& [name, handle] : session.names) {
    names[i].setHandle(handle.value);
    names[i++].setName(Text(name));
  }
  out.setQueueWeight(session.queue_weight);
  out.setLoneCalls(session.lone_calls);
  out.setBytes(session.bytes);
  out.setAwaitsUpload(session.awaits_upload);
  if (session.memory_wait.has_value()) {
    auto wait = out.initMemoryWait();
    wait.setBefore(session.memory_wait->before.value);
    wait.setClosedWindows(session.memory_wait->closed_windows);
  }
  out.setWantsSpilled(session.wants_spilled);
  out.setSpilledBytes(session.spilled_bytes);
  out.setLastBatch(session.last_batch);
  out.setLastEvent(session.last_event);
  out.setRecentUs(session.recent_use.level_us_);
  out.setRecentAtUs(session.recent_use.at_us_);
  out.setIsHeavy(session.recent_use.is_heavy_);
  out.setIsConnected(session.connected);
  out.setConnection(session.connection);
  out.setLeaseDeadlineUs(session.lease_deadline_us);
  auto scopes = out.initScopes(static_cast<unsigned>(session.scopes.size()));
  i = 0;
  for (const auto& [number, scope] : session.scopes) EncodeScope(number, scope, scopes[i++]);
  FillList(session.open_scopes, [&](unsigned n) { return out.initOpenScopes(n); });
  out.setTickets(session.tickets);
  auto groups = out.initGroups(static_cast<unsigned>(session.groups.size()));
  i = 0;
  for (const uint64_t group : session.groups) groups.set(i++, group);
  out.setParkedWeight(session.parked_weight);
  out.setProfileNumber(session.profile.next_number());
  auto usage = out.initUsage();
  usage.setDeviceNs(session.usage.device_ns);
  usage.setUploadedBytes(session.usage.uploaded_bytes);
  usage.setDownloadedBytes(session.usage.downloaded_bytes);
  usage.setRefused(session.usage.refused);
}

void Snapshot::Encoder::Sessions() {
  Table(
      machine_.sessions_, [](Part::Builder part, unsigned n) { return part.initSessions(n); },
      [this](const auto& item, wire::SnapshotSession::Builder out) { EncodeSession(item.second, out); });
}

void Snapshot::Encoder::Queues() {
  struct Row {
    SessionId session;
    const Record* record;
    HandleId parked_at = {};
    bool is_unparked = false;
  };
  std::vector<Row> rows;
  for (const auto& [id, session] : machine_.sessions_) {
    for (const Record& record : session.queue) rows.push_back({id, &record});
    for (const HandleId handle : KeysOf(session.parked)) {
      for (const Record& record : session.parked.at(handle)) rows.push_back({id, &record, handle});
    }
  }
  for (const auto& [id, record] : machine_.unparked_) rows.push_back({id, &record, HandleId(), true});
  Table(
      rows, [](Part::Builder part, unsigned n) { return part.initQueued(n); },
      [](const Row& row, wire::SnapshotQueued::Builder out) {
        out.setSession(row.session.value);
        out.setParkedAt(row.parked_at.value);
        out.setIsUnparked(row.is_unparked);
        if (const auto* bad = std::get_if<BadRecord>(row.record)) {
          auto encoded = out.initBad();
          EncodeStatus(bad->status, encoded.initStatus());
          encoded.setRequest(bad->request);
          FillIds(bad->results, [&](unsigned n) { return encoded.initResults(n); });
          FillIds(bad->last_uses, [&](unsigned n) { return encoded.initLastUses(n); });
        } else if (const auto* end = std::get_if<BatchEndRecord>(row.record)) {
          out.setBatchEnd(end->number);
        } else {
          EncodeRecord(*row.record, out.initRecord());
        }
      });
}

void Snapshot::Encoder::EncodeOp(const OpEntry& op, wire::SnapshotOp::Builder out) {
  out.setOrdinal(op.ordinal.value);
  out.setKind(static_cast<uint8_t>(op.kind));
  out.setName(Text(std::string(op.name)));
  if (op.way != nullptr) {
    auto way = out.initWay(static_cast<unsigned>(op.way->size()));
    for (unsigned i = 0; i < way.size(); ++i) {
      way[i].setName(Text(std::string((*op.way)[i].name)));
      EncodeTensorSpec((*op.way)[i].result, way[i].initResult());
    }
  }
  out.setWorksAlone(op.works_alone);
  out.setFirstResult(op.first_result.value);
  out.setSession(op.session.value);
  out.setGroup(GroupNumber(op.workers));
  FillIds(op.missing, [&](unsigned n) { return out.initMissing(n); });
  out.setCostUs(op.cost_us);
  out.setPredictedUs(op.predicted_us);
  out.setIssuedUs(op.issued_us);
  out.setLane(static_cast<uint8_t>(op.lane));
  out.setChargedSession(op.charge.session.value);
  out.setChargedTenant(op.charge.tenant);
  out.setChargedTicks(op.charge.ticks);
  out.setMeasured(MeasuredNumber(op.measured));
  if (!op.status.ok()) EncodeStatus(op.status, out.initStatus());
  if (!op.broken_connection.ok()) EncodeStatus(op.broken_connection, out.initBrokenConnection());
  out.setUnsettledParents(op.unsettled_parents);
  FillIds(op.children, [&](unsigned n) { return out.initChildren(n); });
  auto outputs = out.initOutputs(static_cast<unsigned>(op.outputs.size()));
  for (unsigned i = 0; i < outputs.size(); ++i) outputs.set(i, NumberOf(op.outputs[i]));
  auto waiters = out.initWaiters(static_cast<unsigned>(op.waiters.size()));
  for (unsigned i = 0; i < waiters.size(); ++i) {
    waiters[i].setSession(op.waiters[i].session.value);
    waiters[i].setRequest(op.waiters[i].request);
    waiters[i].setTensor(NumberOf(op.waiters[i].tensor));
  }
  FillList(op.comm_scopes, [&](unsigned n) { return out.initScopes(n); });
  out.setRequest(op.request);
  out.setTicket(op.ticket.value);
  out.setTensor(NumberOf(op.tensor));
  if (op.mesh.size() > 0 && !op.mesh.shape().empty()) EncodeMesh(op.mesh, out.initMesh());
  auto parts = out.initParts(static_cast<unsigned>(op.parts.size()));
  for (unsigned i = 0; i < parts.size(); ++i) {
    parts[i].setPosition(op.parts[i].first);
    parts[i].setBytes(Bytes(op.parts[i].second));
  }
  out.setProfileNumber(op.profile_number);
  auto shares = out.initShares(static_cast<unsigned>(op.shares.size()));
  for (unsigned i = 0; i < shares.size(); ++i) {
    const OpShare& share = op.shares[i];
    shares[i].setSession(share.session.value);
    FillList(share.comm_scopes, [&](unsigned n) { return shares[i].initScopes(n); });
    shares[i].setProfileNumber(share.profile_number);
    shares[i].setResult(share.result.value);
  }
  EncodeRuns(op.runs, out.initRuns(static_cast<unsigned>(op.runs.size())));
}

void Snapshot::Encoder::Ops() {
  Table(
      ops_, [](Part::Builder part, unsigned n) { return part.initOps(n); },
      [this](const OpEntry* op, wire::SnapshotOp::Builder out) { EncodeOp(*op, out); });
}

void Snapshot::Encoder::Tickets() {
  Table(
      machine_.tickets_, [](Part::Builder part, unsigned n) { return part.initTickets(n); },
      [this](const auto& item, wire::SnapshotTicket::Builder out) {
        const TicketEntry& ticket = item.second;
        out.setTicket(item.first.value);
        out.setSession(ticket.session.value);
        out.setSecret(ticket.secret);
        out.setRequest(ticket.request);
        const std::shared_ptr<OpEntry> window = ticket.window.lock();
        out.setWindow(window == nullptr ? 0 : window->ordinal.value);
        out.setDirection(static_cast<uint8_t>(ticket.direction));
        auto tensors = out.initTensors(static_cast<unsigned>(ticket.tensors.size()));
        for (unsigned i = 0; i < tensors.size(); ++i) tensors.set(i, NumberOf(ticket.tensors[i]));
        out.setGroup(GroupNumber(ticket.workers));
        FillIds(ticket.missing, [&](unsigned n) { return out.initMissing(n); });
        out.setIsClosing(ticket.closing);
        out.setAwaitsWorkers(machine_.closing_.contains(item.first));
        if (!ticket.status.ok()) EncodeStatus(ticket.status, out.initStatus());
        out.setProfileNumber(ticket.profile_number);
        EncodeRuns(ticket.runs, out.initRuns(static_cast<unsigned>(ticket.runs.size())));
        FillList(ticket.comm_scopes, [&](unsigned n) { return out.initScopes(n); });
      });
}

void Snapshot::Encoder::Freed() {
  Table(
      machine_.freed_, [](Part::Builder part, unsigned n) { return part.initFreed(n); },
      [this](const FreedRange& range, wire::SnapshotFreed::Builder out) {
        out.setStart(range.start);
        out.setStop(range.stop);
        out.setGroup(GroupNumber(range.workers));
        EncodeHistory(range.history, out.initHistory());
      });
}

void Snapshot::Encoder::Turns() {
  const FairTurns& turns = machine_.turns_;
  One([&turns](Part::Builder part) {
    auto out = part.initTurns();
    auto tenants = out.initTenants(static_cast<unsigned>(turns.tenants_.size()));
    unsigned i = 0;
    for (const auto& [number, tenant] : turns.tenants_) {
      auto row = tenants[i++];
      row.setNumber(number);
      row.setKey(tenant->key);
      row.setWeight(tenant->weight);
      row.setRest(tenant->rest);
      row.setPresent(tenant->present);
      row.setLatest(tenant->latest);
      row.setBacklogged(tenant->backlogged);
      row.setUnderWay(tenant->under_way);
      row.setLastWorkUs(tenant->last_work_us);
      row.setIsRecent(tenant->is_recent);
      row.setIsReady(tenant->place != kInNoHeap);
    }
    std::vector<const FairTurns::Session*> by_number;
    for (const auto& [id, session] : turns.sessions_) by_number.push_back(session.get());
    std::sort(by_number.begin(), by_number.end(), [](const auto* a, const auto* b) { return a->number < b->number; });
    auto sessions = out.initSessions(static_cast<unsigned>(by_number.size()));
    for (i = 0; i < sessions.size(); ++i) {
      const FairTurns::Session& session = *by_number[i];
      sessions[i].setId(session.number);
      sessions[i].setKey(session.key);
      sessions[i].setTenant(static_cast<int32_t>(session.tenant->number));
      sessions[i].setHasWork(session.has_work);
      sessions[i].setGate(session.has_work ? session.gate : FairTurns::kNoGate);
    }
    auto closed = out.initClosed(static_cast<unsigned>(turns.closed_.size()));
    i = 0;
    for (const int32_t gate : turns.closed_) closed.set(i++, gate);
    auto recent = out.initRecent(static_cast<unsigned>(turns.recent_.size()));
    for (i = 0; i < recent.size(); ++i) recent.set(i, static_cast<int32_t>(turns.recent_[i]->number));
    out.setNextLookUs(turns.next_look_us_);
    out.setNowUs(turns.now_us_);
    out.setPresent(turns.present_);
    out.setLatest(turns.latest_);
    out.setBacklogged(turns.backlogged_);
    out.setUnderWay(turns.under_way_);
  });
}

void Snapshot::Encoder::Publications() {
  const PublicationTable& publications = machine_.publications_;
  Table(
      publications.entries_, [](Part::Builder part, unsigned n) { return part.initPublications(n); },
      [this](const auto& item, wire::SnapshotPublication::Builder out) {
        const PublishedEntry& entry = item.second;
        out.setName(Text(entry.name));
        out.setTenant(entry.tenant->number);
        out.setVersion(entry.version);
        auto names = out.initNames(static_cast<unsigned>(entry.tensors.size()));
        auto tensors = out.initTensors(static_cast<unsigned>(entry.tensors.size()));
        for (unsigned i = 0; i < names.size(); ++i) {
          names.set(i, Text(entry.tensors[i].name));
          tensors.set(i, NumberOf(entry.tensors[i].tensor));
        }
        auto readers = out.initReaders(static_cast<unsigned>(entry.readers.size()));
        for (unsigned i = 0; i < readers.size(); ++i) readers.set(i, Text(entry.readers[i]));
        out.setBytes(entry.bytes);
        out.setSeenLosses(entry.seen_losses);
      });
  Table(
      publications.own_, [](Part::Builder part, unsigned n) { return part.initPublishers(n); },
      [](const auto& item, wire::SnapshotPublisher::Builder out) {
        out.setTenant(item.first);
        out.setRemovedVersion(item.second.removed_version);
      });
}

void Snapshot::Encoder::LongWorks() {
  const LongWork& work = machine_.long_work_;
  Table(
      work.losses, [](Part::Builder part, unsigned n) { return part.initLosses(n); },
      [](const WorkerLoss& loss, wire::SnapshotLoss::Builder out) {
        out.setWorker(loss.worker.value);
        EncodeStatus(loss.cause, out.initCause());
        out.setJoins(loss.joins);
      });
  if (work.sweep.has_value()) {
    One([&work](Part::Builder part) {
      auto out = part.initSweep();
      out.setSession(work.sweep->session.value);
      out.setNext(work.sweep->next.value);
      out.setEndLoss(work.sweep->end_loss);
    });
  }
  Table(
      work.given_up, [](Part::Builder part, unsigned n) { return part.initGivenUp(n); },
      [this](const auto& tensors, wire::SnapshotGivenUp::Builder out) {
        auto handles = out.initHandles(static_cast<unsigned>(tensors.size()));
        auto numbers = out.initTensors(static_cast<unsigned>(tensors.size()));
        unsigned i = 0;
        for (const auto& [handle, tensor] : tensors) {
          handles.set(i, handle.value);
          numbers.set(i++, NumberOf(tensor));
        }
      });
}

void Snapshot::Encoder::EncodeArrived(const ArrivedCall& call, wire::SnapshotArrived::Builder out) {
  out.setRank(call.rank);
  out.setSession(call.session.value);
  out.setKind(static_cast<uint8_t>(call.signature.kind));
  out.setReduceOp(static_cast<uint8_t>(call.signature.op));
  out.setRoot(call.signature.root);
  out.setDtype(static_cast<uint8_t>(call.signature.dtype));
  out.setElements(call.signature.elements);
  out.setOnDevices(call.signature.on_devices);
  out.setRequest(call.request);
  out.setOperand(NumberOf(call.operand));
  out.setResult(NumberOf(call.result));
}

void Snapshot::Encoder::EncodeGroup(const ProcessGroupEntry& group, wire::SnapshotGroup::Builder out) {
  out.setId(group.id);
  out.setTenant(Text(group.tenant));
  out.setKey(Text(group.key));
  const auto named = machine_.process_groups_.by_key_.find({group.tenant, group.key});
  out.setIsNamed(named != machine_.process_groups_.by_key_.end() && named->second == group.id);
  auto members = out.initMembers(static_cast<unsigned>(group.members.size()));
  for (unsigned i = 0; i < members.size(); ++i) {
    const GroupMember& member = group.members[i];
    members[i].setState(static_cast<uint8_t>(member.state));
    members[i].setSession(member.session.value);
    members[i].setWorker(member.worker.value);
    members[i].setProcess(Text(member.process));
    members[i].setMeeting(Text(member.meeting));
    members[i].setRequest(member.request);
    members[i].setWhy(Text(member.why));
    members[i].setNextCall(member.next_call);
  }
  out.setIsFormed(group.is_formed);
  out.setFormingDeadlineUs(group.forming_deadline_us);
  out.setFormingTimeoutUs(group.forming_timeout_us);
  auto calls = out.initCalls(static_cast<unsigned>(group.calls.size()));
  for (unsigned i = 0; i < calls.size(); ++i) {
    const GroupCall& call = group.calls[i];
    calls[i].setNumber(call.number);
    auto arrived = calls[i].initArrived(static_cast<unsigned>(call.arrived.size()));
    for (unsigned a = 0; a < arrived.size(); ++a) EncodeArrived(call.arrived[a], arrived[a]);
    if (!call.failed.ok()) EncodeStatus(call.failed, calls[i].initFailed());
    calls[i].setDeadlineUs(call.deadline_us);
    calls[i].setTimeoutUs(call.timeout_us);
  }
  auto messages = out.initMessages(static_cast<unsigned>(group.messages.size()));
  unsigned at = 0;
  for (const WaitingMessage& message : group.messages) {
    auto row = messages[at++];
    EncodeArrived(message.call, row.initCall());
    row.setPeer(message.peer);
    row.setTag(message.tag);
    row.setClaim(message.claim);
    row.setDeadlineUs(message.deadline_us);
    row.setTimeoutUs(message.timeout_us);
    row.setIsBlocked(message.is_blocked);
    row.setHasFailed(message.has_failed);
  }
  auto flight = out.initFlight(static_cast<unsigned>(group.flight.size()));
  for (unsigned i = 0; i < flight.size(); ++i) {
    const FlightCall& call = group.flight[i];
    flight[i].setNumber(call.number);
    flight[i].setWhat(Text(call.what));
    FillList(call.arrived_us, [&](unsigned n) { return flight[i].initArrivedUs(n); });
    flight[i].setMatchedUs(call.matched_us);
    flight[i].setFailure(Text(call.failure));
  }
}

void Snapshot::Encoder::Groups() {
  Table(
      machine_.process_groups_.groups_, [](Part::Builder part, unsigned n) { return part.initProcessGroups(n); },
      [this](const auto& item, wire::SnapshotGroup::Builder out) { EncodeGroup(item.second, out); });
}

}  // namespace tessera
