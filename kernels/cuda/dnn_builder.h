#pragma once

// The graphs of attentions, piece by piece: tensors [batch, heads, rows, features], and the scores of queries and keys.
// Private to kernels/cuda.

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/dnn_graph.h"
#include "kernels/cuda/steps.h"

namespace tessera::cuda {

// The batch dims of all operands as two: batch and heads.
struct DnnBatches {
  int64_t batch = 1, heads = 1;
  std::vector<std::array<int64_t, 2>> strides;  // by operand
  int64_t sharing = 1;                          // heads of queries that share one of keys and values
};
// Nothing where they are more than two, or not one for all operands.
std::optional<DnnBatches> DnnBatchesOf(absl::Span<const int64_t> extents, const std::vector<Strides>& strides);

// How the strides of keys are said where the last of the batch dims, of `sharing` elements, is one that they haven't:
// as if heads were so many times as far apart, so that they are one dim with those of queries wherever these are one.
Strides OfSharedHeads(Strides keys, size_t batch_dims, int64_t sharing);

// Whether an operand may have one element for all batches or heads, as a mask may, or has heads of keys.
enum class DnnSharing : uint8_t { kNone = 0, kOfBatches = 1, kOfKeys = 2 };

class DnnBuilder {
 public:
  DnnBuilder(const DnnBatches& batches, DnnCall* call) : batches_(batches), call_(*call) {}

  int Add(DnnTensor tensor, uint64_t address = 0, double number = 0);
  int Number(DnnType type, double number);
  // Between operations: dense, of these extents behind batch and heads.
  int Virtual(DnnType type, int64_t rows, int64_t columns);
  // In memory: dense, one batch after the other.
  int Dense(DnnType type, int64_t rows, int64_t columns, const void* data);
  // In memory, as the operand of that number lies.
  int Operand(size_t number, DnnType type, int64_t rows, int64_t columns, const Strides& strides, const void* data,
              DnnSharing sharing = DnnSharing::kNone);
  int Apply(DnnOperation operation, int y);
  // The tensor of that number has its last two dims the other way round.
  void Transpose(int tensor);
  // Between operations: that tensor, the other way round.
  int LikeTurned(int tensor);
  // -inf where a query, by its number and `first_row`, doesn't see a key.
  int SelectSeen(int scores, int64_t rows, int64_t keys, int64_t first_row);

 private:
  const DnnBatches& batches_;
  DnnCall& call_;
};

// The call is cut along batch and heads, the first two dims; a mask may be one for all.
void SetCutsOfBatches(const DnnBatches& batches, DnnCall* call);
// Whether each tensor so far, all in memory, lies as the library takes it: dense along its last dim, all else aligned.
bool AreAligned(const DnnCall& call);

// The library takes f16 and bf16, and some numbers of features.
std::optional<DnnType> DnnTypeOf(DType dtype);
bool AreDnnFeatures(int64_t count);

}  // namespace tessera::cuda
