#pragma once

// The operands of a call, as every device checks and reads them. RunKernel of the CPU and LaunchKernel of a GPU check a
// call before they choose its kernel, so a kernel relies on what CheckOperands refuses.
//
//   matmul "mk,kn->mn" of f32[4,3] by f32[5,2] into f32[4,2]   InvalidArgument: "matmul mk,kn->mn: f32[4,3] by ..."
//   BroadcastStrides("map", x of extents {3} and strides {1}, {2, 3})   {0, 1}

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace tessera {

// InvalidArgument names the op and what doesn't fit: ranks of all calls; dtypes, extents and boxes of a map, an
// argreduce, a pick, a matmul, a place, an attention, its logarithms and its gradients. Other kernels check these by
// themselves.
absl::Status CheckOperands(const KernelCall& call);

// Strides of an input against the extents that it is broadcast to: 0 where it has one element for all.
absl::StatusOr<Strides> BroadcastStrides(const char* kernel, const KernelInput& input,
                                         absl::Span<const int64_t> extents);

// An attention's logarithms as the attention: its values and its result have no columns, and the output has the
// logarithms.
struct WithoutColumns {
  explicit WithoutColumns(const KernelCall& logarithms);
  WithoutColumns(const WithoutColumns&) = delete;

  std::vector<KernelInput> inputs;
  KernelCall call;
};
// The inputs of an attention's gradients, but for a result and its logarithms.
std::vector<KernelInput> InputsWithoutResult(const AttentionGradientsOp& op, const KernelCall& call);

// Where a piece of a place lies in the output: its first element, and its strides, in elements.
struct PlacedPiece {
  int64_t offset = 0;
  Strides strides;
};
// The call passed CheckOperands. InvalidArgument where the piece leaves the output.
absl::StatusOr<PlacedPiece> PlacePiece(const PlaceOp& op, const KernelCall& call, size_t piece);

}  // namespace tessera
