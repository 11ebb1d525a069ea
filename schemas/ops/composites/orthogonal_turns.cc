// Factorisations by reflections, of matrices whose columns are dealt out to the workers in turns: QR, and the reduction
// to a band, whose singular values and vectors LAPACK finds on every worker.

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/dealt_columns.h"
#include "schemas/ops/composites/matrices.h"
#include "schemas/ops/op_ids.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// A smaller matrix is gathered for its singular values or eigenvalues; so is one of fewer workers, where it fits:
// LAPACK takes less time for the whole.
constexpr int64_t kMinBandColumns = 1024;  // docs/limits.md: min_band_columns
constexpr int64_t kMinBandWorkers = 8;     // docs/limits.md: min_band_workers
// Eigenvectors on fewer workers need as much memory by panels as gathered.
constexpr int64_t kMinEighWorkers = 4;  // docs/limits.md: min_eigh_workers

// A panel's reflections as one: Q = I - V T V^H (Schreiber, Van Loan, "A storage-efficient WY representation for
// products of Householder transformations", 1989), and R.
struct Reflections {
  V vectors;   // [..., rows, width], with the ones and zeros on and above the diagonal
  V t;         // [..., width, width]
  V triangle;  // [..., width, width]
};
Reflections ReflectionsOf(G& g, const V& panel) {
  const int64_t rows = Rows(panel), width = Columns(panel);
  const std::vector<V> parts =
      Unpacked(g, MatrixFunction(g, LinalgKind::kReflectors, {panel}), BatchOf(panel), {{rows, width}, {width, width}});
  if (g.failed()) return {panel, panel, panel};
  const V vectors = g.Where(OnDiagonal(g, parts[0]), V(1), Triangle(g, OpId::kTril, parts[0], -1));
  const V triangle = Triangle(g, OpId::kTriu, RowsOf(g, parts[0], 0, width), 0);
  return {vectors, Computed(g, parts[1]), Computed(g, triangle)};  // views would keep the panel
}

// Q^H times columns, which may have a dim of the workers before their rows.
V Reflected(G& g, const Reflections& q, const V& columns) {
  if (g.failed()) return columns;
  const bool is_dealt = columns.rank() > q.vectors.rank();
  const V vectors = is_dealt ? g.ExpandDim(q.vectors, q.vectors.rank() - 2) : q.vectors;
  const V t = is_dealt ? g.ExpandDim(q.t, q.t.rank() - 2) : q.t;
  const V dots = g.Map(OpId::kMatmul, {Transposed(g, vectors), columns});
  const V turned = g.Map(OpId::kMatmul, {Transposed(g, t), dots});
  return columns - g.Map(OpId::kMatmul, {vectors, turned});
}

// The columns of a matrix, dealt out, of which rows leave from the top.
using Dealt = std::vector<V>;

// Takes the first rows off.
V LeavingRows(G& g, V& columns, int64_t width) {
  const V all = columns;
  const V leaving = Computed(g, RowsOf(g, all, 0, width));
  if (!g.failed() && Rows(all) > width) columns = RowsOf(g, all, width, Rows(all) - width);
  return leaving;
}

// The unit matrix's columns in as many shares as there are workers, and of each share of `own` columns a part: [...,
// workers, rows, part].
V DealtUnit(G& g, const V& like, const ColumnTurns& turns, int64_t rows, int64_t own, const Range& part) {
  if (g.failed()) return like;
  const V worker = Moved(g, WorkerNumbers(g, like, turns), turns.mesh_dim, Placement::Shard(like.rank() - 3));
  const V column = worker * V(own) + V(part.start) + g.Iota(like, like.rank() - 1, part.size);
  const V unit = g.Map(OpId::kEqual, {g.Iota(like, like.rank() - 2, rows), column});
  Shape shape = BatchOf(like);
  if (g.failed()) return like;
  return g.BroadcastTo(g.AsType(unit, like.dtype()), Shaped(shape, {rows, part.size}));
}

// Q^H as it grows: the unit matrix, reflected by each step, whose first rows then leave. A reflection needs memory for
// what it reflects once more, so it takes parts of the columns one after the other where memory is to be saved.
struct SidePart {
  V staying;               // [..., workers, rows, part]
  std::vector<V> leaving;  // of each step
};
std::vector<SidePart> UnitSide(G& g, const V& like, const ColumnTurns& turns, int64_t rows, int64_t own) {
  const int64_t count = g.saving() == Saving::kMemory ? turns.turns : 1, size = (own + count - 1) / count;
  std::vector<SidePart> parts;
  for (int64_t start = 0; start < own; start += size) {
    parts.push_back({DealtUnit(g, like, turns, rows, own, {start, std::min(size, own - start)}), {}});
  }
  return parts;
}
void ReflectSide(G& g, std::vector<SidePart>& side, const Reflections& q, int64_t width) {
  for (SidePart& part : side) {
    part.staying = Reflected(g, q, part.staying);
    part.leaving.push_back(LeavingRows(g, part.staying, width));
  }
}
// [..., workers, rows, own].
V JoinedSide(G& g, const std::vector<SidePart>& side) {
  std::vector<V> parts;
  for (const SidePart& part : side) parts.push_back(g.Concat(part.leaving, part.staying.rank() - 2));
  return parts.size() == 1 || g.failed() ? parts[0] : g.Concat(parts, parts[0].rank() - 1);
}

// Rows of Q, from columns of Q^H: [..., workers, columns, own] as [..., rows, columns], of which there are that many.
V RowsOfQ(G& g, const V& side, const ColumnTurns& turns, int64_t rows) {
  const V turned = Transposed(g, side);
  if (g.failed()) return side;
  Shape shape = BatchOf(turned);
  shape.pop_back();
  const V whole = g.Reshape(turned, Shaped(shape, {turns.workers * Rows(turned), Columns(turned)}));
  return RowsOf(g, whole, 0, rows);
}

// The rows that leave with a panel, of its own turn: R of the panel's worker, and what is on the right of it.
V OwnTurnRows(G& g, const V& triangle, const std::optional<V>& leaving, int64_t worker, const ColumnTurns& turns) {
  const V each = OnEach(g, triangle, turns);
  if (g.failed()) return triangle;
  const V number = WorkerNumbers(g, each, turns);
  const V right = leaving.has_value() ? g.Where(g.Map(OpId::kGreater, {number, V(worker)}), *leaving, V(0)) : V(0);
  return Computed(g, g.Where(g.Map(OpId::kEqual, {number, V(worker)}), each, right));
}

// The band of singular values, R_k and L_k side by side for each k (linalg_op.h), and Q^H of the reflections on the
// left.
struct Band {
  V rows;                 // [..., whole, 2 width], on every worker
  std::optional<V> side;  // [..., workers, whole, own]
};

// Rows of later columns that left with a panel, as columns, in their order: [..., columns, width], on every worker.
V AcrossOf(G& g, const std::vector<V>& leaving, const ColumnTurns& turns, int64_t done) {
  std::vector<V> across;
  for (const V& each : leaving) {
    const V turned = Transposed(g, Moved(g, each, turns.mesh_dim, Placement::Replicate()));
    if (g.failed()) return each;
    Shape shape = BatchOf(turned);
    shape.pop_back();
    across.push_back(g.Reshape(turned, Shaped(shape, {turns.workers * turns.width, turns.width})));
  }
  const V whole = g.Concat(across, across[0].rank() - 2);
  return g.failed() ? whole : RowsOf(g, whole, done, Rows(whole) - done);
}

// The later columns times Q = I - V T V^H from the right. Each worker has the terms of its own columns.
void ReflectFromRight(G& g, Dealt& dealt, const Reflections& q, int64_t first, int64_t done, const ColumnTurns& turns) {
  std::vector<V> own;  // rows of V of each turn's columns: [..., workers, width, width]
  std::optional<V> sum;
  const V vectors = PaddedAbove(g, q.vectors, done);
  const int64_t size = turns.workers * turns.width;
  for (int64_t later = first; later < turns.turns && !g.failed(); ++later) {
    const V rows = RowsOf(g, vectors, (later - first) * size, size);
    if (g.failed()) return;
    const V blocks = g.Reshape(rows, Shaped(BatchOf(rows), {turns.workers, turns.width, turns.width}));
    own.push_back(Moved(g, blocks, turns.mesh_dim, Placement::Shard(blocks.rank() - 3)));
    const V products = g.Map(OpId::kMatmul, {dealt[static_cast<size_t>(later)], own.back()});
    if (g.failed()) return;
    const V terms = g.Reduce(OpId::kSum, products, {products.rank() - 3}, Keep::kNo);
    sum = sum.has_value() ? *sum + terms : terms;
  }
  if (g.failed()) return;
  // Each worker has a part of the sum before all have it: memory that sums go to is no other step's.
  const V parts = Moved(g, *sum, turns.mesh_dim, Placement::Shard(sum->rank() - 2));
  const V turned = g.Map(OpId::kMatmul, {Moved(g, parts, turns.mesh_dim, Placement::Replicate()), q.t});
  if (g.failed()) return;
  const V each = g.ExpandDim(turned, turned.rank() - 2);
  for (int64_t later = first; later < turns.turns && !g.failed(); ++later) {
    V& columns = dealt[static_cast<size_t>(later)];
    const V across = Transposed(g, own[static_cast<size_t>(later - first)]);
    columns = columns - g.Map(OpId::kMatmul, {each, across});
  }
}

enum class Vectors : uint8_t { kNone = 0, kLeft = 1 };

// Reflections from the left and from the right in turn (Golub, Van Loan, "Matrix Computations", 5.4.8, by blocks).
Band BandOf(G& g, Dealt dealt, const ColumnTurns& turns, Vectors vectors) {
  const int64_t whole = turns.whole(), width = turns.width;
  std::vector<SidePart> side;
  std::vector<V> blocks;
  const V x = g.operand(0);
  if (g.failed()) return {x, std::nullopt};
  if (vectors == Vectors::kLeft) side = UnitSide(g, dealt[0], turns, whole, whole / turns.workers);
  for (int64_t k = 0; k < turns.workers * turns.turns && !g.failed(); ++k) {
    const int64_t turn = k / turns.workers, worker = k % turns.workers;
    const Reflections left = ReflectionsOf(g, PanelOf(g, dealt[static_cast<size_t>(turn)], turns, worker));
    const int64_t first = turns.FirstBehind(turn, worker);
    std::vector<V> leaving;
    for (int64_t later = first; later < turns.turns && !g.failed(); ++later) {
      V& columns = dealt[static_cast<size_t>(later)];
      columns = Reflected(g, left, columns);
      leaving.push_back(LeavingRows(g, columns, width));
    }
    ReflectSide(g, side, left, width);
    if (g.failed()) return {x, std::nullopt};
    V beside = g.Full(left.triangle, left.triangle.dtype(), Shape(left.triangle.spec().shape), Scalar::Int(0));
    if (!leaving.empty()) {
      const int64_t done = first == turn ? (worker + 1) * width : 0;
      const Reflections right = ReflectionsOf(g, AcrossOf(g, leaving, turns, done));
      ReflectFromRight(g, dealt, right, first, done, turns);
      beside = Transposed(g, right.triangle);
    }
    if (g.failed()) return {x, std::nullopt};
    blocks.push_back(g.Concat({left.triangle, beside}, left.triangle.rank() - 1));
  }
  if (g.failed()) return {x, std::nullopt};
  const std::optional<V> joined = side.empty() ? std::nullopt : std::optional<V>(JoinedSide(g, side));
  return {g.Concat(blocks, blocks[0].rank() - 2), joined};
}

// The singular values of a square matrix with whole turns, and U^H of its left vectors, dealt out by columns.
struct LeftVectors {
  V values;  // [..., n], the largest first
  V side;    // [..., workers, n, own]
};
// The first `skipped` ones are not of the matrix.
LeftVectors LeftVectorsOf(G& g, Dealt dealt, const ColumnTurns& turns, int64_t skipped) {
  const int64_t whole = turns.whole(), own = whole / turns.workers;
  const V x = g.operand(0);
  const Band band = BandOf(g, std::move(dealt), turns, Vectors::kLeft);
  if (g.failed()) return {x, x};
  const V packed = MatrixFunction(g, LinalgKind::kBandSvd, {OnEach(g, band.rows, turns), *band.side});
  if (g.failed()) return {x, x};
  Shape batch = BatchOf(*band.side);
  const std::vector<V> parts = Unpacked(g, packed, batch, {{whole}, {whole, own}});
  if (g.failed()) return {x, x};
  const V one = BoxTo(g, parts[0], {{0, 1}, {skipped, whole - skipped}}, turns.mesh_dim, Placement::Replicate());
  if (g.failed()) return {x, x};
  return {RealPart(g, g.DropDims(one, {one.rank() - 2})), RowsOf(g, parts[1], skipped, whole - skipped)};
}

V ValuesOf(G& g, Dealt dealt, const ColumnTurns& turns, int64_t skipped) {
  const V x = g.operand(0);
  const Band band = BandOf(g, std::move(dealt), turns, Vectors::kNone);
  const V values = RealPart(g, MatrixFunction(g, LinalgKind::kBandSvdVals, {band.rows}));
  if (g.failed()) return x;
  return g.SliceDim(values, values.rank() - 1, skipped, turns.whole() - skipped);
}

// Continued by a diagonal of numbers that are above all singular values, and so come first. They touch no others: each
// reflection leaves them as they are.
V ContinuedAbove(G& g, const V& x, const ColumnTurns& turns, const V& largest) {
  return ContinuedTo(g, x, turns.whole(), largest * V(2) + V(1));
}

// An upper bound of the singular values: [..., 1, 1].
V BoundOf(G& g, const V& x) {
  const V sizes = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {x}), {x.rank() - 1}, Keep::kDims);
  const V across = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {x}), {x.rank() - 2}, Keep::kDims);
  return g.Map(OpId::kMaximum, {g.Reduce(OpId::kMax, sizes, {x.rank() - 2}, Keep::kDims),
                                g.Reduce(OpId::kMax, across, {x.rank() - 1}, Keep::kDims)});
}

// x^H u, whose rows are sharded: of x's columns, which each worker has whole, and u's panel by panel.
V ProductWithVectors(G& g, const V& x, const V& u, const ColumnTurns& turns) {
  const V columns = Moved(g, x, turns.mesh_dim, Placement::Shard(x.rank() - 1));
  const V turned = Transposed(g, columns);
  std::vector<V> products;
  for (int64_t start = 0; start < Columns(u) && !g.failed(); start += turns.width) {
    const int64_t size = std::min(turns.width, Columns(u) - start);
    const V panel = BoxTo(g, u, {{0, Rows(u)}, {start, size}}, turns.mesh_dim, Placement::Replicate());
    products.push_back(Computed(g, g.Map(OpId::kMatmul, {turned, panel})));
  }
  return g.failed() ? x : g.Concat(products, x.rank() - 1);
}

// An upper bound of the eigenvalues' sizes, of the lower triangle: [..., 1, 1].
V BoundOfTriangle(G& g, const V& x) {
  const int64_t row = x.rank() - 2, column = x.rank() - 1;
  const V along = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {Triangle(g, OpId::kTril, x, 0)}), {column}, Keep::kNo);
  const V across = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {Triangle(g, OpId::kTril, x, -1)}), {row}, Keep::kNo);
  const V most = g.Reduce(OpId::kMax, along + across, {row}, Keep::kDims);
  return g.failed() ? x : g.ExpandDim(most, most.rank());
}

// The symmetric matrix of x's lower triangle, plus bound I, whose singular values are its eigenvalues and the bound.
// The columns are dealt out turn by turn, so that no worker has the symmetric matrix beside them. They continue as
// ContinuedAbove's.
struct Shifted {
  Dealt dealt;
  V bound;  // [..., 1, 1]
};
Shifted ShiftedOf(G& g, const V& x, const ColumnTurns& turns) {
  const int64_t n = Columns(x), whole = turns.whole();
  const V bound = BoundOfTriangle(g, x), below = PaddedTo(g, x, whole, whole), above = Transposed(g, below);
  Dealt dealt;
  for (int64_t turn = 0; turn < turns.turns && !g.failed(); ++turn) {
    const V left = OneTurn(g, below, turns, turn, 0), right = OneTurn(g, above, turns, turn, 0);
    if (g.failed()) break;
    const V worker = Moved(g, WorkerNumbers(g, left, turns), turns.mesh_dim, Placement::Shard(left.rank() - 3));
    const V column = (worker + V(turn * turns.workers)) * V(turns.width) + g.Iota(left, left.rank() - 1, turns.width);
    const V row = g.Iota(left, left.rank() - 2, whole), shift = g.ExpandDim(bound, bound.rank() - 2);
    const V own = g.Where(g.Map(OpId::kLess, {column, V(n)}), RealPart(g, left) + shift, shift * V(4) + V(1));
    const V rest = g.Where(g.Map(OpId::kLess, {row, column}), right, g.AsType(own, x.dtype()));
    dealt.push_back(Computed(g, g.Where(g.Map(OpId::kGreater, {row, column}), left, rest)));
  }
  return {std::move(dealt), bound};
}
V EigenvaluesOf(G& g, const V& values, const V& bound) {
  if (g.failed()) return values;
  return Along(g, OpId::kFlip, values.rank() - 1, {values - g.DropDims(bound, {bound.rank() - 2})});
}

}  // namespace

std::vector<V> QrByTurns(G& g, const V& x, const ColumnTurns& turns, bool complete) {
  const int64_t m = Rows(x), n = Columns(x), least = std::min(m, n), k = complete ? m : least, width = turns.width;
  const int64_t steps = (least + width - 1) / width, rows = std::max(m, steps * width);
  Dealt dealt = DealtOut(g, PaddedTo(g, x, rows, turns.whole()), turns);
  if (g.failed()) return {x, x};
  std::vector<SidePart> side = UnitSide(g, dealt[0], turns, rows, (m + turns.workers - 1) / turns.workers);
  std::vector<std::vector<V>> above(dealt.size());
  for (int64_t step = 0; step < steps && !g.failed(); ++step) {
    const int64_t turn = step / turns.workers, worker = step % turns.workers;
    const Reflections q = ReflectionsOf(g, PanelOf(g, dealt[static_cast<size_t>(turn)], turns, worker));
    std::optional<V> beside;
    for (int64_t later = turns.FirstBehind(turn, worker); later < turns.turns && !g.failed(); ++later) {
      V& columns = dealt[static_cast<size_t>(later)];
      columns = Reflected(g, q, columns);
      const V leaving = LeavingRows(g, columns, width);
      if (later == turn) {
        beside = leaving;
      } else {
        above[static_cast<size_t>(later)].push_back(leaving);
      }
    }
    above[static_cast<size_t>(turn)].push_back(OwnTurnRows(g, q.triangle, beside, worker, turns));
    ReflectSide(g, side, q, width);
  }
  if (g.failed()) return {x, x};
  for (SidePart& part : side) {
    if (complete && rows > steps * width) part.leaving.push_back(part.staying);
  }
  const V factor = RowsOfQ(g, JoinedSide(g, side), turns, m);
  Dealt triangles;
  for (const std::vector<V>& each : above) {
    if (g.failed()) return {x, x};
    triangles.push_back(PaddedTo(g, g.Concat(each, each[0].rank() - 2), steps * width, width));
  }
  const V triangle = JoinedTurns(g, triangles, turns, least, n);
  if (g.failed()) return {x, x};
  return {k == Columns(factor) ? factor : g.SliceDim(factor, factor.rank() - 1, 0, k), PaddedTo(g, triangle, k, n)};
}

std::optional<ColumnTurns> BandTurnsOf(const V& x, BandOfWhat what) {
  const std::optional<ColumnTurns> turns = ColumnTurnsOf(x);
  if (Rows(x) != Columns(x) || Columns(x) < kMinBandColumns || !turns.has_value()) return std::nullopt;
  if (what == BandOfWhat::kEigh && turns->workers < kMinEighWorkers) return std::nullopt;
  // On fewer workers there are more turns, and a plan would have more phases than it may (max_phases).
  const int64_t fewest = what == BandOfWhat::kSvd ? kMinBandWorkers : what == BandOfWhat::kEigh ? 5 : 3;
  const bool is_narrow = turns->workers >= fewest && turns->workers < kMinBandWorkers;
  return is_narrow ? ColumnTurnsOf(x, Panels::kNarrow) : turns;
}

bool GoesByPanels(const G& g, const ColumnTurns& turns) {
  return turns.workers >= kMinBandWorkers || g.saving() == Saving::kMemory;
}

std::vector<V> SvdByTurns(G& g, const V& x, const ColumnTurns& turns) {
  const int64_t n = Columns(x);
  const V whole = ContinuedAbove(g, x, turns, BoundOf(g, x));
  const LeftVectors left = LeftVectorsOf(g, DealtOut(g, whole, turns), turns, turns.whole() - n);
  if (g.failed()) return {x, x, x};
  const V u = RowsOfQ(g, left.side, turns, n);
  // Its columns are orthogonal, the longest first: R is a diagonal but for rounding.
  const std::vector<V> parts = QrByTurns(g, ProductWithVectors(g, x, u, turns), turns, false);
  if (g.failed()) return {x, x, x};
  const V lengths = g.Where(ShardedDiagonal(g, parts[1]), RealPart(g, parts[1]), V(0));
  const V length = g.Reduce(OpId::kSum, lengths, {lengths.rank() - 2}, Keep::kDims);
  const V signs = g.AsType(g.Where(g.Map(OpId::kLess, {length, V(0)}), V(-1), V(1)), x.dtype());
  return {u, left.values, Transposed(g, parts[0] * signs)};
}

V SvdValsByTurns(G& g, const V& x, const ColumnTurns& turns) {
  return ValuesOf(g, DealtOut(g, ContinuedAbove(g, x, turns, BoundOf(g, x)), turns), turns, turns.whole() - Columns(x));
}

std::vector<V> EighByTurns(G& g, const V& x, const ColumnTurns& turns) {
  const int64_t n = Columns(x);
  const Shifted shifted = ShiftedOf(g, x, turns);
  const LeftVectors left = LeftVectorsOf(g, shifted.dealt, turns, turns.whole() - n);
  if (g.failed()) return {x, x};
  const V vectors = RowsOfQ(g, left.side, turns, n);
  return {EigenvaluesOf(g, left.values, shifted.bound),
          g.failed() ? x : Along(g, OpId::kFlip, vectors.rank() - 1, {vectors})};
}

V EigvalshByTurns(G& g, const V& x, const ColumnTurns& turns) {
  const Shifted shifted = ShiftedOf(g, x, turns);
  return EigenvaluesOf(g, ValuesOf(g, shifted.dealt, turns, turns.whole() - Columns(x)), shifted.bound);
}

}  // namespace tessera::composites
