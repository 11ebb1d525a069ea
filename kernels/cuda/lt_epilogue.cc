#include "kernels/cuda/lt_epilogue.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "kernels/cuda/steps.h"
#include "schemas/ops/scalar_ops.h"

namespace tessera::cuda {
namespace {

// Whether the map is the sum of its two inputs, in either order, and nothing else.
bool AddsItsInputs(const KernelCall& map) {
  const auto* op = std::get_if<MapOp>(map.op);
  if (op == nullptr || map.inputs.size() != 2 || op->expression.nodes.size() != 3) return false;
  const auto are_both = [](int32_t a, int32_t b) { return std::min(a, b) == 0 && std::max(a, b) == 1; };
  const std::vector<ExpressionNode>& nodes = op->expression.nodes;
  return std::all_of(nodes.begin(), nodes.end(),
                     [&map](const ExpressionNode& node) { return node.dtype == map.output_dtype; }) &&
         nodes[0].op == ScalarOp::kInput && nodes[1].op == ScalarOp::kInput && are_both(nodes[0].a, nodes[1].a) &&
         nodes[2].op == ScalarOp::kAdd && are_both(nodes[2].a, nodes[2].b);
}

bool HasStrides(const KernelInput& input) { return input.is_zero || input.strides.size() == input.extents.size(); }

// Whether the input is all that the call writes, and nothing else.
bool IsOutputOf(const KernelCall& call, const KernelInput& input) {
  return !input.is_zero && input.data == call.output && input.dtype == call.output_dtype &&
         input.extents == call.output_extents && input.strides == call.output_strides;
}

// Whether it is one vector along the last dim, the same for all else.
bool IsRowVector(const KernelInput& input, const KernelCall& map) {
  const size_t rank = input.extents.size(), whole = map.output_extents.size();
  if (input.is_zero || input.dtype != map.output_dtype || rank == 0 || rank > whole) return false;
  const int64_t last = map.output_extents.back();
  if (input.extents.back() != last || (last != 1 && input.strides.back() != 1)) return false;
  for (size_t d = 0; d + 1 < rank; ++d) {
    const int64_t extent = map.output_extents[whole - rank + d];
    if (input.extents[d] != 1 && (input.strides[d] != 0 || input.extents[d] != extent)) return false;
  }
  return AddressOf(input.data) % kProductAlignment == 0;
}

using Range = std::pair<uint64_t, uint64_t>;
Range RangeOfInput(const KernelInput& input) {
  return RangeOf(input.data, input.extents, input.strides, SizeBytes(input.dtype));
}
Range RangeOfOutput(const KernelCall& call) {
  return RangeOf(call.output, call.output_extents, call.output_strides, SizeBytes(call.output_dtype));
}
bool Overlap(const Range& a, const Range& b) { return a.first < b.second && b.first < a.second; }

bool AreProductAndSum(const KernelCall& product, const KernelCall& next) {
  const DType dtype = product.output_dtype;
  const size_t rank = product.output_extents.size();
  return product.op != nullptr && next.op != nullptr && std::holds_alternative<MatmulOp>(*product.op) &&
         (dtype == DType::kF32 || dtype == DType::kF64) && next.output_dtype == dtype && product.output_readers == 1 &&
         product.store == KernelStore::kWrite && next.store == KernelStore::kWrite && rank > 0 &&
         next.output_extents == product.output_extents && product.output_strides.size() == rank &&
         next.output_strides.size() == rank && std::all_of(product.inputs.begin(), product.inputs.end(), HasStrides) &&
         std::all_of(next.inputs.begin(), next.inputs.end(), HasStrides) && AddsItsInputs(next);
}

}  // namespace

std::optional<BiasedProduct> JoinBias(const KernelCall& product, const KernelCall& next) {
  if (!AreProductAndSum(product, next)) return std::nullopt;
  const KernelInput *of_product = &next.inputs[0], *bias = &next.inputs[1];
  if (!IsOutputOf(product, *of_product)) std::swap(of_product, bias);
  if (!IsOutputOf(product, *of_product) || !IsRowVector(*bias, next)) return std::nullopt;
  const Range written = RangeOfOutput(next), of_bias = RangeOfInput(*bias);
  if (Overlap(of_bias, written) || Overlap(of_bias, RangeOfOutput(product))) return std::nullopt;
  for (const KernelInput& factor : product.inputs) {
    if (!factor.is_zero && Overlap(RangeOfInput(factor), written)) return std::nullopt;
  }
  BiasedProduct biased = {.product = product, .bias = bias->data, .elements = next.output_extents.back()};
  biased.product.output = next.output;
  biased.product.output_strides = next.output_strides;
  biased.product.output_readers = next.output_readers;
  return biased;
}

const MatmulProblem* AddBias(const BiasedProduct& biased, std::vector<Step>& steps) {
  const auto is_product = [](const Step& step) { return std::holds_alternative<MatmulProblem>(step); };
  if (steps.empty() || std::count_if(steps.begin(), steps.end(), is_product) != 1) return nullptr;
  auto* problem = std::get_if<MatmulProblem>(&steps.back());
  // The library adds a bias of bf16 alone to f32 of floats of 8 bits.
  if (problem == nullptr || problem->factors.has_value() || problem->batch != 1 || problem->columns != biased.elements)
    return nullptr;
  problem->bias = AddressOf(biased.bias);
  return problem;
}

}  // namespace tessera::cuda
