// Maps: one pass over merged loops. An input that shares memory with the output in another way than element by element
// is copied first.

#include "kernels/cuda/map_source.h"
#include "kernels/cuda/steps.h"
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

}  // namespace

int64_t MapWorkspaceBytes(const KernelCall& call) {
  int64_t bytes = 0;
  for (const KernelInput& input : call.inputs) {
    if (MustBeCopied(input, call)) bytes += Pieces::Rounded(NumElements(input.extents) * SizeBytes(input.dtype));
  }
  return bytes;
}

absl::StatusOr<Steps> LaunchMap(const MapOp& op, const KernelCall& call, const Workspace& workspace) {
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
