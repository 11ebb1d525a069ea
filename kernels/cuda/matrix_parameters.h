#pragma once

// The parameters of matrix.cu, as parameters.h says of others.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// The part of a matrix that is written: all else is 0.
enum MatrixPart : int { kMatrixLower, kMatrixUpper, kMatrixIdentity };

struct MatrixPartParameters {
  const void* source = nullptr;
  void* destination = nullptr;
  int part = kMatrixLower;
  int padding = 0;
  Divisor rows, columns;
  long long source_row = 0, source_column = 0, destination_row = 0, destination_column = 0;  // strides
  Nest<2> batch;  // the source, the destination
};

// Matrices that have no answer: the word gets the code.
struct MatrixCheckParameters {
  const int* info = nullptr;       // of the library, one a matrix, 0 where it has an answer
  const void* elements = nullptr;  // that have to be finite
  unsigned long long* fault = nullptr;
  long long size = 0;
  unsigned long long code = 0;
};

}  // namespace tessera::cuda
