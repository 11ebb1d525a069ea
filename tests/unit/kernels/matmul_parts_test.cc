// Products of large matrices, as the parts that a GPU multiplies: copies stay small, and extents alone say where a
// product is cut.

#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/launch.h"
#include "schemas/ops/contraction.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kMost = int64_t{128} << 20;  // max_gpu_product_bytes
constexpr uint64_t kLeft = uint64_t{1} << 40, kRight = uint64_t{1} << 42, kOutput = uint64_t{1} << 44;

enum class Lies { kDense, kTransposed };

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

KernelInput Operand(uint64_t address, const Shape& extents, Lies lies) {
  KernelInput input = {.data = At(address), .extents = extents, .strides = RowMajorStrides(extents)};
  if (lies == Lies::kTransposed) {
    const size_t last = extents.size() - 1;
    input.strides[last - 1] = 1;
    input.strides[last] = extents[last - 1];
  }
  return input;
}

struct Product {
  Product(Shape left, Shape right, Shape output, Lies lies = Lies::kDense) : op(MatmulOp{}) {
    std::get<MatmulOp>(op).notation =
        left.size() == 3 ? Contraction{"bik", "bkj", "bij"} : Contraction{"ik", "kj", "ij"};
    inputs = {Operand(kLeft, left, lies), Operand(kRight, right, lies)};
    call = {.op = &op,
            .inputs = inputs,
            .output = At(kOutput),
            .output_extents = output,
            .output_strides = RowMajorStrides(output)};
  }
  int64_t bytes() const { return WorkspaceBytes(call); }
  std::vector<MatmulProblem> problems() const {
    const Workspace workspace = {.address = uint64_t{1} << 46, .bytes = bytes(), .zeros = 1 << 12};
    std::vector<MatmulProblem> found;
    const auto steps = LaunchKernel(call, workspace);
    EXPECT_TRUE(steps.ok()) << steps.status();
    if (!steps.ok()) return found;
    for (const Step& step : *steps) {
      if (const auto* problem = std::get_if<MatmulProblem>(&step)) found.push_back(*problem);
    }
    return found;
  }
  LocalOp op;
  std::vector<KernelInput> inputs;
  KernelCall call;
};

int64_t Multiplications(const MatmulProblem& p) { return p.batch * p.rows * p.columns * p.inner; }

TEST(MatmulParts, SmallOnesAreWhole) {
  const Product product({8192, 4096}, {4096, 8192}, {8192, 4096});
  EXPECT_FALSE(LaunchKernel(product.call, {}).ok());  // the output has other extents
  const Product fits({8192, 4096}, {4096, 2048}, {8192, 2048});
  ASSERT_EQ(fits.problems().size(), 1u);
  EXPECT_EQ(fits.bytes(), 0);
}

TEST(MatmulParts, PartsAreSmallAndAllOfTheProduct) {
  for (const Lies lies : {Lies::kDense, Lies::kTransposed}) {
    const Product product({40'001, 1024}, {1024, 70'000}, {40'001, 70'000}, lies);
    int64_t multiplications = 0;
    for (const MatmulProblem& p : product.problems()) {
      EXPECT_LE(p.rows * p.inner * 4, kMost);
      EXPECT_LE(p.inner * p.columns * 4, kMost);
      EXPECT_LE(p.rows * p.columns * 4, kMost);
      EXPECT_EQ(p.inner, 1024);
      multiplications += Multiplications(p);
    }
    EXPECT_EQ(multiplications, int64_t{40'001} * 70'000 * 1024);
    EXPECT_LE(product.bytes(), 3 * kMost + 3 * 256);
  }
}

TEST(MatmulParts, HowOperandsLieCutsNothingElsewhere) {
  const auto dense = Product({5, 9000, 4100}, {5, 4100, 7000}, {5, 9000, 7000}, Lies::kDense).problems();
  const auto transposed = Product({5, 9000, 4100}, {5, 4100, 7000}, {5, 9000, 7000}, Lies::kTransposed).problems();
  ASSERT_EQ(dense.size(), transposed.size());
  for (size_t i = 0; i < dense.size(); ++i) {
    EXPECT_EQ(dense[i].batch, transposed[i].batch);
    EXPECT_EQ(dense[i].rows, transposed[i].rows);
    EXPECT_EQ(dense[i].columns, transposed[i].columns);
  }
}

// A dense left operand and few columns are not copied, and a part is where its rows are.
TEST(MatmulParts, APartIsWhereItsRowsAre) {
  const Product product({100'000, 1024}, {1024, 16}, {100'000, 16});
  const auto problems = product.problems();
  ASSERT_GT(problems.size(), 1u);
  int64_t row = 0;
  for (const MatmulProblem& p : problems) {
    EXPECT_EQ(p.left, kLeft + static_cast<uint64_t>(row * 1024 * 4));
    EXPECT_EQ(p.right, kRight);
    EXPECT_EQ(p.output, kOutput + static_cast<uint64_t>(row * 16 * 4));
    EXPECT_EQ(p.rows % 128 == 0 || row + p.rows == 100'000, true);
    row += p.rows;
  }
  EXPECT_EQ(row, 100'000);
  EXPECT_EQ(product.bytes(), 0);
}

TEST(MatmulParts, ALongInnerDimIsTakenWhole) {
  const int64_t inner = int64_t{1} << 28;
  const Product product({1, inner}, {inner, 8}, {1, 8});
  ASSERT_EQ(product.problems().size(), 1u);
  EXPECT_EQ(product.bytes(), 0);
}

}  // namespace
}  // namespace tessera::cuda
