#include "schemas/ops/composites/matrices.h"

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

}  // namespace

V MatrixFunction(G& g, LinalgKind kind, std::vector<V> matrices, Attributes attributes) {
  attributes.Set(attribute::mode, std::string(NameOf(kind)));
  return g.Call(OpId::kMatrixFunction, std::move(attributes), std::move(matrices));
}

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

Shape BatchOf(const V& x) {
  const Shape shape = x.spec().shape;
  return {shape.begin(), shape.end() - 2};
}
Shape Shaped(Shape batch, std::initializer_list<int64_t> extents) {
  batch.insert(batch.end(), extents.begin(), extents.end());
  return batch;
}

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

V RealPart(G& g, const V& x) { return Kind(x.dtype()) == DTypeKind::kComplex ? g.Map(OpId::kReal, {x}) : x; }

V Transposed(G& g, const V& x) {
  return Exchanged(g, Kind(x.dtype()) == DTypeKind::kComplex ? g.Map(OpId::kConj, {x}) : x);
}

V Exchanged(G& g, const V& x) {
  Dims dims(static_cast<size_t>(x.rank()));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
  std::swap(dims[dims.size() - 2], dims[dims.size() - 1]);
  return g.Permute(x, dims);
}

V OnDiagonal(G& g, const V& x) {
  return g.Map(OpId::kEqual,
               {g.Iota(x, x.rank() - 2, Rows(x), DType::kI64), g.Iota(x, x.rank() - 1, Columns(x), DType::kI64)});
}

namespace {

V Padded(G& g, const V& x, int64_t above, int64_t below, int64_t right) {
  if (g.failed()) return x;
  std::vector<int64_t> width(2 * static_cast<size_t>(x.rank()), 0);
  width[width.size() - 4] = above;
  width[width.size() - 3] = below;
  width[width.size() - 1] = right;
  return g.Pad(x, std::move(width));
}

}  // namespace

V PaddedTo(G& g, const V& x, int64_t rows, int64_t columns) {
  return Padded(g, x, 0, rows - Rows(x), columns - Columns(x));
}
V PaddedAbove(G& g, const V& x, int64_t rows) { return Padded(g, x, rows, 0, 0); }

V ContinuedTo(G& g, const V& x, int64_t whole, const V& number) {
  const int64_t n = Rows(x);
  const V padded = PaddedTo(g, x, whole, whole);
  if (n == whole || g.failed()) return padded;
  const V row = g.Iota(padded, padded.rank() - 2, whole), column = g.Iota(padded, padded.rank() - 1, whole);
  const V is_unit =
      g.Map(OpId::kLogicalAnd, {g.Map(OpId::kEqual, {row, column}), g.Map(OpId::kGreaterEqual, {row, V(n)})});
  return g.Where(is_unit, number, padded);
}

V Along(G& g, OpId op, int64_t dim, std::vector<V> operands) {
  Attributes attributes;
  attributes.Set(attribute::dims, {dim});
  return g.Call(op, std::move(attributes), std::move(operands));
}

V Triangle(G& g, OpId op, const V& x, int64_t k) {
  Attributes attributes;
  attributes.Set(attribute::k, k);
  return g.Call(op, std::move(attributes), {x});
}

V TriangularSolve(G& g, const V& left, const V& right, Attributes attributes) {
  return MatrixFunction(g, LinalgKind::kTriangularSolve, {left, right}, std::move(attributes));
}

std::optional<MatrixShards> ShardsOf(const V& x) {
  const TensorSpec& spec = x.spec();
  std::optional<MatrixShards> found;
  for (int i = 0; i < spec.mesh.ndim(); ++i) {
    const Placement& placement = spec.placements[static_cast<size_t>(i)];
    if (placement.is_partial()) return std::nullopt;
    if (!placement.is_shard() || placement.dim() < spec.rank() - 2) continue;
    if (found.has_value() || placement != Placement::Shard(placement.dim())) return std::nullopt;
    found = {i, placement.dim(), spec.mesh.shape()[static_cast<size_t>(i)]};
  }
  return found;
}

V PermutationOf(G& g, const V& pivots, int64_t rows) {
  const DTypeKind kind = Kind(pivots.dtype());
  if (kind != DTypeKind::kSigned && kind != DTypeKind::kUnsigned) g.RefuseDType("pivots are integers");
  const int64_t last = pivots.rank() - 1, own = last < 0 ? 0 : pivots.extent(last);
  if (last < 0 || own > rows) g.Refuse("there are more pivots than rows");
  if (g.failed()) return pivots;
  V whole = g.AsType(pivots, DType::kF64);
  if (own < rows) {
    Shape extents = whole.spec().shape;
    extents.back() = rows - own;
    const V stay = g.Iota(whole, last, rows - own, DType::kI64) + V(own);
    whole = g.Concat({whole, g.BroadcastTo(g.AsType(stay, DType::kF64), extents)}, last);
  }
  return g.AsType(MatrixFunction(g, LinalgKind::kPermutation, {g.ExpandDim(whole, whole.rank())}), DType::kI64);
}

System SystemOf(G& g, const V& left, const V& right) {
  System s{left, right};
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
}  // namespace tessera::composites
