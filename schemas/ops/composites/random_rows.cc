// Random numbers: made of uniform ones of the counter-based generator (philox.h), so that they are the same bits on
// every mesh and placement. A call's last numbers are the seed and the stream of each draw; the numbers before shape
// the distribution.

#include <array>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// Drawn in f32 for f32 and shorter.
DType DrawnIn(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

// In [0, 1), where the call wants its result; `at`: of the seed among the call's numbers.
V Uniform01(G& g, size_t at) {
  Attributes attributes = g.attributes();
  if (attributes.Get(attribute::dtype) != nullptr)
    attributes.Set(attribute::dtype, DrawnIn(*attributes.Get(attribute::dtype)));
  return g.Call(OpId::kRand, std::move(attributes), {}, {g.scalars()[at], g.scalars()[at + 1]});
}

// Whether the call has `count` numbers and a float dtype.
bool IsDraw(G& g, size_t count) {
  if (g.scalars().size() != count) {
    g.Refuse(StrCat("takes ", count, " numbers, not ", g.scalars().size()));
  } else if (g.attributes().Get(attribute::dtype) == nullptr ||
             Kind(*g.attributes().Get(attribute::dtype)) != DTypeKind::kFloat) {
    g.RefuseDType("the dtype must be a float");
  }
  return !g.failed();
}
V Number(const G& g, size_t at) { return V(Scalar::Float(g.scalars()[at].AsDouble())); }
void Give(G& g, const V& x) { g.Return(g.AsType(x, *g.attributes().Get(attribute::dtype))); }

// low * (1 - u) + high * u: bounds of which the difference overflows, too.
void UniformBetween(G& g) {
  if (!IsDraw(g, 4)) return;
  const V u = Uniform01(g, 2);
  Give(g, Number(g, 0) * (V(1.0) - u) + Number(g, 1) * u);
}

void Exponential(G& g) {
  if (!IsDraw(g, 3)) return;
  Give(g, Number(g, 0) * -g.Map(OpId::kLog1p, {-Uniform01(g, 1)}));
}

// Srivastava et al., "Dropout", 2014, with the scale at training.
void Dropout(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const double p = g.attributes().Get(attribute::p) == nullptr ? 0.5 : *g.attributes().Get(attribute::p);
  if (!(p >= 0 && p <= 1)) return g.Refuse("p is no probability");
  if (g.scalars().size() != 2) return g.Refuse("takes a seed and a stream");
  Attributes attributes;
  attributes.Set(attribute::dtype, DrawnIn(x.dtype()));
  attributes.Set(attribute::shape, x.spec().shape);
  attributes.Set(attribute::mesh, x.spec().mesh);
  Placements placements = x.spec().placements;
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Placement::Replicate();
  }
  attributes.Set(attribute::placements, std::move(placements));
  const V u = g.Call(OpId::kRand, std::move(attributes), {}, {g.scalars()[0], g.scalars()[1]});
  const V kept = g.Map(OpId::kGreaterEqual, {u, V(p)});
  g.Return(g.Where(kept, x * V(p < 1 ? 1 / (1 - p) : 0.0), V(0.0)));
}

constexpr std::array kRows = {
    Composite(OpId::kUniform, "uniform", 0, 0, UniformBetween,
              "uniform(low=0.0, high=1.0, shape=(), *, dtype=None, device_mesh=None, placements=None)",
              "Random numbers in [low, high), the same on every mesh and placement.",
              "ts.uniform(0.0, 1.0, (2, 3)).shape => (2, 3)"),
    Composite(OpId::kExponential, "exponential", 0, 0, Exponential,
              "exponential(scale=1.0, shape=(), *, dtype=None, device_mesh=None, placements=None)",
              "Random numbers of the exponential distribution, the same on every mesh and placement.",
              "ts.exponential(2.0, (1000,)).shape => (1000,)"),
    Composite(OpId::kDropout, "dropout", 1, 1, Dropout, "dropout(x, /, p=0.5, *, training=True)",
              "Gives 0 with probability p, else x / (1 - p); which, is the same on every mesh and placement.",
              "ts.dropout(ts.asarray([1.0, 2.0]), 0.5, training=False).tolist() => [1.0, 2.0]"),
};

}  // namespace

absl::Span<const OpRow> RandomRows() { return kRows; }

}  // namespace tessera::composites
