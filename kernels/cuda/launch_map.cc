// Maps: one pass over merged loops. An input that shares memory with the output in another way than element by element
// is copied first.

#include "absl/strings/str_cat.h"
#include "kernels/cuda/map_source.h"
#include "kernels/cuda/steps.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

bool MustBeCopied(const KernelInput& input, const KernelCall& call) {
  if (input.is_zero) return false;
  const int64_t bytes = SizeBytes(input.dtype), output_bytes = SizeBytes(call.output_dtype);
  if (input.data == call.output && input.strides == call.output_strides && input.extents == call.output_extents &&
      bytes == output_bytes) {
    return false;
  }
  const auto [first, last] = RangeOf(input.data, input.extents, input.strides, bytes);
  const auto [begin, end] = RangeOf(call.output, call.output_extents, call.output_strides, output_bytes);
  return first < end && begin < last;
}

absl::Status CheckLeaves(const MapOp& op, const KernelCall& call) {
  for (const ExpressionNode& node : op.expression.nodes) {
    const size_t number = static_cast<size_t>(node.a);
    if (node.op == ScalarOp::kInput && call.inputs[number].dtype != node.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("map: input ", node.a, " is ", NameOf(call.inputs[number].dtype),
                                                     ", the expression reads ", NameOf(node.dtype)));
    }
    if (node.op == ScalarOp::kIndex &&
        (number >= call.output_extents.size() || call.output_box.size() != call.output_extents.size())) {
      return absl::InvalidArgumentError(absl::StrCat("map: reads the index of dim ", node.a, " of an output of rank ",
                                                     call.output_extents.size(), " with a box of rank ",
                                                     call.output_box.size()));
    }
  }
  if (op.expression.dtype() == call.output_dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("map: the expression gives ", NameOf(op.expression.dtype()),
                                                 ", the output is ", NameOf(call.output_dtype)));
}

}  // namespace

int64_t MapWorkspaceBytes(const KernelCall& call) {
  int64_t bytes = 0;
  for (const KernelInput& input : call.inputs) {
    if (MustBeCopied(input, call)) bytes += Pieces::Rounded(NumElements(input.extents) * SizeBytes(input.dtype));
  }
  return bytes;
}

absl::StatusOr<Steps> LaunchMap(const MapOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(
      ValidateExpression(op.expression, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  TESSERA_RETURN_IF_ERROR(CheckLeaves(op, call));
  if (NumElements(call.output_extents) == 0) return Steps();
  Steps steps;
  Pieces pieces(workspace);
  std::vector<KernelInput> inputs(call.inputs.begin(), call.inputs.end());
  for (KernelInput& input : inputs) {
    if (!MustBeCopied(input, call)) continue;
    const int64_t bytes = SizeBytes(input.dtype);
    TESSERA_ASSIGN_OR_RETURN(void* copy, pieces.Take(NumElements(input.extents) * bytes));
    const Strides strides = RowMajorStrides(input.extents);
    AddCopy(input.extents, bytes, input.data, input.strides, copy, strides, &steps);
    input.data = copy;
    input.strides = strides;
  }
  KernelCall apart = call;
  apart.inputs = inputs;
  TESSERA_ASSIGN_OR_RETURN(Launch launch, LaunchMapProgram(op.expression, apart, workspace));
  steps.push_back(std::move(launch));
  return steps;
}

}  // namespace tessera::cuda
