#include "kernels/cuda/cudnn_attention.h"

#include <array>
#include <limits>
#include <utility>

#include "kernels/cuda/steps.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kFeatureMultiple = 8;
constexpr int kRowAxis = 2, kColumnAxis = 3;

// The batch dims of all operands as two: batch and heads.
struct Batches {
  int64_t batch = 1, heads = 1;
  std::vector<std::array<int64_t, 2>> strides;  // by operand
};

std::optional<Batches> BatchesOf(absl::Span<const int64_t> extents, const std::vector<Strides>& strides) {
  const Loops loops = MergedLoops(extents, strides);
  const size_t rank = loops.extents.size();
  if (rank > 2) return std::nullopt;
  Batches batches;
  if (rank > 0) batches.heads = loops.extents[rank - 1];
  if (rank > 1) batches.batch = loops.extents[0];
  for (const Strides& own : loops.strides) {
    const int64_t heads = rank > 0 ? own[rank - 1] : 0;
    batches.strides.push_back({rank > 1 ? own[0] : heads * batches.heads, heads});
  }
  return batches;
}

class Builder {
 public:
  explicit Builder(DnnCall* call) : call_(*call) {}

  int Add(DnnTensor tensor, uint64_t address = 0, double number = 0) {
    call_.graph.tensors.push_back(std::move(tensor));
    call_.addresses.push_back(address);
    call_.numbers.push_back(number);
    return static_cast<int>(call_.graph.tensors.size() - 1);
  }
  int Number(DnnType type, double number) {
    return Add({.type = type, .place = DnnPlace::kNumber, .extents = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}}, 0, number);
  }
  // Between operations: dense, of these extents.
  int Virtual(DnnType type, std::vector<int64_t> extents) {
    std::vector<int64_t> strides = {extents[1] * extents[2] * extents[3], extents[2] * extents[3], extents[3], 1};
    return Add({.type = type, .extents = std::move(extents), .strides = std::move(strides)});
  }
  int Apply(DnnOperation operation, int y) {
    operation.y = y;
    call_.graph.operations.push_back(std::move(operation));
    return y;
  }

 private:
  DnnCall& call_;
};

// Along batch and heads, the first two dims; a mask may be one for all.
std::vector<DnnCut> CutsOf(const std::vector<DnnTensor>& tensors, int64_t batch, int64_t heads) {
  std::vector<DnnCut> cuts = {{batch, {}}, {heads, {}}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].place == DnnPlace::kNumber) continue;
    for (size_t d = 0; d < cuts.size(); ++d) {
      if (tensors[i].extents[d] == cuts[d].parts) cuts[d].dims.emplace_back(static_cast<int>(i), static_cast<int>(d));
    }
  }
  return cuts;
}

bool IsAligned(const DnnTensor& tensor, uint64_t address) {
  const int64_t elements = kDnnAlignment / DnnSizeBytes(tensor.type);
  for (size_t d = 0; d + 1 < tensor.extents.size(); ++d) {
    const bool counts = tensor.extents[d] > 1;
    if (counts && (tensor.strides[d] <= 0 || tensor.strides[d] % elements != 0)) return false;
  }
  return tensor.strides.back() == 1 && address % static_cast<uint64_t>(kDnnAlignment) == 0;
}

}  // namespace

std::optional<DnnCall> AttentionByDnn(const AttentionOp& op, const KernelCall& call) {
  if (call.output_dtype != DType::kF16 && call.output_dtype != DType::kBF16) return std::nullopt;
  const DnnType type = call.output_dtype == DType::kF16 ? DnnType::kF16 : DnnType::kBF16;
  const size_t rank = call.output_extents.size(), row = rank - 2, column = rank - 1;
  const int64_t rows = call.output_extents[row], keys = call.inputs[1].extents[row];
  const int64_t features = call.inputs[0].extents[column], values = call.output_extents[column];
  for (const int64_t count : {features, values}) {
    if (count == 0 || count > kMaxDnnFeatures || count % kFeatureMultiple != 0) return std::nullopt;
  }
  const bool has_mask = call.inputs.size() > 3;
  if (rows < kLeastDnnRows || keys == 0 || (has_mask && call.inputs[3].dtype != DType::kF32)) return std::nullopt;

  // q, k, v, the output, the mask.
  std::vector<Strides> strides;
  for (size_t i = 0; i < 3; ++i) strides.push_back(call.inputs[i].strides);
  strides.push_back(call.output_strides);
  if (has_mask) {
    Shape scores = call.output_extents;
    scores[column] = keys;
    const absl::StatusOr<Strides> mask = BroadcastStridesOf("attention", call.inputs[3], scores);
    if (!mask.ok()) return std::nullopt;
    strides.push_back(*mask);
  }
  std::vector<Strides> of_batches = strides;
  for (Strides& own : of_batches) own.resize(row);
  const std::optional<Batches> batches =
      BatchesOf(absl::MakeConstSpan(call.output_extents).subspan(0, row), std::move(of_batches));
  if (!batches.has_value()) return std::nullopt;

  DnnCall made;
  Builder builder(&made);
  const auto operand = [&](size_t number, DnnType of, int64_t count, int64_t width, const void* data) {
    const auto [batch, heads] = batches->strides[number];
    DnnTensor tensor{.type = of,
                     .place = DnnPlace::kMemory,
                     .extents = {batches->batch, batches->heads, count, width},
                     .strides = {batch, heads, strides[number][row], strides[number][column]}};
    // A mask may be one for all.
    for (size_t d = 0; number == 4 && d < 2; ++d) {
      if (tensor.strides[d] == 0) tensor.extents[d] = 1;
    }
    // Nothing is read by the stride of one element: one that fits.
    for (size_t d = 3; d-- > 0;) {
      if (tensor.extents[d] == 1) tensor.strides[d] = tensor.extents[d + 1] * tensor.strides[d + 1];
    }
    return builder.Add(std::move(tensor), AddressOf(data));
  };
  const int q = operand(0, type, rows, features, call.inputs[0].data);
  const int k = operand(1, type, keys, features, call.inputs[1].data);
  const int v = operand(2, type, keys, values, call.inputs[2].data);
  const int output = operand(3, type, rows, values, call.output);
  const int mask = has_mask ? operand(4, DnnType::kF32, rows, keys, call.inputs[3].data) : -1;
  for (size_t i = 0; i < made.graph.tensors.size(); ++i) {
    if (!IsAligned(made.graph.tensors[i], made.addresses[i])) return std::nullopt;
  }
  DnnTensor& transposed = made.graph.tensors[static_cast<size_t>(k)];
  std::swap(transposed.extents[2], transposed.extents[3]);
  std::swap(transposed.strides[2], transposed.strides[3]);

  const std::vector<int64_t> square = {batches->batch, batches->heads, rows, keys};
  const std::vector<int64_t> line = {batches->batch, batches->heads, rows, 1};
  const auto scores = [&](DnnType of = DnnType::kF32) { return builder.Virtual(of, square); };
  int x = builder.Apply({.kind = DnnKind::kMatmul, .x = q, .b = k}, scores());
  const int scale = builder.Number(DnnType::kF32, call.scalars[0].AsDouble());
  x = builder.Apply({.kind = DnnKind::kMultiply, .x = x, .b = scale}, scores());
  if (has_mask) x = builder.Apply({.kind = DnnKind::kAdd, .x = x, .b = mask}, scores());
  if (op.is_causal) {
    int row_index = builder.Apply({.kind = DnnKind::kIndex, .x = x, .axis = kRowAxis}, scores(DnnType::kI32));
    const int column_index =
        builder.Apply({.kind = DnnKind::kIndex, .x = x, .axis = kColumnAxis}, scores(DnnType::kI32));
    if (const int64_t first = call.output_box[row].start; first != 0) {
      if (first > std::numeric_limits<int32_t>::max()) return std::nullopt;
      const int shift = builder.Number(DnnType::kI32, static_cast<double>(first));
      row_index = builder.Apply(
          {.kind = DnnKind::kAdd, .x = row_index, .b = shift, .computed_in = DnnType::kI32, .axis = kColumnAxis},
          scores(DnnType::kI32));
    }
    const int seen = builder.Apply(
        {.kind = DnnKind::kGreaterEqual, .x = row_index, .b = column_index, .computed_in = DnnType::kBool},
        scores(DnnType::kBool));
    const int none = builder.Number(DnnType::kF32, -std::numeric_limits<double>::infinity());
    x = builder.Apply({.kind = DnnKind::kSelect, .x = x, .b = none, .t = seen}, scores());
  }
  const int most = builder.Apply({.kind = DnnKind::kMax, .x = x}, builder.Virtual(DnnType::kF32, line));
  x = builder.Apply({.kind = DnnKind::kSubtract, .x = x, .b = most}, scores());
  x = builder.Apply({.kind = DnnKind::kExp, .x = x}, scores());
  const int sum = builder.Apply({.kind = DnnKind::kSum, .x = x}, builder.Virtual(DnnType::kF32, line));
  // The logarithms of the sums of exponentials: nobody reads them, and the library knows no attention without.
  const int log = builder.Apply({.kind = DnnKind::kLog, .x = sum}, builder.Virtual(DnnType::kF32, line));
  builder.Apply({.kind = DnnKind::kAdd, .x = most, .b = log}, builder.Virtual(DnnType::kF32, line));
  x = builder.Apply({.kind = DnnKind::kDivide, .x = x, .b = sum}, scores(type));
  builder.Apply({.kind = DnnKind::kMatmul, .x = x, .b = v}, output);
  made.graph.cuts = CutsOf(made.graph.tensors, batches->batch, batches->heads);
  made.multiplications = static_cast<double>(batches->batch * batches->heads) * static_cast<double>(rows) *
                         static_cast<double>(keys) * static_cast<double>(features + values);
  return made;
}

}  // namespace tessera::cuda
