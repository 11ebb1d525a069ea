#pragma once

// The parameters of window.cu, as parameters.h says of others.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// A dim that windows go over: `positions` windows of `kernel` elements. A dim that isn't there is of one element. The
// input has an element at each `apart`-th of the `extent` places, and zeros between: windows of the dilation meet one
// at each `step`-th of their elements, and then go on by `input_step` elements of the input.
struct WindowDim {
  long long extent = 1, kernel = 1;
  Divisor positions, dilation, apart, step;
  long long input_step = 1;
  long long stride = 1, padding = 0;
  long long input_stride = 0, weight_stride = 0, output_stride = 0;
};
// Elements of the output are numbered by the nest, the outputs of a group, and the three dims.
struct ConvParameters {
  const void* input = nullptr;
  const void* weight = nullptr;
  void* output = nullptr;
  long long size = 0;
  long long channels = 0;  // of a group, as the outputs
  Divisor outputs;
  long long input_channel = 0, output_channel = 0, weight_output = 0, weight_channel = 0;
  WindowDim dims[3];
  Nest<3> nest;  // the input, the output, the weight
};
struct PoolParameters {
  Element identity;
  const void* input = nullptr;
  void* output = nullptr;
  long long size = 0;
  int op = 0;  // of ReduceCode: kCodeMax or kCodeAvg
  int counts_padding = 0;
  WindowDim dims[3];
  Nest<2> nest;  // the input, the output
};

}  // namespace tessera::cuda
