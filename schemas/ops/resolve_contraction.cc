// Matmul, mk,kn->mn. Per mesh dim: S(m)·R is S(m), R·S(n) is S(n), S(k)·S(k) is P(sum), R·R is R, and
// a pending sum beside a Replicate stays pending. Otherwise S(m), S(n), R and P(k) are compared by the
// bytes that must be received, the reduction of P(k) included; ties go to the earlier.

#include <array>

#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// What the two operands and the product are on one mesh dim.
struct MatmulRule {
  Placement a;
  Placement b;
  Placement product;
};

const Placement kReplicate = Placement::Replicate();
const Placement kSum = Placement::Partial(ReduceOp::kSum);
const MatmulRule kRuleM = {Placement::Shard(0), kReplicate, Placement::Shard(0)};
const MatmulRule kRuleN = {kReplicate, Placement::Shard(1), Placement::Shard(1)};
const MatmulRule kRuleReplicate = {kReplicate, kReplicate, kReplicate};
const MatmulRule kRuleK = {Placement::Shard(1), Placement::Shard(0), kSum};

enum class PendingPolicy : uint8_t { kKeepWhereLegal, kReduceAll };

bool IsLinear(const Placement& p) {
  return p.is_partial() && (p.reduce_op() == ReduceOp::kSum || p.reduce_op() == ReduceOp::kAvg);
}

class MatmulPlacer {
 public:
  MatmulPlacer(const TensorSpec& a, const TensorSpec& b, const TensorSpec& product, PendingPolicy policy)
      : own_b_(b), a_(a), b_(b), product_(product), policy_(policy), aligned_(HaveSameArrangement(a.mesh, b.mesh)) {
    if (aligned_) {
      b_.mesh = a.mesh;
    } else {
      // Its own placements say nothing about this mesh; it is priced from where it lies.
      b_.mesh = a.mesh;
      b_.placements.assign(static_cast<size_t>(a.mesh.ndim()), kReplicate);
    }
    for (int i = 0; i < a.mesh.ndim(); ++i) product_.placements[static_cast<size_t>(i)] = Guess(i);
  }

  absl::Status Place() {
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

  bool HasMixedPartials() const {
    for (const Placement& p : product_.placements) {
      if (p.is_partial() && p.reduce_op() != product_.partial_op()) return true;
    }
    return false;
  }

  const TensorSpec& a() const { return a_; }
  const TensorSpec& b() const { return b_; }
  const TensorSpec& product() const { return product_; }

 private:
  const Placement& OfA(int i) const { return a_.placements[static_cast<size_t>(i)]; }
  const Placement& OfB(int i) const { return b_.placements[static_cast<size_t>(i)]; }

  // The rule that the operands fit as they are, if any. A Replicate beside S(k) is no fit.
  std::optional<MatmulRule> Fit(int i) const {
    for (const MatmulRule& rule : {kRuleM, kRuleN, kRuleReplicate, kRuleK}) {
      if (OfA(i) == rule.a && OfB(i) == rule.b) return rule;
    }
    if (policy_ == PendingPolicy::kReduceAll) return std::nullopt;
    if (IsLinear(OfA(i)) && OfB(i).is_replicate()) return MatmulRule{OfA(i), kReplicate, OfA(i)};
    if (IsLinear(OfB(i)) && OfA(i).is_replicate()) return MatmulRule{kReplicate, OfB(i), OfB(i)};
    return std::nullopt;
  }

  // Where the product will probably lie on a mesh dim that isn't decided yet, for the price of others.
  Placement Guess(int i) const {
    if (const std::optional<MatmulRule> rule = Fit(i); rule.has_value()) return rule->product;
    if (OfA(i).is_shard(0)) return OfA(i);
    return OfB(i).is_shard(1) ? OfB(i) : kReplicate;
  }

  absl::StatusOr<MatmulRule> Cheapest(int i) const {
    std::optional<MatmulRule> best;
    double best_bytes = 0;
    for (const MatmulRule& rule : {kRuleM, kRuleN, kRuleReplicate, kRuleK}) {
      TESSERA_ASSIGN_OR_RETURN(const double bytes, Price(i, rule));
      if (best.has_value() && bytes >= best_bytes) continue;
      best = rule;
      best_bytes = bytes;
    }
    return *best;
  }

  absl::StatusOr<double> Price(int i, const MatmulRule& rule) const {
    TESSERA_ASSIGN_OR_RETURN(const double a_bytes, RedistributeBytes(a_, WithPlacement(a_, i, rule.a)));
    const TensorSpec b_wanted = WithPlacement(b_, i, rule.b);
    TESSERA_ASSIGN_OR_RETURN(const double b_bytes, RedistributeBytes(aligned_ ? b_ : own_b_, b_wanted));
    if (!rule.product.is_partial()) return a_bytes + b_bytes;
    // Other pending dims stay pending: they are not this rule's price.
    TESSERA_ASSIGN_OR_RETURN(const double reduce_bytes,
                             RedistributeBytes(PendingProduct(i), WithPlacement(PendingProduct(i), i, kReplicate)));
    return a_bytes + b_bytes + reduce_bytes;
  }

  TensorSpec PendingProduct(int i) const {
    TensorSpec pending = WithPlacement(product_, i, kSum);
    for (Placement& p : pending.placements) {
      if (p.is_partial()) p = kSum;
    }
    return pending;
  }

  const TensorSpec& own_b_;
  TensorSpec a_;  // earlier mesh dims as decided
  TensorSpec b_;
  TensorSpec product_;
  const PendingPolicy policy_;
  const bool aligned_;
};

absl::Status CheckOperands(const ResolveInput& input) {
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  if (a.rank() != 2 || b.rank() != 2) return OperandError(input, "operands must be 2-D");
  if (a.shape[1] != b.shape[0]) return OperandError(input, "inner dims differ");
  if (a.dtype != b.dtype) return OperandDTypeError(input, "dtypes differ, use astype");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpResolution> ResolveContraction(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckOperands(input));
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  const TensorSpec& a = *input.tensors[0];
  const TensorSpec& b = *input.tensors[1];
  const Shape shape = {a.shape[0], b.shape[1]};
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(dtypes.result)));
  const TensorSpec product{dtypes.result, shape, a.mesh, Placements(static_cast<size_t>(a.mesh.ndim()))};
  std::optional<MatmulPlacer> placer;
  placer.emplace(a, b, product, PendingPolicy::kKeepWhereLegal);
  TESSERA_RETURN_IF_ERROR(placer->Place());
  if (placer->HasMixedPartials()) {
    placer.emplace(a, b, product, PendingPolicy::kReduceAll);
    TESSERA_RETURN_IF_ERROR(placer->Place());
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(a, a.mesh, placer->a().placements));
  resolution.operands.push_back(BringTo(b, a.mesh, placer->b().placements));
  resolution.local = MatmulOp{};
  resolution.flops =
      2.0 * static_cast<double>(shape[0]) * static_cast<double>(shape[1]) * static_cast<double>(a.shape[1]);
  resolution.outputs.push_back(placer->product());
  return resolution;
}

}  // namespace tessera
