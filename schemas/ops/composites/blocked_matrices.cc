// Substitutions by blocks of rows, each where its rows lie.

#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/matrices.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// Blocks of fewer rows take longer to be told than to be computed.
constexpr int64_t kMinBlockRows = 32;  // docs/limits.md: min_block_rows
// Each is some steps of a plan.
constexpr int64_t kMaxRowBlocks = 16;  // docs/limits.md: max_row_blocks

V MatrixInRowBlocks(G& g, const V& x, const RowBlocks& blocks) {
  const int64_t whole = blocks.count * blocks.size;
  return g.Reshape(ContinuedTo(g, x, whole), Shaped(BatchOf(x), {blocks.count, blocks.size, whole}));
}

// One block of rows, and columns from `start` on, with every worker.
V BlockOf(G& g, const V& blocks, int64_t block, int64_t start, int64_t size) {
  const V rows = g.SliceDim(g.SliceDim(blocks, blocks.rank() - 1, start, size), blocks.rank() - 3, block, 1);
  return g.failed() ? rows : g.DropDims(rows, {rows.rank() - 3});
}

// Substitution by blocks, forwards or of an upper matrix backwards: X_k = T_kk^-1 B_k, B_i -= T_ik X_k. The matrix
// stays where it is but for the blocks on its diagonal; a block of rows of the right side at a time goes to all.
V BlockedTriangularSolve(G& g, const V& left, const V& right, const RowBlocks& blocks, const Attributes& attributes) {
  const int64_t n = Rows(left), m = Columns(right), whole = blocks.count * blocks.size;
  const Shape batch = BatchOf(left);
  const V matrix = MatrixInRowBlocks(g, left, blocks);
  V rest = g.Reshape(PaddedTo(g, right, whole, m), Shaped(batch, {blocks.count, blocks.size, m}));
  if (g.failed()) return right;
  const V number = g.Iota(rest, rest.rank() - 3, blocks.count);
  const bool is_upper = attributes.Get(attribute::upper);
  for (int64_t step = 0; step < blocks.count && !g.failed(); ++step) {
    const int64_t k = is_upper ? blocks.count - 1 - step : step;
    const V corner = BlockOf(g, matrix, k, k * blocks.size, blocks.size);
    const V solved = TriangularSolve(g, corner, BlockOf(g, rest, k, 0, m), attributes);
    if (g.failed()) return right;
    const V one = g.ExpandDim(solved, solved.rank() - 2);
    const V column = g.SliceDim(matrix, matrix.rank() - 1, k * blocks.size, blocks.size);
    const V is_later = g.Map(is_upper ? OpId::kLess : OpId::kGreater, {number, V(k)});
    const V reduced = g.Where(is_later, rest - g.Map(OpId::kMatmul, {column, one}), rest);
    rest = g.Where(g.Map(OpId::kEqual, {number, V(k)}), one, reduced);
  }
  if (g.failed()) return right;
  return g.SliceDim(g.Reshape(rest, Shaped(batch, {whole, m})), rest.rank() - 3, 0, n);
}

// The same of the transposed triangle: X_k = T_kk^-T (B_k - sum T_ik^T X_i). Each worker has the terms of its own rows;
// their sum, of one block of the right side, is all that goes to the others.
V BlockedTransposedSolve(G& g, const V& left, const V& right, const RowBlocks& blocks, const Attributes& attributes) {
  const int64_t n = Rows(left), m = Columns(right), whole = blocks.count * blocks.size;
  const Shape batch = BatchOf(left);
  const V matrix = MatrixInRowBlocks(g, left, blocks);
  const V sides = g.Reshape(PaddedTo(g, right, whole, m), Shaped(batch, {blocks.count, blocks.size, m}));
  if (g.failed()) return right;
  const V number = g.Iota(sides, sides.rank() - 3, blocks.count);
  // Zeros, which lie as the right side's blocks do, in the blocks that aren't done.
  V solved = g.Where(g.Map(OpId::kLess, {number, V(0)}), sides, V(0));
  for (int64_t step = 0; step < blocks.count && !g.failed(); ++step) {
    const int64_t k = attributes.Get(attribute::upper) ? step : blocks.count - 1 - step;
    const V corner = BlockOf(g, matrix, k, k * blocks.size, blocks.size);
    V rest = BlockOf(g, sides, k, 0, m);
    if (g.failed()) return right;
    if (step > 0) {
      const V column = g.SliceDim(matrix, matrix.rank() - 1, k * blocks.size, blocks.size);
      const V terms = g.Map(OpId::kMatmul, {Exchanged(g, column), solved});
      if (g.failed()) return right;
      rest = rest - g.Reduce(OpId::kSum, terms, {terms.rank() - 3}, Keep::kNo);
    }
    const V one = g.ExpandDim(TriangularSolve(g, corner, rest, attributes), number.rank() - 3);
    solved = g.Where(g.Map(OpId::kEqual, {number, V(k)}), one, solved);
  }
  if (g.failed()) return right;
  return g.SliceDim(g.Reshape(solved, Shaped(batch, {whole, m})), right.rank() - 2, 0, n);
}

}  // namespace

std::optional<RowBlocks> RowBlocksOf(const V& x) {
  const std::optional<MatrixShards> shards = ShardsOf(x);
  if (!shards.has_value() || shards->dim != x.rank() - 2 || x.rank() >= kMaxRank) return std::nullopt;
  const RowBlocks blocks{shards->workers, (Rows(x) + shards->workers - 1) / shards->workers};
  if (blocks.count < 2 || blocks.count > kMaxRowBlocks || blocks.size < kMinBlockRows) return std::nullopt;
  return blocks;
}

V SolvedTriangle(G& g, const V& left, const V& right, Attributes attributes) {
  if (g.failed()) return right;
  const std::optional<RowBlocks> blocks = RowBlocksOf(left);
  if (!blocks.has_value()) return TriangularSolve(g, left, right, std::move(attributes));
  return attributes.Get(attribute::transposed) ? BlockedTransposedSolve(g, left, right, *blocks, attributes)
                                               : BlockedTriangularSolve(g, left, right, *blocks, attributes);
}

}  // namespace tessera::composites
