// Factorisations, and what is solved by them.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/dealt_columns.h"
#include "schemas/ops/composites/matrices.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

void Cholesky(G& g) {
  if (!AreSquare(g)) return;
  if (const std::optional<ColumnTurns> turns = ColumnTurnsOf(g.operand(0)); turns.has_value()) {
    const bool upper = g.attributes().Get(attribute::upper);
    const V lower = CholeskyByTurns(g, upper ? Transposed(g, g.operand(0)) : g.operand(0), *turns);
    if (!g.failed()) g.Return(upper ? Transposed(g, lower) : lower);
    return;
  }
  Attributes attributes;
  attributes.Set(attribute::upper, g.attributes().Get(attribute::upper));
  g.Return(MatrixFunction(g, LinalgKind::kCholesky, {g.operand(0)}, attributes));
}
void Inv(G& g) {
  if (!AreSquare(g)) return;
  const V x = g.operand(0);
  if (const std::optional<ColumnTurns> turns = ColumnTurnsOf(x); turns.has_value()) {
    const V unit = g.AsType(OnDiagonal(g, x), x.dtype());
    if (!g.failed()) g.Return(SolvedByTurns(g, x, g.BroadcastTo(unit, x.spec().shape), *turns));
    return;
  }
  g.Return(MatrixFunction(g, LinalgKind::kInv, {x}));
}

std::vector<V> SignAndLogarithm(G& g) {
  const V x = g.operand(0);
  if (const std::optional<ColumnTurns> turns = ColumnTurnsOf(x); turns.has_value()) return SlogdetByTurns(g, x, *turns);
  const V both = MatrixFunction(g, LinalgKind::kSlogdet, {x});
  std::vector<V> results = Unpacked(g, both, BatchOf(x), {{}, {}});
  if (results.size() == 1) results.push_back(results[0]);
  results[1] = RealPart(g, results[1]);
  return results;
}
void Slogdet(G& g) {
  if (AreSquare(g)) g.Return(SignAndLogarithm(g));
}
void Det(G& g) {
  if (!AreSquare(g)) return;
  const std::vector<V> parts = SignAndLogarithm(g);
  g.Return(parts[0] * g.Map(OpId::kExp, {parts[1]}));
}

void Qr(G& g) {
  if (!AreMatrices(g)) return;
  const std::string& mode = g.attributes().Get(attribute::mode);
  if (!mode.empty() && mode != "reduced" && mode != "complete") {
    return g.Refuse(StrCat("mode is ", mode, ", not reduced or complete"));
  }
  std::vector<V> results = QrOf(g, g.operand(0), mode == "complete");
  if (!g.failed()) g.Return(std::move(results));
}

void Svd(G& g) {
  if (!AreMatrices(g)) return;
  std::vector<V> results = SvdOf(g, g.operand(0), g.attributes().Get(attribute::full_matrices));
  if (!g.failed()) g.Return(std::move(results));
}
void SvdVals(G& g) {
  if (AreMatrices(g)) g.Return(SingularValues(g, g.operand(0)));
}

void Eigh(G& g) {
  if (!AreSquare(g)) return;
  const V x = g.operand(0);
  const int64_t n = Columns(x);
  const std::optional<ColumnTurns> turns = BandTurnsOf(x, BandOfWhat::kEigh);
  if (turns.has_value() && GoesByPanels(g, *turns)) {
    std::vector<V> parts = EighByTurns(g, x, *turns);
    if (!g.failed()) g.Return(std::move(parts));
    return;
  }
  std::vector<V> results = Unpacked(g, MatrixFunction(g, LinalgKind::kEigh, {x}), BatchOf(x), {{n}, {n, n}});
  if (g.failed()) return;
  results[0] = RealPart(g, results[0]);
  if (turns.has_value()) results[1] = Moved(g, results[1], turns->mesh_dim, Placement::Shard(x.rank() - 2));
  g.Return(std::move(results));
}
void Eigvalsh(G& g) {
  if (!AreSquare(g)) return;
  const V x = g.operand(0);
  const std::optional<ColumnTurns> turns = BandTurnsOf(x, BandOfWhat::kValues);
  g.Return(turns.has_value() && GoesByPanels(g, *turns) ? EigvalshByTurns(g, x, *turns)
                                                        : RealPart(g, MatrixFunction(g, LinalgKind::kEigvalsh, {x})));
}

void Solve(G& g) {
  if (!AreSquare(g)) return;
  const System s = SystemOf(g, g.operand(0), g.operand(1));
  if (g.failed()) return;
  const std::optional<ColumnTurns> turns = ColumnTurnsOf(s.left);
  ReturnSolution(g,
                 turns.has_value() ? SolvedByTurns(g, s.left, s.right, *turns)
                                   : MatrixFunction(g, LinalgKind::kSolve, {s.left, s.right}),
                 s);
}
void SolveTriangular(G& g) {
  if (!AreSquare(g)) return;
  const System s = SystemOf(g, g.operand(0), g.operand(1));
  Attributes attributes;
  attributes.Set(attribute::upper, g.attributes().Get(attribute::upper));
  attributes.Set(attribute::transposed, g.attributes().Get(attribute::transposed));
  attributes.Set(attribute::unit_diagonal, g.attributes().Get(attribute::unit_diagonal));
  if (!g.failed()) ReturnSolution(g, SolvedTriangle(g, s.left, s.right, std::move(attributes)), s);
}

// Complex, of real matrices too.
void Eig(G& g) {
  if (!AreSquare(g)) return;
  const V x = g.operand(0);
  const int64_t n = Columns(x);
  std::vector<V> results = Unpacked(g, MatrixFunction(g, LinalgKind::kEig, {x}), BatchOf(x), {{n}, {n, n}});
  if (!g.failed()) g.Return(std::move(results));
}
void Eigvals(G& g) {
  if (AreSquare(g)) g.Return(MatrixFunction(g, LinalgKind::kEigvals, {g.operand(0)}));
}

// Pivots are numbers of the matrix's dtype on their way, and exact up to here.
constexpr int64_t kMaxPivotRows = int64_t{1} << 24;  // docs/limits.md: max_pivot_rows

void LuFactor(G& g) {
  if (!AreMatrices(g)) return;
  const V x = g.operand(0);
  const int64_t m = Rows(x), n = Columns(x);
  if (m > kMaxPivotRows) return g.Refuse(StrCat("takes matrices of up to ", kMaxPivotRows, " rows"));
  if (const std::optional<ColumnTurns> turns = m == n ? ColumnTurnsOf(x) : std::nullopt; turns.has_value()) {
    std::vector<V> factors = LuByTurns(g, x, *turns);
    if (!g.failed()) g.Return(std::move(factors));
    return;
  }
  const std::vector<V> parts =
      Unpacked(g, MatrixFunction(g, LinalgKind::kLu, {Wide(g, x)}), BatchOf(x), {{m, n}, {std::min(m, n)}});
  if (g.failed()) return;
  g.Return({g.AsType(parts[0], x.dtype()), g.AsType(RealPart(g, parts[1]), DType::kI64)});
}

// Whether the pivots are those of the first operand's matrices.
bool HavePivots(G& g, const V& pivots) {
  const V x = g.operand(0);
  if (x.rank() < 2) g.Refuse("needs matrices, of at least 2 dims");
  if (g.failed()) return false;
  Shape wanted = BatchOf(x);
  wanted.push_back(std::min(Rows(x), Columns(x)));
  if (pivots.spec().shape != wanted) g.Refuse("there is one pivot for each row or column, whichever are fewer");
  return !g.failed();
}

// P, L and U with P L U = x.
void LuUnpack(G& g) {
  const V x = g.operand(0), pivots = g.operand(1);
  if (!HavePivots(g, pivots)) return;
  const int64_t m = Rows(x), n = Columns(x), k = std::min(m, n);
  const V places = PermutationOf(g, pivots, m);
  if (g.failed()) return;
  V brought = g.ExpandDim(places, places.rank() - 1);
  V row = g.Iota(brought, brought.rank() - 2, m, DType::kI64);
  if (const std::optional<MatrixShards> shards = ShardsOf(x); shards.has_value() && m == n) {  // P lies as the factors
    V& sharded = shards->dim == x.rank() - 2 ? row : brought;
    sharded = Moved(g, sharded, shards->mesh_dim, Placement::Shard(shards->dim));
  }
  const V permutation = g.Map(OpId::kEqual, {row, brought});
  const V lower = Triangle(g, OpId::kTril, g.SliceDim(x, x.rank() - 1, 0, k), -1);
  const V unit = g.AsType(ShardedDiagonal(g, lower), x.dtype());
  const V upper = Triangle(g, OpId::kTriu, g.SliceDim(x, x.rank() - 2, 0, k), 0);
  if (g.failed()) return;
  g.Return({g.AsType(permutation, x.dtype()), lower + unit, upper});
}

// P L U x = b by two triangles; transposed: U^T L^T P^T x = b.
void LuSolve(G& g) {
  const V pivots = g.operand(1);
  if (!HavePivots(g, pivots)) return;
  if (Rows(g.operand(0)) != Columns(g.operand(0))) return g.Refuse("needs square matrices");
  const System s = SystemOf(g, g.operand(0), g.operand(2));
  if (g.failed()) return;
  const int64_t n = Rows(s.left), row = s.right.rank() - 2;
  V places = g.BroadcastTo(PermutationOf(g, pivots, n), Shaped(BatchOf(s.left), {n}));
  const bool transposed = g.attributes().Get(attribute::transposed);
  if (transposed) places = Along(g, OpId::kArgSort, places.rank() - 1, {places});
  places = g.ExpandDim(places, places.rank());
  V x = transposed ? s.right : Along(g, OpId::kTakeAlongAxis, row, {s.right, places});
  for (const bool is_lower : {!transposed, transposed}) {
    Attributes attributes;
    attributes.Set(attribute::upper, !is_lower);
    attributes.Set(attribute::unit_diagonal, is_lower);
    attributes.Set(attribute::transposed, transposed);
    x = SolvedTriangle(g, s.left, x, std::move(attributes));
  }
  if (transposed) x = Along(g, OpId::kTakeAlongAxis, row, {x, places});
  ReturnSolution(g, x, s);
}

constexpr std::array kRows = {
    Composite(OpId::kCholesky, "cholesky", 1, 1, Cholesky, "cholesky(x, /, *, upper=False)",
              "Gives the triangular matrix whose product with its transpose is x, which is positive definite.",
              "ts.linalg.cholesky(ts.asarray([[4.0, 0.0], [0.0, 9.0]])).tolist() => [[2.0, 0.0], [0.0, 3.0]]"),
    Composite(OpId::kQr, "qr", 1, 1, Qr, "qr(x, /, *, mode='reduced')",
              "Gives Q with orthonormal columns and an upper triangle R, whose product is x. Tall matrices that are "
              "sharded on rows stay where they are.",
              "[x.shape for x in ts.linalg.qr(ts.ones((3, 2)))] => [(3, 2), (2, 2)]"),
    Composite(OpId::kSolve, "solve", 2, 2, Solve, "solve(x1, x2, /)",
              "Solves x1 @ x = x2; x2 is a vector where it has one dim.",
              "ts.linalg.solve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 2.0])).tolist() => [1.0, 0.5]"),
    Composite(OpId::kTriangularSolve, "solve_triangular", 2, 2, SolveTriangular,
              "solve_triangular(x1, x2, /, *, upper=False, transposed=False, unit_diagonal=False)",
              "Solves x1 @ x = x2 with one triangle of x1, or its transpose.",
              "ts.linalg.solve_triangular(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([[2.0], [2.0]]), "
              "upper=True).tolist() => [[1.0], [0.5]]"),
    Composite(OpId::kInv, "inv", 1, 1, Inv, "inv(x, /)", "Gives the inverse matrices.",
              "ts.linalg.inv(ts.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist() => [[0.5, 0.0], [0.0, 0.25]]"),
    Composite(OpId::kDet, "det", 1, 1, Det, "det(x, /)", "Calculates the determinants.",
              "ts.linalg.det(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).item() => 6.0"),
    Composite(OpId::kSlogdet, "slogdet", 1, 1, Slogdet, "slogdet(x, /)",
              "Calculates the sign of the determinants, and the logarithm of their size.",
              "ts.linalg.slogdet(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).sign.item() => 1.0"),
    Composite(OpId::kSvd, "svd", 1, 1, Svd, "svd(x, /, *, full_matrices=True)",
              "Gives U, the singular values S, the largest first, and Vh, with x = U @ diag(S) @ Vh.",
              "[x.shape for x in ts.linalg.svd(ts.ones((3, 2)), full_matrices=False)] => [(3, 2), (2,), (2, 2)]"),
    Composite(OpId::kSvdVals, "svdvals", 1, 1, SvdVals, "svdvals(x, /)",
              "Calculates the singular values, the largest first.",
              "ts.linalg.svdvals(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist() => [4.0, 3.0]"),
    Composite(OpId::kEigh, "eigh", 1, 1, Eigh, "eigh(x, /)",
              "Gives the eigenvalues of symmetric matrices, the least first, and the eigenvectors, as columns.",
              "ts.linalg.eigh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist() => [2.0, 3.0]"),
    Composite(OpId::kEigvalsh, "eigvalsh", 1, 1, Eigvalsh, "eigvalsh(x, /)",
              "Calculates the eigenvalues of symmetric matrices, the least first.",
              "ts.linalg.eigvalsh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).tolist() => [2.0, 3.0]"),
    Composite(
        OpId::kEig, "eig", 1, 1, Eig, "eig(x, /)",
        "Gives the eigenvalues of square matrices, in no order, and the eigenvectors, as columns: complex numbers.",
        "ts.linalg.eig(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist() => [(2+0j), (3+0j)]"),
    Composite(OpId::kEigvals, "eigvals", 1, 1, Eigvals, "eigvals(x, /)",
              "Calculates the eigenvalues of square matrices, complex numbers in no order.",
              "ts.linalg.eigvals(ts.asarray([[0.0, -1.0], [1.0, 0.0]])).tolist() => [1j, -1j]"),
    Composite(OpId::kLu, "lu_factor", 1, 1, LuFactor, "lu_factor(x, /)",
              "Gives L (below the diagonal, without its ones) and U in one matrix, and the pivots: as row i was "
              "eliminated it changed places with row pivots[i].",
              "ts.linalg.lu_factor(ts.asarray([[0.0, 2.0], [4.0, 0.0]])).pivots.tolist() => [1, 1]"),
    Composite(OpId::kLuUnpack, "lu_unpack", 2, 2, LuUnpack, "lu_unpack(x, pivots, /)",
              "Gives the permutation P, the lower triangle L and the upper triangle U, of what lu_factor gave."),
    Composite(OpId::kLuSolve, "lu_solve", 3, 3, LuSolve, "lu_solve(x1, pivots, x2, /, *, transposed=False)",
              "Solves a @ x = x2, of what lu_factor gave of a; x2 is a vector where it has one dim.",
              "ts.linalg.lu_solve(*ts.linalg.lu_factor(ts.asarray([[0.0, 2.0], [4.0, 0.0]])), ts.asarray([2.0, "
              "8.0])).tolist() => [2.0, 1.0]"),
};

}  // namespace

absl::Span<const OpRow> LinalgRows() { return kRows; }

}  // namespace tessera::composites
