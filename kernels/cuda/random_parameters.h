#pragma once

// Parameters of random numbers, as host and device see them (parameters.h).

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// Rows of elements whose numbers in the whole follow each other, the first row's from `first` on. Operand 0 is the
// output, operand 1 the number of a row's first element.
struct RandParameters {
  void* destination = nullptr;
  unsigned long long seed = 0, stream = 0;
  long long first = 0;
  long long columns = 0, stride = 0;  // elements of a row, and from one to the next
  double mean = 0, deviation = 1;     // of normal numbers
  Divisor counters;                   // that a row may have numbers of
  int dtype = 0;
  int padding = 0;
  Nest<2> rows;
};

}  // namespace tessera::cuda
