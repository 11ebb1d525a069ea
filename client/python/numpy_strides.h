#pragma once

// Where NumPy's array would have the elements of a view, to know which reshapes are views, too.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "schemas/ops/attributes.h"
#include "schemas/types/shape.h"

namespace tessera::python {

// Strides count elements; a new array is row-major.
struct NumPyStrides {
  Shape shape;
  std::vector<int64_t> strides;

  static NumPyStrides RowMajor(const Shape& shape);
  NumPyStrides Indexed(absl::Span<const IndexItem> items) const;
  NumPyStrides Permuted(absl::Span<const int64_t> dims) const;
  NumPyStrides Flipped(absl::Span<const int64_t> dims) const;
  // Nothing where NumPy's reshape copies. `to` has as many elements.
  std::optional<NumPyStrides> Reshaped(const Shape& to) const;
};

}  // namespace tessera::python
