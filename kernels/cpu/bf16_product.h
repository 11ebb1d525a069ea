#pragma once

// Bf16Sums: sums of products of bf16 in f32, a block of a product of matrices, by AVX-512's dot products of pairs
// (VDPBF16PS). A pair takes the time of one f32, and nothing is widened. oneDNN's products of bf16 are by the same
// instruction.
//
//   Bf16Sums sums(512, 480);
//   sums.Add({.inner = 512, .a = a, .b = b, ...});   // piece by piece of the inner dim
//   sums.row(i)[j]
//
// Law: a sum is one chain of fused multiply-adds over the inner dim, of each pair the second first, from 0 or from what
// the output has. It doesn't depend on the block, nor on where the pieces are cut, if that is between pairs.
//
// The instruction takes numbers below 2^-126 for 0, those that come in and those that come out. So where a row of a and
// columns of b have numbers that are small enough for that, the same chain is computed in f32, at half the speed; with
// e and f the exponents of their least numbers but 0, every product and so every sum is a multiple of 2^(e + f - 14),
// and none is below 2^-126 where e + f >= -112.

#include <cstdint>
#include <vector>

#include "schemas/types/half.h"

namespace tessera::cpu {

// docs/limits.md: bf16_block. The packed block of b stays in the second-level cache while the rows run, and the sums
// near.
inline constexpr int64_t kBf16Rows = 512, kBf16Columns = 480, kBf16Depth = 512;

// Whether the CPU has the instructions, and no faster ones: where it has tiles (AMX), dot products of pairs are no
// faster than BLAS's products in f32.
bool HasBf16Product();

// Matrices with dense rows.
struct Bf16Piece {
  int64_t inner = 0;  // at most kBf16Depth
  const BF16* a = nullptr;
  int64_t a_row_stride = 0;
  const BF16* b = nullptr;
  int64_t b_row_stride = 0;
};

class Bf16Sums {
 public:
  // At most kBf16Rows and kBf16Columns. Its memory is the thread's: one of a thread at a time.
  Bf16Sums(int64_t rows, int64_t columns);

  // All are 0 at first. A row's sums may be set before the first piece.
  float* row(int64_t row) const { return sums_ + row * stride_; }
  void SetRow(int64_t row, const BF16* values);
  void Add(const Bf16Piece& piece);
  int64_t stride() const { return stride_; }

 private:
  int64_t rows_, columns_, stride_;
  float* sums_;
  // The bits without sign of the least number but 0 in the rows of a tile and in the columns of a panel, so far.
  std::vector<uint16_t> least_of_rows_, least_of_columns_;
};

}  // namespace tessera::cpu
