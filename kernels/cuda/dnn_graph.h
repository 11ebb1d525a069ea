#pragma once

// A graph of operations on tensors, as cuDNN takes it, and a call of it. Pure: no library, no device; addresses are
// never followed.
//
//   a product of [8,3,4] by [8,4,5]:
//     tensors {a: f32[8,3,4] in memory, b: f32[8,4,5] in memory, c: f32[8,3,5] in memory},
//     operations {matmul(0, 1) -> 2}
//   TextOf -> "t0 = f32[8,3,4] strides [12,4,1]; ...; t2 = matmul(t0, t1)"
//
// Law: everything that the library's choice of a plan may depend on is in DnnGraph. One graph has one plan, whatever
// its operands' addresses and numbers are.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cuda {

enum class DnnType : uint8_t { kF32, kF16, kBF16, kI32, kBool };
int64_t DnnSizeBytes(DnnType type);

// Where a tensor is: in the device's memory; nowhere, between operations of the plan; or it is one number of the call.
enum class DnnPlace : uint8_t { kMemory, kVirtual, kNumber };

inline constexpr int64_t kDnnAlignment = 16;  // bytes, of each tensor in memory

// Memory beside the operands that a call may take. One that needs more is cut. docs/limits.md:
// max_gpu_attention_workspace_bytes, max_gpu_convolution_workspace_bytes
inline constexpr int64_t kMaxAttentionWorkspaceBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxConvolutionWorkspaceBytes = int64_t{256} << 20;
// docs/limits.md: max_gpu_attention_gradients_workspace_bytes
inline constexpr int64_t kMaxAttentionGradientsWorkspaceBytes = int64_t{256} << 20;

struct DnnTensor {
  DnnType type = DnnType::kF32;
  DnnPlace place = DnnPlace::kVirtual;
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;  // in elements
  auto operator<=>(const DnnTensor&) const = default;
};

enum class DnnKind : uint8_t {
  kMatmul,             // y = x @ b over the last two dims
  kAdd,                // y = x + b, b broadcast; likewise
  kSubtract,           // x - b
  kMultiply,           // x * b
  kDivide,             // x / b
  kExp,                // e^x
  kLog,                // ln(x)
  kIndex,              // the index of each element along `axis`, of the shape of x
  kGreaterEqual,       // x >= b
  kSelect,             // t ? x : b
  kMax,                // the maximum of x over the dims in which y has one element
  kSum,                // likewise
  kTranspose,          // y = x with the last two dims the other way round, rounded to the dtype of y
  kConvolution,        // y = x convolved with b, as ConvOp (schemas/ops/window_op.h) says
  kConvolutionX,       // y = the gradient of the convolved, of that of the result, x, and the weight, b
  kConvolutionWeight,  // y = the weight's gradient, of that of the result, x, and the convolved, b
};

// Tensors by their number in the graph; -1: none.
struct DnnOperation {
  DnnKind kind = DnnKind::kMatmul;
  int x = -1, b = -1, t = -1, y = -1;
  DnnType computed_in = DnnType::kF32;
  int axis = -1;
  std::vector<int64_t> stride = {}, padding = {}, dilation = {};  // of a convolution, by dim of windows
  auto operator<=>(const DnnOperation&) const = default;
};

inline bool IsConvolution(DnnKind kind) {
  return kind == DnnKind::kConvolution || kind == DnnKind::kConvolutionX || kind == DnnKind::kConvolutionWeight;
}

// A way to cut a call: into parts that can be computed by themselves, `parts` at most, as batches or heads. Each tensor
// that has parts is cut in one of its dims, in which it has as many elements, or a multiple.
struct DnnCut {
  int64_t parts = 1;
  std::vector<std::pair<int, int>> dims;  // tensors by their number, and the dim of each
  auto operator<=>(const DnnCut&) const = default;
};

struct DnnGraph {
  std::vector<DnnTensor> tensors;
  std::vector<DnnOperation> operations;  // each behind those whose results it reads
  // Whether plans may use tensor cores, which of f32 read fewer bits.
  bool permits_tensor_cores = true;
  // The library's version from which on its plans are right: 0, any.
  int least_version = 0;
  std::vector<DnnCut> cuts = {};
  auto operator<=>(const DnnGraph&) const = default;
};
std::string TextOf(const DnnGraph& graph);

// By tensor: the address of one in memory, the number of one that is a number; 0 of others.
struct DnnCall {
  DnnGraph graph;
  std::vector<uint64_t> addresses;
  std::vector<double> numbers;
  // Products of two numbers that it adds up.
  double multiplications = 0;
};

// The call as two, one after the other: halves by the cut that has the most parts left, the first of several. Nothing
// where none has more than one.
std::optional<std::pair<DnnCall, DnnCall>> HalvesOf(const DnnCall& call);

}  // namespace tessera::cuda
