#pragma once

// Collectives: calls that all workers of a set make together (server/plan/lower/collective_calls.h), where the
// transport's library has them. Messages of pairs are transport.h's.
//
//   transport.collectives()->Announce({7, 1}, {0, 1, 2, 3});          // in the order of instructions
//   transport.collectives()->Enter({7, 1}, {{&call, memory...}}, done);   // when the memory is there
//
// Law: every worker announces its calls by increasing key, and makes them in that order. Keys are the coordinator's,
// one order for all, so no two sets of workers are entered in different orders.
//
// Law: all workers of a call make it, or none does: each says that it is there, or refuses, before any of them enters.

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "server/plan/lower/collective_calls.h"
#include "server/transport/transport.h"

namespace tessera {

struct CollectiveKey {
  uint64_t ordinal = 0;
  uint32_t phase = 0;
  bool operator==(const CollectiveKey&) const = default;
  bool operator<(const CollectiveKey& other) const {
    return std::tie(ordinal, phase) < std::tie(other.ordinal, other.phase);
  }
};

// One call of a phase, as this worker makes it: a rank of it, which gives and takes a GPU's memory.
struct CollectivePart {
  CallKind kind = CallKind::kAllGather;
  size_t root = 0;
  DType dtype = DType::kF32;
  int64_t count = 0;
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
};

class Collectives {
 public:
  using Done = MessageTransport::Done;

  virtual ~Collectives() = default;

  // Takes its place in the order; from one thread. `workers` are sorted, this one is among them. Either of the others
  // follows, once.
  virtual void Announce(CollectiveKey key, std::vector<WorkerIndex> workers) = 0;
  // The source has its bytes, and the destination may be written. Done comes when both are free again, or with
  // Unavailable where a worker is lost or takes no part; its name is in the text. From any thread.
  virtual void Enter(CollectiveKey key, std::vector<CollectivePart> parts, Done done) = 0;
  // This worker takes no part, and so nobody does. From any thread.
  virtual void Refuse(CollectiveKey key) = 0;
};

}  // namespace tessera
