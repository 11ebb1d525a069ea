// Fourier transforms of several dims, one after the other, and those of Hermitian signals.

#include <algorithm>
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

// Along one dim; a length of 0 is the dim's own.
V Along(G& g, OpId op, const V& x, int64_t dim, int64_t length, const std::string& norm) {
  Attributes attributes;
  attributes.Set(attribute::dims, {dim});
  attributes.Set(attribute::norm, norm);
  if (length > 0) attributes.Set(attribute::k, length);
  return g.Call(op, std::move(attributes), {x});
}

// In the order of the call's dims, and the last one, by `last`, first or last of all.
enum class LastDim : uint8_t { kFirst, kLast };
void Several(G& g, OpId op, OpId last, LastDim order) {
  V x = g.operand(0);
  const Dims dims = g.attributes().Get(attribute::dims).empty() ? g.DimsOf(x) : g.attributes().Get(attribute::dims);
  const std::vector<int64_t>& lengths = g.attributes().Get(attribute::lengths);
  if (dims.empty()) return g.Refuse("needs an axis");
  if (!lengths.empty() && lengths.size() != dims.size()) {
    return g.Refuse(StrCat(lengths.size(), " lengths for ", dims.size(), " axes"));
  }
  const auto length = [&](size_t i) { return lengths.empty() ? 0 : lengths[i]; };
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!lengths.empty() && length(i) < 1) return g.Refuse(StrCat("a length is ", length(i)));
  }
  const size_t end = dims.size() - 1;
  if (order == LastDim::kFirst) x = Along(g, last, x, dims[end], length(end), g.attributes().Get(attribute::norm));
  for (size_t i = 0; i < end && !g.failed(); ++i)
    x = Along(g, op, x, dims[i], length(i), g.attributes().Get(attribute::norm));
  if (order == LastDim::kLast && !g.failed())
    x = Along(g, last, x, dims[end], length(end), g.attributes().Get(attribute::norm));
  if (!g.failed()) g.Return(x);
}
void Fftn(G& g) { Several(g, OpId::kFft, OpId::kFft, LastDim::kLast); }
void Ifftn(G& g) { Several(g, OpId::kIfft, OpId::kIfft, LastDim::kLast); }
void Rfftn(G& g) { Several(g, OpId::kFft, OpId::kRfft, LastDim::kFirst); }
void Irfftn(G& g) { Several(g, OpId::kIfft, OpId::kIrfft, LastDim::kLast); }

// The transform that goes the other way, of conjugates: scaled as one that goes its own way.
std::string Turned(const std::string& norm) {
  if (norm == "ortho") return norm;
  return norm == "forward" ? "backward" : norm.empty() || norm == "backward" ? "forward" : norm;
}
int64_t OwnLength(const G& g) {
  return g.attributes().Get(attribute::k) == nullptr ? 0 : *g.attributes().Get(attribute::k);
}
bool HasOneAxis(G& g) {
  if (g.attributes().Get(attribute::dims).size() != 1) g.Refuse("needs one axis");
  if (g.attributes().Get(attribute::k) != nullptr && OwnLength(g) < 1) g.Refuse(StrCat("a length of ", OwnLength(g)));
  return !g.failed();
}
void Hfft(G& g) {
  if (!HasOneAxis(g)) return;
  const V x = g.operand(0);
  const V turned = Kind(x.dtype()) == DTypeKind::kComplex ? g.Map(OpId::kConj, {x}) : x;
  g.Return(Along(g, OpId::kIrfft, turned, g.attributes().Get(attribute::dims)[0], OwnLength(g),
                 Turned(g.attributes().Get(attribute::norm))));
}
void Ihfft(G& g) {
  if (!HasOneAxis(g)) return;
  const V half = Along(g, OpId::kRfft, g.operand(0), g.attributes().Get(attribute::dims)[0], OwnLength(g),
                       Turned(g.attributes().Get(attribute::norm)));
  if (!g.failed()) g.Return(g.Map(OpId::kConj, {half}));
}

constexpr std::array kRows = {
    Composite(OpId::kHfft, "hfft", 1, 1, Hfft, "hfft(x, /, *, n=None, axis=-1, norm='backward')",
              "Computes the n real numbers of the transform of a signal whose other half are the conjugates.",
              "ts.fft.hfft(ts.asarray([1.0, 1.0])).tolist() => [2.0, 0.0]"),
    Composite(OpId::kIhfft, "ihfft", 1, 1, Ihfft, "ihfft(x, /, *, n=None, axis=-1, norm='backward')",
              "Computes the inverse of hfft.", "ts.fft.ihfft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), -0j]"),
    Composite(OpId::kFftn, "fftn", 1, 1, Fftn, "fftn(x, /, *, lengths=None, axes=None, norm='backward')",
              "Computes the discrete Fourier transform along several axes.",
              "ts.fft.fftn(ts.ones((2, 2))).tolist() => [[(4+0j), 0j], [0j, 0j]]"),
    Composite(OpId::kIfftn, "ifftn", 1, 1, Ifftn, "ifftn(x, /, *, lengths=None, axes=None, norm='backward')",
              "Computes the inverse of fftn.", "ts.fft.ifftn(ts.ones((2, 2))).tolist() => [[(1-0j), -0j], [-0j, 0j]]"),
    Composite(OpId::kRfftn, "rfftn", 1, 1, Rfftn, "rfftn(x, /, *, lengths=None, axes=None, norm='backward')",
              "Computes rfft along the last of several axes, and fft along the others.",
              "ts.fft.rfftn(ts.ones((2, 2))).shape => (2, 2)"),
    Composite(OpId::kIrfftn, "irfftn", 1, 1, Irfftn, "irfftn(x, /, *, lengths=None, axes=None, norm='backward')",
              "Computes the inverse of rfftn.", "ts.fft.irfftn(ts.ones((2, 2))).shape => (2, 2)"),
};

}  // namespace

absl::Span<const OpRow> FourierRows() { return kRows; }

}  // namespace tessera::composites
