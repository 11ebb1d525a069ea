#pragma once

// A basic index as it is asked for: slices, integers, new axes and an ellipsis, before the shape is known that it is
// of. NormaliseIndex makes the index of an op from it, when the shape is known.
//
//   x[-1, ..., ::2] of f64[3,4,5]:  element 2; 0+4*1; 0+3*2

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/session_impl.h"
#include "client/tensor.h"
#include "schemas/ops/attributes.h"

namespace tessera {

struct IndexKey {
  enum class Kind : uint8_t { kSlice, kInteger, kNewAxis, kEllipsis };
  Kind kind = Kind::kSlice;
  // kInteger: start alone, negative ones count from the end. kSlice: as Python's; a place beyond an end is the end.
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;  // not 0
};
using IndexKeys = absl::InlinedVector<IndexKey, 4>;

// An item for each dim, and the new axes between; dims that are not named are whole. IndexOutOfRange for more keys than
// dims and for integers outside; InvalidArgument for two ellipses.
absl::StatusOr<std::vector<IndexItem>> NormaliseIndex(absl::Span<const IndexKey> keys, const Shape& shape);

// x[keys]. A pending x is kept until its spec is known; an error in the keys is known then.
absl::StatusOr<Tensor> GetItem(const Tensor& x, const IndexKeys& keys);
// x with x[keys] = value, a tensor of x's session or a number. `last_use`: x's memory may be the result's.
absl::StatusOr<Tensor> WithItem(const Tensor& x, const IndexKeys& keys, CallOperand value, bool last_use);

}  // namespace tessera
