#pragma once

// A product of matrices and the sum with a bias that follows it, as one call of cuBLASLt: the bias is added in the
// library's epilogue, and the product alone is never written. Pure: no library, no device; addresses are never
// followed.
//
//   p = f32[64,32] by f32[32,16], which map(add:f32(in0:f32, in1:f32)) alone reads, of p and f32[16]
//     -> the product, into the map's output, with the bias
//
// Law: one call or two, the same bits. So these alone are joined:
//   - f32 and f64, which the library adds up, rounds and adds the bias in, as the map does. It would add a bias to a
//     product of f16 or bf16 before that is rounded to 16 bits.
//   - a sum and nothing behind it. The library says nothing of NaN in an activation, and its gelu is an approximation.
//   - a product that is one matrix and one call: not one that is cut (max_gpu_product_bytes), nor one of batches.
//   - operands that the joined call, which writes earlier than the map would, doesn't write over.
// Which algorithm the library has for the product doesn't depend on the bias (lt_problem.h).

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {

struct BiasedProduct {
  KernelCall product;  // into the map's output
  const void* bias = nullptr;
  int64_t elements = 0;  // of the bias
};

// Joins a product and the call that follows it in its stream; nothing where they aren't a product and the sum with its
// bias, or more than the map reads the product.
std::optional<BiasedProduct> JoinBias(const KernelCall& product, const KernelCall& next);

// Gives the bias to the last of the steps of LaunchKernel(biased.product, ...). Null, and nothing is changed, where
// they aren't one product of the library's with only copies of its operands before it.
const MatmulProblem* AddBias(const BiasedProduct& biased, std::vector<Step>& steps);

}  // namespace tessera::cuda
