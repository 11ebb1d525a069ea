#pragma once

// ResolveOp: what an op needs of its operands and what it gives, before anything runs. Pure; the
// client, the coordinator and the planner call the same function, so a spec is known at once and
// everywhere the same.
//
//   a f32[4,6] @ mesh(2) [S(0)],  b f32[6,8] @ mesh(2) [R]
//   ResolveOp(matmul, {a, b}).outputs[0] == f32[4,8] @ mesh(2) [S(0)]

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/op.h"
#include "schemas/types/errors.h"

namespace tessera {

// How the tensor operand reaches the kernel.
struct ResolvedOperand {
  TensorSpec spec;             // as the kernel wants it: the operand's own dtype and shape, maybe
                               // another mesh (same workers) or other placements
  bool redistributed = false;  // spec differs from what the caller has
  // Mesh dims on which only coordinate 0 counts the operand, the others take 0: a Replicate beside a
  // P(sum) is added once.
  std::vector<int> counted_once;
  // redistribute(dtype=): what converts the operand, before or after it is moved.
  std::optional<LocalOp> conversion = {};
};

struct Graph;

struct OpResolution {
  std::vector<ResolvedOperand> operands;  // tensor operands in order; scalars are left out
  // A scalar beside a pending sum counts once too. It is then a rank-0 Replicate made by FillOp from
  // `scalars` (which the local op doesn't read), the last input of the local op, with counted_once.
  std::optional<ResolvedOperand> filled_scalar;
  std::vector<TensorSpec> outputs;  // of redistribute one for each operand, else one
  // The op that each worker runs on its shards. Absent for views and redistribute.
  std::optional<LocalOp> local;
  // The local op's scalars: the call's own, then the scalar operands converted to the dtype the
  // expression reads.
  std::vector<Scalar> scalars;
  // A second local step on the first one's result (mean: divide by the global count). Always a MapOp of one input,
  // which its first node reads; the result has that dtype.
  std::optional<LocalOp> epilogue;
  std::vector<Scalar> epilogue_scalars;
  double flops = 0;  // of the whole mesh
  // A composite's ops (graph.h); it has nothing of the above but operands (as their first uses want them), outputs and
  // flops.
  std::shared_ptr<const Graph> graph = {};
};

// Errors are what a user sees: they open with the op's name and carry both values and the operands'
// short texts: `matmul: inner dims differ: a is f32[128,64], b is f32[32,16]`.
// Codes: InvalidArgument (shape, dim, placement, mesh), Unimplemented (reserved dtypes and rules).
// Errors about dtypes say "dtype" and carry kDTypeErrorPayload; a dim or index out of range carries
// kIndexErrorPayload (schemas/types/errors.h; Python raises DTypeError and IndexOutOfRangeError by them).
absl::StatusOr<OpResolution> ResolveOp(const OpCall& call, absl::Span<const OperandSpec> operands);

// ResolveOp(...).outputs[0]: what an op with one output gives.
absl::StatusOr<TensorSpec> OutputSpec(const OpCall& call, absl::Span<const OperandSpec> operands);

// Whether a weak integer, or one of 2^63 and more, is one of an integer dtype's numbers. Others are converted.
bool Fits(const Scalar& scalar, DType dtype);

// The number that a tensor of `dtype` is compared with: in place of one beyond all integers of the dtype (-1 or 300
// beside u8, 2^63 beside i64) the infinity on its side, which every one of them compares with in the same way, in f64.
Scalar AsCompared(const Scalar& number, DType dtype);

// How a view reads its operand: the output's element strides and offset, from the operand's. Only for
// views that copy nothing on any worker (transpose; slice of unsharded dims; reshape that keeps order).
struct ViewLayout {
  int64_t offset = 0;  // in elements, added to the operand's
  Strides strides;
};
// FailedPrecondition when the strides can't express it (a reshape of a transposed tensor) or when a
// sharded dim is cut (then the planner moves data).
absl::StatusOr<ViewLayout> ResolveView(const OpCall& call, const TensorSpec& operand,
                                       absl::Span<const int64_t> operand_strides);

// Closed-form words of a contraction on a grid and the lower bound of
// Al Daas, Ballard, Grigori, Kumar, Rouse 2022 ("Brief announcement: tight memory-independent
// parallel matrix multiplication communication lower bounds"): words received plus words owned on
// the busiest of P workers.
double GridReceivedWords(int64_t m, int64_t n, int64_t k, int64_t pm, int64_t pn, int64_t pk);
// For a batch of products: workers either take whole products or share one.
double ContractionLowerBoundWords(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t workers);
double MatmulLowerBoundWords(int64_t m, int64_t n, int64_t k, int64_t workers);

}  // namespace tessera
