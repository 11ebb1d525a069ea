// Blocks and pieces of a sum: each index once, in order.

#include "kernels/cpu/sum_of_products.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

using cpu::ContractDim;
using cpu::SumOfProducts;

// Operands so large that every index has its own offset; nothing is read.
const int8_t kOrigin = 0;

std::vector<ContractDim> RowMajorDims(const std::vector<int64_t>& extents) {
  std::vector<ContractDim> dims;
  for (const int64_t extent : extents) dims.push_back({.extent = extent});
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= extents[d]) dims[d].strides = {stride, 2 * stride, 0};
  return dims;
}

TEST(SumOfProducts, PiecesHaveEachInnerIndexOnceAndInOrder) {
  for (const std::vector<int64_t>& extents :
       std::vector<std::vector<int64_t>>{{}, {7}, {3, 5}, {2, 3, 4}, {1, 4, 1, 6, 1}, {5, 1}}) {
    const std::vector<ContractDim> dims = RowMajorDims(extents);
    for (const int64_t most : {1, 2, 3, 4, 7, 12, 30, 1000}) {
      const SumOfProducts<int8_t> sum{.a = &kOrigin, .b = &kOrigin, .inner = dims};
      int64_t next = 0;
      cpu::ForEachPiece(sum, most, [&](const SumOfProducts<int8_t>& piece) {
        EXPECT_LE(piece.depth(), most);
        EXPECT_EQ(piece.store, next == 0 ? KernelStore::kWrite : KernelStore::kAdd);
        EXPECT_EQ(2 * (piece.a - &kOrigin), piece.b - &kOrigin);
        cpu::Walk(piece.inner, {piece.a - &kOrigin, 0, 0}, [&](const std::array<int64_t, 3>& at) {
          EXPECT_EQ(at[0], next);
          ++next;
        });
      });
      EXPECT_EQ(next, sum.depth()) << most;
    }
  }
}

// The law that a sum's order rests on: the pieces don't depend on strides.
TEST(SumOfProducts, PiecesAreCutByExtentsAlone) {
  std::vector<ContractDim> dims = RowMajorDims({10, 1000, 30});
  std::vector<int64_t> depths[2];
  for (std::vector<int64_t>& of_layout : depths) {
    const SumOfProducts<int8_t> sum{.a = &kOrigin, .b = &kOrigin, .inner = dims};
    cpu::ForEachPiece(sum, 1024, [&](const SumOfProducts<int8_t>& piece) { of_layout.push_back(piece.depth()); });
    dims[0].strides = {3, 7, 0};
  }
  EXPECT_EQ(depths[0], depths[1]);
  EXPECT_EQ(depths[0].size(), 10u * 30u);
  EXPECT_EQ(depths[0][0], 34 * 30);
  EXPECT_EQ(depths[0][29], 14 * 30);
}

TEST(SumOfProducts, BlocksHaveEachElementOnce) {
  constexpr int64_t kRows = 7, kColumns = 5;
  for (const int64_t most : {1, 2, 3, 5, 100}) {
    int8_t c[kRows * kColumns] = {};
    const SumOfProducts<int8_t> sum{.a = &kOrigin,
                                    .b = &kOrigin,
                                    .c = c,
                                    .m = {.extent = kRows, .strides = {3, 0, kColumns}},
                                    .n = {.extent = kColumns, .strides = {0, 4, 1}}};
    cpu::ForEachBlock(sum, most, most, [&](const SumOfProducts<int8_t>& block) {
      EXPECT_LE(block.m.extent, most);
      EXPECT_LE(block.n.extent, most);
      const int64_t first = block.c - c;
      EXPECT_EQ(block.a - &kOrigin, first / kColumns * 3);
      EXPECT_EQ(block.b - &kOrigin, first % kColumns * 4);
      for (int64_t i = 0; i < block.m.extent; ++i) {
        for (int64_t j = 0; j < block.n.extent; ++j) ++block.c[i * kColumns + j];
      }
    });
    for (const int8_t count : c) EXPECT_EQ(count, 1);
  }
  // This sum has more rows than BLAS takes.
  const SumOfProducts<int8_t> long_sum{.a = &kOrigin, .b = &kOrigin, .m = {.extent = (int64_t{1} << 31) + 1}};
  std::vector<int64_t> rows;
  cpu::ForEachBlock(long_sum, int64_t{1} << 30, 1,
                    [&](const SumOfProducts<int8_t>& block) { rows.push_back(block.m.extent); });
  EXPECT_EQ(rows, (std::vector<int64_t>{int64_t{1} << 30, int64_t{1} << 30, 1}));
}

}  // namespace
}  // namespace tessera::testing
