#pragma once

// Parameters of attention_gradients.cu.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// For each of `batches` matrices of rows of queries: weights has their products with keys, and slopes those of the
// result's gradient with values, dense, one row after the other. They become the softmax, and the gradient of the
// products.
struct AttentionGradientsParameters {
  void* weights = nullptr;
  void* slopes = nullptr;
  const void* mask = nullptr;
  long long batches = 1, rows = 0, keys = 0;
  long long first_row = 0;  // of the mask, and by which a causal query is counted
  long long mask_batch = 0, mask_row = 0, mask_column = 0;
  double scale = 1;
  int is_causal = 0;
  int mask_kind = kMaskNone;
};

}  // namespace tessera::cuda
