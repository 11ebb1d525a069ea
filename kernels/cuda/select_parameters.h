#pragma once

// The parameters of select.cu, as parameters.h says of others.

#include "kernels/cuda/radix_parameters.h"

namespace tessera::cuda {

inline constexpr int kSelectItems = 32;  // elements of a thread in a tile; a multiple of 8
// Elements that a block orders in its shared memory: a power of 2. docs/limits.md: max_gpu_ordered_elements
inline constexpr int kMaxOrdered = 2048;

// The bound of a line is the key of the last element that is selected. Digit by digit from the highest on, each pass
// finds one more of its digits.
struct SelectState {
  unsigned long long bound = 0;  // the digits so far
  unsigned below = 0;            // keys whose digits are below these
  unsigned padding = 0;
};
// Keys of a tile that are below the bound, and equal to it; and of the tiles before it in its line.
struct SelectTile {
  unsigned below = 0, equal = 0;
  unsigned below_before = 0, equal_before = 0;
};
struct SelectParameters {
  RadixElements elements;         // whose destination is the output, of places
  unsigned* counts = nullptr;     // by pass, line and digit: keys that have the bound's digits so far and this one
  SelectState* states = nullptr;  // by pass and line
  SelectTile* tiles = nullptr;    // by line
  void* keys = nullptr;           // by line: those selected, in the order of their places but that the last ones are
  unsigned* places = nullptr;     // all that equal the bound; null: keys are those of the elements
  Divisor tiles_of_line;
  long long first = 0;  // how many are selected of a line, at least 1
  long long output_stride = 0;
  int pass = 0;
  int ordered = 0;  // a power of 2, for elements to be ordered in shared memory
  Nest<1> outputs;  // lines of the output
};

}  // namespace tessera::cuda
