// Solutions and measures of matrices by their decompositions: least squares, ranks, norms; and their powers.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/matrices.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// The bound that singular values are compared with, each to the largest one of its matrix: rtol, or eps times the
// larger extent.
double Tolerance(const G& g, const V& x) {
  if (g.attributes().Get(attribute::rtol) != nullptr) return *g.attributes().Get(attribute::rtol);
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
  const V values = SingularValues(g, x);
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
  if (g.operand(1).rank() < 1) return g.Refuse("needs a matrix, and on the right a vector or a matrix");
  if (std::min(Rows(a), Columns(a)) == 0) return g.Refuse("needs a matrix with elements");
  const System s = SystemOf(g, a, g.operand(1));
  if (g.failed()) return;
  const std::vector<V> parts = SvdOf(g, s.left, false);
  if (g.failed()) return;
  const V values = parts[1];
  const int64_t last = values.rank() - 1, rows = s.right.rank() - 2;
  const double tolerance = Tolerance(g, a);
  const V inverses = Inverses(g, values, tolerance);
  const V seen = g.Map(OpId::kMatmul, {Transposed(g, parts[0]), s.right}) * g.ExpandDim(inverses, inverses.rank());
  const V x = g.Map(OpId::kMatmul, {Transposed(g, parts[2]), seen});
  const V rest = s.right - g.Map(OpId::kMatmul, {s.left, x});
  const V counts = Counting(g, values, tolerance);
  const V rank = g.Reduce(OpId::kSum, g.AsType(counts, DType::kI64), {last}, Keep::kNo);
  const V size = g.Map(OpId::kAbs, {rest});
  const V distance = g.Reduce(OpId::kSum, size * size, {rows}, Keep::kNo);
  if (g.failed()) return;
  g.Return({s.is_vector ? g.DropDims(x, {x.rank() - 1}) : x, distance, rank, values});
}

// By repeated squaring; a negative power squares the inverse.
void MatrixPower(G& g) {
  const V x = g.operand(0);
  if (x.rank() < 2 || Rows(x) != Columns(x)) return g.Refuse("needs square matrices");
  if (x.dtype() == DType::kBool) return g.RefuseDType("needs a numeric dtype");
  const int64_t power = g.attributes().Get(attribute::k) == nullptr ? 1 : *g.attributes().Get(attribute::k);
  if (power < -(int64_t{1} << 40) || power > int64_t{1} << 40) return g.Refuse(StrCat("the power is ", power));
  if (power == 0) {
    return g.Return(g.BroadcastTo(g.AsType(OnDiagonal(g, x), x.dtype()), x.spec().shape));
  }
  V square = power < 0 ? MatrixFunction(g, LinalgKind::kInv, {x}) : x;
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
  const Keep keep = g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo;
  const std::string& ord = g.attributes().Get(attribute::ord);
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
    const V values = SingularValues(g, x);
    const V norm = g.Reduce(extreme, values, {values.rank() - 1}, keep);
    return g.Return(keep == Keep::kDims ? g.ExpandDim(norm, norm.rank()) : norm);
  }
  // Sums of columns (1) or rows (inf); dims stay until both are reduced.
  const V sums = g.Reduce(OpId::kSum, g.Map(OpId::kAbs, {x}), {size == 1 ? rows : columns}, Keep::kDims);
  g.Return(g.Reduce(extreme, sums, {rows, columns}, keep));
}

void MatrixExp(G& g) {
  if (AreSquare(g)) g.Return(MatrixFunction(g, LinalgKind::kExp, {g.operand(0)}));
}

constexpr std::array kRows = {
    Composite(OpId::kLstsq, "lstsq", 2, 2, Lstsq, "lstsq(x1, x2, /, *, rtol=None)",
              "Finds the x with the least distance of x1 @ x from x2; gives it, the squared distances, the rank of x1 "
              "and its singular values.",
              "ts.linalg.lstsq(ts.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), ts.asarray([[1.0], [4.0], "
              "[0.0]])).x.shape => (2, 1)"),
    Composite(OpId::kPinv, "pinv", 1, 1, Pinv, "pinv(x, /, *, rtol=None)",
              "Gives the pseudo-inverse; singular values up to rtol times the largest count as 0.",
              "ts.linalg.pinv(ts.ones((3, 2))).shape => (2, 3)"),
    Composite(OpId::kMatrixRank, "matrix_rank", 1, 1, MatrixRank, "matrix_rank(x, /, *, rtol=None)",
              "Counts the singular values above rtol times the largest.",
              "ts.linalg.matrix_rank(ts.asarray([[1.0, 1.0], [1.0, 1.0]])).item() => 1"),
    Composite(OpId::kMatrixPower, "matrix_power", 1, 1, MatrixPower, "matrix_power(x, n, /)",
              "Multiplies square matrices with themselves, n times; their inverses where n is negative.",
              "ts.linalg.matrix_power(ts.asarray([[2.0, 0.0], [0.0, 3.0]]), 2).tolist() => [[4.0, 0.0], [0.0, 9.0]]"),
    Composite(OpId::kMatrixNorm, "matrix_norm", 1, 1, MatrixNorm, "matrix_norm(x, /, *, keepdims=False, ord='fro')",
              "Calculates the norms of matrices: fro, nuc, 1, -1, 2, -2, inf or -inf.",
              "ts.linalg.matrix_norm(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).item() => 5.0"),
    Composite(OpId::kMatrixExp, "matrix_exp", 1, 1, MatrixExp, "matrix_exp(x, /)",
              "Calculates the exponentials of square matrices: the sum of matrix_power(x, k) / k!.",
              "ts.linalg.matrix_exp(ts.zeros((2, 2))).tolist() => [[1.0, 0.0], [0.0, 1.0]]"),
};

}  // namespace

absl::Span<const OpRow> MatrixRows() { return kRows; }

}  // namespace tessera::composites
