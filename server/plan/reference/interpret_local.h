#pragma once

// The naive kernels of Interpret: one position's LocalOp on strided numbers. They agree with the CPU
// kernels by law, not by sharing code: each number is computed in its dtype by EvaluateScalarOp.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"
#include "server/plan/reference/number.h"

namespace tessera {

// A strided piece of a vector of numbers of `dtype`.
struct StridedNumbers {
  std::vector<Number>* data = nullptr;
  int64_t offset = 0;
  Strides strides;
  Shape extents;
  DType dtype = DType::kF64;
  bool is_zero = false;  // reads as zeros

  // NaN of f64 where nothing was written.
  Number Read(absl::Span<const int64_t> index) const;
  void Write(absl::Span<const int64_t> index, const Number& value) const;  // cast to dtype
};

// Calls visit(index) for every index of the extents, in row-major order.
template <typename Visitor>
void ForEachIndex(absl::Span<const int64_t> extents, const Visitor& visit) {
  const int64_t count = NumElements(extents);
  Shape index(extents.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    visit(index);
    for (size_t d = extents.size(); d-- > 0;) {
      if (++index[d] < extents[d]) break;
      index[d] = 0;
    }
  }
}

// The place along the dim of an element of a gather's output; -1 where its index is out of range. MergedPlaces: where
// each element of the ordered whole lies in a vector of runs.
int64_t GatheredPlace(const StridedNumbers& indices, const Shape& index, int64_t dim, int64_t extent);
std::vector<int64_t> MergedPlaces(const MergeOp& op, const StridedNumbers& runs);

absl::Status InterpretLocalOp(const LocalOp& op, const std::vector<StridedNumbers>& inputs,
                              const std::vector<Scalar>& scalars, const Box& output_box, const Box& input_box,
                              const StridedNumbers& output, KernelStore store = KernelStore::kWrite);

}  // namespace tessera
