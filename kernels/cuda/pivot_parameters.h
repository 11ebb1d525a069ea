#pragma once

// The parameters of matrix.cu's kernels of pivots, as parameters.h says of others.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// The pivots of factorizations in L and U, by matrix: they count from 1.
struct MatrixPivotParameters {
  const long long* pivots = nullptr;
  const void* diagonal = nullptr;  // of U, for its determinant
  void* destination = nullptr;
  Divisor count;  // pivots of a matrix
  long long diagonal_step = 0, matrix_distance = 0;
  long long step = 0;  // of the destination
  Nest<1> batch;       // the destination
};

}  // namespace tessera::cuda
