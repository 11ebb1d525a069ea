#include "client/python/numpy_strides.h"

#include "schemas/types/layout.h"

namespace tessera::python {

NumPyStrides NumPyStrides::RowMajor(const Shape& shape) {
  const auto strides = RowMajorStrides(shape);
  return {shape, std::vector<int64_t>(strides.begin(), strides.end())};
}

NumPyStrides NumPyStrides::Indexed(absl::Span<const IndexItem> items) const {
  NumPyStrides out;
  size_t dim = 0;
  for (const IndexItem& item : items) {
    if (item.kind == IndexItem::Kind::kNewAxis) {
      out.shape.push_back(1);
      out.strides.push_back(0);
      continue;
    }
    if (item.kind == IndexItem::Kind::kSlice) {
      out.shape.push_back(item.size);
      out.strides.push_back(strides[dim] * item.step);
    }
    ++dim;
  }
  return out;
}

NumPyStrides NumPyStrides::Permuted(absl::Span<const int64_t> dims) const {
  NumPyStrides out;
  for (const int64_t d : dims) {
    out.shape.push_back(shape[static_cast<size_t>(d)]);
    out.strides.push_back(strides[static_cast<size_t>(d)]);
  }
  return out;
}

NumPyStrides NumPyStrides::Flipped(absl::Span<const int64_t> dims) const {
  NumPyStrides out = *this;
  for (const int64_t d : dims) out.strides[static_cast<size_t>(d)] *= -1;
  return out;
}

// As NumPy's _attempt_nocopy_reshape: old and new dims are matched in groups of as many elements, and the old dims of a
// group must lie as one.
std::optional<NumPyStrides> NumPyStrides::Reshaped(const Shape& to) const {
  if (NumElements(to) == 0) return RowMajor(to);
  std::vector<int64_t> extents, steps;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    extents.push_back(shape[d]);
    steps.push_back(strides[d]);
  }
  NumPyStrides out{to, std::vector<int64_t>(to.size(), 0)};
  size_t old_dim = 0, new_dim = 0;
  while (old_dim < extents.size()) {
    size_t old_end = old_dim + 1, new_end = new_dim + 1;
    int64_t old_count = extents[old_dim], new_count = to[new_dim];
    while (old_count != new_count) {
      if (new_count < old_count) {
        new_count *= to[new_end++];
      } else {
        old_count *= extents[old_end++];
      }
    }
    for (size_t d = old_dim; d + 1 < old_end; ++d) {
      if (steps[d] != extents[d + 1] * steps[d + 1]) return std::nullopt;
    }
    int64_t step = steps[old_end - 1];
    for (size_t d = new_end; d-- > new_dim;) {
      out.strides[d] = step;
      step *= to[d];
    }
    old_dim = old_end;
    new_dim = new_end;
  }
  return out;
}

}  // namespace tessera::python
