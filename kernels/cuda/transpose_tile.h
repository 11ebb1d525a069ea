#pragma once

// The tile of a transposing copy by loads and stores of 16 bytes (copy.cu), as host and device see it: 16 KiB, whose
// rows have 128 bytes or more on both sides.

namespace tessera::cuda {

inline constexpr int kTransposeThreads = 256;

template <int kBytes>
struct TransposeTile {
  static constexpr int kRows = kBytes == 4 ? 64 : 128;     // side by side in the destination
  static constexpr int kColumns = kBytes == 1 ? 128 : 64;  // side by side in the source
};

}  // namespace tessera::cuda
