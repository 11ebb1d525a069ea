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
    case DnnKind::kTranspose: return "transpose";
    case DnnKind::kConvolution: return "conv";
    case DnnKind::kConvolutionX: return "conv_gradient_x";
    case DnnKind::kConvolutionWeight: return "conv_gradient_weight";
  }
  return "";
}

std::string TextOf(const std::vector<int64_t>& numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ","), "]"); }

// The parts [first, first + count) of one cut.
DnnCall PartOf(const DnnCall& call, size_t cut, int64_t first, int64_t count) {
  DnnCall part = call;
  const int64_t whole = call.graph.cuts[cut].parts;
  part.graph.cuts[cut].parts = count;
  for (const auto& [number, dim] : call.graph.cuts[cut].dims) {
    const auto at = static_cast<size_t>(number), d = static_cast<size_t>(dim);
    DnnTensor& tensor = part.graph.tensors[at];
    const int64_t each = tensor.extents[d] / whole;
    tensor.extents[d] = count * each;
    if (tensor.place != DnnPlace::kMemory) continue;
    part.addresses[at] += static_cast<uint64_t>(first * each * tensor.strides[d] * DnnSizeBytes(tensor.type));
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
    if (IsConvolution(operation.kind)) {
      absl::StrAppend(&text, ", stride ", TextOf(operation.stride), ", padding ", TextOf(operation.padding),
                      ", dilation ", TextOf(operation.dilation));
    }
    absl::StrAppend(&text, "); ");
  }
  absl::StrAppend(&text, graph.permits_tensor_cores ? "by any cores" : "with all bits");
  return text;
}

std::optional<std::pair<DnnCall, DnnCall>> HalvesOf(const DnnCall& call) {
  const std::vector<DnnCut>& cuts = call.graph.cuts;
  const auto most =
      std::max_element(cuts.begin(), cuts.end(), [](const DnnCut& a, const DnnCut& b) { return a.parts < b.parts; });
  if (most == cuts.end() || most->parts <= 1) return std::nullopt;
  const auto cut = static_cast<size_t>(most - cuts.begin());
  const int64_t first = (most->parts + 1) / 2;
  return std::pair(PartOf(call, cut, 0, first), PartOf(call, cut, first, most->parts - first));
}

}  // namespace tessera::cuda
