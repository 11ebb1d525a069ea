// Linear algebra as graphs: matrix functions (linalg_op.h), and what is said by their results.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

V Function(G& g, LinalgKind kind, std::vector<V> matrices, Attributes attributes = {}) {
  attributes.set_mode(std::string(NameOf(kind)));
  return g.Call(OpId::kMatrixFunction, std::move(attributes), std::move(matrices));
}

int64_t Rows(const V& x) { return x.extent(x.rank() - 2); }
int64_t Columns(const V& x) { return x.extent(x.rank() - 1); }

// Whether the operands are of matrices of floats; refuses the call otherwise.
bool AreMatrices(G& g) {
  for (size_t i = 0; i < g.operand_count(); ++i) {
    const DTypeKind kind = Kind(g.operand(i).dtype());
    if (kind != DTypeKind::kFloat && kind != DTypeKind::kComplex) {
      g.RefuseDType("needs a floating-point dtype");
      return false;
    }
  }
  if (g.operand(0).rank() < 2) g.Refuse("needs matrices, of at least 2 dims");
  return !g.failed();
}
bool AreSquare(G& g) {
  if (!AreMatrices(g)) return false;
  if (Rows(g.operand(0)) != Columns(g.operand(0))) g.Refuse("needs square matrices");
  return !g.failed();
}

// The batch of a tensor of matrices, and a shape with it.
Shape BatchOf(const V& x) {
  const Shape shape = x.spec().shape;
  return {shape.begin(), shape.end() - 2};
}
Shape Shaped(Shape batch, std::initializer_list<int64_t> extents) {
  batch.insert(batch.end(), extents.begin(), extents.end());
  return batch;
}

// Results that lie behind each other in the last dim, each with the shape it has.
std::vector<V> Unpacked(G& g, const V& packed, const Shape& batch, const std::vector<Shape>& shapes) {
  std::vector<V> results;
  int64_t start = 0;
  for (const Shape& shape : shapes) {
    if (g.failed()) return {packed};
    const int64_t size = NumElements(shape);
    const V part = g.SliceDim(packed, packed.rank() - 1, start, size);
    Shape whole = batch;
    whole.insert(whole.end(), shape.begin(), shape.end());
    results.push_back(g.Reshape(part, whole));
    start += size;
  }
  return results;
}

// Of complex numbers the real parts: what is real by its meaning.
V RealPart(G& g, const V& x) { return Kind(x.dtype()) == DTypeKind::kComplex ? g.Map(OpId::kReal, {x}) : x; }

// The transposed matrices, of complex numbers their conjugates.
V Transposed(G& g, const V& given) {
  const V x = Kind(given.dtype()) == DTypeKind::kComplex ? g.Map(OpId::kConj, {given}) : given;
  Dims dims(static_cast<size_t>(x.rank()));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
  std::swap(dims[dims.size() - 2], dims[dims.size() - 1]);
  return g.Permute(x, dims);
}

// Where row == column, of extents 1 in the batch.
V OnDiagonal(G& g, const V& x) {
  return g.Map(OpId::kEqual,
               {g.Iota(x, x.rank() - 2, Rows(x), DType::kI64), g.Iota(x, x.rank() - 1, Columns(x), DType::kI64)});
}

// Square matrices whose rows alone are sharded, evenly, by one mesh dim, as blocks of rows on a dim of their own:
// [..., n, n] S(rows) is [..., count, size, n] S(count), and ops of a block each run where its rows lie. Continued by
// rows and columns of the unit matrix to whole blocks.
struct RowBlocks {
  int64_t count = 0, size = 0;
};
// Blocks of fewer rows take longer to be told than to be computed.
constexpr int64_t kMinBlockRows = 32;  // docs/limits.md: min_block_rows
// Each is some steps of a plan.
constexpr int64_t kMaxRowBlocks = 16;  // docs/limits.md: max_row_blocks

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

V PaddedTo(G& g, const V& x, int64_t rows, int64_t columns) {
  if (Rows(x) == rows && Columns(x) == columns) return x;
  Attributes pad;
  std::vector<int64_t> width(2 * static_cast<size_t>(x.rank()), 0);
  width[width.size() - 3] = rows - Rows(x);
  width[width.size() - 1] = columns - Columns(x);
  pad.set_pad_width(std::move(width));
  return g.Call(OpId::kPad, std::move(pad), {x}, {Scalar::Int(0)});
}

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
  return Function(g, LinalgKind::kTriangularSolve, {left, right}, std::move(attributes));
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
    const V corner = Function(g, LinalgKind::kCholesky, {BlockOf(g, rest, k, 0, blocks.size)});
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

// Substitution by blocks, forwards or of an upper matrix backwards: X_k = T_kk^-1 B_k, B_i -= T_ik X_k. The matrix
// stays where it is but for the blocks on its diagonal; of the right side a block of rows at a time goes to all.
V BlockedTriangularSolve(G& g, const V& left, const V& right, const RowBlocks& blocks, const Attributes& attributes) {
  const int64_t n = Rows(left), m = Columns(right), whole = blocks.count * blocks.size;
  const Shape batch = BatchOf(left);
  const V matrix = MatrixInRowBlocks(g, left, blocks);
  V rest = g.Reshape(PaddedTo(g, right, whole, m), Shaped(batch, {blocks.count, blocks.size, m}));
  if (g.failed()) return right;
  const V number = g.Iota(rest, rest.rank() - 3, blocks.count);
  const bool is_upper = attributes.upper();
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

void Cholesky(G& g) {
  if (!AreSquare(g)) return;
  if (const std::optional<RowBlocks> blocks = RowBlocksOf(g.operand(0)); blocks.has_value()) {
    const V lower = BlockedCholesky(g, g.operand(0), *blocks);
    if (!g.failed()) g.Return(g.attributes().upper() ? Transposed(g, lower) : lower);
    return;
  }
  Attributes attributes;
  attributes.set_upper(g.attributes().upper());
  g.Return(Function(g, LinalgKind::kCholesky, {g.operand(0)}, attributes));
}
void Inv(G& g) {
  if (AreSquare(g)) g.Return(Function(g, LinalgKind::kInv, {g.operand(0)}));
}

std::vector<V> SignAndLogarithm(G& g) {
  const V x = g.operand(0);
  const V both = Function(g, LinalgKind::kSlogdet, {x});
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

std::vector<V> QrOf(G& g, const V& x, bool complete) {
  const int64_t m = Rows(x), n = Columns(x), k = complete ? m : std::min(m, n);
  Attributes attributes;
  attributes.set_full_matrices(complete);
  return Unpacked(g, Function(g, LinalgKind::kQr, {x}, attributes), BatchOf(x), {{m, k}, {k, n}});
}

// The mesh dim that alone shards the rows, evenly, where pieces of them are tall enough for TSQR; -1 where none is.
int RowsMeshDim(const V& x) {
  const TensorSpec& spec = x.spec();
  int found = -1;
  for (int i = 0; i < spec.mesh.ndim(); ++i) {
    const Placement& placement = spec.placements[static_cast<size_t>(i)];
    if (placement.is_partial() || placement.is_shard(spec.rank() - 1)) return -1;
    if (!placement.is_shard(spec.rank() - 2)) continue;
    if (found >= 0 || placement != Placement::Shard(placement.dim())) return -1;
    found = i;
  }
  if (found < 0) return -1;
  const int64_t pieces = spec.mesh.shape()[static_cast<size_t>(found)];
  const int64_t height = (Rows(x) + pieces - 1) / pieces;
  const bool is_tall = Columns(x) > 0 && height >= Columns(x) && Rows(x) >= 2 * Columns(x);
  return pieces > 1 && is_tall && (pieces - 1) * height < Rows(x) ? found : -1;
}

// TSQR (Demmel, Grigori, Hoemmen, Langou: "Communication-optimal parallel and sequential QR and LU factorizations",
// 2012): a QR of each worker's rows where they lie, and one of the small R's, which alone are gathered. Rows of zeros
// make the pieces equal. Signs are those of a QR of the whole (linalg_op.h).
std::vector<V> TallQr(G& g, const V& x, int mesh_dim) {
  const int64_t m = Rows(x), n = Columns(x);
  const int64_t pieces = x.spec().mesh.shape()[static_cast<size_t>(mesh_dim)];
  const int64_t height = (m + pieces - 1) / pieces;
  const Shape batch = BatchOf(x);
  V padded = x;
  if (m < pieces * height) {
    Attributes pad;
    std::vector<int64_t> width(2 * static_cast<size_t>(x.rank()), 0);
    width[width.size() - 3] = pieces * height - m;
    pad.set_pad_width(std::move(width));
    padded = g.Call(OpId::kPad, std::move(pad), {x}, {Scalar::Int(0)});
  }
  const std::vector<V> own = QrOf(g, g.Reshape(padded, Shaped(batch, {pieces, height, n})), false);
  if (g.failed()) return {x, x};
  const std::vector<V> together = QrOf(g, g.Reshape(own[1], Shaped(batch, {pieces * n, n})), false);
  if (g.failed()) return {x, x};
  const V parts = g.Reshape(together[0], Shaped(batch, {pieces, n, n}));
  V q = g.Reshape(g.Map(OpId::kMatmul, {own[0], parts}), Shaped(batch, {pieces * height, n}));
  const V top = g.SliceDim(q, q.rank() - 2, 0, n);
  const V signs = Function(g, LinalgKind::kReflectionSigns, {top});
  if (g.failed()) return {x, x};
  q = g.SliceDim(q, q.rank() - 2, 0, m) * g.ExpandDim(signs, signs.rank() - 1);
  return {q, together[1] * g.ExpandDim(signs, signs.rank())};
}

void Qr(G& g) {
  if (!AreMatrices(g)) return;
  const std::string& mode = g.attributes().mode();
  if (!mode.empty() && mode != "reduced" && mode != "complete") {
    return g.Refuse(StrCat("mode is ", mode, ", not reduced or complete"));
  }
  const V x = g.operand(0);
  const int rows = mode == "complete" ? -1 : RowsMeshDim(x);
  std::vector<V> results = rows >= 0 ? TallQr(g, x, rows) : QrOf(g, x, mode == "complete");
  if (!g.failed()) g.Return(std::move(results));
}

V Values(G& g, const V& x) { return RealPart(g, Function(g, LinalgKind::kSvdVals, {x})); }

std::vector<V> SvdOf(G& g, const V& x, bool full) {
  const int64_t m = Rows(x), n = Columns(x), least = std::min(m, n);
  Attributes attributes;
  attributes.set_full_matrices(full);
  std::vector<V> results = Unpacked(g, Function(g, LinalgKind::kSvd, {x}, attributes), BatchOf(x),
                                    {{m, full ? m : least}, {least}, {full ? n : least, n}});
  if (!g.failed()) results[1] = RealPart(g, results[1]);
  return results;
}
void Svd(G& g) {
  if (!AreMatrices(g)) return;
  std::vector<V> results = SvdOf(g, g.operand(0), g.attributes().full_matrices());
  if (!g.failed()) g.Return(std::move(results));
}
void SvdVals(G& g) {
  if (AreMatrices(g)) g.Return(Values(g, g.operand(0)));
}

void Eigh(G& g) {
  if (!AreSquare(g)) return;
  const V x = g.operand(0);
  const int64_t n = Columns(x);
  std::vector<V> results = Unpacked(g, Function(g, LinalgKind::kEigh, {x}), BatchOf(x), {{n}, {n, n}});
  if (g.failed()) return;
  results[0] = RealPart(g, results[0]);
  g.Return(std::move(results));
}
void Eigvalsh(G& g) {
  if (AreSquare(g)) g.Return(RealPart(g, Function(g, LinalgKind::kEigvalsh, {g.operand(0)})));
}

// Both operands in their common dtype, with one batch; a vector on the right becomes a column. The array API's rule:
// it is a vector where it has one dim.
struct System {
  V left, right;
  bool is_vector = false;
};
System SystemOf(G& g) {
  System s{g.operand(0), g.operand(1)};
  const absl::StatusOr<DType> dtype = Promote(s.left.dtype(), s.right.dtype());
  if (!dtype.ok()) {
    g.RefuseDType("the dtypes have no common one");
    return s;
  }
  s.left = g.AsType(s.left, *dtype);
  s.right = g.AsType(s.right, *dtype);
  s.is_vector = s.right.rank() == 1;
  if (s.right.rank() == 0) g.Refuse("the right side needs at least 1 dim");
  if (s.is_vector) s.right = g.ExpandDim(s.right, 1);
  if (g.failed()) return s;
  if (Rows(s.right) != Rows(s.left)) {
    g.Refuse("the rows of the matrices differ");
    return s;
  }
  const Shape a = BatchOf(s.left), b = BatchOf(s.right);
  Shape batch(std::max(a.size(), b.size()), 1);
  for (const Shape& each : {a, b}) {
    for (size_t d = 0; d < each.size(); ++d) {
      int64_t& extent = batch[batch.size() - each.size() + d];
      if (each[d] != 1 && extent != 1 && each[d] != extent) {
        g.Refuse("the batches don't broadcast");
        return s;
      }
      if (each[d] != 1) extent = each[d];
    }
  }
  s.left = g.BroadcastTo(s.left, Shaped(batch, {Rows(s.left), Columns(s.left)}));
  s.right = g.BroadcastTo(s.right, Shaped(batch, {Rows(s.right), Columns(s.right)}));
  return s;
}
void ReturnSolution(G& g, const V& solution, const System& s) {
  if (g.failed()) return;
  g.Return(s.is_vector ? g.DropDims(solution, {solution.rank() - 1}) : solution);
}
void Solve(G& g) {
  if (!AreSquare(g)) return;
  const System s = SystemOf(g);
  if (!g.failed()) ReturnSolution(g, Function(g, LinalgKind::kSolve, {s.left, s.right}), s);
}
void SolveTriangular(G& g) {
  if (!AreSquare(g)) return;
  const System s = SystemOf(g);
  Attributes attributes;
  attributes.set_upper(g.attributes().upper());
  attributes.set_transposed(g.attributes().transposed());
  attributes.set_unit_diagonal(g.attributes().unit_diagonal());
  if (g.failed()) return;
  const std::optional<RowBlocks> blocks = attributes.transposed() ? std::nullopt : RowBlocksOf(s.left);
  if (blocks.has_value()) {
    ReturnSolution(g, BlockedTriangularSolve(g, s.left, s.right, *blocks, attributes), s);
  } else {
    ReturnSolution(g, Function(g, LinalgKind::kTriangularSolve, {s.left, s.right}, std::move(attributes)), s);
  }
}

// What singular values are compared with, each to the largest one of its matrix: rtol, or eps times the larger extent.
double Tolerance(const G& g, const V& x) {
  if (g.attributes().rtol() != nullptr) return *g.attributes().rtol();
  const DType dtype = AccumulatedIn(x.dtype());
  const bool is_single = dtype == DType::kF32 || dtype == DType::kC64;
  const double eps = is_single ? double{std::numeric_limits<float>::epsilon()} : std::numeric_limits<double>::epsilon();
  return eps * static_cast<double>(std::max(Rows(x), Columns(x)));
}
// Which singular values count, by their matrix's largest.
V Counting(G& g, const V& values, double tolerance) {
  const V largest = g.Reduce(OpId::kMax, values, {values.rank() - 1}, Keep::kDims);
  return g.Map(OpId::kGreater, {values, largest * V(tolerance)});
}

void MatrixRank(G& g) {
  if (!AreMatrices(g)) return;
  const V x = g.operand(0);
  if (std::min(Rows(x), Columns(x)) == 0) return g.Return(g.Full(x, DType::kI64, BatchOf(x), Scalar::Int(0)));
  const V values = Values(g, x);
  const V counts = Counting(g, values, Tolerance(g, x));
  g.Return(g.Reduce(OpId::kSum, g.AsType(counts, DType::kI64), {counts.rank() - 1}, Keep::kNo));
}

// The inverses of the singular values that count, 0 for the others.
V Inverses(G& g, const V& values, double tolerance) {
  const V counts = Counting(g, values, tolerance);
  return g.Where(counts, V(1) / g.Where(counts, values, V(1)), V(0));
}

void Pinv(G& g) {
  if (!AreMatrices(g)) return;
  const V x = g.operand(0);
  if (std::min(Rows(x), Columns(x)) == 0) {
    return g.Return(g.Full(x, x.dtype(), Shaped(BatchOf(x), {Columns(x), Rows(x)}), Scalar::Int(0)));
  }
  const std::vector<V> parts = SvdOf(g, x, false);
  if (g.failed()) return;
  const V inverses = Inverses(g, parts[1], Tolerance(g, x));
  const V scaled = Transposed(g, parts[0]) * g.ExpandDim(inverses, inverses.rank());
  g.Return(g.Map(OpId::kMatmul, {Transposed(g, parts[2]), scaled}));
}

// x, the squared distance of each column, the rank, the singular values.
void Lstsq(G& g) {
  if (!AreMatrices(g)) return;
  const V a = g.operand(0);
  System s{a, g.operand(1)};
  if (a.rank() != 2 || s.right.rank() < 1 || s.right.rank() > 2) {
    return g.Refuse("needs a matrix, and on the right a vector or a matrix");
  }
  if (s.right.extent(0) != Rows(a)) return g.Refuse("the rows of the matrices differ");
  if (std::min(Rows(a), Columns(a)) == 0) return g.Refuse("needs a matrix with elements");
  s = SystemOf(g);
  if (g.failed()) return;
  const std::vector<V> parts = SvdOf(g, s.left, false);
  if (g.failed()) return;
  const double tolerance = Tolerance(g, a);
  const V inverses = Inverses(g, parts[1], tolerance);
  const V seen = g.Map(OpId::kMatmul, {Transposed(g, parts[0]), s.right}) * g.ExpandDim(inverses, 1);
  const V x = g.Map(OpId::kMatmul, {Transposed(g, parts[2]), seen});
  const V rest = s.right - g.Map(OpId::kMatmul, {s.left, x});
  const V counts = Counting(g, parts[1], tolerance);
  const V rank = g.Reduce(OpId::kSum, g.AsType(counts, DType::kI64), {0}, Keep::kNo);
  const V size = g.Map(OpId::kAbs, {rest});
  const V distance = g.Reduce(OpId::kSum, size * size, {0}, Keep::kNo);
  if (g.failed()) return;
  g.Return({s.is_vector ? g.DropDims(x, {1}) : x, distance, rank, parts[1]});
}

// By repeated squaring; of a negative power of the inverse.
void MatrixPower(G& g) {
  const V x = g.operand(0);
  if (x.rank() < 2 || Rows(x) != Columns(x)) return g.Refuse("needs square matrices");
  if (x.dtype() == DType::kBool) return g.RefuseDType("needs a numeric dtype");
  const int64_t power = g.attributes().k() == nullptr ? 1 : *g.attributes().k();
  if (power < -(int64_t{1} << 40) || power > int64_t{1} << 40) return g.Refuse(StrCat("the power is ", power));
  if (power == 0) {
    return g.Return(g.BroadcastTo(g.AsType(OnDiagonal(g, x), x.dtype()), x.spec().shape));
  }
  V square = power < 0 ? Function(g, LinalgKind::kInv, {x}) : x;
  std::optional<V> product;
  for (int64_t rest = std::abs(power); rest > 0 && !g.failed(); rest /= 2) {
    if (rest % 2 == 1) product = product.has_value() ? g.Map(OpId::kMatmul, {*product, square}) : square;
    if (rest > 1) square = g.Map(OpId::kMatmul, {square, square});
  }
  if (g.failed()) return;
  g.Return(*product);
}

// ord: fro, nuc, 1, -1, 2, -2, inf, -inf.
void MatrixNorm(G& g) {
  if (!AreMatrices(g)) return;
  const V x = g.operand(0);
  const int64_t rows = x.rank() - 2, columns = x.rank() - 1;
  const Keep keep = g.attributes().keepdims() ? Keep::kDims : Keep::kNo;
  const std::string& ord = g.attributes().ord();
  if (ord.empty() || ord == "fro") {
    const V wide = g.AsType(g.Map(OpId::kAbs, {x}), AccumulatedIn(FloatOf(x)));
    return g.Return(
        g.AsType(g.Map(OpId::kSqrt, {g.Reduce(OpId::kSum, wide * wide, {rows, columns}, keep)}), FloatOf(x)));
  }
  const absl::StatusOr<Scalar> number = ord == "nuc" ? Scalar::Float(0) : ParseScalar(ord);
  const double size = number.ok() ? std::abs(number->AsDouble()) : 0;
  if (ord != "nuc" && size != 1 && size != 2 && !std::isinf(size)) {
    return g.Refuse(StrCat("ord is ", ord, "; it is fro, nuc, 1, -1, 2, -2, inf or -inf"));
  }
  const OpId extreme = ord == "nuc" ? OpId::kSum : number->AsDouble() > 0 ? OpId::kMax : OpId::kMin;
  if (ord == "nuc" || size == 2) {
    const V values = Values(g, x);
    const V norm = g.Reduce(extreme, values, {values.rank() - 1}, keep);
    return g.Return(keep == Keep::kDims ? g.ExpandDim(norm, norm.rank()) : norm);
  }
  // Sums of columns (1) or rows (inf); dims stay until both are reduced.
  const V sums = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {x}), {size == 1 ? rows : columns}, Keep::kDims);
  g.Return(g.Reduce(extreme, sums, {rows, columns}, keep));
}

constexpr std::array kRows = {
    Composite(OpId::kCholesky, "cholesky", 1, 1, Cholesky, "cholesky(x, /, *, upper=False)",
              "Gives the triangular matrix whose product with its transpose is x, which is positive definite."),
    Composite(OpId::kQr, "qr", 1, 1, Qr, "qr(x, /, *, mode='reduced')",
              "Gives Q with orthonormal columns and an upper triangle R, whose product is x. Tall matrices that are "
              "sharded on rows stay where they are."),
    Composite(OpId::kSolve, "solve", 2, 2, Solve, "solve(x1, x2, /)",
              "Solves x1 @ x = x2; x2 is a vector where it has one dim."),
    Composite(OpId::kTriangularSolve, "solve_triangular", 2, 2, SolveTriangular,
              "solve_triangular(x1, x2, /, *, upper=False, transposed=False, unit_diagonal=False)",
              "Solves x1 @ x = x2 with one triangle of x1, or its transpose."),
    Composite(OpId::kInv, "inv", 1, 1, Inv, "inv(x, /)", "Gives the inverse matrices."),
    Composite(OpId::kDet, "det", 1, 1, Det, "det(x, /)", "Calculates the determinants."),
    Composite(OpId::kSlogdet, "slogdet", 1, 1, Slogdet, "slogdet(x, /)",
              "Calculates the sign of the determinants, and the logarithm of their size."),
    Composite(OpId::kSvd, "svd", 1, 1, Svd, "svd(x, /, *, full_matrices=True)",
              "Gives U, the singular values S, the largest first, and Vh, with x = U @ diag(S) @ Vh."),
    Composite(OpId::kSvdVals, "svdvals", 1, 1, SvdVals, "svdvals(x, /)",
              "Calculates the singular values, the largest first."),
    Composite(OpId::kEigh, "eigh", 1, 1, Eigh, "eigh(x, /)",
              "Gives the eigenvalues of symmetric matrices, the least first, and the eigenvectors, as columns."),
    Composite(OpId::kEigvalsh, "eigvalsh", 1, 1, Eigvalsh, "eigvalsh(x, /)",
              "Calculates the eigenvalues of symmetric matrices, the least first."),
    Composite(OpId::kLstsq, "lstsq", 2, 2, Lstsq, "lstsq(x1, x2, /, *, rtol=None)",
              "Finds the x with the least distance of x1 @ x from x2; gives it, the squared distances, the rank of x1 "
              "and its singular values."),
    Composite(OpId::kPinv, "pinv", 1, 1, Pinv, "pinv(x, /, *, rtol=None)",
              "Gives the pseudo-inverse; singular values up to rtol times the largest count as 0."),
    Composite(OpId::kMatrixRank, "matrix_rank", 1, 1, MatrixRank, "matrix_rank(x, /, *, rtol=None)",
              "Counts the singular values above rtol times the largest."),
    Composite(OpId::kMatrixPower, "matrix_power", 1, 1, MatrixPower, "matrix_power(x, n, /)",
              "Multiplies square matrices with themselves, n times; their inverses where n is negative."),
    Composite(OpId::kMatrixNorm, "matrix_norm", 1, 1, MatrixNorm, "matrix_norm(x, /, *, keepdims=False, ord='fro')",
              "Calculates the norms of matrices: fro, nuc, 1, -1, 2, -2, inf or -inf."),
};

}  // namespace

absl::Span<const OpRow> LinalgRows() { return kRows; }

}  // namespace tessera::composites
