#pragma once

// Exchange: who takes what from whom, in factorised form. Per tensor dim a 1-D overlay of source and
// destination intervals; the product over dims is implied. 4,096 workers cost thousands of entries,
// not millions of pairs.
//
//   rows to columns, 4x4 on two workers:
//     dim 0: [0:2) shard 0 -> shard 0 (whole), [2:4) shard 1 -> shard 0   destination is not cut here
//     dim 1: [0:2) -> destination shard 0, [2:4) -> destination shard 1   source is not cut here
//
// A cell is one entry per dim: a box of the destination that lies in one shard of the source and in
// one of the destination. Law: over the cells that a position receives, every element of its box is
// written exactly once (kMove, kReduce with kSpread together), or reduced exactly once per term.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

struct OverlayEntry {
  int64_t start = 0;  // global index in the destination's dim
  int64_t size = 0;
  int32_t source_shard = 0;        // shard index along this dim (layout.h) in the source
  int32_t destination_shard = 0;   // in the destination
  int64_t source_offset = 0;       // first element, within the source's shard along this dim
  int64_t destination_offset = 0;  // within the destination's shard
  // Levels reductions: among the destinations that get this cell, which one reduces it (index over
  // the free mesh dims, row-major); 0 when there is no choice. See Exchange::leveled_dims.
  int32_t part = 0;
  bool operator==(const OverlayEntry&) const = default;
};

struct DimOverlay {
  int64_t source_step = 1;  // a slice x[::2] walks the source with a step; may be negative
  std::vector<OverlayEntry> entries;
  bool operator==(const DimOverlay&) const = default;
};

enum class ExchangeRole : uint8_t {
  kMove = 0,    // no pending terms: every destination takes each cell from one holder
  kReduce = 1,  // pending terms: one destination of each cell (the reducer) takes all terms and reduces
                // them, in the order of the source's coordinates, into its own place
  kSpread = 2,  // the other destinations take the reduced cell from the reducer's place
};

struct Exchange {
  ExchangeRole role = ExchangeRole::kMove;
  ReduceOp reduce_op = ReduceOp::kSum;
  // The specs that the shard indexes refer to. For kSpread `source` is the pending spec too: the same
  // reducers are found again.
  TensorSpec source;
  TensorSpec destination;
  std::vector<DimOverlay> dims;
  // Mesh dims of the destination over which `part` chooses the reducer.
  std::vector<int> leveled_dims;
  bool operator==(const Exchange&) const = default;
};

// One term or the one holder of a cell.
struct TransferSource {
  WorkerIndex worker;
  int64_t flat_position = 0;  // in the mesh where the data lies
};

// A cell as one destination position gets it. Offsets are in elements along each dim, within the
// shards. More than one source: pending terms, to be reduced in this order.
struct Transfer {
  Box box;              // global, of the destination
  Shape source_offset;  // one per dim
  Shape destination_offset;
  absl::InlinedVector<TransferSource, 2> sources;
};

// What `position` of the destination mesh takes, own pieces included, in a fixed order that senders
// reproduce. This is the meaning of an Exchange: Lower, Interpret and Verify all ask it.
//
// Holder of a cell under kMove, same mesh: the source position that agrees with the destination's
// own coordinates on every mesh dim that does not shard the source (so itself, if it holds the cell;
// else holders are taken in turn). Other mesh: itself if its worker holds it; else holder number
// (rank among the destinations) mod (number of holders).
//
// Reducer of a cell, same mesh: on mesh dims that the destination replicates, the cell's source
// coordinate where the source shards, and the coordinate that `part` says on leveled_dims. So it
// holds a term whenever some destination does. Other mesh: number `part` mod n of the n destinations
// that hold a term, or of all destinations when none does. Under kSpread the reducer itself takes
// nothing: the cell is in place.
std::vector<Transfer> TransfersTo(const Exchange& exchange, absl::Span<const int64_t> position);

// The same for many positions: the tables that don't depend on the position are made once. Keeps a
// reference to the exchange. The exchange is one that VerifyPlan accepts.
class ExchangeWalk {
 public:
  explicit ExchangeWalk(const Exchange& exchange);

  std::vector<Transfer> TransfersTo(absl::Span<const int64_t> position) const;
  // Calls `visit(worker, elements)` for each piece that TransfersTo takes from another worker, without
  // building the list.
  void VisitReceived(absl::Span<const int64_t> position, absl::FunctionRef<void(WorkerIndex, int64_t)> visit) const;
  // Flat positions of the destination mesh, increasing, that take something from this worker's
  // memory. The worker itself is left out.
  std::vector<int64_t> ReadersOf(WorkerIndex worker) const;
  // The number of terms of a cell: 1 but under kReduce.
  int64_t term_count() const { return term_count_; }

 private:
  // How the mesh dims play when both specs are on one mesh.
  struct MeshDimRule {
    int64_t size = 1;
    bool source_shards = false;
    bool destination_shards = false;
    bool destination_replicates = false;
    bool pending = false;  // Partial in the source and not in the destination
    bool leveled = false;
  };
  using Cell = absl::InlinedVector<const OverlayEntry*, 6>;

  template <typename Visitor>
  void VisitCells(absl::Span<const std::pair<int, int>> ranges, const Visitor& visitor) const;
  absl::InlinedVector<std::pair<int, int>, 6> RangesOf(absl::Span<const int64_t> position) const;
  void SetSourceCoordinates(const Cell& cell, Position& position) const;
  void SetDestinationCoordinates(const Cell& cell, Position& position) const;
  void SetPartCoordinates(const Cell& cell, Position& position) const;
  Position ReducerOf(const Cell& cell, absl::Span<const int64_t> position) const;
  // Empty: this position takes nothing of the cell.
  absl::InlinedVector<TransferSource, 2> SourcesOf(const Cell& cell, absl::Span<const int64_t> position) const;
  absl::InlinedVector<TransferSource, 2> SourcesOnOtherMesh(const Cell& cell, int64_t flat_position) const;
  std::vector<int64_t> HoldersOf(const Cell& cell, int64_t term) const;
  std::vector<int64_t> DestinationsOf(const Cell& cell) const;
  template <typename Visitor>
  void VisitCellsFrom(absl::Span<const int64_t> source_position, const Visitor& visitor) const;
  // The readers of one cell at `source_position`, marked by flat position.
  void MarkReaders(const Cell& cell, absl::Span<const int64_t> source_position, std::vector<bool>& readers) const;

  const Exchange& exchange_;
  bool same_mesh_ = true;
  int64_t term_count_ = 1;
  std::vector<int> pending_dims_;  // of the source's mesh
  std::vector<MeshDimRule> rules_;
  std::vector<std::vector<int>> source_mesh_dims_;       // by tensor dim
  std::vector<std::vector<int>> destination_mesh_dims_;  // by tensor dim
};

// Whether two meshes have the same workers in the same arrangement; names may differ.
bool SamePositions(const Mesh& a, const Mesh& b);

}  // namespace tessera
