#include "kernels/cuda/dnn_graph.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::cuda {
namespace {

const char* NameOf(DnnType type) {
  switch (type) {
    case DnnType::kF32: return "f32";
    case DnnType::kF16: return "f16";
    case DnnType::kBF16: return "bf16";
    case DnnType::kI32: return "i32";
    case DnnType::kBool: return "bool";
  }
  return "";
}

const char* NameOf(DnnKind kind) {
  switch (kind) {
    case DnnKind::kMatmul: return "matmul";
    case DnnKind::kAdd: return "add";
    case DnnKind::kSubtract: return "sub";
    case DnnKind::kMultiply: return "mul";
    case DnnKind::kDivide: return "div";
    case DnnKind::kExp: return "exp";
    case DnnKind::kLog: return "log";
    case DnnKind::kIndex: return "index";
    case DnnKind::kGreaterEqual: return "ge";
    case DnnKind::kSelect: return "select";
    case DnnKind::kMax: return "max";
    case DnnKind::kSum: return "sum";
    case DnnKind::kConvolution: return "conv";
  }
  return "";
}

std::string TextOf(const std::vector<int64_t>& numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

// The part [first, first + count) of the dim; both in elements of the longest tensor along it.
DnnCall PartOf(const DnnCall& call, size_t dim, int64_t whole, int64_t first, int64_t count) {
  DnnCall part = call;
  for (size_t i = 0; i < part.graph.tensors.size(); ++i) {
    DnnTensor& tensor = part.graph.tensors[i];
    if (tensor.cut_dims <= static_cast<int>(dim) || tensor.extents[dim] == 1) continue;
    const int64_t ratio = whole / tensor.extents[dim];
    tensor.extents[dim] = count / ratio;
    if (tensor.place != DnnPlace::kMemory) continue;
    part.addresses[i] += static_cast<uint64_t>(first / ratio * tensor.strides[dim] * DnnSizeBytes(tensor.type));
  }
  part.multiplications = call.multiplications * static_cast<double>(count) / static_cast<double>(whole);
  return part;
}

}  // namespace

int64_t DnnSizeBytes(DnnType type) {
  switch (type) {
    case DnnType::kF32:
    case DnnType::kI32: return 4;
    case DnnType::kF16:
    case DnnType::kBF16: return 2;
    case DnnType::kBool: return 1;
  }
  return 0;
}

std::string TextOf(const DnnGraph& graph) {
  std::string text;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const DnnTensor& tensor = graph.tensors[i];
    if (tensor.place == DnnPlace::kVirtual) continue;
    absl::StrAppend(&text, "t", i, " = ", NameOf(tensor.type));
    if (tensor.place == DnnPlace::kNumber) {
      absl::StrAppend(&text, " number; ");
      continue;
    }
    absl::StrAppend(&text, TextOf(tensor.extents), " strides ", TextOf(tensor.strides), "; ");
  }
  for (const DnnOperation& operation : graph.operations) {
    absl::StrAppend(&text, "t", operation.y, " = ", NameOf(operation.kind), "(t", operation.x);
    for (const int operand : {operation.b, operation.t}) {
      if (operand >= 0) absl::StrAppend(&text, ", t", operand);
    }
    if (operation.axis >= 0) absl::StrAppend(&text, ", axis ", operation.axis);
    if (operation.kind == DnnKind::kConvolution) {
      absl::StrAppend(&text, ", stride ", TextOf(operation.stride), ", padding ", TextOf(operation.padding),
                      ", dilation ", TextOf(operation.dilation));
    }
    absl::StrAppend(&text, "); ");
  }
  absl::StrAppend(&text, graph.permits_tensor_cores ? "by any cores" : "with all bits");
  return text;
}

std::optional<std::pair<DnnCall, DnnCall>> HalvesOf(const DnnCall& call) {
  int dims = 0;
  for (const DnnTensor& tensor : call.graph.tensors) dims = std::max(dims, tensor.cut_dims);
  for (size_t dim = 0; dim < static_cast<size_t>(dims); ++dim) {
    // A dim in which tensors have several numbers of elements, as heads of queries and of keys, is halved by the
    // fewest.
    int64_t most = 1, fewest = 0;
    for (const DnnTensor& tensor : call.graph.tensors) {
      if (tensor.cut_dims <= static_cast<int>(dim) || tensor.extents[dim] == 1) continue;
      most = std::max(most, tensor.extents[dim]);
      fewest = fewest == 0 ? tensor.extents[dim] : std::min(fewest, tensor.extents[dim]);
    }
    if (fewest <= 1) continue;
    const int64_t first = (fewest + 1) / 2 * (most / fewest);
    return std::pair(PartOf(call, dim, most, 0, first), PartOf(call, dim, most, first, most - first));
  }
  return std::nullopt;
}

}  // namespace tessera::cuda
