#pragma once

// ExchangeTables: who takes which piece of which cell from whom, worked out from an Exchange alone. Pieces
// (exchange.h) is made of them; nobody else needs them.
//
// Words: the *family* of a source position is its coordinates but on the dims that replicate and the pending
// ones: positions of a family hold the same box, once per term and replica. The *group* of a destination
// position is its coordinates but on the dims that replicate: the members of a group want the same cells.
// Numbers of positions are sums of what each tensor dim's shard, each term and each replica adds.
//
// Tables are made when they are first asked for and kept: a table of a family costs what its holders give, and one
// of a group what its members take. Not for several threads at once.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/host_sums.h"
#include "server/plan/movement/shared_line.h"

namespace tessera {

// One entry per dim, with its numbers.
struct ExchangeCell {
  absl::InlinedVector<const OverlayEntry*, 6> entries;
  Shape shape;
  int64_t number = 0;  // row-major over the entries: the order of cells
  int64_t elements = 1;
  int64_t family = 0;       // of the positions that hold it
  int64_t source = 0;       // the flat position of its first holder: term 0, replica 0
  int64_t destination = 0;  // the flat position of its first destination
};

// Elements [low, high) of a cell, in row-major order, which its owner (a flat position of the destination) has first:
// it reduces them, or takes them as a relay, and others take them from its place.
struct OwnedPiece {
  ExchangeCell cell;
  int64_t low = 0;
  int64_t high = 0;
  int64_t owner = 0;
};

class ExchangeTables {
 public:
  static constexpr int64_t kMoved = -1;  // in place of who reduces

  explicit ExchangeTables(const Exchange& exchange);

  bool same_mesh() const { return same_mesh_; }
  int64_t term_count() const { return static_cast<int64_t>(term_offsets_.size()); }
  int64_t replica_count() const { return static_cast<int64_t>(replica_offsets_.size()); }
  // The offsets that a term, a replica, a member adds to a flat position.
  const std::vector<int64_t>& term_offsets() const { return term_offsets_; }
  const std::vector<int64_t>& replica_offsets() const { return replica_offsets_; }
  const std::vector<int64_t>& member_offsets() const { return member_offsets_; }

  // A position of the source's mesh, taken apart.
  struct Holder {
    int64_t family = -1;  // -1: not in the source's mesh
    int64_t term = 0;
    int64_t replica = 0;
    int64_t flat = -1;
  };
  Holder HolderAt(int64_t source_flat) const { return holders_[static_cast<size_t>(source_flat)]; }
  // As the worker at a flat position of the destination's mesh.
  const Holder& HolderOfDestination(int64_t destination_flat) const {
    return destination_holders_[static_cast<size_t>(destination_flat)];
  }
  // The first member of the position's group.
  int64_t GroupOf(int64_t destination_flat) const;

  // The cells that a destination position wants, in order.
  void VisitWanted(int64_t destination_flat, absl::FunctionRef<void(const ExchangeCell&)> visit) const;
  // The cells that a source position holds, in order.
  void VisitHeld(int64_t source_flat, absl::FunctionRef<void(const ExchangeCell&)> visit) const;
  // Elements that a source position holds and a destination position wants.
  int64_t CommonElements(int64_t source_flat, int64_t destination_flat) const;

  // The pieces of a group's cells with their reducers, in order; or with the relays of pieces that are far from some.
  // Only where there are terms, or relays.
  const std::vector<OwnedPiece>& PiecesOf(int64_t group) const;
  // Calls `visit` for the pieces of one cell, in order. Where one position alone wants the cell no table is made.
  void VisitPieces(const ExchangeCell& cell, absl::FunctionRef<void(const OwnedPiece&)> visit) const;

  // Where the reducer takes a term of a cell from, having been told a replica: a flat position of the source. From
  // itself if it holds the term. Not with several hosts.
  int64_t SourceOf(const ExchangeCell& cell, int64_t term, int64_t replica, int64_t reducer) const;
  // With several hosts: calls `visit(low, high, given)` for the parts of what is reduced, which differ in who gives the
  // terms (host_sums.h); `from_host`: what is given on that host alone, of the same parts.
  void VisitSums(const OwnedPiece& piece, std::optional<int32_t> from_host,
                 absl::FunctionRef<void(int64_t, int64_t, absl::Span<const GivenTerms>)> visit) const;

  bool has_relays() const { return exchange_.far_takers == FarTakers::kRelays; }
  // With several hosts: whether a position's host has none of what it wants, elements of a cell that is moved or that
  // `reducer` reduces or relays (or -1).
  bool IsFar(const ExchangeCell& cell, int64_t reducer, int64_t destination) const;
  // Whether a position takes nothing of a piece in the spread: it has it, or took it when it was moved.
  bool HasBeforeSpread(const OwnedPiece& piece, int64_t destination) const {
    return piece.owner == destination || (has_relays() && !IsFar(piece.cell, kMoved, destination));
  }
  // Calls `visit(taker, low, high)` for the parts of elements of a cell, moved or a whole piece that is reduced, which
  // members of the cell's group take for their host, to which it is far.
  void VisitTakers(const ExchangeCell& cell, int64_t low, int64_t high, int32_t host,
                   absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const;
  // Calls `visit(low, high)` for the parts that the destination takes itself: all, or as a taker.
  void VisitTaken(const ExchangeCell& cell, int64_t low, int64_t high, int64_t reducer, int64_t destination,
                  absl::FunctionRef<void(int64_t, int64_t)> visit) const;
  // Calls `visit(low, high)` for what a position's host wants from far of a cell, in order.
  void VisitFar(const ExchangeCell& cell, int64_t destination_flat,
                absl::FunctionRef<void(int64_t, int64_t)> visit) const;
  // Calls `visit(cell, low, high)` for what it wants from far of all cells.
  void VisitFar(int64_t destination_flat, absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t)> visit) const;
  // The members of a position's group on its host, itself among them.
  const std::vector<int64_t>& MatesOf(int64_t destination_flat) const {
    return FarLineOf(GroupOf(destination_flat), HostOfDestination(destination_flat)).line.givers();
  }
  // Members of the group on each host that has some, by host.
  std::vector<std::vector<int64_t>> MembersByHost(int64_t group) const;
  int32_t HostOfDestination(int64_t flat) const;
  // By host of MembersByHost: the elements that are far from it. Not with relays.
  std::vector<int64_t> FarElements(int64_t group, absl::Span<const std::vector<int64_t>> members) const;

  // Calls `visit(replica, low, high)` for the parts of elements [low, high) of a cell that the destination (or
  // reducer) takes from holders of that replica; not for a destination that holds the cell.
  void VisitParts(const ExchangeCell& cell, int64_t low, int64_t high, int64_t destination,
                  absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const;

  // Elements that each source position gives; kMove where nothing has to be cut. Empty: not known in closed form.
  const std::vector<int64_t>& given_elements() const { return given_elements_; }

 private:
  struct Take {
    int64_t cell = 0;
    int64_t low = 0;
    int64_t destination = 0;
    int64_t start = 0;  // on its line
    size_t line = 0;
    int64_t length = 0;
    bool operator<(const Take& other) const;
  };
  // Cells that the members of a group on one host want from far.
  struct FarLine {
    struct Item {
      int64_t cell = 0;
      int64_t low = 0;
      int64_t start = 0;
    };
    std::vector<Item> items;  // in order
    SharedLine line;          // of members
  };
  // How the replicas of a family share what they give.
  struct Sharing {
    bool own_coordinates = false;  // each takes from the replica at its own coordinates
    std::vector<Take> takes;
    std::vector<SharedLine> lines;  // of replicas
    std::vector<HostSums> sums;     // by host that reduces, in place of lines
  };

  void NumberSource();
  void NumberDestination();
  void IndexEntries();
  void WeighMoves();
  void FillCell(absl::Span<const int> at, const std::pair<int64_t, int64_t>& carried, ExchangeCell& cell) const;
  template <typename Choice, typename Visitor>
  void VisitProduct(absl::Span<const int> counts, const Choice& choice, const Visitor& visit) const;
  const Sharing& SharingOf(const ExchangeCell& cell) const;
  Sharing MakeSharing(const ExchangeCell& cell) const;
  void ShareByHost(const ExchangeCell& cell, Sharing& sharing) const;
  void SumByHost(const ExchangeCell& cell, Sharing& sharing) const;
  const TermsByHost& TermsOf(const ExchangeCell& cell) const;
  int32_t HostOfSource(int64_t flat) const;
  // Whether what is taken was moved, not reduced.
  bool moves() const {
    return exchange_.role == ExchangeRole::kMove ||
           (exchange_.role == ExchangeRole::kHostGather && term_count() == 1 && !has_relays());
  }
  const std::vector<int32_t>& HostsOfFamily(const ExchangeCell& cell) const;  // sorted
  const FarLine& FarLineOf(int64_t group, int32_t host) const;
  std::vector<int64_t> MembersOn(int64_t group, int32_t host) const;
  std::vector<int64_t> FarMembers(const ExchangeCell& cell, absl::Span<const int64_t> members) const;
  std::vector<int64_t> OnNearestHosts(const ExchangeCell& cell, absl::Span<const int64_t> candidates) const;

  const Exchange& exchange_;
  bool same_mesh_ = true;
  std::vector<int64_t> term_offsets_;
  std::vector<int64_t> replica_offsets_;
  std::vector<int64_t> member_offsets_;
  std::vector<std::vector<int64_t>> family_parts_;       // by tensor dim and source shard
  std::vector<std::vector<int64_t>> source_parts_;       // the same, for flat positions
  std::vector<std::vector<int64_t>> destination_parts_;  // by tensor dim and destination shard
  std::vector<Holder> holders_;
  std::vector<Holder> destination_holders_;
  std::vector<std::pair<int64_t, int64_t>> carried_;  // by destination position: family part, flat part
  std::vector<int64_t> groups_;                       // by destination position
  std::vector<std::vector<std::vector<int>>> entries_of_source_shard_;
  std::vector<std::vector<std::pair<int, int>>> entries_of_destination_shard_;  // ranges
  std::vector<int64_t> cell_strides_;
  std::vector<int64_t> given_elements_;
  mutable absl::flat_hash_map<int64_t, std::unique_ptr<std::vector<OwnedPiece>>> pieces_;         // by group
  mutable absl::flat_hash_map<int64_t, std::unique_ptr<const TermsByHost>> terms_;                // by family
  mutable absl::flat_hash_map<int64_t, std::unique_ptr<Sharing>> sharings_;                       // by family
  mutable absl::flat_hash_map<std::pair<int64_t, int32_t>, std::unique_ptr<FarLine>> far_lines_;  // by group and host
  mutable absl::flat_hash_map<int64_t, std::vector<int32_t>> hosts_of_family_;                    // sorted
};

}  // namespace tessera
