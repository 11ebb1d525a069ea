// Factorisations and substitutions by blocks of rows, each where its rows lie.

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
  const int64_t n = Rows(x), whole = blocks.count * blocks.size;
  V padded = PaddedTo(g, x, whole, whole);
  if (n < whole && !g.failed()) {
    const V row = g.Iota(padded, padded.rank() - 2, whole), column = g.Iota(padded, padded.rank() - 1, whole);
    const V is_unit =
        g.Map(OpId::kLogicalAnd, {g.Map(OpId::kEqual, {row, column}), g.Map(OpId::kGreaterEqual, {row, V(n)})});
    padded = g.Where(is_unit, V(1), padded);
  }
  return g.Reshape(padded, Shaped(BatchOf(x), {blocks.count, blocks.size, whole}));
}

// One block of rows, and columns from `start` on, with every worker.
V BlockOf(G& g, const V& blocks, int64_t block, int64_t start, int64_t size) {
  const V rows = g.SliceDim(g.SliceDim(blocks, blocks.rank() - 1, start, size), blocks.rank() - 3, block, 1);
  return g.failed() ? rows : g.DropDims(rows, {rows.rank() - 3});
}

V TriangularSolve(G& g, const V& left, const V& right, Attributes attributes) {
  return MatrixFunction(g, LinalgKind::kTriangularSolve, {left, right}, std::move(attributes));
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

}  // namespace

std::optional<RowBlocks> RowBlocksOf(const V& x) {
  const TensorSpec& spec = x.spec();
  RowBlocks blocks;
  for (int i = 0; i < spec.mesh.ndim(); ++i) {
    const Placement& placement = spec.placements[static_cast<size_t>(i)];
    if (placement.is_partial() || placement.is_shard(spec.rank() - 1)) return std::nullopt;
    if (!placement.is_shard(spec.rank() - 2)) continue;
    if (blocks.count > 0 || placement != Placement::Shard(placement.dim())) return std::nullopt;
    blocks.count = spec.mesh.shape()[static_cast<size_t>(i)];
  }
  if (blocks.count < 2 || blocks.count > kMaxRowBlocks || spec.rank() >= kMaxRank) return std::nullopt;
  blocks.size = (Rows(x) + blocks.count - 1) / blocks.count;
  return blocks.size >= kMinBlockRows ? std::optional(blocks) : std::nullopt;
}

// The right-looking form by blocks (Golub, Van Loan, "Matrix Computations", 4.2.6), a column of blocks after the other:
// L_kk = cholesky(A_kk), L_ik = A_ik L_kk^-H, A_ij -= L_ik L_jk^H. A worker gets A_kk and the column L_k: of
// p^2 blocks in all p (p + 1) / 2, towards half of the matrix, and holds one column of blocks at a time beside its
// rows.
V BlockedCholesky(G& g, const V& x, const RowBlocks& blocks) {
  const int64_t n = Rows(x), whole = blocks.count * blocks.size;
  const Shape batch = BatchOf(x);
  V rest = MatrixInRowBlocks(g, x, blocks);
  if (g.failed()) return x;
  const V number = g.Iota(rest, rest.rank() - 3, blocks.count);
  std::vector<V> columns;
  for (int64_t k = 0; k < blocks.count && !g.failed(); ++k) {
    const V corner = MatrixFunction(g, LinalgKind::kCholesky, {BlockOf(g, rest, k, 0, blocks.size)});
    if (g.failed()) return x;
    const V one = g.ExpandDim(corner, corner.rank() - 2);
    const V panel = g.SliceDim(rest, rest.rank() - 1, 0, blocks.size);
    const V each = g.BroadcastTo(one, panel.spec().shape);
    const V below = Transposed(g, TriangularSolve(g, each, Transposed(g, panel), {}));
    const V or_corner = g.Where(g.Map(OpId::kEqual, {number, V(k)}), each, V(0));
    columns.push_back(g.Where(g.Map(OpId::kGreater, {number, V(k)}), below, or_corner));
    if (g.failed() || k + 1 == blocks.count) break;
    const V column = g.Reshape(columns.back(), Shaped(batch, {whole, blocks.size}));
    const V after = g.SliceDim(column, column.rank() - 2, (k + 1) * blocks.size, whole - (k + 1) * blocks.size);
    const V later = Transposed(g, after);
    rest = g.SliceDim(rest, rest.rank() - 1, blocks.size, Columns(rest) - blocks.size) -
           g.Map(OpId::kMatmul, {columns.back(), g.ExpandDim(later, later.rank() - 2)});
  }
  if (g.failed()) return x;
  const V joined = g.Reshape(g.Concat(columns, columns[0].rank() - 1), Shaped(batch, {whole, whole}));
  return g.SliceDim(g.SliceDim(joined, joined.rank() - 1, 0, n), joined.rank() - 2, 0, n);
}

V SolvedTriangle(G& g, const V& left, const V& right, Attributes attributes) {
  if (g.failed()) return right;
  const std::optional<RowBlocks> blocks = attributes.Get(attribute::transposed) ? std::nullopt : RowBlocksOf(left);
  return blocks.has_value() ? BlockedTriangularSolve(g, left, right, *blocks, attributes)
                            : TriangularSolve(g, left, right, std::move(attributes));
}

}  // namespace tessera::composites
