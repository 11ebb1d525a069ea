// Steps of optimizers: a parameter, its gradient and its state become what they are after the step. Each result lies as
// its operand does, and takes its memory where that is given up.

#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

V Sqrt(const V& x) { return x.builder()->Map(OpId::kSqrt, {x}); }

// The rate is a number, or a tensor without dims that is read on the workers.
double NumberIn(const V& value) { return std::get<Scalar>(value.operand()).AsDouble(); }
V RateAs(G& g, const V& rate, DType dtype) { return rate.is_tensor() ? g.AsType(rate, dtype) : rate; }

// As the operand is: its dtype, where it was computed in a wider one.
V As(G& g, const V& value, size_t operand) { return g.AsType(value, g.operand(operand).dtype()); }

// Numbers are no part of a plan's key, so the graph is the same for all: the mode says what is computed at all.
//
// With w = weight_decay: d = gradient + w x. Mode 'plain': x - rate d. With 'momentum', b = momentum buffer + (1 -
// dampening) d, or d without a buffer: x - rate b; with 'nesterov' x - rate (d + momentum b).
void SgdStep(G& g) {
  const double momentum = NumberOf(g, 0, 0), dampening = NumberOf(g, 1, 0), decay = NumberOf(g, 2, 0);
  const std::string& mode = g.attributes().Get(attribute::mode);
  const bool is_plain = mode.empty() || mode == "plain", has_buffer = g.operand_count() > 3;
  if (!is_plain && mode != "momentum" && mode != "nesterov") {
    return g.Refuse(StrCat("mode is '", mode, "', not 'plain', 'momentum' or 'nesterov'"));
  }
  if (is_plain && has_buffer) return g.Refuse("mode 'plain' takes no buffer; with one it is 'momentum' or 'nesterov'");
  const V x = Wide(g, g.operand(0));
  const V d = g.AsType(g.operand(1), x.dtype()) + x * V(decay);
  const V rate = RateAs(g, g.operand(2), x.dtype());
  if (is_plain) return g.Return(As(g, x - d * rate, 0));
  const V b = has_buffer ? g.AsType(g.operand(3), x.dtype()) * V(momentum) + d * V(1 - dampening) : d;
  const V moved = mode == "nesterov" ? d + b * V(momentum) : b;
  g.Return({As(g, x - moved * rate, 0), As(g, b, has_buffer ? 3 : 0)});
}

// Kingma and Ba, "Adam", 2015; mode 'adamw': Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. The
// bias corrections are computed in f64 of the step's number, which lies on the workers: 1 - beta^step loses its digits
// in f32.
void AdamStep(G& g) {
  const double beta1 = NumberOf(g, 0, 0.9), beta2 = NumberOf(g, 1, 0.999), decay = NumberOf(g, 2, 0);
  const std::string& mode = g.attributes().Get(attribute::mode);
  if (!mode.empty() && mode != "adam" && mode != "adamw") {
    return g.Refuse(StrCat("mode is '", mode, "', not 'adam' or 'adamw'"));
  }
  const bool is_decoupled = mode == "adamw";
  if (!g.operand(4).is_tensor() || g.operand(4).rank() != 0) {
    return g.Refuse("count is a tensor without dims: the number of the step, from 1 on");
  }
  V x = Wide(g, g.operand(0));
  const DType wide = x.dtype();
  V gradient = g.AsType(g.operand(1), wide);
  const V rate = RateAs(g, g.operand(5), DType::kF64);
  if (is_decoupled) {
    x = x * (rate.is_tensor() ? g.AsType(V(1.0) - rate * V(decay), wide) : V(1 - NumberIn(rate) * decay));
  } else {
    gradient = gradient + x * V(decay);
  }
  const V count = g.AsType(g.operand(4), DType::kF64);
  const auto correction = [&](double beta) { return V(1.0) - g.Map(OpId::kPow, {V(beta), count}); };
  const V size = g.AsType(rate / correction(beta1), wide);
  const V root = g.AsType(Sqrt(correction(beta2)), wide);
  const V mean = g.AsType(g.operand(2), wide) * V(beta1) + gradient * V(1 - beta1);
  const V square = g.AsType(g.operand(3), wide) * V(beta2) + gradient * gradient * V(1 - beta2);
  const bool has_highest = g.operand_count() > 6;
  const V base = has_highest ? g.Map(OpId::kMaximum, {g.AsType(g.operand(6), wide), square}) : square;
  x = x - mean / (Sqrt(base) / root + V(Eps(g, 1e-8))) * size;
  std::vector<V> results = {As(g, x, 0), As(g, mean, 2), As(g, square, 3)};
  if (has_highest) results.push_back(As(g, base, 6));
  g.Return(std::move(results));
}

constexpr OpRow kRows[] = {
    Composite(
        OpId::kSgdStep, "sgd_step", 3, 4, SgdStep,
        "sgd_step(x, gradient, rate, buffer=None, /, *, momentum=0.0, dampening=0.0, weight_decay=0.0, mode='plain')",
        "A step of stochastic gradient descent: the new x. With mode 'momentum' or 'nesterov' also the new buffer.",
        "ts.sgd_step(ts.asarray([1.0]), ts.asarray([2.0]), 0.25).tolist() => [0.5]",
        "buffer: the momentum buffer, or None.\n"
        "momentum: how much of the buffer stays.\n"
        "dampening: what is taken off the gradient in the buffer."),
    Composite(
        OpId::kAdamStep, "adam_step", 6, 7, AdamStep,
        "adam_step(x, gradient, mean, square, count, rate, highest=None, /, *, beta1=0.9, beta2=0.999, "
        "weight_decay=0.0, eps=1e-08, mode='adam')",
        "A step of Adam, or with mode 'adamw' of AdamW: the new x, mean and square, and with highest (amsgrad) that. "
        "count is a tensor without dims: the number of the step, from 1 on.",
        "ts.round(ts.adam_step(ts.asarray([1.0]), ts.asarray([2.0]), ts.asarray([0.0]), ts.asarray([0.0]), "
        "ts.asarray(1), 0.5)[0] * 10).tolist() => [5.0]",
        "square: the mean square of gradients.\n"
        "count: the number of the step, from 1 on.\n"
        "highest: the highest mean square that there was, or None.\n"
        "beta1: how much of the mean stays.\n"
        "beta2: how much of the mean square stays."),
};

}  // namespace

absl::Span<const OpRow> TrainingRows() { return kRows; }

}  // namespace tessera::composites
