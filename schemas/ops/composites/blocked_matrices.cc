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

V SolvedTriangle(G& g, const V& left, const V& right, Attributes attributes) {
  if (g.failed()) return right;
  const std::optional<RowBlocks> blocks = attributes.Get(attribute::transposed) ? std::nullopt : RowBlocksOf(left);
  return blocks.has_value() ? BlockedTriangularSolve(g, left, right, *blocks, attributes)
                            : TriangularSolve(g, left, right, std::move(attributes));
}

}  // namespace tessera::composites
