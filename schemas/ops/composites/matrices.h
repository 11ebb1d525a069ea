#pragma once

// The tools of the rows of linear algebra: calls of matrix functions (linalg_op.h), and the algorithms that take
// matrices where their rows are sharded. For the composites alone.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "schemas/ops/graph_builder.h"
#include "schemas/ops/linalg_op.h"

namespace tessera::composites {

// ---- matrices (matrices.cc) ----

GraphValue MatrixFunction(GraphBuilder& g, LinalgKind kind, std::vector<GraphValue> matrices,
                          Attributes attributes = {});
inline int64_t Rows(const GraphValue& x) { return x.extent(x.rank() - 2); }
inline int64_t Columns(const GraphValue& x) { return x.extent(x.rank() - 1); }
// Whether the call's operands are of floats and the first one of matrices; refuses the call otherwise.
bool AreMatrices(GraphBuilder& g);
// Whether they are square, too.
bool AreSquare(GraphBuilder& g);
// The batch of a tensor of matrices, and a shape with it.
Shape BatchOf(const GraphValue& x);
Shape Shaped(Shape batch, std::initializer_list<int64_t> extents);
// Results that lie behind each other in the last dim, each with the shape it has.
std::vector<GraphValue> Unpacked(GraphBuilder& g, const GraphValue& packed, const Shape& batch,
                                 const std::vector<Shape>& shapes);
// The real parts of complex numbers: for what is real by its meaning.
GraphValue RealPart(GraphBuilder& g, const GraphValue& x);
// The transposed matrices, of complex numbers their conjugates.
GraphValue Transposed(GraphBuilder& g, const GraphValue& x);
// The same without the conjugation.
GraphValue Exchanged(GraphBuilder& g, const GraphValue& x);
// Where row == column, of extents 1 in the batch.
GraphValue OnDiagonal(GraphBuilder& g, const GraphValue& x);
// With zeros below and on the right.
GraphValue PaddedTo(GraphBuilder& g, const GraphValue& x, int64_t rows, int64_t columns);
// With as many rows of zeros above.
GraphValue PaddedAbove(GraphBuilder& g, const GraphValue& x, int64_t rows);
// A square matrix, continued by rows and columns of the unit matrix, or of it times a number.
GraphValue ContinuedTo(GraphBuilder& g, const GraphValue& x, int64_t whole, const GraphValue& number = 1);
// An op that goes along one dim.
GraphValue Along(GraphBuilder& g, OpId op, int64_t dim, std::vector<GraphValue> operands);
// The elements of `op`'s triangle (kTril, kTriu) from the k-th diagonal on, zeros elsewhere.
GraphValue Triangle(GraphBuilder& g, OpId op, const GraphValue& x, int64_t k);
// One call of LAPACK. Attributes: upper, transposed, unit_diagonal.
GraphValue TriangularSolve(GraphBuilder& g, const GraphValue& left, const GraphValue& right, Attributes attributes);

// The mesh dim that alone shards the matrices, evenly, and which of their dims. Others may shard the batch.
struct MatrixShards {
  int mesh_dim = 0;
  int dim = 0;          // of the tensor: that of the rows or that of the columns
  int64_t workers = 0;  // along the mesh dim
};
// nullopt where none does, several do, the sizes are explicit, or something is pending.
std::optional<MatrixShards> ShardsOf(const GraphValue& x);

// The row that pivots bring to each place, of matrices of that many rows: i64. Refuses pivots that are no integers.
GraphValue PermutationOf(GraphBuilder& g, const GraphValue& pivots, int64_t rows);

// Both sides in their common dtype, with one batch; a vector on the right is a column. The array API's rule: it is a
// vector where it has one dim.
struct System {
  GraphValue left, right;
  bool is_vector = false;
};
System SystemOf(GraphBuilder& g, const GraphValue& left, const GraphValue& right);
void ReturnSolution(GraphBuilder& g, const GraphValue& solution, const System& system);

// ---- by blocks of rows, where they lie (blocked_matrices.cc) ----

// Square matrices whose rows alone are sharded, evenly, by one mesh dim, as blocks of rows on a dim of their own:
// [..., n, n] S(rows) is [..., count, size, n] S(count), and ops of a block each run where its rows lie. Continued by
// rows and columns of the unit matrix to whole blocks.
struct RowBlocks {
  int64_t count = 0, size = 0;
};
std::optional<RowBlocks> RowBlocksOf(const GraphValue& x);
// By blocks where the matrix has them, else at once. Attributes: upper, transposed, unit_diagonal.
GraphValue SolvedTriangle(GraphBuilder& g, const GraphValue& left, const GraphValue& right, Attributes attributes);

// ---- by columns, dealt out in turns (column_turns.cc) ----

// Square matrices that one mesh dim shards, evenly, by rows or by columns. Their columns go in panels of `width` to the
// workers, one after the other, `turns` times around: [..., rows, turns, workers, width], so that all have work until
// the last panel (the block-cyclic layout of ScaLAPACK, with one row of processes). A panel goes to all workers, which
// factor it, and each reduces its own columns. A worker gets half of the matrix, panel by panel, and holds its share.
struct ColumnTurns {
  int mesh_dim = 0;
  int64_t workers = 0, turns = 0, width = 0;
  int64_t whole() const { return workers * turns * width; }  // rows and columns, with those of the unit matrix
  // The first turn that has columns behind the panel of this worker and turn.
  int64_t FirstBehind(int64_t turn, int64_t worker) const { return worker + 1 < workers ? turn : turn + 1; }
};
// Narrow panels are twice as many, for half of the memory that each takes on every worker.
enum class Panels : uint8_t { kWide = 0, kNarrow = 1 };
std::optional<ColumnTurns> ColumnTurnsOf(const GraphValue& x, Panels panels = Panels::kWide);
// Its rows lie as the mesh dim's Shard(rows).
GraphValue CholeskyByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
// A result of many columns has them sharded, one of few is whole on every worker.
GraphValue SolvedByTurns(GraphBuilder& g, const GraphValue& left, const GraphValue& right, const ColumnTurns& turns);
// L below the diagonal and U, whose rows lie as the mesh dim's Shard(rows), and the pivots, i64.
std::vector<GraphValue> LuByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
// The determinant's sign, and the logarithm of its size.
std::vector<GraphValue> SlogdetByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);

// The same by reflections (orthogonal_turns.cc). Q and R of any matrix, Q of as many columns as R has rows; both have
// their rows sharded.
std::vector<GraphValue> QrByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns, bool complete);
// Square matrices of at least kMinBandColumns columns: U, S and Vh; the eigenvalues of a lower triangle, the least
// first, and the eigenvectors. The rows of U and of the eigenvectors are sharded, and the columns of Vh. A band of the
// matrix, 2 / kPanels of it, is on every worker.
enum class BandOfWhat : uint8_t { kSvd = 0, kEigh = 1, kValues = 2 };
std::optional<ColumnTurns> BandTurnsOf(const GraphValue& x, BandOfWhat what);
// Whether they go by panels: on kMinBandWorkers workers, or where memory is to be saved. Fewer workers else gather the
// matrix, and each keeps its part of the same results.
bool GoesByPanels(const GraphBuilder& g, const ColumnTurns& turns);
std::vector<GraphValue> SvdByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
GraphValue SvdValsByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
std::vector<GraphValue> EighByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);
GraphValue EigvalshByTurns(GraphBuilder& g, const GraphValue& x, const ColumnTurns& turns);

// ---- decompositions of tall matrices, where their rows lie (tall_matrices.cc) ----

// Q and R.
std::vector<GraphValue> QrOf(GraphBuilder& g, const GraphValue& x, bool complete);
// U, S and Vh, `full` or of the smaller extent; singular values alone.
std::vector<GraphValue> SvdOf(GraphBuilder& g, const GraphValue& x, bool full);
GraphValue SingularValues(GraphBuilder& g, const GraphValue& x);

}  // namespace tessera::composites
