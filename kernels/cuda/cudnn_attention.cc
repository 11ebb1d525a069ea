#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/dnn_builder.h"
#include "kernels/cuda/steps.h"
#include "kernels/operands.h"

namespace tessera::cuda {
namespace {

// Beside a mask, which is broadcast to the scores.
absl::StatusOr<Strides> MaskStrides(const KernelInput& mask, const Shape& queries, int64_t keys) {
  Shape scores = queries;
  scores.back() = keys;
  return BroadcastStrides("attention", mask, scores);
}

std::vector<Strides> OfBatches(std::vector<Strides> strides, size_t dims) {
  for (Strides& own : strides) own.resize(dims);
  return strides;
}

// Up to version 9.15 gradients of other numbers of keys are wrong without a mask of their lengths (cudnn-frontend).
constexpr int64_t kWholeKeys = 128;
constexpr int kVersionOfAnyKeys = 91501;

bool IsFirstRow(int64_t row) { return row <= std::numeric_limits<int32_t>::max(); }

// Logarithms lie densely, rows one after the other, so their first alone is aligned.
bool AreDnnLogarithms(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(kDnnAlignment) == 0;
}

// Numbers of a graph's tensors; k and v have their last two dims as the operation takes them. -1: there is none.
struct Attended {
  int q = -1, k = -1, v = -1, output = -1, mask = -1;
};

// softmax(q @ k.T * scale + mask) @ v, and in `statistics`, if it is given, the logarithms of the sums of exponentials.
void AddForward(DnnBuilder& builder, const Attended& of, DnnType type, int64_t rows, int64_t keys, double scale_by,
                std::optional<int64_t> causal_from, int statistics) {
  const auto scores = [&](DnnType as = DnnType::kF32) { return builder.Virtual(as, rows, keys); };
  const auto line = [&] { return builder.Virtual(DnnType::kF32, rows, 1); };
  int x = builder.Apply({.kind = DnnKind::kMatmul, .x = of.q, .b = of.k}, scores());
  const int scale = builder.Number(DnnType::kF32, scale_by);
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = scale}, scores());
  if (of.mask >= 0) x = builder.Apply({.kind = DnnKind::kAdd, .x = x, .b = of.mask}, scores());
  if (causal_from.has_value()) x = builder.SelectSeen(x, rows, keys, *causal_from);
  const int most = builder.Apply({.kind = DnnKind::kMax, .x = x}, line());
  x = builder.Apply({.kind = DnnKind::kSubtract, .x = x, .b = most}, scores());
  x = builder.Apply({.kind = DnnKind::kExp, .x = x}, scores());
  const int sum = builder.Apply({.kind = DnnKind::kSum, .x = x}, line());
  // The library knows no attention without these, even where nobody reads them.
  const int log = builder.Apply({.kind = DnnKind::kLog, .x = sum}, line());
  builder.Apply({.kind = DnnKind::kAdd, .x = most, .b = log}, statistics >= 0 ? statistics : line());
  x = builder.Apply({.kind = DnnKind::kDivide, .x = x, .b = sum}, scores(type));
  builder.Apply({.kind = DnnKind::kMatmul, .x = x, .b = of.v}, of.output);
}

}  // namespace

std::optional<DnnCall> AttentionByDnn(const AttentionOp& op, const KernelCall& call, const KernelCall* logarithms) {
  if (logarithms != nullptr && (logarithms->output_strides != RowMajorStrides(logarithms->output_extents) ||
                                !AreDnnLogarithms(logarithms->output))) {
    return std::nullopt;
  }
  const std::optional<DnnType> type = DnnTypeOf(call.output_dtype);
  const size_t rank = call.output_extents.size(), row = rank - 2, column = rank - 1;
  const int64_t rows = call.output_extents[row], keys = call.inputs[1].extents[row];
  const int64_t features = call.inputs[0].extents[column], values = call.output_extents[column];
  if (!type.has_value() || !AreDnnFeatures(features) || !AreDnnFeatures(values)) return std::nullopt;
  const bool has_mask = call.inputs.size() > 3;
  if (rows < kLeastDnnRows || keys == 0 || (has_mask && call.inputs[3].dtype != DType::kF32)) return std::nullopt;
  const int64_t first_row = call.output_box[row].start;
  if (op.is_causal && !IsFirstRow(first_row)) return std::nullopt;

  const auto has_one_of = [&](size_t i) { return call.inputs[i].strides[row - 1] == 0; };
  const bool shares = row > 0 && call.output_extents[row - 1] > 1 && has_one_of(1) && has_one_of(2);
  const int64_t sharing = shares ? call.output_extents[row - 1] : 1;

  // q, k, v, the output, the mask.
  std::vector<Strides> strides;
  for (size_t i = 0; i < 3; ++i) strides.push_back(call.inputs[i].strides);
  strides.push_back(call.output_strides);
  if (has_mask) {
    const absl::StatusOr<Strides> mask = MaskStrides(call.inputs[3], call.output_extents, keys);
    if (!mask.ok()) return std::nullopt;
    strides.push_back(*mask);
  }
  if (logarithms != nullptr) {
    strides.push_back(logarithms->output_strides);
    strides.back().push_back(1);
  }
  std::vector<Strides> of_batches = OfBatches(strides, row);
  for (const size_t i : {1, 2}) of_batches[i] = OfSharedHeads(of_batches[i], row, sharing);
  std::optional<DnnBatches> batches =
      DnnBatchesOf(absl::MakeConstSpan(call.output_extents).subspan(0, row), of_batches);
  if (!batches.has_value()) return std::nullopt;
  batches->sharing = sharing;

  DnnCall made;
  DnnBuilder builder(*batches, &made);
  Attended of;
  of.q = builder.Operand(0, *type, rows, features, strides[0], call.inputs[0].data);
  of.k = builder.Operand(1, *type, keys, features, strides[1], call.inputs[1].data, DnnSharing::kOfKeys);
  of.v = builder.Operand(2, *type, keys, values, strides[2], call.inputs[2].data, DnnSharing::kOfKeys);
  of.output = builder.Operand(3, *type, rows, values, strides[3], call.output);
  if (has_mask) {
    of.mask = builder.Operand(4, DnnType::kF32, rows, keys, strides[4], call.inputs[3].data, DnnSharing::kOfBatches);
  }
  if (!AreAligned(made)) return std::nullopt;
  int of_rows = -1;
  if (logarithms != nullptr) {
    of_rows = builder.Operand(strides.size() - 1, DnnType::kF32, rows, 1, strides.back(), logarithms->output);
  }
  builder.Transpose(of.k);
  AddForward(builder, of, *type, rows, keys, call.scalars[0].AsDouble(),
             op.is_causal ? std::optional(first_row) : std::nullopt, of_rows);
  SetCutsOfBatches(*batches, &made);
  made.multiplications = static_cast<double>(batches->batch * batches->heads) * static_cast<double>(rows) *
                         static_cast<double>(keys) * static_cast<double>(features + values);
  return made;
}

namespace {

// The products of queries with keys, scaled, with the mask, less the statistics of their rows: logarithms of weights.
int AddLogarithms(DnnBuilder& builder, const Attended& of, int64_t rows, int64_t keys, int scale, int statistics,
                  bool is_causal) {
  const auto scores = [&] { return builder.Virtual(DnnType::kF32, rows, keys); };
  int x = builder.Apply({.kind = DnnKind::kMatmul, .x = of.q, .b = of.k}, scores());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = scale}, scores());
  if (of.mask >= 0) x = builder.Apply({.kind = DnnKind::kAdd, .x = x, .b = of.mask}, scores());
  x = builder.Apply({.kind = DnnKind::kSubtract, .x = x, .b = statistics}, scores());
  return is_causal ? builder.SelectSeen(x, rows, keys, 0) : x;
}

// Tensors that the gradients' graph reads besides the attention's operands, and that it writes.
struct Differentiated {
  int gradient = -1, statistics = -1, sums = -1, q = -1, k = -1, v = -1;
};

// of.k and of.v are the other way round.
void AddBackward(DnnBuilder& builder, const Attended& of, const Differentiated& d, DnnType type, int64_t rows,
                 int64_t keys, int64_t features, int64_t values, double scale_by, bool is_causal, bool shares) {
  const auto scores = [&] { return builder.Virtual(DnnType::kF32, rows, keys); };
  // By head that shares keys; these are then added up.
  const auto multiply_keys = [&](int a, int b, int64_t width, int to) {
    if (!shares) return builder.Apply({.kind = DnnKind::kMatmul, .x = a, .b = b}, to);
    const int x =
        builder.Apply({.kind = DnnKind::kMatmul, .x = a, .b = b}, builder.Virtual(DnnType::kF32, keys, width));
    return builder.Apply({.kind = DnnKind::kSum, .x = x}, to);
  };
  const auto turned = [&](int x) {
    const int other = builder.Virtual(type, rows, keys);
    builder.Transpose(other);
    return builder.Apply({.kind = DnnKind::kTranspose, .x = x}, other);
  };
  // Each row's sum of p * dp is that of its gradient and its result.
  int x = builder.Apply({.kind = DnnKind::kMultiply, .x = d.gradient, .b = of.output},
                        builder.Virtual(DnnType::kF32, rows, values));
  x = builder.Apply({.kind = DnnKind::kSum, .x = x}, builder.Virtual(DnnType::kF32, rows, 1));
  // The library knows this as the place of dropout's factor alone.
  const int one = builder.Number(DnnType::kF32, 1);
  builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = one}, d.sums);
  const int scale = builder.Number(DnnType::kF32, scale_by);
  const int logarithms = AddLogarithms(builder, of, rows, keys, scale, d.statistics, is_causal);
  const int p = builder.Apply({.kind = DnnKind::kExp, .x = logarithms}, scores());
  multiply_keys(turned(p), d.gradient, values, d.v);
  x = builder.Apply({.kind = DnnKind::kMatmul, .x = d.gradient, .b = of.v}, scores());
  x = builder.Apply({.kind = DnnKind::kSubtract, .x = x, .b = d.sums}, scores());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = p}, scores());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = scale}, scores());
  multiply_keys(turned(x), of.q, features, d.k);
  const int k = builder.LikeTurned(of.k);
  builder.Apply({.kind = DnnKind::kTranspose, .x = of.k}, k);
  builder.Apply({.kind = DnnKind::kMatmul, .x = x, .b = k}, d.q);
}

}  // namespace

int64_t DnnGradientsScratchBytes(const KernelCall& call, const SharedHeads& shared) {
  const int64_t elements = shared.count * NumElements(call.inputs[0].extents);
  const int64_t lines = elements / std::max<int64_t>(1, call.inputs[0].extents.back());
  return Pieces::Rounded(elements * SizeBytes(call.output_dtype)) + 2 * Pieces::Rounded(lines * SizeBytes(DType::kF32));
}

namespace {

// Where the gradients of queries, of keys and of values begin in a batch's results, and their tensors' strides.
struct Results {
  int64_t step, rows, keys, features, values, heads;
  Strides Of(int64_t width) const { return {width * step, step}; }
  int64_t of_keys() const { return heads * rows * features; }
  int64_t of_values() const { return of_keys() + keys * features; }
};

// The batch dims of the gradient, q, k, v, results of queries, results of keys, the mask if there is one, and what is
// known; heads that share keys are the last of them.
std::vector<Strides> BatchStrides(const KernelCall& call, const SharedHeads& shared, const Results& results,
                                  size_t dims, const Strides* mask, absl::Span<const KernelInput> known) {
  std::vector<Strides> all;
  const auto add = [&](Strides own, int64_t of_heads, bool is_of_keys) {
    own.resize(dims);
    if (shared.count > 1) own.push_back(of_heads);
    all.push_back(is_of_keys ? OfSharedHeads(own, own.size(), shared.count) : own);
  };
  for (size_t i = 0; i < 4; ++i) add(call.inputs[i].strides, shared.strides[i], i >= 2);
  add(call.output_strides, results.rows * results.features * results.step, false);
  add(call.output_strides, 0, true);
  if (mask != nullptr) add(*mask, shared.strides[4], false);
  for (size_t i = 0; i < known.size(); ++i) add(known[i].strides, shared.strides[call.inputs.size() + i], false);
  return all;
}

// Whether a part's logarithms lie one after the other, by the strides of batches and heads.
bool AreDense(const DnnBatches& batches, const std::array<int64_t, 2>& strides, int64_t rows) {
  return (batches.heads == 1 || strides[1] == rows) && (batches.batch == 1 || strides[0] == batches.heads * rows);
}

}  // namespace

std::optional<GradientCalls> AttentionGradientsByDnn(const AttentionGradientsOp& op, const KernelCall& call,
                                                     void* scratch, const SharedHeads& shared,
                                                     absl::Span<const KernelInput> known) {
  const std::optional<DnnType> type = DnnTypeOf(call.output_dtype);
  const size_t row = call.output_extents.size() - 1, column = row + 1;
  const Shape &of_queries = call.inputs[1].extents, &of_values = call.inputs[3].extents;
  const int64_t rows = of_queries[row], keys = of_values[row], features = of_queries[column],
                values = of_values[column];
  if (!type.has_value() || !AreDnnFeatures(features) || !AreDnnFeatures(values)) return std::nullopt;
  const bool has_mask = call.inputs.size() > 4, shares = shared.count > 1;
  if (rows < kLeastDnnRows || keys == 0 || (has_mask && call.inputs[4].dtype != DType::kF32)) return std::nullopt;

  const Results results{call.output_strides.back(), rows, keys, features, values, shared.count};
  Strides mask;
  if (has_mask) {
    const absl::StatusOr<Strides> strides = MaskStrides(call.inputs[4], of_queries, keys);
    if (!strides.ok()) return std::nullopt;
    mask = *strides;
  }
  Shape extents(of_queries.begin(), of_queries.begin() + static_cast<ptrdiff_t>(row));
  if (shares) extents.push_back(shared.count);
  std::optional<DnnBatches> batches =
      DnnBatchesOf(extents, BatchStrides(call, shared, results, row, has_mask ? &mask : nullptr, known));
  if (!batches.has_value() || (batches->batch != 1 && batches->heads != shared.count)) return std::nullopt;
  batches->sharing = shared.count;
  const size_t first_known = has_mask ? 7 : 6;
  if (!known.empty() &&
      !(AreDense(*batches, batches->strides[first_known + 1], rows) && AreDnnLogarithms(known[1].data))) {
    return AttentionGradientsByDnn(op, call, scratch, shared);
  }

  auto* const bytes = static_cast<std::byte*>(scratch);
  const int64_t lines = batches->batch * batches->heads * rows;
  std::byte* const statistics = bytes + Pieces::Rounded(lines * values * SizeBytes(call.output_dtype));
  std::byte* const sums = statistics + Pieces::Rounded(lines * SizeBytes(DType::kF32));
  const auto operand = [&](DnnBuilder& builder, size_t i, int64_t count, int64_t width) {
    return builder.Operand(i, *type, count, width, call.inputs[i].strides, call.inputs[i].data,
                           i < 2 ? DnnSharing::kNone : DnnSharing::kOfKeys);
  };
  const auto add_operands = [&](DnnBuilder& builder) {
    Attended of;
    of.q = operand(builder, 1, rows, features);
    of.k = operand(builder, 2, keys, features);
    of.v = operand(builder, 3, keys, values);
    if (has_mask) {
      of.mask = builder.Operand(6, DnnType::kF32, rows, keys, mask, call.inputs[4].data, DnnSharing::kOfBatches);
    }
    of.output = known.empty() ? builder.Dense(*type, rows, values, bytes)
                              : builder.Operand(first_known, *type, rows, values, known[0].strides, known[0].data);
    return of;
  };
  const double scale = call.scalars[0].AsDouble();
  GradientCalls made;
  const double products = static_cast<double>(lines) * static_cast<double>(keys);
  if (known.empty()) {
    DnnCall& attention = made.attention.emplace();
    DnnBuilder builder(*batches, &attention);
    const Attended of = add_operands(builder);
    if (!AreAligned(attention)) return std::nullopt;
    const int logarithms = builder.Dense(DnnType::kF32, rows, 1, statistics);
    builder.Transpose(of.k);
    AddForward(builder, of, *type, rows, keys, scale, op.is_causal ? std::optional<int64_t>(0) : std::nullopt,
               logarithms);
    SetCutsOfBatches(*batches, &attention);
    attention.multiplications = products * static_cast<double>(features + values);
  }
  DnnBuilder builder(*batches, &made.gradients);
  const Attended of = add_operands(builder);
  Differentiated d;
  d.gradient = operand(builder, 0, rows, values);
  const auto result = [&](int64_t first, int64_t count, int64_t width, bool is_of_keys) {
    return builder.Operand(is_of_keys ? 5 : 4, *type, count, width, results.Of(width),
                           static_cast<std::byte*>(call.output) + first * results.step * SizeBytes(call.output_dtype),
                           is_of_keys ? DnnSharing::kOfKeys : DnnSharing::kNone);
  };
  d.q = result(0, rows, features, false);
  d.k = result(results.of_keys(), keys, features, true);
  d.v = result(results.of_values(), keys, values, true);
  if (!AreAligned(made.gradients)) return std::nullopt;
  d.statistics = known.empty() ? builder.Dense(DnnType::kF32, rows, 1, statistics)
                               : builder.Operand(first_known + 1, DnnType::kF32, rows, 1, {1, 1}, known[1].data);
  d.sums = builder.Dense(DnnType::kF32, rows, 1, sums);
  builder.Transpose(of.k);
  builder.Transpose(of.v);
  AddBackward(builder, of, d, *type, rows, keys, features, values, scale, op.is_causal, shares);
  SetCutsOfBatches(*batches, &made.gradients);
  made.gradients.multiplications = products * static_cast<double>(3 * features + 2 * values);
  if (keys % kWholeKeys != 0) made.gradients.graph.least_version = kVersionOfAnyKeys;
  return made;
}

}  // namespace tessera::cuda
