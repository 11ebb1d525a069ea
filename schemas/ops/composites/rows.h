#pragma once

// The composite rows of the catalog, by what they are for. Each file has the functions that build the graphs and, at
// its end, their rows. For schemas/ops/catalog.cc alone.

#include "absl/types/span.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/graph_builder.h"

namespace tessera::composites {

absl::Span<const OpRow> MathRows();         // elementwise and statistics
absl::Span<const OpRow> ModelRows();        // what models need: activations, norms, losses, attention
absl::Span<const OpRow> FourierRows();      // Fourier transforms of several dims
absl::Span<const OpRow> LinalgRows();       // factorisations, and systems of equations
absl::Span<const OpRow> MatrixRows();       // what is said of matrices by them
absl::Span<const OpRow> ArrangementRows();  // where elements lie: concat, stack, roll, assignment
absl::Span<const OpRow> RandomRows();       // distributions
absl::Span<const OpRow> WindowRows();       // convolutions and pooling
absl::Span<const OpRow> StatisticsRows();   // what NumPy has of elements and statistics besides
absl::Span<const OpRow> TrainingRows();     // steps of optimizers
absl::Span<const OpRow> GradientRows();     // backward passes
absl::Span<const OpRow> GraphRows();        // graphs that a client says

// The dtype of a result that is a float: x's own, that of its parts, or f64.
inline DType FloatOf(const GraphValue& x) {
  const DType real = RealOf(x.dtype());
  return Kind(real) == DTypeKind::kFloat ? real : DType::kF64;
}

inline double NumberOf(const GraphBuilder& g, size_t scalar, double otherwise) {
  return g.scalars().size() > scalar ? g.scalars()[scalar].AsDouble() : otherwise;
}
inline double Eps(const GraphBuilder& g, double otherwise) {
  return g.attributes().Get(attribute::eps) == nullptr ? otherwise : *g.attributes().Get(attribute::eps);
}
// f16 and bf16 are computed in f32 and rounded once.
inline GraphValue Wide(GraphBuilder& g, const GraphValue& x) {
  return g.AsType(g.AsFloat(x), AccumulatedIn(g.AsFloat(x).dtype()));
}

inline constexpr OpRow Composite(OpId id, std::string_view name, int min_operands, int max_operands,
                                 CompositeFunction build, std::string_view signature, std::string_view doc,
                                 std::string_view example = "", std::string_view arguments = "") {
  return {id,
          name,
          OpFamily::kComposite,
          min_operands,
          max_operands,
          "",
          std::nullopt,
          std::nullopt,
          DTypeRule::kSame,
          PartialRule::kNone,
          signature,
          doc,
          example,
          arguments,
          build};
}
// One whose graph has ops on each element alone.
inline constexpr OpRow MapComposite(OpId id, std::string_view name, int min_operands, int max_operands,
                                    CompositeFunction build, std::string_view signature, std::string_view doc,
                                    std::string_view example) {
  OpRow row = Composite(id, name, min_operands, max_operands, build, signature, doc, example);
  row.is_map = true;
  return row;
}

}  // namespace tessera::composites
