#pragma once

// A product as cuBLASLt takes it: matrices in column-major order, d = a * b, or that added to what d holds. Pure: no
// library, no device; addresses are never followed.
//
//   f32[3,5] by f32[5,7]
//     -> LtShape{.dtype = f32, .computed_in = f32, .rows = 7, .columns = 3, .inner = 5,
//                .a = {7 x 5}, .b = {5 x 3}, .d = {7 x 3}}
//
// A matrix in row-major order is the transposed one in column-major order. So the product is asked for as
// right^T * left^T, where no order needs to be said, which few kernels of the library know. Floats of 8 bits are
// multiplied by the library where both factors are dense along the inner dim: right is [columns, inner] in row-major
// order then, and the call transposes it.
//
// Law: everything that the library's choice of an algorithm may depend on is in LtShape, and follows from extents and
// dtype alone, and from the precision that was asked for: one product, one algorithm, however operands lay, and with a
// bias or without. Sums are in f32, of f64 in f64.

#include <compare>
#include <cstdint>
#include <vector>

#include "kernels/cuda/launch.h"

namespace tessera::cuda {

// As it lies in memory, in elements: columns of `rows` dense elements, one after the other.
struct LtLayout {
  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0;
  int64_t batch_stride = 0;      // 0 of one batch
  uint32_t alignment_bytes = 0;  // of each batch's first element: a power of 2, at most kProductAlignment
  auto operator<=>(const LtLayout&) const = default;
};

// The library's kernels may have a block of the grid's third dim for each batch.
inline constexpr int64_t kMaxLtBatch = 65535;

struct LtShape {
  DType dtype = DType::kF32;                             // of d, and of a and b but for floats of 8 bits
  DType computed_in = DType::kF32;                       // and the type of the scales
  ProductPrecision precision = ProductPrecision::kFull;  // kTf32 of f32 alone
  int64_t rows = 0, columns = 0, inner = 0;
  int32_t batch = 1;
  bool is_a_transposed = false;  // it lies as [inner x rows]: floats of 8 bits
  LtLayout a, b, d;
  auto operator<=>(const LtShape&) const = default;
};

struct LtProblem {
  LtShape shape;
  uint64_t a = 0, b = 0, d = 0;  // addresses
  KernelStore store = KernelStore::kWrite;
  uint64_t bias = 0;  // the address of d's rows, added to each column; 0: none
};

// One after the other: several where there are more batches than kMaxLtBatch.
std::vector<LtProblem> LtProblemsOf(const MatmulProblem& product);

}  // namespace tessera::cuda
