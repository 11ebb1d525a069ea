#pragma once

// Parameters of scans, as host and device see them (parameters.h).

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

struct ScanParameters {
  Element identity;  // in the dtype that is accumulated in
  const void* input = nullptr;
  const void* before = nullptr;  // null where nothing stands before a line
  void* output = nullptr;
  long long count = 0, input_stride = 0, output_stride = 0;
  int op = 0;
  int input_dtype = 0, dtype = 0, output_dtype = 0;
  int is_exclusive = 0;
  int padding = 0;
  Nest<3> lines;  // the input, the output, what stands before
};

// ---- scan.cu

inline constexpr int kScanWarps = 16;        // of a tile, at most
inline constexpr int kScanWideWarps = 8;     // where totals have 8 bytes
inline constexpr int kScanThreadBytes = 64;  // of a thread's elements, in the type that is accumulated in
inline constexpr int kScanGroup = 64;        // tiles
// How lines of the output are stored by 16 bytes.
enum ScanVectors : int { kNoVectors = 0, kVectorsAccumulated = 1, kVectorsOfInput = 2 };
// Words of tiles and groups are 0 before, 1 of each where a total has 4 bytes and 2 where it has 8; so is the ticket.
// All three are null where a line has one tile.
struct ScanTileParameters {
  ScanParameters all;
  unsigned* ticket = nullptr;
  unsigned long long* tiles = nullptr;
  unsigned long long* groups = nullptr;
  Divisor line_count;
  long long tiles_of_line = 1, groups_of_line = 1;
  int warps = 1;             // of a tile
  int is_input_vectors = 0;  // lines are dense, and begin at addresses that 16 divides
  int output_vectors = kNoVectors;
  int padding = 0;
};

}  // namespace tessera::cuda
