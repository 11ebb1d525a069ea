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

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/cuda/dnn_graph.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// The library's kernels have no more, nor numbers of features that 8 doesn't divide.
inline constexpr int64_t kMaxDnnFeatures = 256;
// A plan is for extents. With fewer rows, as in a decoder whose keys grow with each call, each call would be another
// one. docs/limits.md: min_cudnn_attention_rows
inline constexpr int64_t kLeastDnnRows = 16;

// Heads of keys and values that have a stride of 0 along the last of the batch dims are heads that queries share.
//
// Nothing where the library isn't asked: other dtypes than f16 and bf16, fewer rows than kLeastDnnRows, features that
// it doesn't take, rows that don't lie densely or aren't aligned, masks of bool or with one row for all, batches that
// are no two dims.
//
// `logarithms`: the call of the attention's logarithms, which are given, too. Nothing where they don't lie densely.
std::optional<DnnCall> AttentionByDnn(const AttentionOp& op, const KernelCall& call,
                                      const KernelCall* logarithms = nullptr);

// The gradients of an attention as two calls: the attention once more, with the logarithms of its sums of exponentials,
// and the gradients, which read both. Between them `scratch` has so many bytes, aligned to 256: the attention's result,
// the logarithms, and what the library keeps of each row. `known`: nothing, or the attention's result and its
// logarithms [..., rows, 1]; where these lie densely there is no first call.
//
//   l = q @ k.T * scale + mask - logarithms, causal;  p = exp(l);  of v: p.T @ g
//   ds = (g @ v.T - sum of g * result) * p * scale;   of k: ds.T @ q;   of q: ds @ k
//
// Heads that share keys add up their products. Nothing likewise, and of batches that aren't one dim,
// since the library reads logarithms that lie densely.
//
// The call's inputs, which have no result, and what is known have no dim of shared heads: how many there are, and how
// far apart they lie by input, those that are known behind the others, stands beside.
struct SharedHeads {
  int64_t count = 1;
  std::array<int64_t, 7> strides = {};  // 0 where all have the same
};
struct GradientCalls {
  std::optional<DnnCall> attention;
  DnnCall gradients;
};
int64_t DnnGradientsScratchBytes(const KernelCall& call, const SharedHeads& shared = {});
std::optional<GradientCalls> AttentionGradientsByDnn(const AttentionGradientsOp& op, const KernelCall& call,
                                                     void* scratch, const SharedHeads& shared = {},
                                                     absl::Span<const KernelInput> known = {});

}  // namespace tessera::cuda
