// The ops of models: activations, normalisations, losses, attention. A dim that is sharded needs no rule of its own: a
// maximum or sum over it is pending and reduced, everything else stays where it is.

#include <array>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/window_attributes.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

V Exp(const V& x) { return x.builder()->Map(OpId::kExp, {x}); }
V Log(const V& x) { return x.builder()->Map(OpId::kLog, {x}); }
V Sigmoid(const V& x) { return x.builder()->Map(OpId::kSigmoid, {x}); }
V Tanh(const V& x) { return x.builder()->Map(OpId::kTanh, {x}); }
V Relu(const V& x) { return x.builder()->Map(OpId::kRelu, {x}); }
V Min(const V& x, double most) { return x.builder()->Map(OpId::kMinimum, {x, V(most)}); }
V Max(const V& x, double least) { return x.builder()->Map(OpId::kMaximum, {x, V(least)}); }
V IsPositive(const V& x) { return x.builder()->Map(OpId::kGreater, {x, V(0.0)}); }
V MaxOver(const V& x, const Dims& dims) { return x.builder()->Reduce(OpId::kMax, x, dims, Keep::kDims); }
V SumOver(const V& x, const Dims& dims, Keep keep = Keep::kDims) {
  return x.builder()->Reduce(OpId::kSum, x, dims, keep);
}
V MeanOver(const V& x, const Dims& dims, Keep keep = Keep::kDims) {
  return x.builder()->Reduce(OpId::kMean, x, dims, keep);
}

// ---- activations ----

void Relu6(G& g) { g.Return(Min(Relu(g.operand(0)), 6)); }
void LeakyRelu(G& g) {
  const V x = g.AsFloat(g.operand(0));
  g.Return(g.Where(IsPositive(x), x, x * V(NumberOf(g, 0, 0.01))));
}
void Elu(G& g) {
  const V x = g.AsFloat(g.operand(0));
  g.Return(g.Where(IsPositive(x), x, V(NumberOf(g, 0, 1)) * g.Map(OpId::kExpm1, {x})));
}
void Selu(G& g) {  // the constants of Klambauer et al., "Self-normalizing neural networks", 2017
  const V x = g.AsFloat(g.operand(0));
  constexpr double kScale = 1.0507009873554804934193349852946, kAlpha = 1.6732632423543772848170429916717;
  g.Return(g.Where(IsPositive(x), x, V(kAlpha) * g.Map(OpId::kExpm1, {x})) * V(kScale));
}
void Silu(G& g) {
  const V x = Wide(g, g.operand(0));
  g.Return(g.AsType(x * Sigmoid(x), FloatOf(g.operand(0))));
}
void Gelu(G& g) {  // Hendrycks and Gimpel, "Gaussian error linear units", 2016; both forms
  const V x = Wide(g, g.operand(0));
  const bool is_tanh = g.attributes().Get(attribute::approximate) == "tanh";
  const V inner = is_tanh ? Tanh(V(std::sqrt(2 / std::numbers::pi)) * (x + V(0.044715) * (x * x * x)))
                          : g.Map(OpId::kErf, {x * V(1 / std::numbers::sqrt2)});
  g.Return(g.AsType(V(0.5) * x * (V(1) + inner), FloatOf(g.operand(0))));
}
void Softplus(G& g) { g.Return(g.Map(OpId::kLogAddExp, {g.operand(0), V(0.0)})); }
void Mish(G& g) {
  const V x = Wide(g, g.operand(0));
  g.Return(g.AsType(x * Tanh(g.Map(OpId::kLogAddExp, {x, V(0.0)})), FloatOf(g.operand(0))));
}
void HardSigmoid(G& g) { g.Return(Min(Relu(g.AsFloat(g.operand(0)) + V(3)), 6) / V(6)); }
void HardSwish(G& g) {
  const V x = g.AsFloat(g.operand(0));
  g.Return(x * Min(Relu(x + V(3)), 6) / V(6));
}

// ---- along one axis ----

// A dim without elements has no maximum; neither has the tensor any element to divide.
bool HasNoElements(const V& x) { return NumElements(x.spec().shape) == 0; }

void Softmax(G& g) {
  const V x = Wide(g, g.operand(0));
  const Dims dims = g.DimsOf(x);
  if (HasNoElements(x)) return g.Return(g.AsType(Exp(x), FloatOf(g.operand(0))));
  const V e = Exp(x - MaxOver(x, dims));
  g.Return(g.AsType(e / SumOver(e, dims), FloatOf(g.operand(0))));
}
V LogSoftmaxOf(G& g, const V& x, const Dims& dims) {
  if (HasNoElements(x)) return Exp(x);
  const V shifted = x - MaxOver(x, dims);
  return shifted - Log(SumOver(Exp(shifted), dims));
}
void LogSoftmax(G& g) {
  const V x = Wide(g, g.operand(0));
  g.Return(g.AsType(LogSoftmaxOf(g, x, g.DimsOf(x)), FloatOf(g.operand(0))));
}
// A maximum that is infinite is not subtracted: inf - inf would be NaN.
void LogSumExp(G& g) {
  const V x = Wide(g, g.operand(0));
  const Dims dims = g.DimsOf(x);
  const V most = MaxOver(x, dims);
  const V shift = g.Where(g.Map(OpId::kIsFinite, {most}), most, V(0.0));
  const V result = Log(SumOver(Exp(x - shift), dims)) + shift;
  g.Return(
      g.AsType(g.attributes().Get(attribute::keepdims) ? result : g.DropDims(result, dims), FloatOf(g.operand(0))));
}

// ---- normalisations ----

// Applies the operands after x: a weight and a bias, of the normalised dims.
V Scaled(G& g, V x, const V& like) {
  if (g.operand_count() > 1) x = x * Wide(g, g.operand(1));
  if (g.operand_count() > 2) x = x + Wide(g, g.operand(2));
  return g.AsType(x, FloatOf(like));
}
V Normalised(G& g, const V& x, const Dims& dims, double eps) {
  const V centred = x - MeanOver(x, dims);
  return centred / g.Map(OpId::kSqrt, {MeanOver(centred * centred, dims) + V(eps)});
}
void LayerNorm(G& g) {  // Ba, Kiros, Hinton 2016
  const V x = Wide(g, g.operand(0));
  g.Return(Scaled(g, Normalised(g, x, g.DimsOf(x), Eps(g, 1e-5)), g.operand(0)));
}
void RmsNorm(G& g) {  // Zhang, Sennrich 2019
  const V x = Wide(g, g.operand(0));
  const V scale = g.Map(OpId::kSqrt, {MeanOver(x * x, g.DimsOf(x)) + V(Eps(g, 1e-6))});
  g.Return(Scaled(g, x / scale, g.operand(0)));
}
// group_norm(x, weight, bias; groups): x is (batch, channels, ...).
void GroupNorm(G& g) {
  const V x = Wide(g, g.operand(0));
  const int64_t groups = GroupsOf(g.attributes());
  if (x.rank() < 2 || groups < 1 || x.extent(1) % groups != 0) {
    return g.Refuse(StrCat("groups is ", groups, " of ", x.extent(1), " channels"));
  }
  Shape split = {x.extent(0), groups, x.extent(1) / groups};
  split.insert(split.end(), x.spec().shape.begin() + 2, x.spec().shape.end());
  Dims dims;
  for (int64_t d = 2; d < static_cast<int64_t>(split.size()); ++d) dims.push_back(d);
  V y = g.Reshape(Normalised(g, g.Reshape(x, split), dims, Eps(g, 1e-5)), x.spec().shape);
  for (size_t i = 1; i < g.operand_count(); ++i) {
    Shape channels(static_cast<size_t>(x.rank()), 1);
    channels[1] = x.extent(1);
    const V parameter = g.Reshape(Wide(g, g.operand(i)), channels);
    y = i == 1 ? y * parameter : y + parameter;
  }
  g.Return(g.AsType(y, FloatOf(g.operand(0))));
}
// batch_norm(x, mean, variance, weight, bias): with given statistics, x is (batch, channels, ...).
void BatchNorm(G& g) {
  const V x = Wide(g, g.operand(0));
  if (x.rank() < 2) return g.Refuse("needs (batch, channels, ...)");
  Shape channels(static_cast<size_t>(x.rank()), 1);
  channels[1] = x.extent(1);
  const auto parameter = [&](size_t i) { return g.Reshape(Wide(g, g.operand(i)), channels); };
  V y = (x - parameter(1)) / g.Map(OpId::kSqrt, {parameter(2) + V(Eps(g, 1e-5))});
  if (g.operand_count() > 3) y = y * parameter(3);
  if (g.operand_count() > 4) y = y + parameter(4);
  g.Return(g.AsType(y, FloatOf(g.operand(0))));
}
void Normalize(G& g) {
  const V x = Wide(g, g.operand(0));
  const V norm = g.Map(OpId::kSqrt, {SumOver(x * x, g.DimsOf(x))});
  g.Return(g.AsType(x / Max(norm, Eps(g, 1e-12)), FloatOf(g.operand(0))));
}

// ---- classes and losses ----

V OneHotOf(G& g, const V& labels, int64_t classes, DType dtype) {
  const V expanded = g.ExpandDim(labels, labels.rank());
  return g.AsType(g.Map(OpId::kEqual, {expanded, g.Iota(expanded, labels.rank(), classes)}), dtype);
}
bool IsInteger(const V& x) { return Kind(x.dtype()) == DTypeKind::kSigned || Kind(x.dtype()) == DTypeKind::kUnsigned; }
void OneHot(G& g) {
  const V& x = g.operand(0);
  if (!IsInteger(x)) return g.RefuseDType("needs an integer dtype");
  const int64_t classes =
      g.attributes().Get(attribute::num_classes) == nullptr ? -1 : *g.attributes().Get(attribute::num_classes);
  if (classes < 0) return g.Refuse(StrCat("num_classes is ", classes));
  g.Return(
      OneHotOf(g, x, classes,
               g.attributes().Get(attribute::dtype) == nullptr ? DType::kI64 : *g.attributes().Get(attribute::dtype)));
}

V Reduced(G& g, const V& losses) {
  const std::string& reduction = g.attributes().Get(attribute::reduction);
  Dims all;
  for (int64_t d = 0; d < losses.rank(); ++d) all.push_back(d);
  if (reduction == "none") return losses;
  return g.Reduce(reduction == "sum" ? OpId::kSum : OpId::kMean, losses, all, Keep::kNo);
}
// The elements of x, whose last dim has the classes, that the labels pick; an ignored label picks that of class 0. A
// label that is no class is an index outside: negative ones don't count from the end.
V PickedBy(G& g, const V& x, const V& labels, const V& counts) {
  const int64_t dim = x.rank() - 1;
  const V number = g.AsType(labels, DType::kI64);
  const V place = g.Where(g.Map(OpId::kLess, {number, V(int64_t{0})}), V(x.extent(dim)), number);
  Attributes along;
  along.Set(attribute::dims, {dim});
  const V index = g.ExpandDim(g.Where(counts, place, V(int64_t{0})), dim);
  return g.DropDims(g.Call(OpId::kTakeAlongAxis, std::move(along), {x, index}), {dim});
}
// The classes are the last dim of x; labels are integers, one for each row, or weights of the classes. A label that is
// ignore_index has a loss of 0, and the mean is over the others. Where classes are sharded numbers of rows alone are
// reduced: the largest, the sum of exponentials, and what the labels pick.
void CrossEntropy(G& g) {
  const V x = Wide(g, g.operand(0));
  const V& labels = g.operand(1);
  const int64_t dim = x.rank() - 1;
  if (x.rank() < 1) return g.Refuse("needs a dim of classes");
  const V largest = MaxOver(x, {dim});
  const V shifted = x - largest;
  const V log_sum = Log(SumOver(Exp(shifted), {dim}, Keep::kNo));
  if (!IsInteger(labels)) {
    const V losses =
        log_sum * SumOver(Wide(g, labels), {dim}, Keep::kNo) - SumOver(shifted * Wide(g, labels), {dim}, Keep::kNo);
    return g.Return(g.AsType(Reduced(g, losses), FloatOf(g.operand(0))));
  }
  if (labels.rank() + 1 != x.rank()) return g.Refuse("labels have one dim less than the classes' tensor");
  const int64_t ignored =
      g.attributes().Get(attribute::ignore_index) == nullptr ? -100 : *g.attributes().Get(attribute::ignore_index);
  const double smoothing =
      g.attributes().Get(attribute::label_smoothing) == nullptr ? 0 : *g.attributes().Get(attribute::label_smoothing);
  const V counts = g.Map(OpId::kNotEqual, {labels, V(ignored)});
  V picked = PickedBy(g, x, labels, counts) - g.DropDims(largest, {dim});
  if (smoothing != 0) {
    picked = V(1 - smoothing) * picked +
             V(smoothing / static_cast<double>(x.extent(dim))) * SumOver(shifted, {dim}, Keep::kNo);
  }
  const V losses = g.Where(counts, log_sum - picked, V(0.0));
  const std::string& reduction = g.attributes().Get(attribute::reduction);
  if (reduction == "none" || reduction == "sum") return g.Return(g.AsType(Reduced(g, losses), FloatOf(g.operand(0))));
  Dims all;
  for (int64_t d = 0; d < losses.rank(); ++d) all.push_back(d);
  const V number = SumOver(g.AsType(counts, losses.dtype()), all, Keep::kNo);
  g.Return(g.AsType(SumOver(losses, all, Keep::kNo) / number, FloatOf(g.operand(0))));
}
void MseLoss(G& g) {
  const V difference = g.AsFloat(g.operand(0)) - g.operand(1);
  g.Return(Reduced(g, difference * difference));
}

// The loss of log probabilities x, classes last, against labels; a label that is ignore_index has loss 0.
void NllLoss(G& g) {
  const V x = Wide(g, g.operand(0));
  const V& labels = g.operand(1);
  const int64_t dim = x.rank() - 1;
  if (x.rank() < 1) return g.Refuse("needs a dim of classes");
  if (!IsInteger(labels)) return g.RefuseDType("labels need an integer dtype");
  if (labels.rank() + 1 != x.rank()) return g.Refuse("labels have one dim less than the classes' tensor");
  const int64_t ignored =
      g.attributes().Get(attribute::ignore_index) == nullptr ? -100 : *g.attributes().Get(attribute::ignore_index);
  const V counts = g.Map(OpId::kNotEqual, {labels, V(ignored)});
  const V picked = PickedBy(g, x, labels, counts);
  V weight = g.AsType(counts, picked.dtype());
  V losses = g.Where(counts, -picked, V(0.0));
  if (g.operand_count() > 2) {
    const V is_label = g.Map(OpId::kEqual, {g.ExpandDim(labels, labels.rank()), g.Iota(x, dim, x.extent(dim))});
    const V of_label = SumOver(g.Where(is_label, Wide(g, g.operand(2)), V(0.0)), {dim}, Keep::kNo);
    weight = weight * of_label;
    losses = losses * of_label;
  }
  const std::string& reduction = g.attributes().Get(attribute::reduction);
  if (reduction == "none" || reduction == "sum") return g.Return(g.AsType(Reduced(g, losses), FloatOf(g.operand(0))));
  Dims all;
  for (int64_t d = 0; d < losses.rank(); ++d) all.push_back(d);
  g.Return(g.AsType(SumOver(losses, all, Keep::kNo) / SumOver(weight, all, Keep::kNo), FloatOf(g.operand(0))));
}

// ---- elements by a mask or an index ----

void MaskedFill(G& g) {
  const V &x = g.operand(0), &mask = g.operand(1), &value = g.operand(2);
  if (!mask.is_tensor() || mask.dtype() != DType::kBool) return g.RefuseDType("the mask must be bool");
  if (value.is_tensor() && value.rank() != 0) return g.Refuse("the value must be a number, or a tensor of 0 dims");
  g.Return(g.Where(mask, g.AsType(value, x.dtype()), x));
}

// ---- products ----

// beta * input + alpha * (batch1 @ batch2); where beta is 0 what the input has doesn't count. A plan is made for all
// numbers, so the graph is the same whatever they are.
void Baddbmm(G& g) {
  const V &x = g.operand(0), &a = g.operand(1), &b = g.operand(2);
  if (a.rank() != 3 || b.rank() != 3) return g.Refuse("needs two batches of matrices");
  if (a.extent(0) != b.extent(0)) return g.Refuse("the batches differ");
  const V product = g.Map(OpId::kMatmul, {a, b});
  const double beta = NumberOf(g, 0, 1), alpha = NumberOf(g, 1, 1);
  const bool is_integer = IsInteger(product);
  if (is_integer && (std::trunc(beta) != beta || std::trunc(alpha) != alpha)) {
    return g.Refuse(StrCat("beta is ", beta, " and alpha ", alpha, "; products of integers take integers"));
  }
  const auto of_products = [&](double number) { return is_integer ? V(static_cast<int64_t>(number)) : V(number); };
  const V counts = g.Map(OpId::kNotEqual, {g.Full(x, DType::kF64, {}, Scalar::Float(beta)), V(0.0)});
  g.Return(product * of_products(alpha) + g.Where(counts, x * of_products(beta), of_products(0)));
}

// x @ weight.T + bias, as torch's: the weight is (out, in).
void Linear(G& g) {
  const V& weight = g.operand(1);
  if (weight.rank() != 2) return g.Refuse("the weight must be 2-D, (out, in)");
  const V product = g.Map(OpId::kMatmul, {g.operand(0), g.Permute(weight, {1, 0})});
  g.Return(g.operand_count() > 2 ? product + g.operand(2) : product);
}

// softmax(q k^T * scale + mask) v over the last two dims; a bool mask keeps where it is true. By blocks: no scores lie
// in memory.
enum class Gives : uint8_t { kResult, kLogarithms };
void AttentionOf(G& g, Gives gives) {
  std::vector<V> operands = {g.operand(0), g.operand(1), g.operand(2)};
  const V& q = operands[0];
  if (q.rank() < 2) return g.Refuse("needs (..., sequence, features)");
  const int64_t features = q.extent(q.rank() - 1);
  const double scale = NumberOf(g, 0, 1 / std::sqrt(static_cast<double>(std::max<int64_t>(features, 1))));
  if (g.operand_count() > 3) {
    const V& mask = g.operand(3);
    operands.push_back(mask.dtype() == DType::kBool ? mask : g.AsType(mask, AccumulatedIn(q.dtype())));
  }
  Attributes attributes;
  attributes.Set(attribute::is_causal, g.attributes().Get(attribute::is_causal));
  const V result = g.Call(OpId::kAttention, attributes, operands, {Scalar::Float(scale)});
  if (gives == Gives::kResult || g.failed()) return g.Return(result);
  operands.erase(operands.begin() + 2);
  // A device that has both in one kernel finds them one after the other.
  g.Return(
      {result, g.Call(OpId::kAttentionLogarithms, std::move(attributes), std::move(operands), {Scalar::Float(scale)})});
}
void Attention(G& g) { AttentionOf(g, Gives::kResult); }
void AttentionAndLogarithms(G& g) { AttentionOf(g, Gives::kLogarithms); }

constexpr std::array kRows = {
    MapComposite(OpId::kRelu6, "relu6", 1, 1, Relu6, "relu6(x, /)", "Gives min(max(x, 0), 6) of each element.",
                 "ts.relu6(ts.asarray([-1.0, 9.0])).tolist() => [0.0, 6.0]"),
    MapComposite(OpId::kLeakyRelu, "leaky_relu", 1, 1, LeakyRelu, "leaky_relu(x, /, *, negative_slope=0.01)",
                 "Gives each element, times negative_slope where it is negative.",
                 "ts.leaky_relu(ts.asarray([-2.0, 2.0]), negative_slope=0.5).tolist() => [-1.0, 2.0]"),
    MapComposite(OpId::kElu, "elu", 1, 1, Elu, "elu(x, /, *, alpha=1.0)",
                 "Gives x, or alpha * (exp(x) - 1) where it is negative.",
                 "ts.elu(ts.asarray([0.0, 2.0])).tolist() => [0.0, 2.0]"),
    MapComposite(OpId::kSelu, "selu", 1, 1, Selu, "selu(x, /)",
                 "Scaled elu, with the constants of self-normalising networks.",
                 "ts.selu(ts.asarray([0.0])).tolist() => [0.0]"),
    MapComposite(OpId::kSilu, "silu", 1, 1, Silu, "silu(x, /)", "Gives x * sigmoid(x) of each element.",
                 "ts.silu(ts.asarray([0.0])).tolist() => [0.0]"),
    MapComposite(OpId::kGelu, "gelu", 1, 1, Gelu, "gelu(x, /, *, approximate='none')",
                 "Gives x times the normal distribution's function at x; approximate is 'none' or 'tanh'.",
                 "ts.gelu(ts.asarray([0.0])).tolist() => [0.0]"),
    MapComposite(OpId::kSoftplus, "softplus", 1, 1, Softplus, "softplus(x, /)",
                 "Calculates log(1 + exp(x)) of each element.",
                 "round(ts.softplus(ts.asarray([0.0])).item(), 6) => 0.693147"),
    MapComposite(OpId::kMish, "mish", 1, 1, Mish, "mish(x, /)", "Gives x * tanh(softplus(x)) of each element.",
                 "ts.mish(ts.asarray([0.0])).tolist() => [0.0]"),
    MapComposite(OpId::kHardSwish, "hardswish", 1, 1, HardSwish, "hardswish(x, /)",
                 "Gives x * min(max(x + 3, 0), 6) / 6 of each element.",
                 "ts.hardswish(ts.asarray([-4.0, 3.0])).tolist() => [-0.0, 3.0]"),
    MapComposite(OpId::kHardSigmoid, "hardsigmoid", 1, 1, HardSigmoid, "hardsigmoid(x, /)",
                 "Gives min(max(x + 3, 0), 6) / 6 of each element.",
                 "ts.hardsigmoid(ts.asarray([-4.0, 0.0, 4.0])).tolist() => [0.0, 0.5, 1.0]"),
    Composite(OpId::kSoftmax, "softmax", 1, 1, Softmax, "softmax(x, /, axis=-1)",
              "Gives exp(x) divided by its sum along the axis.",
              "ts.softmax(ts.asarray([[0.0, 0.0]])).tolist() => [[0.5, 0.5]]"),
    Composite(OpId::kLogSoftmax, "log_softmax", 1, 1, LogSoftmax, "log_softmax(x, /, axis=-1)",
              "The logarithm of softmax.", "ts.log_softmax(ts.asarray([[0.0, 0.0]])).shape => (1, 2)"),
    Composite(OpId::kLogSumExp, "logsumexp", 1, 1, LogSumExp, "logsumexp(x, /, axis=None, *, keepdims=False)",
              "The logarithm of the sum of exponentials over the axes.",
              "round(ts.logsumexp(ts.asarray([0.0, 0.0])).item(), 6) => 0.693147"),
    Composite(OpId::kLayerNorm, "layer_norm", 1, 3, LayerNorm,
              "layer_norm(x, weight=None, bias=None, /, axis=-1, *, eps=1e-05)",
              "Subtracts the mean over the axes and divides by the standard deviation; then times weight, plus bias.",
              "ts.layer_norm(ts.asarray([[1.0, 3.0]]), eps=0.0).tolist() => [[-1.0, 1.0]]"),
    Composite(OpId::kRmsNorm, "rms_norm", 1, 2, RmsNorm, "rms_norm(x, weight=None, /, axis=-1, *, eps=1e-06)",
              "Divides by the root of the mean of squares over the axes; then times weight.",
              "ts.rms_norm(ts.asarray([[3.0, 3.0]]), eps=0.0).tolist() => [[1.0, 1.0]]"),
    Composite(OpId::kGroupNorm, "group_norm", 1, 3, GroupNorm,
              "group_norm(x, weight=None, bias=None, /, *, groups=1, eps=1e-05)",
              "Normalises each group of channels of (batch, channels, ...); then times weight, plus bias, by channel.",
              "ts.group_norm(ts.ones((1, 4, 3)), groups=2).shape => (1, 4, 3)"),
    Composite(OpId::kBatchNorm, "batch_norm", 3, 5, BatchNorm,
              "batch_norm(x, mean, variance, weight=None, bias=None, /, *, eps=1e-05)",
              "Normalises channels of (batch, channels, ...) with given statistics; then times weight, plus bias.",
              "ts.batch_norm(ts.ones((1, 2)), ts.zeros((2,)), ts.ones((2,)), eps=0.0).tolist() => [[1.0, 1.0]]",
              "variance: by channel."),
    Composite(OpId::kNormalize, "normalize", 1, 1, Normalize, "normalize(x, /, axis=-1, *, eps=1e-12)",
              "Divides by the 2-norm over the axes, or by eps where that is smaller.",
              "ts.normalize(ts.asarray([3.0, 4.0])).tolist() => [0.6, 0.8]"),
    Composite(OpId::kOneHot, "one_hot", 1, 1, OneHot, "one_hot(x, /, num_classes, *, dtype=None)",
              "A new last dim of num_classes elements: 1 at the index that x says, else 0.",
              "ts.one_hot(ts.asarray([1, 0]), 2).tolist() => [[0, 1], [1, 0]]"),
    Composite(OpId::kCrossEntropy, "cross_entropy", 2, 2, CrossEntropy,
              "cross_entropy(x, labels, /, *, ignore_index=-100, label_smoothing=0.0, reduction='mean')",
              "The loss of class scores x (classes last) against labels: -log_softmax(x) at the label.",
              "round(ts.cross_entropy(ts.asarray([[0.0, 0.0]]), ts.asarray([1])).item(), 6) => 0.693147",
              "label_smoothing: how much of a label goes to all classes."),
    Composite(OpId::kNllLoss, "nll_loss", 2, 3, NllLoss,
              "nll_loss(x, labels, weight=None, /, *, ignore_index=-100, reduction='mean')",
              "The loss of log probabilities x (classes last) against labels; weight is of the classes.",
              "ts.nll_loss(ts.asarray([[-1.0, -2.0]]), ts.asarray([1])).item() => 2.0"),
    Composite(OpId::kMaskedFill, "masked_fill", 3, 3, MaskedFill, "masked_fill(x, mask, value, /)",
              "Gives the value where the mask is true, else x.",
              "ts.masked_fill(ts.asarray([1, 2, 3]), ts.asarray([True, False, True]), 0).tolist() => [0, 2, 0]"),
    Composite(OpId::kBaddbmm, "baddbmm", 3, 3, Baddbmm, "baddbmm(x, x1, x2, /, *, beta=1, alpha=1)",
              "Gives beta * x + alpha * (x1 @ x2) of batches of matrices.",
              "ts.baddbmm(ts.ones((1, 2, 2)), ts.ones((1, 2, 3)), ts.ones((1, 3, 2))).tolist() => [[[4.0, 4.0], [4.0, "
              "4.0]]]"),
    Composite(OpId::kMseLoss, "mse_loss", 2, 2, MseLoss, "mse_loss(x, target, /, *, reduction='mean')",
              "The mean of squared differences; reduction is 'mean', 'sum' or 'none'.",
              "ts.mse_loss(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 4.0])).item() => 2.0", "target: what x should be."),
    Composite(OpId::kLinear, "linear", 2, 3, Linear, "linear(x, weight, bias=None, /)",
              "Computes x @ weight.T + bias; the weight is (out, in).",
              "ts.linear(ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 1.0]]), ts.asarray([0.5])).tolist() => [[3.5]]"),
    Composite(OpId::kScaledDotProductAttention, "scaled_dot_product_attention", 3, 4, Attention,
              "scaled_dot_product_attention(query, key, value, attn_mask=None, /, *, is_causal=False, scale=None)",
              "Computes softmax(query @ key.T * scale + mask) @ value over the last two dims.",
              "ts.scaled_dot_product_attention(ts.ones((2, 4, 8)), ts.ones((2, 6, 8)), ts.ones((2, 6, 3))).shape => "
              "(2, 4, 3)"),
    Composite(OpId::kAttentionAndLogarithms, "scaled_dot_product_attention_and_logarithms", 3, 4,
              AttentionAndLogarithms,
              "scaled_dot_product_attention_and_logarithms(query, key, value, attn_mask=None, /, *, is_causal=False, "
              "scale=None)",
              "The attention, and the logarithm of the sum of exponentials of each row of its scores, for "
              "scaled_dot_product_attention_backward_of_result.",
              "[x.shape for x in ts.scaled_dot_product_attention_and_logarithms(*[ts.ones((2, 4, 8))] * 3)] => "
              "[(2, 4, 8), (2, 4)]"),
};

}  // namespace

absl::Span<const OpRow> ModelRows() { return kRows; }

}  // namespace tessera::composites
