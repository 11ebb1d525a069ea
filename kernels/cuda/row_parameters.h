#pragma once

// The parameters of a row program (row_program.h), as host and device see them.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// An operand: element e of row r is at data + r * row + e * element, in elements. By columns, where row r is number i
// of group o of `inner` rows, it is at data + o * outer + i * row + e * element.
struct RowOperand {
  void* data = nullptr;
  long long outer = 0, row = 0, element = 0;
};

struct RowNumbers {
  long long rows = 1, count = 0;  // elements of a row
  int group_levels = 0;           // 2^group_levels threads have a row, where a warp has several
  int chunk_levels = 0;           // 2^chunk_levels blocks of 128 are a warp's, where a row is read in passes
  Divisor inner;
};

}  // namespace tessera::cuda
