// Products with a short inner dim: each element to the bit, on every layout of the operands.

#include "kernels/cpu/thin_product.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cpu/blas_core.h"
#include "schemas/ops/philox.h"
#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {
namespace {

using cpu::IsThinProduct;
using cpu::RunThinProduct;
using cpu::ThinProduct;

constexpr int64_t kLarge = 4096;  // of an extent

template <typename T>
std::vector<T> Random(int64_t count, uint64_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(ToUniformF64(RandomBits64(seed, 0, i)) - 0.4);
  }
  return values;
}

enum class Turned { kNo, kYes };

// A matrix in memory of its own, by rows or by columns, with `gap` elements between them; the gaps are kept.
template <typename T>
struct Lying {
  Lying(int64_t rows, int64_t columns, Turned turned, int64_t gap, uint64_t seed)
      : row_stride(turned == Turned::kNo ? columns + gap : 1),
        column_stride(turned == Turned::kNo ? 1 : rows + gap),
        values(Random<T>((turned == Turned::kNo ? rows * (columns + gap) : columns * (rows + gap)), seed)) {}
  T& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * row_stride + j * column_stride)]; }

  int64_t row_stride, column_stride;
  std::vector<T> values;
};

int64_t SlabLength(int64_t left) { return left >= 768 ? 384 : left > 384 ? (left / 2 + 15) / 16 * 16 : left; }

template <typename T>
void ExpectExact(int64_t m, int64_t n, int64_t k, Turned a_turned, Turned b_turned, bool adds) {
  Lying<T> a(m, k, a_turned, 1, 1), b(k, n, b_turned, 2, 2), c(m, n, Turned::kNo, 3, 3);
  Lying<T> want = c;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t first = 0, length = 0; first < k; first += length) {
        length = SlabLength(k - first);
        T sum = 0;
        for (int64_t p = first; p < first + length; ++p) sum = std::fma(a.at(i, p), b.at(p, j), sum);
        want.at(i, j) = adds || first > 0 ? want.at(i, j) + sum : sum;
      }
    }
  }
  RunThinProduct(ThinProduct<T>{.rows = m,
                                .columns = n,
                                .inner = k,
                                .a = a.values.data(),
                                .a_row_stride = a.row_stride,
                                .a_inner_stride = a.column_stride,
                                .b = b.values.data(),
                                .b_inner_stride = b.row_stride,
                                .b_column_stride = b.column_stride,
                                .c = c.values.data(),
                                .c_row_stride = c.row_stride,
                                .adds = adds});
  EXPECT_EQ(c.values, want.values) << m << "x" << n << "x" << k << (adds ? " added" : "");
}

class ThinProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsThinProduct(kLarge, kLarge, 1, 8)) GTEST_SKIP() << "this CPU has no fused multiply-add";
  }
};

TEST_F(ThinProducts, AreExactOnEveryShapeAndLayout) {
  for (const int64_t m : {1, 3, 8, 9, 67}) {
    for (const int64_t n : {1, 7, 16, 24, 48, 49, 200}) {
      for (const int64_t k : {1, 2, 5, 64, 191}) {
        for (const bool adds : {false, true}) {
          for (const auto& [a, b] : {std::pair{Turned::kNo, Turned::kNo}, {Turned::kYes, Turned::kYes}}) {
            ExpectExact<float>(m, n, k, a, b, adds);
            ExpectExact<double>(m, n, k, a, b, adds);
          }
        }
      }
    }
  }
}

// More columns than are packed at once, more steps of the inner dim than are summed up at once, more rows than stay
// near.
TEST_F(ThinProducts, AreExactInSeveralBlocks) {
  for (const int64_t k : {384, 385, 500, 767, 768, 900, 1700}) {
    ExpectExact<double>(20, 100, k, Turned::kNo, Turned::kNo, false);
    ExpectExact<float>(20, 100, k, Turned::kYes, Turned::kYes, true);
  }
  ExpectExact<double>(1030, 260, 400, Turned::kYes, Turned::kNo, true);
  ExpectExact<float>(9, 6000, 70, Turned::kNo, Turned::kNo, false);
  ExpectExact<double>(9, 3100, 70, Turned::kNo, Turned::kYes, true);
}

TEST_F(ThinProducts, AreExactOnSeveralThreads) {
  SetKernelThreads(3);
  ExpectExact<double>(701, 300, 20, Turned::kYes, Turned::kNo, false);
  ExpectExact<float>(70, 9001, 20, Turned::kNo, Turned::kNo, true);
  SetKernelThreads(1);
}

TEST_F(ThinProducts, AreThoseWithAShortInnerDimAndFullTiles) {
  EXPECT_TRUE(IsThinProduct(2048, 4096, 64, 8));
  EXPECT_TRUE(IsThinProduct(16, 65536, 1, 4));
  EXPECT_FALSE(IsThinProduct(2048, 4096, 0, 8));
  EXPECT_FALSE(IsThinProduct(2048, 4096, 193, 8));
  EXPECT_FALSE(IsThinProduct(2048, 256, 4096, 4));
  EXPECT_FALSE(IsThinProduct(15, 4096, 64, 8));
  EXPECT_FALSE(IsThinProduct(100, 96, 64, 8));
  EXPECT_FALSE(IsThinProduct(4096, 1, 64, 8));
  EXPECT_FALSE(IsThinProduct(4096, 50, 64, 4));
}

// By RunKernel; the operands have dense rows.
absl::Status Multiply(int64_t m, int64_t n, int64_t k, const std::vector<double>& a, const std::vector<double>& b,
                      std::vector<double>& c, const Strides& strides, KernelStore store) {
  const LocalOp op = MatmulOp{};
  const KernelInput inputs[] = {{.data = a.data(), .dtype = DType::kF64, .extents = {m, k}, .strides = {k, 1}},
                                {.data = b.data(), .dtype = DType::kF64, .extents = {k, n}, .strides = {n, 1}}};
  return RunKernel({.op = &op,
                    .inputs = inputs,
                    .output = c.data(),
                    .output_dtype = DType::kF64,
                    .output_extents = {m, n},
                    .output_strides = strides,
                    .store = store});
}

// As RunKernel takes them: with dense rows, with dense columns, added to what is there.
TEST_F(ThinProducts, AreTakenFromMatmuls) {
  constexpr int64_t kRows = 192, kColumns = 240, kInner = 40;
  ASSERT_TRUE(IsThinProduct(kRows, kColumns, kInner, 8) && IsThinProduct(kColumns, kRows, kInner, 8));
  for (const Layout layout : {Layout::kRowMajor, Layout::kColumnMajor}) {
    for (const KernelStore store : {KernelStore::kWrite, KernelStore::kAdd}) {
      const std::vector<double> a = Random<double>(kRows * kInner, 4), b = Random<double>(kInner * kColumns, 5);
      const std::vector<double> before = Random<double>(kRows * kColumns, 6);
      const bool by_rows = layout == Layout::kRowMajor;
      std::vector<double> c = before;
      const Strides strides = by_rows ? Strides{kColumns, 1} : Strides{1, kRows};
      ASSERT_TRUE(Multiply(kRows, kColumns, kInner, a, b, c, strides, store).ok());
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          double sum = 0;
          for (int64_t p = 0; p < kInner; ++p) {
            sum = std::fma(a[static_cast<size_t>(i * kInner + p)], b[static_cast<size_t>(p * kColumns + j)], sum);
          }
          const auto at = static_cast<size_t>(by_rows ? i * kColumns + j : i + j * kRows);
          ASSERT_EQ(c[at], store == KernelStore::kAdd ? before[at] + sum : sum) << i << "," << j;
        }
      }
    }
  }
}

// A part of the columns of a product that BLAS takes as a whole.
TEST_F(ThinProducts, HaveTheBitsOfBlasWithAvx512) {
  const std::string core = BlasCoreName();
  if (core != "SkylakeX" && core != "Cooperlake") GTEST_SKIP() << core;
  constexpr int64_t kRows = 200, kColumns = 704, kPart = 256;
  for (const int64_t k : {193, 383, 384, 385, 391, 500, 600, 767, 768, 1000, 1151, 1153, 2048}) {
    ASSERT_TRUE(IsThinProduct(kRows, kPart, k, 8) && !IsThinProduct(kRows, kColumns, k, 8)) << k;
    const std::vector<double> a = Random<double>(kRows * k, 7), b = Random<double>(k * kColumns, 8);
    std::vector<double> of_blas(kRows * kColumns), c(kRows * kPart);
    ASSERT_TRUE(Multiply(kRows, kColumns, k, a, b, of_blas, {kColumns, 1}, KernelStore::kWrite).ok());
    for (const int64_t first : {0, 130, 448}) {
      RunThinProduct(ThinProduct<double>{.rows = kRows,
                                         .columns = kPart,
                                         .inner = k,
                                         .a = a.data(),
                                         .a_row_stride = k,
                                         .a_inner_stride = 1,
                                         .b = b.data() + first,
                                         .b_inner_stride = kColumns,
                                         .b_column_stride = 1,
                                         .c = c.data(),
                                         .c_row_stride = kPart});
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kPart; ++j) {
          ASSERT_EQ(c[static_cast<size_t>(i * kPart + j)], of_blas[static_cast<size_t>(i * kColumns + first + j)])
              << k << ": " << i << "," << first + j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
