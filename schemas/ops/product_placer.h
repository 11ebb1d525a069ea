#pragma once

// How the operands and the product of a product of two tensors lie: one rule for each mesh dim, out of a list. Private
// to schemas/ops.
//
//   rules {S(0), R -> S(0)}, {R, S(1) -> S(1)}, {R, R -> R}, {S(1), S(0) -> P(sum)} are those of mk,kn->mn:
//   a [S(0)] beside b [R] fits the first; a [S(0)] beside b [S(1)] fits none, and the one is taken for which the fewest
//   bytes are received, the reduction of a P(sum) included; ties go to the earlier.

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/types/placement.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// The placements of two operands and their product on one mesh dim.
struct MatmulRule {
  Placement a;
  Placement b;
  Placement product;
};

// kKeepWhereLegal: a pending sum beside a Replicate stays pending.
enum class PendingPolicy : uint8_t { kKeepWhereLegal, kReduceAll };

// The rules and the operands outlive it.
class MatmulPlacer {
 public:
  MatmulPlacer(const std::vector<MatmulRule>& rules, const TensorSpec& a, const TensorSpec& b,
               const TensorSpec& product, PendingPolicy policy);

  absl::Status Place();
  bool HasMixedPartials() const;

  // As they were decided, on a's mesh.
  const TensorSpec& a() const { return a_; }
  const TensorSpec& b() const { return b_; }
  const TensorSpec& product() const { return product_; }

 private:
  const Placement& OfA(int i) const { return a_.placements[static_cast<size_t>(i)]; }
  const Placement& OfB(int i) const { return b_.placements[static_cast<size_t>(i)]; }
  // The rule that the operands fit as they are, if any. A Replicate beside S(k) is no fit.
  std::optional<MatmulRule> Fit(int i) const;
  // Where the product will probably lie on a mesh dim that isn't decided yet, for the price of others.
  Placement Guess(int i) const;
  absl::StatusOr<MatmulRule> Cheapest(int i) const;
  absl::StatusOr<double> Price(int i, const MatmulRule& rule) const;
  TensorSpec PendingProduct(int i) const;

  const std::vector<MatmulRule>& rules_;
  const TensorSpec& own_b_;
  TensorSpec a_;  // earlier mesh dims as decided
  TensorSpec b_;
  TensorSpec product_;
  const PendingPolicy policy_;
  const bool aligned_;
};

}  // namespace tessera
