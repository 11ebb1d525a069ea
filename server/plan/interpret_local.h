#pragma once

// The naive kernels of Interpret: one position's LocalOp on strided doubles. They agree with the CPU
// kernels by law, not by sharing code.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

// A strided piece of a vector of doubles; each holds a value of `dtype` exactly (integers to 2^53).
struct StridedDoubles {
  std::vector<double>* data = nullptr;
  int64_t offset = 0;
  Strides strides;
  Shape extents;
  DType dtype = DType::kF64;
  bool is_zero = false;  // reads as zeros

  double Read(absl::Span<const int64_t> index) const;
  void Write(absl::Span<const int64_t> index, double value) const;  // rounded to dtype
};

// The value as an element of `dtype` holds it.
double RoundTo(DType dtype, double value);
// As a cast of the catalog converts it.
double CastTo(DType to, DType from, double value);
// a and b reduced; kAvg adds.
double ReduceTwo(ReduceOp op, DType dtype, double a, double b);
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

absl::Status InterpretLocalOp(const LocalOp& op, const std::vector<StridedDoubles>& inputs,
                              const std::vector<Scalar>& scalars, const Box& output_box, const Box& input_box,
                              const StridedDoubles& output, KernelStore store = KernelStore::kWrite);

}  // namespace tessera
