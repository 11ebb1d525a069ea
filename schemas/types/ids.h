#pragma once

// Integers that must not be mixed up: a tensor dim, a mesh dim and a worker are different types.
//
// A strong id is explicit to make and explicit to read (`.value`), has equality, order and a hash,
// and no arithmetic.

#include <cstdint>
#include <utility>

namespace tessera {

template <typename Tag, typename Representation>
struct StrongId {
  Representation value = 0;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Representation v) : value(v) {}
  friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value);
  }
};

using WorkerIndex = StrongId<struct WorkerIndexTag, int32_t>;  // numbered from 0 in a cluster
using SessionId = StrongId<struct SessionIdTag, uint64_t>;     // given by the coordinator
using HandleId = StrongId<struct HandleIdTag, uint64_t>;       // a client's name for a tensor
using Ordinal = StrongId<struct OrdinalTag, uint64_t>;         // place in the total order
using TemplateId = StrongId<struct TemplateIdTag, uint64_t>;   // a plan known to the workers
using TicketId = StrongId<struct TicketIdTag, uint64_t>;       // one upload or download

}  // namespace tessera
