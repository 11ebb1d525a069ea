#include "kernels/cuda/lt_problem.h"

#include <algorithm>

namespace tessera::cuda {
namespace {

// The layout of one matrix in a batch: where there are several, those behind the first one lie where the extents put
// them.
LtLayout LayoutOf(DType dtype, int64_t rows, int64_t columns, int64_t batch) {
  LtLayout layout = {.dtype = dtype, .rows = rows, .columns = columns, .batch_stride = batch > 1 ? rows * columns : 0};
  const uint64_t bits = static_cast<uint64_t>(layout.batch_stride * SizeBytes(dtype)) | kProductAlignment;
  layout.alignment_bytes = static_cast<uint32_t>(bits & (~bits + 1));
  return layout;
}

}  // namespace

std::vector<LtProblem> LtProblemsOf(const MatmulProblem& product) {
  const bool is_float8 = product.factors.has_value();
  const auto [left, right] = product.factors.value_or(std::array<DType, 2>{product.dtype, product.dtype});
  const LtLayout of_left = LayoutOf(left, product.inner, product.rows, product.batch);
  const LtLayout of_right = is_float8 ? LayoutOf(right, product.inner, product.columns, product.batch)
                                      : LayoutOf(right, product.columns, product.inner, product.batch);
  const LtLayout of_output = LayoutOf(product.dtype, product.columns, product.rows, product.batch);
  std::vector<LtProblem> problems;
  for (int64_t first = 0; first < product.batch; first += kMaxLtBatch) {
    const auto from = [&](uint64_t address, const LtLayout& layout) {
      return address + static_cast<uint64_t>(first * layout.batch_stride * SizeBytes(layout.dtype));
    };
    LtProblem problem;
    problem.shape = {.dtype = product.dtype,
                     .computed_in = product.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                     .precision = product.precision,
                     .rows = product.columns,
                     .columns = product.rows,
                     .inner = product.inner,
                     .batch = static_cast<int32_t>(std::min(kMaxLtBatch, product.batch - first)),
                     .is_a_transposed = is_float8,
                     .a = of_right,
                     .b = of_left,
                     .d = of_output};
    problem.a = from(product.right, of_right);
    problem.b = from(product.left, of_left);
    problem.d = from(product.output, of_output);
    problem.store = product.store;
    problem.bias = product.bias;
    problems.push_back(problem);
  }
  return problems;
}

}  // namespace tessera::cuda
