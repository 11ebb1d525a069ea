// Decompositions of matrices with many more rows than columns, or the other way round, whose long side is sharded.

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

std::vector<V> PlainQr(G& g, const V& x, bool complete) {
  const int64_t m = Rows(x), n = Columns(x), k = complete ? m : std::min(m, n);
  Attributes attributes;
  attributes.Set(attribute::full_matrices, complete);
  return Unpacked(g, MatrixFunction(g, LinalgKind::kQr, {x}, attributes), BatchOf(x), {{m, k}, {k, n}});
}

// The mesh dim that alone shards the rows, evenly, where pieces of them are tall enough for TSQR; -1 where none is.
int RowsMeshDim(const V& x) {
  const std::optional<MatrixShards> shards = ShardsOf(x);
  if (!shards.has_value() || shards->dim != x.rank() - 2) return -1;
  const int64_t pieces = shards->workers;
  const int64_t height = (Rows(x) + pieces - 1) / pieces;
  const bool is_tall = Columns(x) > 0 && height >= Columns(x) && Rows(x) >= 2 * Columns(x);
  return pieces > 1 && is_tall && (pieces - 1) * height < Rows(x) ? shards->mesh_dim : -1;
}

// TSQR (Demmel, Grigori, Hoemmen, Langou: "Communication-optimal parallel and sequential QR and LU factorizations",
// 2012): a QR of each worker's rows where they lie, and one of the small R's, which alone are gathered. Rows of zeros
// make the pieces equal.
struct Pieces {
  V own;       // [..., pieces, height, n]: each worker's Q
  V turns;     // [..., pieces, n, n]: what each is multiplied by to be its rows of the whole Q
  V triangle;  // [..., n, n]: R of the whole, up to the signs of its rows
};
Pieces PiecesOf(G& g, const V& x, int mesh_dim) {
  const int64_t m = Rows(x), n = Columns(x);
  const int64_t pieces = x.spec().mesh.shape()[static_cast<size_t>(mesh_dim)];
  const int64_t height = (m + pieces - 1) / pieces;
  const Shape batch = BatchOf(x);
  const V padded = PaddedTo(g, x, pieces * height, n);
  const std::vector<V> own = PlainQr(g, g.Reshape(padded, Shaped(batch, {pieces, height, n})), false);
  if (g.failed()) return {x, x, x};
  const std::vector<V> together = PlainQr(g, g.Reshape(own[1], Shaped(batch, {pieces * n, n})), false);
  if (g.failed()) return {x, x, x};
  return {own[0], g.Reshape(together[0], Shaped(batch, {pieces, n, n})), together[1]};
}

// The rows of x's shape again, of what the pieces are multiplied by.
V Joined(G& g, const V& x, const Pieces& pieces, const V& turns) {
  const V rows = g.Map(OpId::kMatmul, {pieces.own, turns});
  if (g.failed()) return x;
  const int64_t height = Rows(rows) * rows.extent(rows.rank() - 3);
  const V whole = g.Reshape(rows, Shaped(BatchOf(x), {height, Columns(rows)}));
  return g.SliceDim(whole, whole.rank() - 2, 0, Rows(x));
}

// Signs are those of a QR of the whole (linalg_op.h).
std::vector<V> TallQr(G& g, const V& x, int mesh_dim) {
  const Pieces pieces = PiecesOf(g, x, mesh_dim);
  const V q = Joined(g, x, pieces, pieces.turns);
  const V signs = MatrixFunction(g, LinalgKind::kReflectionSigns, {g.SliceDim(q, q.rank() - 2, 0, Columns(x))});
  if (g.failed()) return {x, x};
  return {q * g.ExpandDim(signs, signs.rank() - 1), pieces.triangle * g.ExpandDim(signs, signs.rank())};
}

std::vector<V> PlainSvd(G& g, const V& x, bool full) {
  const int64_t m = Rows(x), n = Columns(x), least = std::min(m, n);
  Attributes attributes;
  attributes.Set(attribute::full_matrices, full);
  std::vector<V> results = Unpacked(g, MatrixFunction(g, LinalgKind::kSvd, {x}, attributes), BatchOf(x),
                                    {{m, full ? m : least}, {least}, {full ? n : least, n}});
  if (!g.failed()) results[1] = RealPart(g, results[1]);
  return results;
}

// The singular values of R, its vectors on the right, and those on the left by Q.
std::vector<V> TallSvd(G& g, const V& x, int mesh_dim) {
  const Pieces pieces = PiecesOf(g, x, mesh_dim);
  const std::vector<V> parts = PlainSvd(g, pieces.triangle, false);
  if (g.failed()) return {x, x, x};
  const V turns = g.Map(OpId::kMatmul, {pieces.turns, g.ExpandDim(parts[0], parts[0].rank() - 2)});
  return {Joined(g, x, pieces, turns), parts[1], parts[2]};
}

}  // namespace

std::vector<V> QrOf(G& g, const V& x, bool complete) {
  const int rows = complete ? -1 : RowsMeshDim(x);
  if (rows >= 0) return TallQr(g, x, rows);
  // The rows of Q's transpose are worked on: of a tall one, as many columns as it has rows.
  const bool is_square = complete || Rows(x) < 2 * Columns(x);
  const std::optional<ColumnTurns> turns = is_square ? ColumnTurnsOf(x) : std::nullopt;
  return turns.has_value() ? QrByTurns(g, x, *turns, complete) : PlainQr(g, x, complete);
}

// A matrix whose columns are sharded is decomposed by its transpose.
std::vector<V> SvdOf(G& g, const V& x, bool full) {
  if (const std::optional<ColumnTurns> turns = BandTurnsOf(x, BandOfWhat::kSvd); turns.has_value()) {
    if (GoesByPanels(g, *turns)) return SvdByTurns(g, x, *turns);
    std::vector<V> parts = PlainSvd(g, x, full);
    parts[0] = Moved(g, parts[0], turns->mesh_dim, Placement::Shard(x.rank() - 2));
    parts[2] = Moved(g, parts[2], turns->mesh_dim, Placement::Shard(x.rank() - 1));
    return parts;
  }
  if (const int rows = full ? -1 : RowsMeshDim(x); rows >= 0) return TallSvd(g, x, rows);
  const V across = full || Rows(x) >= Columns(x) ? x : Transposed(g, x);
  const int columns = full || Rows(x) >= Columns(x) ? -1 : RowsMeshDim(across);
  if (columns < 0) return PlainSvd(g, x, full);
  const std::vector<V> parts = TallSvd(g, across, columns);
  if (g.failed()) return parts;
  return {Transposed(g, parts[2]), parts[1], Transposed(g, parts[0])};
}

V SingularValues(G& g, const V& x) {
  const std::optional<ColumnTurns> turns = BandTurnsOf(x, BandOfWhat::kValues);
  if (turns.has_value() && GoesByPanels(g, *turns)) return SvdValsByTurns(g, x, *turns);
  const V tall = Rows(x) >= Columns(x) ? x : Transposed(g, x);
  const int rows = RowsMeshDim(tall);
  const V matrix = rows >= 0 ? PiecesOf(g, tall, rows).triangle : x;
  return RealPart(g, MatrixFunction(g, LinalgKind::kSvdVals, {matrix}));
}

}  // namespace tessera::composites
