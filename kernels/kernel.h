#pragma once

// The one signature of every kernel: a LocalOp on strided memory. One file per family implements it in
// kernels/cpu. Kernels check what depends on data (an index); everything else was checked by the plan.
//
//   RunKernel({.op = op, .inputs = {a, b}, .output = out, .output_extents = {450, 64}, ...});
//
// Law: agrees with EvaluateExpression and the rules of schemas/ops/local_op.h, on every stride, the
// same bits on every run.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

struct KernelInput {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape extents = {};
  Strides strides = {};  // in elements; may be 0 or negative
  bool is_zero = false;  // counts as zeros; data is not read
};

// A result beside the output.
struct KernelOutput {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape extents = {};
  Strides strides = {};
};

// Memory that a call points at outlives it. Only a matmul adds to what the output has. A map may write over an input:
// element by element, with the same strides; or where it only casts to a wider dtype what lies at the end of its
// memory, with the same strides, row-major:
//
//   f32[6] in the last 24 of 48 bytes -> f64[6] in all of them
//
// which is for shards that are smaller than their memory, too: both have the strides of the largest shard.
struct KernelCall {
  const LocalOp* op = nullptr;
  absl::Span<const KernelInput> inputs = {};
  void* output = nullptr;
  DType output_dtype = DType::kF32;
  Shape output_extents = {};
  Strides output_strides = {};
  Box output_box = {};  // global; creation ops, and maps that read an index
  Box input_box = {};   // global, of the first input; ops that speak of places in the whole of a tensor that is sharded
  // More results of ops that have several, and that say what these are. An argreduce may have one: the extremes
  // themselves.
  absl::Span<const KernelOutput> more_outputs = {};
  absl::Span<const Scalar> scalars = {};
  KernelStore store = KernelStore::kWrite;
  // So many inputs of kernels that follow read the output, and nothing else ever does; 0: others may. Kernels that run
  // with all of these (kernels/joined_kernels.h) may leave its memory as it is.
  int output_readers = 0;
};

// The worker's compute threads; set once before the first call. Large copies, reductions of terms and products are
// divided among them; BLAS itself runs on the thread that calls it.
void SetKernelThreads(int threads);

absl::Status RunKernel(const KernelCall& call);

// destination[i] = source[i] for elements of `element_bytes` (1, 2, 4, 8, 16), which don't overlap. Blocked
// for the cache, so that a transpose of layout costs what a copy costs; streaming stores when what is
// touched is above `streaming_threshold_bytes` (docs/limits.md).
void CopyStrided(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                 absl::Span<const int64_t> source_strides, void* destination,
                 absl::Span<const int64_t> destination_strides);

// destination = reduce(terms), element by element, in the order of the terms: the same bits however the
// work is divided. kAvg divides the sum by the number of terms. A destination may be one of the terms
// (same strides).
struct ReduceTerm {
  const void* data = nullptr;
  Strides strides = {};
};
void ReduceTerms(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                 void* destination, absl::Span<const int64_t> destination_strides);

// The same result in several places, each term read once. kAvg divides by `term_count`: some terms may be sums of
// several. The result, in the terms' dtype, is converted to that of the destinations, as a cast of the catalog does it;
// a destination of another dtype is none of the terms. One term is converted alone.
struct ReduceDestination {
  void* data = nullptr;
  Strides strides = {};
};
void ReduceTermsInto(ReduceOp op, DType dtype, absl::Span<const int64_t> extents, absl::Span<const ReduceTerm> terms,
                     int64_t term_count, DType destination_dtype, absl::Span<const ReduceDestination> destinations);
inline void ReduceTermsInto(ReduceOp op, DType dtype, absl::Span<const int64_t> extents,
                            absl::Span<const ReduceTerm> terms, int64_t term_count,
                            absl::Span<const ReduceDestination> destinations) {
  ReduceTermsInto(op, dtype, extents, terms, term_count, dtype, destinations);
}

}  // namespace tessera
