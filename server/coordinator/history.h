#pragma once

// History: who touched a range of memory, as far as it isn't known to be over. From it come the waits
// of the next instruction that touches the range (docs/architecture.md).
//
// Law: a wait names a smaller ordinal than the instruction that waits. Accesses in stream order on the
// same worker need no wait. An instruction that is complete on all workers needs none.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "schemas/types/streams.h"
#include "server/coordinator/effects.h"
#include "server/plan/instance.h"

namespace tessera {

// One instruction's touch of one buffer, by the workers of a group.
struct Access {
  uint8_t stream = 0;
  Ordinal ordinal;
  WorkerGroup workers;  // that run the instruction
};

class History {
 public:
  void AddWrite(const Access& access);  // what came before is implied by it, and forgotten
  void AddRead(const Access& access);   // on the own worker
  void AddPeerRead(const Access& access);

  // Whether some write, or any access, is on a stream of the lane.
  bool IsWrittenIn(Lane lane) const;
  bool IsTouchedIn(Lane lane) const;
  bool empty() const { return writes_.empty() && reads_.empty() && peer_reads_.empty(); }
  // Adds what another history of (part of) the same range says.
  void Merge(const History& other);
  // Forgets what is complete. `is_complete(ordinal)`.
  template <typename F>
  void Prune(const F& is_complete);

  // Waits of an instruction on `stream` that, from `phase` on, reads the range on its own worker, reads
  // it on peers, or writes it. Appended to `waits`; AddWait drops what others imply.
  void WaitsForRead(uint8_t stream, int phase, std::vector<InstanceWait>& waits) const;
  // `readers`: the workers that run the instruction. Only a reader that ran the awaited instruction, too, is ever done
  // with it.
  void WaitsForPeerRead(int phase, const WorkerGroup& readers, std::vector<InstanceWait>& waits) const;
  void WaitsForWrite(uint8_t stream, int phase, std::vector<InstanceWait>& waits) const;

 private:
  friend class Snapshot;
  absl::InlinedVector<Access, 1> writes_;  // more than one only after Merge
  absl::InlinedVector<Access, 2> reads_;
  absl::InlinedVector<Access, 2> peer_reads_;
};

void AddWait(std::vector<InstanceWait>& waits, InstanceWait wait);

template <typename F>
void History::Prune(const F& is_complete) {
  auto prune = [&](auto& list) {
    for (size_t i = 0; i < list.size();) {
      if (is_complete(list[i].ordinal)) {
        list[i] = list.back();
        list.pop_back();
      } else {
        ++i;
      }
    }
  };
  prune(writes_);
  prune(reads_);
  prune(peer_reads_);
}

}  // namespace tessera
