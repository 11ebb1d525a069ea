#pragma once

// Results whose shape depends on values: where a tensor is true, and what is there. Each returns at once, as every op
// does; the spec of what it gives is pending until the number of elements is known (tensor.h), and ops on that queue
// behind it (deferred_calls.h).
//
//   absl::StatusOr<Tensor> large = MaskedSelect(x, Greater(x, 3).value());   // f32[?] spec pending
//   absl::StatusOr<Tensor> total = Sum(*large, {});                          // f32[] spec pending
//   large->shape();                                                          // waits: [17]

#include "client/require_cxx20.h"

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tensor.h"

namespace tessera {

// The first elements of each tensor's dim 0: as many as `count` has, a 0-d i64 tensor. InvalidArgument, later, for more
// than there are.
absl::StatusOr<std::vector<Tensor>> TakeFirst(absl::Span<const Tensor> tensors, const Tensor& count);
// The row-major numbers of the true elements, in order: i64[?].
absl::StatusOr<Tensor> FindPlaces(const Tensor& mask);
// The indices of the elements that are not 0, a vector for each dim. InvalidArgument for a 0-d tensor.
absl::StatusOr<std::vector<Tensor>> Nonzero(const Tensor& x);
// The rows of x along `dim` where the mask, a vector with the dim's extent, is true. They stay in the shards in which
// they are. IndexOutOfRange for a mask of another extent than that or 0.
absl::StatusOr<Tensor> FilterAlong(const Tensor& x, const Tensor& mask, int dim);
// x[mask]: the parts of x where the mask, which has its first dims, is true. IndexOutOfRange for a mask of other
// extents: at once where both shapes are known.
absl::StatusOr<Tensor> MaskedSelect(const Tensor& x, const Tensor& mask);

struct UniqueElements {
  Tensor values;                  // the different elements, in order; every NaN is one of its own
  std::optional<Tensor> indices;  // where each is first in the flattened tensor
  std::optional<Tensor> inverse;  // of each element of x which of the values it is; pending as x's spec is
  std::optional<Tensor> counts;   // how often each is there
};
// Results that are wanted besides the values. Nothing is computed or moved for what isn't wanted.
struct UniqueWanted {
  bool indices = true;
  bool inverse = true;
  bool counts = true;
};
absl::StatusOr<UniqueElements> UniqueAll(const Tensor& x, const UniqueWanted& wanted = {});

}  // namespace tessera

namespace tessera::ops {
using tessera::FilterAlong;
using tessera::MaskedSelect;
using tessera::Nonzero;
using tessera::TakeFirst;
using tessera::UniqueAll;
}  // namespace tessera::ops
