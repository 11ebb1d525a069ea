// Products as cuBLASLt takes them, computed by plain loops from the column-major layouts alone.

#include "kernels/cuda/lt_problem.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::cuda {
namespace {

constexpr uint64_t kBase = 1 << 20, kRight = kBase + 1024, kOutput = kBase + 2048;

// Where an element of a column-major matrix is, in f32 from kBase.
size_t Place(const LtLayout& m, uint64_t address, int64_t b, int64_t row, int64_t column) {
  EXPECT_TRUE(row < m.rows && column < m.columns);
  return (address - kBase) / 4 + static_cast<size_t>(b * m.batch_stride + column * m.rows + row);
}

TEST(LtProblem, IsTheProduct) {
  for (const int64_t batch : {1, 2}) {
    const MatmulProblem product = {
        .batch = batch, .rows = 3, .columns = 4, .inner = 5, .left = kBase, .right = kRight, .output = kOutput};
    std::vector<double> memory(1000), want;
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<double>(i * 7 % 13) - 6;
    want = memory;
    for (int64_t i = 0; i < batch * 12; ++i) {
      double& sum = want[static_cast<size_t>(512 + i)];
      sum = 0;
      for (int64_t k = 0; k < 5; ++k) {
        const int64_t left = i / 4 * 5 + k, right = i / 12 * 20 + k * 4 + i % 4;
        sum += memory[static_cast<size_t>(left)] * memory[static_cast<size_t>(256 + right)];
      }
    }
    const std::vector<LtProblem> problems = LtProblemsOf(product);
    ASSERT_EQ(problems.size(), 1u);
    const LtProblem& lt = problems[0];
    for (int64_t b = 0; b < lt.shape.batch; ++b) {
      for (int64_t row = 0; row < lt.shape.rows; ++row) {
        for (int64_t column = 0; column < lt.shape.columns; ++column) {
          double sum = 0;
          for (int64_t k = 0; k < lt.shape.inner; ++k) {
            sum += memory[Place(lt.shape.a, lt.a, b, row, k)] * memory[Place(lt.shape.b, lt.b, b, k, column)];
          }
          memory[Place(lt.shape.d, lt.d, b, row, column)] = sum;
        }
      }
    }
    EXPECT_EQ(memory, want) << batch;
  }
}

TEST(LtProblem, PromisesTheAlignmentThatTheExtentsGiveEachBatch) {
  MatmulProblem product = {.batch = 1, .rows = 3, .columns = 2, .inner = 4, .left = kBase, .right = kRight};
  LtShape shape = LtProblemsOf(product)[0].shape;
  for (const LtLayout& layout : {shape.a, shape.b, shape.d}) {
    EXPECT_EQ(layout.alignment_bytes, kProductAlignment);
    EXPECT_EQ(layout.batch_stride, 0);
  }
  product.batch = 2;
  shape = LtProblemsOf(product)[0].shape;
  EXPECT_EQ(shape.a.alignment_bytes, 16u);  // of 8 elements of 4 bytes
  EXPECT_EQ(shape.b.alignment_bytes, 16u);
  EXPECT_EQ(shape.d.alignment_bytes, 8u);  // of 6
  EXPECT_EQ(shape.d.batch_stride, 6);
}

TEST(LtProblem, AShapeIsOfExtentsAndDTypeAlone) {
  const MatmulProblem here = {.rows = 3, .columns = 2, .inner = 4, .left = kBase, .right = kRight, .output = kOutput};
  MatmulProblem there = here;
  there.left += 512;
  there.output += 16;
  EXPECT_EQ(LtProblemsOf(here)[0].shape, LtProblemsOf(there)[0].shape);
  EXPECT_EQ(LtProblemsOf(there)[0].b, kBase + 512);
}

TEST(LtProblem, FloatsOf8BitsAreDenseAlongTheInnerDim) {
  const MatmulProblem product = {.factors = {{DType::kF8E4M3, DType::kF8E5M2}},
                                 .batch = kMaxLtBatch + 1,
                                 .rows = 3,
                                 .columns = 2,
                                 .inner = 16,
                                 .left = kBase,
                                 .right = kRight,
                                 .output = kOutput};
  const std::vector<LtProblem> problems = LtProblemsOf(product);
  const LtShape& shape = problems[0].shape;
  EXPECT_TRUE(shape.is_a_transposed);
  EXPECT_EQ(shape.a, (LtLayout{DType::kF8E5M2, 16, 2, 32, kProductAlignment}));
  EXPECT_EQ(shape.b, (LtLayout{DType::kF8E4M3, 16, 3, 48, 16}));
  EXPECT_EQ(shape.d, (LtLayout{DType::kF32, 2, 3, 6, 8}));
  EXPECT_EQ(problems[1].a, kRight + kMaxLtBatch * 32);  // a byte an element
  EXPECT_EQ(problems[1].d, kOutput + kMaxLtBatch * 24);
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
                                 .columns = 3,
                                 .inner = 4,
                                 .left = kBase,
                                 .right = kBase,
                                 .output = kBase,
                                 .store = KernelStore::kAdd};
  const std::vector<LtProblem> problems = LtProblemsOf(product);
  ASSERT_EQ(problems.size(), 3u);
  int64_t first = 0;
  for (const LtProblem& problem : problems) {
    EXPECT_EQ(problem.b, kBase + static_cast<uint64_t>(first * 8 * 8));
    EXPECT_EQ(problem.a, kBase + static_cast<uint64_t>(first * 12 * 8));
    EXPECT_EQ(problem.d, kBase + static_cast<uint64_t>(first * 6 * 8));
    EXPECT_EQ(problem.store, KernelStore::kAdd);
    first += problem.shape.batch;
  }
  EXPECT_EQ(first, product.batch);
}

}  // namespace
}  // namespace tessera::cuda
