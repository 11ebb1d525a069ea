#pragma once

// The parameters of a row program (row_program.h), as host and device see them.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// Loops that rows are made of, at most: batches, heads and queries of an attention's mask. docs/limits.md:
// max_row_loops
inline constexpr int kMaxRowLoops = 3;

// An operand: element e of the row that has number i of loop l is at data + i * loops[l] + ... + e * element, in
// elements, with the numbers of all loops.
struct RowOperand {
  void* data = nullptr;
  long long loops[kMaxRowLoops] = {}, element = 0;  // from the innermost loop on
};

struct RowNumbers {
  long long rows = 1, count = 0;         // elements of a row
  int group_levels = 0;                  // 2^group_levels threads have a row, where a warp has several
  int chunk_levels = 0;                  // 2^chunk_levels blocks of 128 are a warp's, where a row is read in passes
  Divisor loops[kMaxRowLoops - 1] = {};  // rows of the innermost loop, and of those outside of it but the last
};

}  // namespace tessera::cuda
