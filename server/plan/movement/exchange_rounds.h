#pragma once

// ExchangeRounds: who takes what from whom in one round of recursive halving and doubling. Pieces (exchange.h) is
// made of it where an exchange goes by rounds; nobody else needs it.
//
//   eight hosts, 2x2x2: sums are halved with the host that differs in the first digit, then in the second, then in the
//   third, and what was reduced is doubled in the opposite order. Each has 3 + 3 messages in place of 7 + 7.
//
// Hosts that want the same are numbered as they come (where none are told, each member of a group is on its own), and
// their numbers are written in mixed radix, most significant digit first. Each piece has an *owner*: who has it, or is
// to have it reduced. Workers of a host are its *columns*: a piece is passed on by the workers of its owner's column.
//
//   kReduce, digit i:  takes the pieces of owners whose digits 0 to i are its own, from those that differ in digit i
//                      alone: of digit 0 their host's sum, later what they have reduced so far
//   kMove, last digit: has its own piece, takes those of owners that differ in this digit alone
//   kGatherReduced, digit i:  takes the pieces of owners that agree in digits 0 to i - 1 and not in i, from those that
//   differ
//                      in digit i alone
//   kHostGather:            takes what the other columns of its host have
//
// Source: Rabenseifner, "Optimization of collective reduction operations" (ICCS 2004); Thakur, Rabenseifner, Gropp,
// "Optimization of collective communication operations in MPICH" (IJHPCA 2005). With a digit for each factor of the
// number of hosts, no number takes more bytes than the direct way.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/exchange_tables.h"

namespace tessera {

class ExchangeRounds {
 public:
  using Sources = absl::InlinedVector<TransferSource, 2>;

  // Keeps references to both. The exchange fits (below).
  ExchangeRounds(const Exchange& exchange, const ExchangeTables& tables);

  // Whether an exchange can go by the rounds that it names: there is such a digit, every piece has one holder, or every
  // destination one term of it, and the hosts of each group of destinations are as many as the factors say, with as
  // many workers each.
  static bool Fit(const Exchange& exchange, const ExchangeTables& tables);

  // The members of a group, by host.
  static std::vector<std::vector<int64_t>> HostsOf(const Exchange& exchange, const ExchangeTables& tables,
                                                   int64_t group);

  // Calls `visit(cell, low, high, sources)` for what a position takes, own pieces included, in order.
  void VisitTaken(int64_t destination,
                  absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t, const Sources&)> visit) const;
  // The positions that may take something from this one, increasing; or whose terms it adds up.
  std::vector<int64_t> Takers(int64_t flat) const;
  // The other positions of its host.
  std::vector<int64_t> Mates(int64_t flat) const;
  // Whether what a host took is to be shared on it.
  bool has_mates() const;

 private:
  struct Place {
    int64_t group = 0;
    int64_t host = 0;  // its number in the group
    int64_t column = 0;
  };
  struct Group {
    std::vector<std::vector<int64_t>> members;    // by host, by column
    std::vector<std::vector<OwnedPiece>> pieces;  // by column of the owner; in order
  };

  void AddPiece(const ExchangeCell& cell, int64_t low, int64_t high, int64_t owner, Group& made) const;
  void AddReducedPieces(int64_t group, Group& made) const;
  void AddHeldPieces(int64_t group, Group& made) const;
  const Group& GroupAt(int64_t flat) const;
  const Place& PlaceAt(int64_t flat) const { return places_[static_cast<size_t>(flat)]; }
  int64_t DigitOf(int64_t host) const { return host / unit_ % factor_; }
  // The hosts that differ from this one in the digit alone, increasing.
  std::vector<size_t> PartnersOf(int64_t host) const;
  bool IsTaken(const OwnedPiece& piece, const Place& self) const;
  Sources SourcesOf(const OwnedPiece& piece, const Place& self, const Group& group) const;
  TransferSource SourceAt(int64_t flat) const;

  const Exchange& exchange_;
  const ExchangeTables& tables_;
  int64_t unit_ = 1;           // what one of the digit stands for
  const int64_t factor_;       // how many values it has
  std::vector<Place> places_;  // by flat position
  mutable absl::flat_hash_map<int64_t, std::unique_ptr<Group>> groups_;
};

}  // namespace tessera
