#pragma once

// ThinProduct: c = a b, or c += a b, where the inner dim is short or the columns are few. BLAS sets the output to zeros
// and then adds to it, and packs both operands: beside a short inner dim the one takes long, beside few columns the
// other. Here elements are summed up in registers and written once, and a is read as it lies.
//
//   f64 2048x64 by 64x4096: 0.75 of the time of OpenBLAS's dgemm; 4096x2048 by 2048x256: 0.85 (AVX-512,
//   tests/bench/kernels_bench)
//
// Each element is the sum over the inner dim in order, each step a fused multiply-add; a long inner dim in slabs of
// 384, of which two shorter ones make the last ones, whose sums are added up. In f64 these are the bits of OpenBLAS's
// large products with AVX-512, but for columns beyond the last 16; its small products, and those in f32, sum up in
// other orders.

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

// Whether a product of this shape is worth it, and the CPU has the instructions. A part of the rows or columns of such
// a product may be none, and then has the bits of another kernel.
bool IsThinProduct(int64_t rows, int64_t columns, int64_t inner, int64_t element_bytes);

// On the compute threads. Takes any shape with an inner dim of 1 or more.
void RunThinProduct(const ThinProduct<float>& product);
void RunThinProduct(const ThinProduct<double>& product);

}  // namespace tessera::cpu
