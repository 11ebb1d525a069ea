#pragma once

// Where a row program's operands lie: strides of rows and elements, and which operands share bytes. Private to
// kernels/cuda.
//
//   f32[8,21,64,64], whose dim 1 is the elements: 8 x 4096 rows of 21 elements that lie 4096 apart

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/row_program.h"

namespace tessera::cuda {

// The dims of a program's calls: the leading ones are rows, the next ones a row's elements, and those behind them rows
// side by side.
struct RowDims {
  size_t lead = 0, behind = 0;
  size_t end_of(const Shape& extents) const { return extents.size() - behind; }
};

struct RowExtents {
  int64_t rows = 1, count = 1;
  int64_t inner = 1;  // rows behind a row's elements; all where there are no dims behind them
};
RowExtents ExtentsOf(const Shape& extents, const RowDims& dims);

// The strides of an operand; nothing where elements lie at several.
struct RowStrides {
  RowLoops loops;
  int64_t element = 0;
};
std::optional<RowStrides> StridesOf(const Shape& extents, const Strides& strides, const RowDims& dims);

// Whether they share no byte.
bool AreApart(const RowPlaces& a, const RowPlaces& b, const RowExtents& extents);
// Whether they are the same elements in the same places.
bool AreSame(const RowPlaces& a, const RowPlaces& b);
// Whether no two elements are one.
bool IsSpread(const RowPlaces& places, const RowExtents& extents);

}  // namespace tessera::cuda
