#pragma once

// The parameters of fourier.cu, as parameters.h says of others.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// A copy of a transform's input to dense memory, or of its output from there to where it goes. Elements
// are numbered as they lie in the dense memory: along the transformed dim last, or first.
struct FourierParameters {
  const void* source = nullptr;
  void* destination = nullptr;
  Nest<2> nest;   // the source, the destination
  Divisor inner;  // the extent of what is numbered last: the dim, or all others together
  int is_dim_last = 1;
  int has_half_spectrum = 0;  // of a real signal: its first element, and the middle one, are real
  long long extent = 0;       // elements along the dim that are there; beyond are zeros
  long long middle = -1;      // the number of the middle element, of an even length
  double scale = 1;
};

}  // namespace tessera::cuda
