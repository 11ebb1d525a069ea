#pragma once

// Parameters of argmin and argmax, as host and device see them (parameters.h).

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// Operands of both nests: the input, the numbers; of `kept` also the output and the values.
struct ArgReduceParameters {
  const void* input = nullptr;
  const long long* numbers = nullptr;  // null where they are counted
  long long* output = nullptr;
  void* values = nullptr;  // null where they aren't asked for
  int dtype = 0;
  int element_bytes = 0;
  int is_maximum = 0;
  int padding = 0;
  NumbersInWhole whole;
  Nest<4> kept;
  Nest<2> reduced;
};
// The first extreme of a chunk of an output's elements: of keys in the order wanted, or none below 0.
struct ArgPartial {
  unsigned long long key = 0;
  long long number = 0;
};
// Parameters for dtypes that have kernels of their own. An item is an output and a chunk; with several chunks results
// go to `partials`, by output.
struct ArgChunkParameters {
  ArgReduceParameters all;
  ArgPartial* partials = nullptr;
  Divisor chunks, outputs;
  long long chunk_elements = 0;  // of all chunks but the last, below 2^31
  int group_levels = 0;          // along rows: log2 of the threads of an item
  int is_aligned = 0;            // along rows: each begins at an address that 16 divides
};

}  // namespace tessera::cuda
