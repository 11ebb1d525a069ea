#pragma once

// ThinProduct: c = a b, or c += a b, where the inner dim is short and the output large. A general product of BLAS first
// sets the output to zeros and then adds to it, which takes long beside the few products for each element; here each
// element is summed up in a register and written once.
//
//   f64 2048x64 by 64x4096 into 64 MiB: 0.75 of the time of OpenBLAS's dgemm (AVX-512, tests/bench/kernels_bench)
//
// Each element is the sum over the inner dim in order, each step a fused multiply-add, as in OpenBLAS's kernels for
// CPUs that have it.

#include <cstdint>

namespace tessera::cpu {

template <typename T>
struct ThinProduct {
  int64_t rows = 0, columns = 0, inner = 0;
  const T* a = nullptr;  // rows x inner
  int64_t a_row_stride = 0, a_inner_stride = 0;
  const T* b = nullptr;  // inner x columns
  int64_t b_inner_stride = 0, b_column_stride = 0;
  T* c = nullptr;  // rows x columns, with dense rows
  int64_t c_row_stride = 0;
  bool adds = false;
};

// Whether a product of this shape is worth it, and the CPU has the instructions.
bool IsThinProduct(int64_t rows, int64_t columns, int64_t inner, int64_t element_bytes);

// On the compute threads. Takes any shape with an inner dim of 1 or more.
void RunThinProduct(const ThinProduct<float>& product);
void RunThinProduct(const ThinProduct<double>& product);

}  // namespace tessera::cpu
