// Products as cuBLASLt takes them, computed by plain loops from the column-major layouts alone.

#include "kernels/cuda/lt_problem.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

constexpr uint64_t kBase = 1 << 20;

MatrixOperand Operand(int64_t rows, int64_t columns, Transposed transposed, uint64_t address) {
  const int64_t leading = (transposed == Transposed::kNo ? columns : rows) + 2;
  const int64_t lines = transposed == Transposed::kNo ? rows : columns;
  return {address, leading, leading * lines + 3, transposed};
}
// Where an element is, in elements from kBase.
size_t Place(const MatrixOperand& m, int64_t b, int64_t row, int64_t column) {
  const int64_t in_matrix =
      m.transposed == Transposed::kNo ? row * m.leading_dimension + column : column * m.leading_dimension + row;
  return (m.address - kBase) / 4 + static_cast<size_t>(b * m.batch_stride + in_matrix);
}
// The same of op(matrix), by its column-major layout.
size_t LtPlace(const LtLayout& m, uint64_t address, int64_t b, int64_t row, int64_t column) {
  if (m.transposed == Transposed::kYes) std::swap(row, column);
  EXPECT_TRUE(row < m.rows && column < m.columns && m.leading_dimension >= m.rows);
  return (address - kBase) / 4 + static_cast<size_t>(b * m.batch_stride + column * m.leading_dimension + row);
}

TEST(LtProblem, IsTheProductInEveryOrderOfItsMatrices) {
  for (int bits = 0; bits < 8; ++bits) {
    const auto transposed = [bits](int bit) { return (bits >> bit & 1) != 0 ? Transposed::kYes : Transposed::kNo; };
    const MatmulProblem product = {.batch = 2,
                                   .rows = 3,
                                   .columns = 4,
                                   .inner = 5,
                                   .left = Operand(3, 5, transposed(0), kBase),
                                   .right = Operand(5, 4, transposed(1), kBase + 1000),
                                   .output = Operand(3, 4, transposed(2), kBase + 2000)};
    std::vector<double> memory(1000), want;
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<double>(i * 7 % 13) - 6;
    want = memory;
    for (int64_t i = 0; i < 2 * 3 * 4; ++i) {
      double& sum = want[Place(product.output, i / 12, i / 4 % 3, i % 4)];
      sum = 0;
      for (int64_t k = 0; k < 5; ++k) {
        sum += memory[Place(product.left, i / 12, i / 4 % 3, k)] * memory[Place(product.right, i / 12, k, i % 4)];
      }
    }
    const std::vector<LtProblem> problems = LtProblemsOf(product);
    ASSERT_EQ(problems.size(), 1u);
    const LtProblem& lt = problems[0];
    EXPECT_EQ(lt.shape.d.transposed, Transposed::kNo);
    for (int64_t b = 0; b < lt.shape.batch; ++b) {
      for (int64_t row = 0; row < lt.shape.rows; ++row) {
        for (int64_t column = 0; column < lt.shape.columns; ++column) {
          double sum = 0;
          for (int64_t k = 0; k < lt.shape.inner; ++k) {
            sum += memory[LtPlace(lt.shape.a, lt.a, b, row, k)] * memory[LtPlace(lt.shape.b, lt.b, b, k, column)];
          }
          memory[LtPlace(lt.shape.d, lt.d, b, row, column)] = sum;
        }
      }
    }
    EXPECT_EQ(memory, want) << bits;
  }
}

TEST(LtProblem, PromisesTheAlignmentThatEachBatchHas) {
  MatmulProblem product = {.batch = 1, .rows = 4, .columns = 4, .inner = 4};
  product.left = {kBase + 512, 4, 6, Transposed::kNo};
  product.right = {kBase + 8, 4, 16, Transposed::kNo};
  product.output = {kBase + 4, 4, 16, Transposed::kNo};
  LtShape shape = LtProblemsOf(product)[0].shape;
  EXPECT_EQ(shape.b.alignment_bytes, kMaxLtAlignment);  // the left one
  EXPECT_EQ(shape.a.alignment_bytes, 8u);
  EXPECT_EQ(shape.d.alignment_bytes, 4u);
  EXPECT_EQ(shape.b.batch_stride, 0);
  product.batch = 2;
  shape = LtProblemsOf(product)[0].shape;
  EXPECT_EQ(shape.b.alignment_bytes, 8u);  // of 6 elements of 4 bytes
  EXPECT_EQ(shape.b.batch_stride, 6);
}

TEST(LtProblem, SumsAreInF32OrF64) {
  for (const auto& [dtype, computed_in] : {std::pair(DType::kF16, DType::kF32), std::pair(DType::kBF16, DType::kF32),
                                           std::pair(DType::kF32, DType::kF32), std::pair(DType::kF64, DType::kF64)}) {
    EXPECT_EQ(LtProblemsOf({.dtype = dtype, .rows = 1, .columns = 1, .inner = 1})[0].shape.computed_in, computed_in);
  }
}

TEST(LtProblem, ManyBatchesAreSeveral) {
  const MatmulProblem product = {.dtype = DType::kF64,
                                 .batch = 2 * kMaxLtBatch + 5,
                                 .rows = 2,
                                 .columns = 2,
                                 .inner = 2,
                                 .left = {kBase, 2, 4, Transposed::kNo},
                                 .right = {kBase, 2, 0, Transposed::kNo},
                                 .output = {kBase, 2, 8, Transposed::kNo},
                                 .store = KernelStore::kAdd};
  const std::vector<LtProblem> problems = LtProblemsOf(product);
  ASSERT_EQ(problems.size(), 3u);
  int64_t first = 0;
  for (const LtProblem& problem : problems) {
    EXPECT_EQ(problem.b, kBase + static_cast<uint64_t>(first * 4 * 8));
    EXPECT_EQ(problem.a, kBase);
    EXPECT_EQ(problem.d, kBase + static_cast<uint64_t>(first * 8 * 8));
    EXPECT_EQ(problem.store, KernelStore::kAdd);
    first += problem.shape.batch;
  }
  EXPECT_EQ(first, product.batch);
}

}  // namespace
}  // namespace tessera::cuda
