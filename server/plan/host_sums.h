#pragma once

// HostSums: with several hosts, who gives the terms of a family's cells (exchange_tables.h) to those who reduce them
// on one host. Pure arithmetic; everybody who knows the terms and the hosts finds the same.
//
//   terms a, b on host 0, c, d, e on host 1, reduced on host 0: a + b + (c + d + e). Of three equal lengths of what
//   is reduced there, c's worker adds up and sends the first, d's the second, e's the third.
//
// Law: a term comes from the host where it is reduced if it is there; the others come as one sum from each of the
// fewest hosts that have them all. (Fewest for terms on up to kExactHosts other hosts; beyond that whichever host has
// most is taken first.)

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/plan/shared_line.h"

namespace tessera {

struct TermHolder {
  int64_t flat = 0;  // position in the source's mesh
  int32_t host = 0;
};
using TermHolders = std::vector<std::vector<TermHolder>>;  // by term; one per replica

// What one worker gives: its own term, or a sum.
struct GivenTerms {
  int64_t giver = 0;  // flat position
  // Whose terms the giver adds up, in order; one: just its own.
  absl::InlinedVector<int64_t, 4> terms;
};

class HostSums {
 public:
  // Of `length` elements that are reduced on `host`.
  HostSums(const TermHolders& holders, int32_t host, int64_t length);

  // Calls `visit(low, high, given)` for parts of elements [low, high) of a cell of this shape, which begin at `start`
  // of what is reduced on the host: its own terms, then the other hosts' sums by host. `own_flat` is the reducer's
  // position in the source's mesh: a term of its own it takes from itself.
  void Visit(int64_t start, absl::Span<const int64_t> shape, int64_t low, int64_t high, int64_t own_flat,
             absl::FunctionRef<void(int64_t, int64_t, absl::Span<const GivenTerms>)> visit) const;

 private:
  struct FromHost {
    std::vector<std::vector<int64_t>> holders;  // of each of its terms, on that host
    std::vector<int64_t> packers;               // all of them, increasing
  };
  // A line of equal parts for this many givers, if there is none.
  void AddLine(size_t givers, int64_t length);

  FromHost near_;
  std::vector<FromHost> far_;
  std::vector<SharedLine> lines_;  // givers() are numbers from 0
};

// How many hosts send a sum to `host`.
int64_t CountSendingHosts(const TermHolders& holders, int32_t host);

}  // namespace tessera
