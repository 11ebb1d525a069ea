#include "kernels/cuda/dnn_builder.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/cudnn_attention.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kFeatureMultiple = 8;
constexpr int kRowAxis = 2, kColumnAxis = 3;

bool IsAligned(const DnnTensor& tensor, uint64_t address) {
  const int64_t elements = kDnnAlignment / DnnSizeBytes(tensor.type);
  for (size_t d = 0; d + 1 < tensor.extents.size(); ++d) {
    const bool counts = tensor.extents[d] > 1;
    if (counts && (tensor.strides[d] <= 0 || tensor.strides[d] % elements != 0)) return false;
  }
  return tensor.strides.back() == 1 && address % static_cast<uint64_t>(kDnnAlignment) == 0;
}

}  // namespace

std::optional<DnnBatches> DnnBatchesOf(absl::Span<const int64_t> extents, const std::vector<Strides>& strides) {
  const Loops loops = MergedLoops(extents, strides);
  const size_t rank = loops.extents.size();
  if (rank > 2) return std::nullopt;
  DnnBatches batches;
  if (rank > 0) batches.heads = loops.extents[rank - 1];
  if (rank > 1) batches.batch = loops.extents[0];
  for (const Strides& own : loops.strides) {
    const int64_t heads = rank > 0 ? own[rank - 1] : 0;
    batches.strides.push_back({rank > 1 ? own[0] : heads * batches.heads, heads});
  }
  return batches;
}

Strides OfSharedHeads(Strides keys, size_t batch_dims, int64_t sharing) {
  keys.resize(batch_dims, 0);
  if (sharing == 1 || batch_dims == 0) return keys;
  const int64_t heads = batch_dims > 1 ? keys[batch_dims - 2] : 0;
  for (size_t d = 0; d + 1 < batch_dims; ++d) keys[d] *= sharing;
  keys[batch_dims - 1] = heads;
  return keys;
}

int DnnBuilder::Add(DnnTensor tensor, uint64_t address, double number) {
  call_.graph.tensors.push_back(std::move(tensor));
  call_.addresses.push_back(address);
  call_.numbers.push_back(number);
  return static_cast<int>(call_.graph.tensors.size() - 1);
}

int DnnBuilder::Number(DnnType type, double number) {
  return Add({.type = type, .place = DnnPlace::kNumber, .extents = {1, 1, 1, 1}, .strides = {1, 1, 1, 1}}, 0, number);
}

int DnnBuilder::Virtual(DnnType type, int64_t rows, int64_t columns) {
  return Add({.type = type,
              .extents = {batches_.batch, batches_.heads, rows, columns},
              .strides = {batches_.heads * rows * columns, rows * columns, columns, 1}});
}

int DnnBuilder::Dense(DnnType type, int64_t rows, int64_t columns, const void* data) {
  const int number = Virtual(type, rows, columns);
  call_.graph.tensors[static_cast<size_t>(number)].place = DnnPlace::kMemory;
  call_.addresses[static_cast<size_t>(number)] = AddressOf(data);
  return number;
}

int DnnBuilder::Operand(size_t number, DnnType type, int64_t rows, int64_t columns, const Strides& strides,
                        const void* data, DnnSharing sharing) {
  const auto [batch, heads] = batches_.strides[number];
  DnnTensor tensor{.type = type,
                   .place = DnnPlace::kMemory,
                   .extents = {batches_.batch, batches_.heads, rows, columns},
                   .strides = {batch, heads, strides[strides.size() - 2], strides.back()}};
  for (size_t d = 0; sharing == DnnSharing::kOfBatches && d < 2; ++d) {
    if (tensor.strides[d] == 0) tensor.extents[d] = 1;
  }
  if (sharing == DnnSharing::kOfKeys) {
    tensor.extents[1] /= batches_.sharing;
    tensor.strides[0] /= batches_.sharing;
  }
  // Nothing is read by the stride of one element: one that fits.
  for (size_t d = 3; d-- > 0;) {
    if (tensor.extents[d] == 1) tensor.strides[d] = tensor.extents[d + 1] * tensor.strides[d + 1];
  }
  return Add(std::move(tensor), AddressOf(data));
}

int DnnBuilder::Apply(DnnOperation operation, int y) {
  operation.y = y;
  call_.graph.operations.push_back(std::move(operation));
  return y;
}

void DnnBuilder::Transpose(int tensor) {
  DnnTensor& transposed = call_.graph.tensors[static_cast<size_t>(tensor)];
  std::swap(transposed.extents[2], transposed.extents[3]);
  std::swap(transposed.strides[2], transposed.strides[3]);
}

int DnnBuilder::LikeTurned(int tensor) {
  DnnTensor like = call_.graph.tensors[static_cast<size_t>(tensor)];
  like.place = DnnPlace::kVirtual;
  const int number = Add(std::move(like));
  Transpose(number);
  return number;
}

int DnnBuilder::SelectSeen(int scores, int64_t rows, int64_t keys, int64_t first_row) {
  const auto square = [&](DnnType type) { return Virtual(type, rows, keys); };
  int row_index = Apply({.kind = DnnKind::kIndex, .x = scores, .axis = kRowAxis}, square(DnnType::kI32));
  const int column_index = Apply({.kind = DnnKind::kIndex, .x = scores, .axis = kColumnAxis}, square(DnnType::kI32));
  if (first_row != 0) {
    const int shift = Number(DnnType::kI32, static_cast<double>(first_row));
    row_index =
        Apply({.kind = DnnKind::kAdd, .x = row_index, .b = shift, .computed_in = DnnType::kI32, .axis = kColumnAxis},
              square(DnnType::kI32));
  }
  const int seen =
      Apply({.kind = DnnKind::kGreaterEqual, .x = row_index, .b = column_index, .computed_in = DnnType::kBool},
            square(DnnType::kBool));
  const int none = Number(DnnType::kF32, -std::numeric_limits<double>::infinity());
  return Apply({.kind = DnnKind::kSelect, .x = scores, .b = none, .t = seen}, square(DnnType::kF32));
}

void SetCutsOfBatches(const DnnBatches& batches, DnnCall* call) {
  std::vector<DnnCut> cuts = {{batches.batch, {}}, {batches.heads / batches.sharing, {}}};
  const std::vector<DnnTensor>& tensors = call->graph.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].place == DnnPlace::kNumber) continue;
    for (size_t d = 0; d < cuts.size(); ++d) {
      const bool is_of_queries = d == 1 && tensors[i].extents[d] == batches.heads;
      if (is_of_queries || tensors[i].extents[d] == cuts[d].parts)
        cuts[d].dims.emplace_back(static_cast<int>(i), static_cast<int>(d));
    }
  }
  call->graph.cuts = std::move(cuts);
}

bool AreAligned(const DnnCall& call) {
  for (size_t i = 0; i < call.graph.tensors.size(); ++i) {
    if (!IsAligned(call.graph.tensors[i], call.addresses[i])) return false;
  }
  return true;
}

std::optional<DnnType> DnnTypeOf(DType dtype) {
  if (dtype == DType::kF16) return DnnType::kF16;
  if (dtype == DType::kBF16) return DnnType::kBF16;
  return std::nullopt;
}

bool AreDnnFeatures(int64_t count) { return count > 0 && count <= kMaxDnnFeatures && count % kFeatureMultiple == 0; }

}  // namespace tessera::cuda
