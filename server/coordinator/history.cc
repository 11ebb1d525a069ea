#include "server/coordinator/history.h"

#include <algorithm>

namespace tessera {
namespace {

bool SameGroup(const WorkerGroup& a, const WorkerGroup& b) { return a == b || *a == *b; }

bool HasAllOf(const WorkerGroup& group, const WorkerGroup& others) {
  return group == others || std::includes(group->begin(), group->end(), others->begin(), others->end());
}

template <typename List>
void AddNewest(List& list, const Access& access) {
  for (Access& known : list) {
    if (known.stream == access.stream && SameGroup(known.workers, access.workers)) {
      known.ordinal = std::max(known.ordinal, access.ordinal);
      return;
    }
  }
  list.push_back(access);
}

void AddOwnWait(const Access& access, uint8_t stream, int phase, std::vector<InstanceWait>& waits) {
  if (access.stream == stream) return;  // stream order
  AddWait(waits, {phase, access.stream, access.ordinal, WaitScope::kOwn, *access.workers});
}

template <typename List>
bool HasOneIn(const List& list, Lane lane) {
  return std::any_of(list.begin(), list.end(),
                     [lane](const Access& access) { return LaneOf(static_cast<StreamId>(access.stream)) == lane; });
}

}  // namespace

bool History::IsWrittenIn(Lane lane) const { return HasOneIn(writes_, lane); }
bool History::IsTouchedIn(Lane lane) const {
  return IsWrittenIn(lane) || HasOneIn(reads_, lane) || HasOneIn(peer_reads_, lane);
}

void AddWait(std::vector<InstanceWait>& waits, InstanceWait wait) {
  for (InstanceWait& known : waits) {
    if (known.stream == wait.stream && known.scope == wait.scope && known.workers == wait.workers &&
        (known.phase == wait.phase || (known.phase <= wait.phase) == (known.ordinal >= wait.ordinal))) {
      // The same counters: the later ordinal at the earlier phase covers both.
      known.phase = std::min(known.phase, wait.phase);
      known.ordinal = std::max(known.ordinal, wait.ordinal);
      return;
    }
  }
  waits.push_back(std::move(wait));
}

void History::AddWrite(const Access& access) {
  writes_.clear();
  writes_.push_back(access);
  reads_.clear();
  peer_reads_.clear();
}

void History::AddRead(const Access& access) { AddNewest(reads_, access); }
void History::AddPeerRead(const Access& access) { AddNewest(peer_reads_, access); }

void History::Merge(const History& other) {
  for (const Access& access : other.writes_) AddNewest(writes_, access);
  for (const Access& access : other.reads_) AddNewest(reads_, access);
  for (const Access& access : other.peer_reads_) AddNewest(peer_reads_, access);
}

void History::WaitsForRead(uint8_t stream, int phase, std::vector<InstanceWait>& waits) const {
  for (const Access& write : writes_) AddOwnWait(write, stream, phase, waits);
}

void History::WaitsForPeerRead(int phase, const WorkerGroup& readers, std::vector<InstanceWait>& waits) const {
  for (const Access& write : writes_) {
    InstanceWait wait = {phase, write.stream, write.ordinal, WaitScope::kReadsFrom, {}};
    if (!HasAllOf(write.workers, readers)) wait.workers = *write.workers;
    AddWait(waits, std::move(wait));
  }
}

void History::WaitsForWrite(uint8_t stream, int phase, std::vector<InstanceWait>& waits) const {
  for (const Access& write : writes_) AddOwnWait(write, stream, phase, waits);
  for (const Access& read : reads_) AddOwnWait(read, stream, phase, waits);
  for (const Access& read : peer_reads_) {
    AddWait(waits, {phase, read.stream, read.ordinal, WaitScope::kWorkers, *read.workers});
  }
}

}  // namespace tessera
