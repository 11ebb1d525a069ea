#include "schemas/ops/product_placer.h"

#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

const Placement kReplicate = Placement::Replicate();
const Placement kSum = Placement::Partial(ReduceOp::kSum);

bool IsLinear(const Placement& p) {
  return p.is_partial() && (p.reduce_op() == ReduceOp::kSum || p.reduce_op() == ReduceOp::kAvg);
}

}  // namespace

MatmulPlacer::MatmulPlacer(const std::vector<MatmulRule>& rules, const TensorSpec& a, const TensorSpec& b,
                           const TensorSpec& product, PendingPolicy policy)
    : rules_(rules),
      own_b_(b),
      a_(a),
      b_(b),
      product_(product),
      policy_(policy),
      aligned_(HaveSameArrangement(a.mesh, b.mesh)) {
  if (aligned_) {
    b_.mesh = a.mesh;
  } else {
    // Its own placements say nothing about this mesh; it is priced from where it lies.
    b_.mesh = a.mesh;
    b_.placements.assign(static_cast<size_t>(a.mesh.ndim()), kReplicate);
  }
  for (int i = 0; i < a.mesh.ndim(); ++i) product_.placements[static_cast<size_t>(i)] = Guess(i);
}

absl::Status MatmulPlacer::Place() {
  for (int i = 0; i < a_.mesh.ndim(); ++i) {
    std::optional<MatmulRule> rule = Fit(i);
    if (!rule.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(rule, Cheapest(i));
    }
    a_.placements[static_cast<size_t>(i)] = rule->a;
    b_.placements[static_cast<size_t>(i)] = rule->b;
    product_.placements[static_cast<size_t>(i)] = rule->product;
  }
  return absl::OkStatus();
}

bool MatmulPlacer::HasMixedPartials() const {
  for (const Placement& p : product_.placements) {
    if (p.is_partial() && p.reduce_op() != product_.partial_op()) return true;
  }
  return false;
}

std::optional<MatmulRule> MatmulPlacer::Fit(int i) const {
  for (const MatmulRule& rule : rules_) {
    if (OfA(i) == rule.a && OfB(i) == rule.b) return rule;
  }
  if (policy_ == PendingPolicy::kReduceAll) return std::nullopt;
  if (IsLinear(OfA(i)) && OfB(i).is_replicate()) return MatmulRule{OfA(i), kReplicate, OfA(i)};
  if (IsLinear(OfB(i)) && OfA(i).is_replicate()) return MatmulRule{kReplicate, OfB(i), OfB(i)};
  return std::nullopt;
}

Placement MatmulPlacer::Guess(int i) const {
  if (const std::optional<MatmulRule> rule = Fit(i); rule.has_value()) return rule->product;
  for (const MatmulRule& rule : rules_) {
    const bool by_a = rule.a.is_shard() && OfA(i) == rule.a;
    const bool by_b = rule.b.is_shard() && OfB(i) == rule.b;
    if (rule.product.is_shard() && (by_a || by_b)) return rule.product;
  }
  return kReplicate;
}

absl::StatusOr<MatmulRule> MatmulPlacer::Cheapest(int i) const {
  std::optional<MatmulRule> best;
  double best_bytes = 0;
  for (const MatmulRule& rule : rules_) {
    TESSERA_ASSIGN_OR_RETURN(const double bytes, Price(i, rule));
    if (best.has_value() && bytes >= best_bytes) continue;
    best = rule;
    best_bytes = bytes;
  }
  return *best;
}

absl::StatusOr<double> MatmulPlacer::Price(int i, const MatmulRule& rule) const {
  TESSERA_ASSIGN_OR_RETURN(const double a_bytes, RedistributeBytes(a_, WithPlacement(a_, i, rule.a)));
  const TensorSpec b_wanted = WithPlacement(b_, i, rule.b);
  TESSERA_ASSIGN_OR_RETURN(const double b_bytes, RedistributeBytes(aligned_ ? b_ : own_b_, b_wanted));
  if (!rule.product.is_partial()) return a_bytes + b_bytes;
  // Other pending dims stay pending: they are not this rule's price.
  TESSERA_ASSIGN_OR_RETURN(const double reduce_bytes,
                           RedistributeBytes(PendingProduct(i), WithPlacement(PendingProduct(i), i, kReplicate)));
  return a_bytes + b_bytes + reduce_bytes;
}

TensorSpec MatmulPlacer::PendingProduct(int i) const {
  TensorSpec pending = WithPlacement(product_, i, kSum);
  for (Placement& p : pending.placements) {
    if (p.is_partial()) p = kSum;
  }
  return pending;
}

}  // namespace tessera
