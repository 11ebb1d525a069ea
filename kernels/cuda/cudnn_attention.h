#pragma once

// An attention as cuDNN takes it: tensors [batch, heads, rows, features] of any strides but the last. Pure: no library,
// no device; addresses are never followed.
//
//   softmax(q @ k.T * scale + mask) @ v, causal
//     -> matmul, mul by the scale, add of the mask, index of rows and columns and a select of those that are seen, max,
//        sub, exp, sum, div, matmul
//
// which is the graph that the library knows as one kernel. Scores and their sums are in f32, and what is multiplied
// with the values is rounded to their dtype, as the image's kernel doesn't.

#include <optional>

#include "kernels/cuda/dnn_graph.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// The library's kernels have no more, nor numbers of features that 8 doesn't divide.
inline constexpr int64_t kMaxDnnFeatures = 256;
// A plan is for extents. With fewer rows, as in a decoder whose keys grow with each call, each call would be another
// one. docs/limits.md: min_cudnn_attention_rows
inline constexpr int64_t kLeastDnnRows = 16;

// Nothing where the library isn't asked: other dtypes than f16 and bf16, fewer rows than kLeastDnnRows, features that
// it doesn't take, rows that don't lie densely or aren't aligned, masks of bool or with one row for all, batches that
// are no two dims.
std::optional<DnnCall> AttentionByDnn(const AttentionOp& op, const KernelCall& call);

}  // namespace tessera::cuda
