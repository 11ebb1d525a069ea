#pragma once

// The parameters of radix.cu and scatter.cu, as parameters.h says of others.

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// A tile is what a block orders by one digit; no tile has elements of two lines.
inline constexpr int kRadixThreads = 256;
inline constexpr int kRadixDigits = 256;  // values of a digit of 8 bits
inline constexpr int kRadixItems = 16;    // keys of 4 bytes of a thread; half as many of 8 bytes

// How bits of an element become those of a key. A float -0 is below 0, or equal to it; all NaNs are one, and last.
enum RadixKind : int { kRadixUnsigned, kRadixSigned, kRadixFloat, kRadixFloatOfEqualZeros, kRadixBool };

// One pass: elements go to where their digit says, those of the same digit in the order in which they were. Counts lie
// by line, digit and tile; totals by line and digit.
struct RadixParameters {
  const void* keys = nullptr;
  const unsigned* places = nullptr;  // in their line; null: an element's number
  void* to_keys = nullptr;
  unsigned* to_places = nullptr;  // null: they aren't asked for
  unsigned* counts = nullptr;
  unsigned* totals = nullptr;
  long long extent = 0;  // of a line
  long long tiles = 0;   // of a line
  Divisor tiles_of_line;
  int shift = 0;  // the digit's lowest bit
  int padding = 0;
};

// Elements of a tensor as keys, line by line, and back.
struct RadixElements {
  const void* source = nullptr;
  void* destination = nullptr;
  Divisor extent;
  long long stride = 0;                      // of the tensor along the dim
  unsigned long long infinity = 0, nan = 0;  // of floats, their bits
  int kind = kRadixUnsigned;
  int is_descending = 0;
  Nest<1> lines;  // the tensor
};

// Updates of a scatter as keys: the number of the element along the dim, line by line of the indices. An
// update of another shard's element, or of none, has the key behind all others.
struct ScatterKeyParameters {
  const long long* indices = nullptr;
  unsigned* keys = nullptr;
  unsigned long long* fault = nullptr;
  Divisor count;                                      // updates of a line
  long long extent = 0, own_start = 0, own_stop = 0;  // of the output along the dim
  long long index_stride = 0;
  unsigned nowhere = 0;
  int padding = 0;
  Nest<1> lines;  // the indices
};
// Updates of an element, in the order of their places: each is added to what there is.
struct ScatterSortedParameters {
  const unsigned* keys = nullptr;
  const unsigned* places = nullptr;
  const void* updates = nullptr;
  void* output = nullptr;
  long long size = 0;  // updates of a column
  unsigned nowhere = 0;
  int dtype = 0;
  int op = 0;  // of ReduceCode; kCodeAvg sets
  int padding = 0;
  Divisor own;          // elements along the dim that are here
  Divisor columns;      // elements that have the same index
  long long count = 0;  // updates of a line of the indices
  long long stride = 0, update_stride = 0;
  Nest<2> lines, of_columns;  // the output, the updates
};

}  // namespace tessera::cuda
