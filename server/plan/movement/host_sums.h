#pragma once

// HostSums: with several hosts, who gives the terms of a family's cells (exchange_tables.h) to those who reduce them
// on one host. Pure arithmetic; everybody who knows the terms and the hosts finds the same.
//
//   terms a, b on host 0, c, d, e on host 1, reduced on host 0: a + b + (c + d + e). Three workers add up and send
//   equal lengths of it: c's the first, d's the second, e's the third.
//
// Law: a term comes from the host where it is reduced if it is there; the others come as one sum from each of the
// fewest hosts that have them all. (Fewest for terms on up to kExactHosts other hosts; beyond that whichever host has
// most is taken first.)

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/plan/movement/shared_line.h"

namespace tessera {

struct TermHolder {
  int64_t flat = 0;  // position in the source's mesh
  int32_t host = 0;
};
using TermHolders = std::vector<std::vector<TermHolder>>;  // by term; one per replica

// The terms that one worker gives: its own, or a sum.
struct GivenTerms {
  int64_t giver = 0;  // flat position
  // Positions whose terms the giver adds up, in order; one: just its own.
  absl::InlinedVector<int64_t, 8> terms;
};

// The terms that a host has.
struct HostTerms {
  int32_t host = 0;
  std::vector<std::vector<int64_t>> holders;  // of each of them, on that host
  std::vector<int64_t> packers;               // all of these, increasing
};

// The terms of a family, and which hosts have them.
class TermsByHost {
 public:
  explicit TermsByHost(TermHolders holders);

  // How many hosts send a sum to `host`.
  int64_t CountSendingHosts(int32_t host) const;

 private:
  friend class HostSums;
  const HostTerms* Find(int32_t host) const;
  // The terms that a host has, as numbers.
  const std::vector<size_t>& TermsOn(int32_t host) const;
  // The hosts that send sums of all other terms to the hosts that have these, by host.
  const std::vector<HostTerms>& SendersOfOthers(const std::vector<size_t>& near) const;

  // Whether no term is on two hosts: then every host but the one that reduces sends what it has.
  bool are_apart_ = false;
  std::vector<HostTerms> hosts_;  // by host; their terms, if they are apart
  // Unless they are:
  TermHolders holders_;
  std::vector<std::vector<size_t>> hosts_of_terms_;  // by term: numbers in hosts_, increasing
  std::vector<std::vector<size_t>> terms_of_hosts_;  // by host: likewise
  mutable std::map<std::vector<size_t>, std::vector<HostTerms>> senders_;
};

class HostSums {
 public:
  // Divides `length` elements that are reduced on `host`. Keeps a reference to the terms. Not for several threads at
  // once.
  HostSums(const TermsByHost& terms, int32_t host, int64_t length);

  // Calls `visit(low, high, given)` for parts of elements [low, high) of a cell of this shape, which begin at `start`
  // of what is reduced on the host: its own terms, then the other hosts' sums by host. `own_flat` is the reducer's
  // position in the source's mesh: a term of its own it takes from itself. `from_host`: what is given on that host
  // alone, of the same parts.
  void Visit(int64_t start, absl::Span<const int64_t> shape, int64_t low, int64_t high, int64_t own_flat,
             std::optional<int32_t> from_host,
             absl::FunctionRef<void(int64_t, int64_t, absl::Span<const GivenTerms>)> visit) const;

 private:
  // A line of equal parts for this many givers, if there is none.
  void AddLine(size_t givers, int64_t length);
  // Calls `visit(sum)` for those from whom a sum comes: all, or one.
  void VisitFar(std::optional<int32_t> from_host, absl::FunctionRef<void(const HostTerms&)> visit) const;

  int32_t host_ = 0;
  HostTerms near_;
  const std::vector<HostTerms>* far_ = nullptr;  // the terms'; who sends to others, and may be this host
  std::vector<SharedLine> lines_;                // givers() are numbers from 0
};

}  // namespace tessera
