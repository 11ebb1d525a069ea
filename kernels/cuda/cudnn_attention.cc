#include "kernels/cuda/cudnn_attention.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/dnn_builder.h"
#include "kernels/cuda/steps.h"

namespace tessera::cuda {
namespace {

// Beside a mask, which is broadcast to the scores.
absl::StatusOr<Strides> MaskStrides(const KernelInput& mask, const Shape& queries, int64_t keys) {
  Shape scores = queries;
  scores.back() = keys;
  return BroadcastStridesOf("attention", mask, scores);
}

std::vector<Strides> OfBatches(std::vector<Strides> strides, size_t dims) {
  for (Strides& own : strides) own.resize(dims);
  return strides;
}

// Up to version 9.15 gradients of other numbers of keys are wrong without a mask of their lengths (cudnn-frontend).
constexpr int64_t kWholeKeys = 128;
constexpr int kVersionOfAnyKeys = 91501;

bool IsFirstRow(int64_t row) { return row <= std::numeric_limits<int32_t>::max(); }

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

std::optional<DnnCall> AttentionByDnn(const AttentionOp& op, const KernelCall& call) {
  const std::optional<DnnType> type = DnnTypeOf(call.output_dtype);
  const size_t rank = call.output_extents.size(), row = rank - 2, column = rank - 1;
  const int64_t rows = call.output_extents[row], keys = call.inputs[1].extents[row];
  const int64_t features = call.inputs[0].extents[column], values = call.output_extents[column];
  if (!type.has_value() || !AreDnnFeatures(features) || !AreDnnFeatures(values)) return std::nullopt;
  const bool has_mask = call.inputs.size() > 3;
  if (rows < kLeastDnnRows || keys == 0 || (has_mask && call.inputs[3].dtype != DType::kF32)) return std::nullopt;
  const int64_t first_row = call.output_box[row].start;
  if (op.is_causal && !IsFirstRow(first_row)) return std::nullopt;

  // q, k, v, the output, the mask.
  std::vector<Strides> strides;
  for (size_t i = 0; i < 3; ++i) strides.push_back(call.inputs[i].strides);
  strides.push_back(call.output_strides);
  if (has_mask) {
    const absl::StatusOr<Strides> mask = MaskStrides(call.inputs[3], call.output_extents, keys);
    if (!mask.ok()) return std::nullopt;
    strides.push_back(*mask);
  }
  const std::optional<DnnBatches> batches =
      DnnBatchesOf(absl::MakeConstSpan(call.output_extents).subspan(0, row), OfBatches(strides, row));
  if (!batches.has_value()) return std::nullopt;

  DnnCall made;
  DnnBuilder builder(*batches, &made);
  Attended of;
  of.q = builder.Operand(0, *type, rows, features, strides[0], call.inputs[0].data);
  of.k = builder.Operand(1, *type, keys, features, strides[1], call.inputs[1].data);
  of.v = builder.Operand(2, *type, keys, values, strides[2], call.inputs[2].data);
  of.output = builder.Operand(3, *type, rows, values, strides[3], call.output);
  if (has_mask) {
    of.mask = builder.Operand(4, DnnType::kF32, rows, keys, strides[4], call.inputs[3].data, DnnSharing::kOfBatches);
  }
  if (!AreAligned(made)) return std::nullopt;
  builder.Transpose(of.k);
  AddForward(builder, of, *type, rows, keys, call.scalars[0].AsDouble(),
             op.is_causal ? std::optional(first_row) : std::nullopt, -1);
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
                 int64_t keys, int64_t features, int64_t values, double scale_by, bool is_causal) {
  const auto scores = [&] { return builder.Virtual(DnnType::kF32, rows, keys); };
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
  builder.Apply({.kind = DnnKind::kMatmul, .x = turned(p), .b = d.gradient}, d.v);
  x = builder.Apply({.kind = DnnKind::kMatmul, .x = d.gradient, .b = of.v}, scores());
  x = builder.Apply({.kind = DnnKind::kSubtract, .x = x, .b = d.sums}, scores());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = p}, scores());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = scale}, scores());
  builder.Apply({.kind = DnnKind::kMatmul, .x = turned(x), .b = of.q}, d.k);
  const int k = builder.LikeTurned(of.k);
  builder.Apply({.kind = DnnKind::kTranspose, .x = of.k}, k);
  builder.Apply({.kind = DnnKind::kMatmul, .x = x, .b = k}, d.q);
}

}  // namespace

int64_t DnnGradientsScratchBytes(const KernelCall& call) {
  const int64_t lines = NumElements(call.inputs[0].extents) / std::max<int64_t>(1, call.inputs[0].extents.back());
  return Pieces::Rounded(NumElements(call.inputs[0].extents) * SizeBytes(call.output_dtype)) +
         2 * Pieces::Rounded(lines * SizeBytes(DType::kF32));
}

std::optional<std::pair<DnnCall, DnnCall>> AttentionGradientsByDnn(const AttentionGradientsOp& op,
                                                                   const KernelCall& call, void* scratch) {
  const std::optional<DnnType> type = DnnTypeOf(call.output_dtype);
  const size_t row = call.output_extents.size() - 1, column = row + 1;
  const Shape &of_queries = call.inputs[1].extents, &of_values = call.inputs[3].extents;
  const int64_t rows = of_queries[row], keys = of_values[row], features = of_queries[column],
                values = of_values[column];
  if (!type.has_value() || !AreDnnFeatures(features) || !AreDnnFeatures(values)) return std::nullopt;
  const bool has_mask = call.inputs.size() > 4;
  if (rows < kLeastDnnRows || keys == 0 || (has_mask && call.inputs[4].dtype != DType::kF32)) return std::nullopt;

  // The gradient, q, k, v, the output, the mask.
  std::vector<Strides> strides;
  for (size_t i = 0; i < 4; ++i) strides.push_back(call.inputs[i].strides);
  strides.push_back(call.output_strides);
  if (has_mask) {
    const absl::StatusOr<Strides> mask = MaskStrides(call.inputs[4], of_queries, keys);
    if (!mask.ok()) return std::nullopt;
    strides.push_back(*mask);
  }
  const std::optional<DnnBatches> batches =
      DnnBatchesOf(absl::MakeConstSpan(of_queries).subspan(0, row), OfBatches(strides, row));
  if (!batches.has_value() || batches->batch != 1) return std::nullopt;

  auto* const bytes = static_cast<std::byte*>(scratch);
  const int64_t lines = batches->heads * rows;
  std::byte* const statistics = bytes + Pieces::Rounded(lines * values * SizeBytes(call.output_dtype));
  std::byte* const sums = statistics + Pieces::Rounded(lines * SizeBytes(DType::kF32));
  const auto add_operands = [&](DnnBuilder& builder) {
    Attended of;
    of.q = builder.Operand(1, *type, rows, features, strides[1], call.inputs[1].data);
    of.k = builder.Operand(2, *type, keys, features, strides[2], call.inputs[2].data);
    of.v = builder.Operand(3, *type, keys, values, strides[3], call.inputs[3].data);
    if (has_mask) {
      of.mask = builder.Operand(5, DnnType::kF32, rows, keys, strides[5], call.inputs[4].data, DnnSharing::kOfBatches);
    }
    of.output = builder.Dense(*type, rows, values, bytes);
    return of;
  };
  const double scale = call.scalars[0].AsDouble();
  std::pair<DnnCall, DnnCall> made;
  {
    DnnBuilder builder(*batches, &made.first);
    const Attended of = add_operands(builder);
    if (!AreAligned(made.first)) return std::nullopt;
    const int logarithms = builder.Dense(DnnType::kF32, rows, 1, statistics);
    builder.Transpose(of.k);
    AddForward(builder, of, *type, rows, keys, scale, op.is_causal ? std::optional<int64_t>(0) : std::nullopt,
               logarithms);
    SetCutsOfBatches(*batches, &made.first);
  }
  DnnBuilder builder(*batches, &made.second);
  const Attended of = add_operands(builder);
  Differentiated d;
  d.gradient = builder.Operand(0, *type, rows, values, strides[0], call.inputs[0].data);
  const auto result = [&](int64_t first, int64_t count, int64_t width) {
    const int64_t step = call.output_strides.back();
    return builder.Operand(4, *type, count, width, {width * step, step},
                           static_cast<std::byte*>(call.output) + first * step * SizeBytes(call.output_dtype));
  };
  d.q = result(0, rows, features);
  d.k = result(rows * features, keys, features);
  d.v = result((rows + keys) * features, keys, values);
  if (!AreAligned(made.second)) return std::nullopt;
  d.statistics = builder.Dense(DnnType::kF32, rows, 1, statistics);
  d.sums = builder.Dense(DnnType::kF32, rows, 1, sums);
  builder.Transpose(of.k);
  builder.Transpose(of.v);
  AddBackward(builder, of, d, *type, rows, keys, features, values, scale, op.is_causal);
  SetCutsOfBatches(*batches, &made.second);
  const double products = static_cast<double>(lines) * static_cast<double>(keys);
  made.first.multiplications = products * static_cast<double>(features + values);
  made.second.multiplications = products * static_cast<double>(3 * features + 2 * values);
  if (keys % kWholeKeys != 0) made.second.graph.least_version = kVersionOfAnyKeys;
  return made;
}

}  // namespace tessera::cuda
