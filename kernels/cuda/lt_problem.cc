#include "kernels/cuda/lt_problem.h"

#include <algorithm>

namespace tessera::cuda {
namespace {

uint32_t AlignmentOf(uint64_t address, int64_t batch_stride_bytes) {
  const uint64_t bits = address | static_cast<uint64_t>(batch_stride_bytes) | kMaxLtAlignment;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// An operand rows x columns that the product takes as it is, or transposed where that is `wanted`.
LtLayout LayoutOf(const MatrixOperand& operand, int64_t rows, int64_t columns, Transposed wanted, int64_t batch,
                  int64_t element_bytes) {
  LtLayout layout;
  const bool is_row_major = operand.transposed == Transposed::kNo;
  layout.rows = is_row_major ? columns : rows;
  layout.columns = is_row_major ? rows : columns;
  layout.leading_dimension = operand.leading_dimension;
  layout.batch_stride = batch > 1 ? operand.batch_stride : 0;
  // In column-major order a row-major matrix is transposed already.
  layout.transposed = is_row_major == (wanted == Transposed::kYes) ? Transposed::kNo : Transposed::kYes;
  layout.alignment_bytes = AlignmentOf(operand.address, layout.batch_stride * element_bytes);
  return layout;
}

}  // namespace

std::vector<LtProblem> LtProblemsOf(const MatmulProblem& product) {
  const int64_t bytes = SizeBytes(product.dtype);
  const bool is_row_major = product.output.transposed == Transposed::kNo;
  std::vector<LtProblem> problems;
  for (int64_t first = 0; first < product.batch; first += kMaxLtBatch) {
    const auto from = [&](MatrixOperand operand) {
      operand.address += static_cast<uint64_t>(first * operand.batch_stride * bytes);
      return operand;
    };
    const MatrixOperand left = from(product.left), right = from(product.right), output = from(product.output);
    const int64_t batch = std::min(kMaxLtBatch, product.batch - first);
    // A row-major output is the product of the transposed operands, in the other order.
    const Transposed wanted = is_row_major ? Transposed::kYes : Transposed::kNo;
    const LtLayout of_left = LayoutOf(left, product.rows, product.inner, wanted, batch, bytes);
    const LtLayout of_right = LayoutOf(right, product.inner, product.columns, wanted, batch, bytes);
    LtProblem problem;
    problem.shape = {.dtype = product.dtype,
                     .computed_in = product.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                     .rows = is_row_major ? product.columns : product.rows,
                     .columns = is_row_major ? product.rows : product.columns,
                     .inner = product.inner,
                     .batch = static_cast<int32_t>(batch),
                     .a = is_row_major ? of_right : of_left,
                     .b = is_row_major ? of_left : of_right,
                     .d = LayoutOf(output, product.rows, product.columns, wanted, batch, bytes)};
    problem.a = is_row_major ? right.address : left.address;
    problem.b = is_row_major ? left.address : right.address;
    problem.d = output.address;
    problem.store = product.store;
    problems.push_back(problem);
  }
  return problems;
}

}  // namespace tessera::cuda
