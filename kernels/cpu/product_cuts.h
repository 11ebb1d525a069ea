#pragma once

// Into which blocks a product of matrices is cut, each of which one thread multiplies. Law: by extents alone, so that
// the bits of a product don't depend on how many threads there are.
//
//   1024x1024 by 1024x1024: four blocks of 512x512; 512x512 by 512x512: two of 256x512

#include <algorithm>
#include <cstdint>

namespace tessera::cpu {

// docs/limits.md: max_product_block. Rows, and columns, of a block: smaller ones pack the operands more often, larger
// ones leave threads without any.
inline constexpr int64_t kMaxProductBlock = 512;
// docs/limits.md: min_product_multiplications. Smaller products are one block.
inline constexpr int64_t kMinProductMultiplications = int64_t{1} << 24;
// docs/limits.md: matrix_vector_block. Elements of a matrix that are multiplied with a vector by one thread.
inline constexpr int64_t kMatrixVectorBlock = int64_t{1} << 17;

// An extent in cuts of one size, the last one shorter.
struct Cuts {
  int64_t extent = 0;
  int64_t size = 1;
  int64_t count() const { return (extent + size - 1) / size; }
  int64_t start(int64_t cut) const { return cut * size; }
  int64_t length(int64_t cut) const { return std::min(size, extent - cut * size); }
};

// At most `cuts`, of whole cache lines of f32.
inline Cuts CutInto(int64_t extent, int64_t cuts) {
  constexpr int64_t kLine = 16;
  if (cuts <= 1) return {extent, std::max<int64_t>(1, extent)};
  const int64_t size = (extent + cuts - 1) / cuts;
  return {extent, (size + kLine - 1) / kLine * kLine};
}

struct ProductCuts {
  Cuts rows, columns;
};

// No extent is 0.
inline ProductCuts CutProduct(int64_t rows, int64_t columns, int64_t inner) {
  if (rows <= kMinProductMultiplications / inner / columns) return {CutInto(rows, 1), CutInto(columns, 1)};
  int64_t down = (rows + kMaxProductBlock - 1) / kMaxProductBlock;
  int64_t across = (columns + kMaxProductBlock - 1) / kMaxProductBlock;
  if (down * across == 1) (rows >= columns ? down : across) = 2;
  return {CutInto(rows, down), CutInto(columns, across)};
}

// The rows of a matrix beside a vector, at least so many in a block.
inline Cuts CutMatrixVector(int64_t rows, int64_t columns, int64_t least_rows) {
  const int64_t most = std::max(least_rows, kMatrixVectorBlock / columns);
  return CutInto(rows, (rows + most - 1) / most);
}

}  // namespace tessera::cpu
