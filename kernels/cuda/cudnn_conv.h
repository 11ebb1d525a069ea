#pragma once

// A convolution as cuDNN takes it: x [N, C, ...], weight [O, C / groups, ...] and output [N, O, ...], of two or three
// dims of windows and any strides. Pure: no library, no device; addresses are never followed.
//
//   conv of bf16[32,256,56,56] with bf16[256,256,3,3], padding 1  ->  conv(t0, t1) of tensors with these extents
//   conv of f32[8,3,100] with f32[4,3,5]                          ->  a dim of windows of one element before the dim
//
// A convolution and the gradient of its x are cut along the batch; the gradient of the weight along the weight's
// outputs and channels, or its groups, so that each part is a whole sum.
//
// Sums are in f32. f32 keeps all its bits: no plan that uses tensor cores is used for it.

#include <optional>

#include "kernels/cuda/dnn_graph.h"
#include "kernels/kernel.h"

namespace tessera::cuda {

// Nothing where the library isn't asked: other dtypes than f16, bf16 and f32, more dims of windows than three, an input
// of zeros or of no elements, operands that aren't aligned or have strides that are 0 or negative.
std::optional<DnnCall> ConvolutionByDnn(const ConvOp& op, const KernelCall& call);
// Nor for a gradient that has fewer windows than fit.
std::optional<DnnCall> ConvGradientByDnn(const ConvGradientOp& op, const KernelCall& call);

}  // namespace tessera::cuda
