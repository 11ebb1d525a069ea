// Which products and sums that follow them are one call of cuBLASLt, and as which.

#include "kernels/cuda/lt_epilogue.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/lt_problem.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"

namespace tessera::cuda {
namespace {

constexpr uint64_t kLeft = uint64_t{1} << 40, kRight = uint64_t{1} << 42, kProduct = uint64_t{1} << 44;
constexpr uint64_t kBias = uint64_t{1} << 45, kOutput = uint64_t{1} << 46, kWorkspace = uint64_t{1} << 47;

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// x[4,6] by w[6,8] into p[4,8], and p + bias[8].
struct Calls {
  explicit Calls(DType dtype = DType::kF32, std::string sum = "") {
    product_op = MatmulOp{};
    const std::string name(ToText(dtype));
    if (sum.empty()) sum = "add:" + name + "(in0:" + name + ", in1:" + name + ")";
    sum_op = MapOp{*ParseExpression(sum)};
    const auto dense = [&](uint64_t at, Shape extents) {
      return KernelInput{.data = At(at), .dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)};
    };
    factors = {dense(kLeft, {4, 6}), dense(kRight, {6, 8})};
    terms = {dense(kProduct, {4, 8}), dense(kBias, {8})};
    product = {.op = &product_op,
               .output = At(kProduct),
               .output_dtype = dtype,
               .output_extents = {4, 8},
               .output_strides = {8, 1},
               .output_readers = 1};
    sum_call = product;
    sum_call.op = &sum_op;
    sum_call.output = At(kOutput);
    sum_call.output_readers = 0;
  }
  Calls(const Calls&) = delete;
  // The operands as they are now.
  std::optional<BiasedProduct> Join() {
    product.inputs = factors;
    sum_call.inputs = terms;
    return JoinBias(product, sum_call);
  }
  // The product that is launched for both, or none.
  std::optional<MatmulProblem> Problem() {
    const std::optional<BiasedProduct> biased = Join();
    if (!biased.has_value()) return std::nullopt;
    const Workspace workspace = {.address = kWorkspace, .bytes = WorkspaceBytes(biased->product), .zeros = 1 << 12};
    absl::StatusOr<std::vector<Step>> steps = LaunchKernel(biased->product, workspace);
    EXPECT_TRUE(steps.ok()) << steps.status();
    if (!steps.ok()) return std::nullopt;
    const MatmulProblem* problem = AddBias(*biased, *steps);
    return problem == nullptr ? std::nullopt : std::optional(*problem);
  }
  LocalOp product_op, sum_op;
  std::vector<KernelInput> factors, terms;
  KernelCall product, sum_call;
};

TEST(LtEpilogue, AProductAndTheSumWithItsBiasAreOneProblem) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Calls calls(dtype);
    const std::optional<MatmulProblem> problem = calls.Problem();
    ASSERT_TRUE(problem.has_value());
    EXPECT_EQ(problem->output, kOutput);
    EXPECT_EQ(problem->bias, kBias);
    const std::vector<LtProblem> both = LtProblemsOf(*problem);
    ASSERT_EQ(both.size(), 1u);
    EXPECT_EQ(both[0].bias, kBias);
    EXPECT_EQ(both[0].d, kOutput);
    // The library chooses its algorithm by the shape: as for the product alone.
    const absl::StatusOr<std::vector<Step>> alone = LaunchKernel(calls.product, {});
    ASSERT_TRUE(alone.ok()) << alone.status();
    const LtProblem product = LtProblemsOf(std::get<MatmulProblem>(alone->at(0)))[0];
    EXPECT_EQ(both[0].shape, product.shape);
    EXPECT_EQ(product.bias, 0u);
  }
}

struct Case {
  std::string name;
  std::function<void(Calls&)> change;
};

TEST(LtEpilogue, WhateverSaysTheSameIsJoined) {
  const std::vector<Case> cases = {
      {"the bias first", [](Calls& c) { std::swap(c.terms[0], c.terms[1]); }},
      {"the inputs the other way round",
       [](Calls& c) { c.sum_op = MapOp{*ParseExpression("add:f32(in1:f32, in0:f32)")}; }},
      {"a bias of one row",
       [](Calls& c) {
         c.terms[1].extents = {1, 8}, c.terms[1].strides = {8, 1};
       }},
      {"a bias that is broadcast",
       [](Calls& c) {
         c.terms[1].extents = {4, 8}, c.terms[1].strides = {0, 1};
       }},
      {"in TF32", [](Calls& c) { std::get<MatmulOp>(c.product_op).notation.precision = ProductPrecision::kTf32; }},
      {"a factor that lies otherwise",
       [](Calls& c) {
         c.factors[1].strides = {1, 6};
       }},
      {"a factor of zeros", [](Calls& c) { c.factors[0].is_zero = true; }},
      {"over the product", [](Calls& c) { c.sum_call.output = At(kProduct); }},
      {"with a reader of its own", [](Calls& c) { c.sum_call.output_readers = 2; }},
      {"of three dims",
       [](Calls& c) {
         std::get<MatmulOp>(c.product_op).notation = {"abk", "kn", "abn"};
         c.factors[0].extents = {2, 2, 6}, c.factors[0].strides = {12, 6, 1};
         c.terms[0].extents = c.product.output_extents = c.sum_call.output_extents = {2, 2, 8};
         c.terms[0].strides = c.product.output_strides = c.sum_call.output_strides = {16, 8, 1};
       }},
  };
  for (const Case& one : cases) {
    Calls calls;
    one.change(calls);
    const std::optional<MatmulProblem> problem = calls.Problem();
    ASSERT_TRUE(problem.has_value()) << one.name;
    EXPECT_EQ(problem->bias, kBias) << one.name;
    EXPECT_EQ(std::tuple(problem->rows, problem->columns, problem->inner), std::tuple(4, 8, 6)) << one.name;
  }
}

TEST(LtEpilogue, WhatWouldHaveOtherBitsOrOtherReadersIsNot) {
  const std::vector<Case> cases = {
      {"others may read the product", [](Calls& c) { c.product.output_readers = 0; }},
      {"two read it", [](Calls& c) { c.product.output_readers = 2; }},
      {"it is added to what is there", [](Calls& c) { c.product.store = KernelStore::kAdd; }},
      {"no product", [](Calls& c) { c.product_op = MapOp{*ParseExpression("add:f32(in0:f32, in1:f32)")}; }},
      {"no map", [](Calls& c) { c.sum_op = MatmulOp{}; }},
      {"a difference", [](Calls& c) { c.sum_op = MapOp{*ParseExpression("sub:f32(in0:f32, in1:f32)")}; }},
      {"an activation", [](Calls& c) { c.sum_op = MapOp{*ParseExpression("relu:f32(add:f32(in0:f32, in1:f32))")}; }},
      {"a number", [](Calls& c) { c.sum_op = MapOp{*ParseExpression("add:f32(in0:f32, arg0:f32)")}; }},
      {"the bias twice", [](Calls& c) { c.terms[0] = c.terms[1]; }},
      {"the product twice", [](Calls& c) { c.terms[1] = c.terms[0]; }},
      {"another product's sum", [](Calls& c) { c.terms[0].data = At(kProduct + 256); }},
      {"the product turned",
       [](Calls& c) {
         c.terms[0].strides = {1, 4};
       }},
      {"a bias of zeros", [](Calls& c) { c.terms[1].is_zero = true; }},
      {"one number for all", [](Calls& c) { c.terms[1].extents = {1}; }},
      {"a column",
       [](Calls& c) {
         c.terms[1].extents = {4, 1}, c.terms[1].strides = {1, 1};
       }},
      {"a matrix",
       [](Calls& c) {
         c.terms[1].extents = {4, 8}, c.terms[1].strides = {8, 1};
       }},
      {"a bias with gaps", [](Calls& c) { c.terms[1].strides = {2}; }},
      {"a bias backwards", [](Calls& c) { c.terms[1].strides = {-1}; }},
      {"a bias that isn't aligned", [](Calls& c) { c.terms[1].data = At(kBias + 4); }},
      {"a result that lies otherwise",
       [](Calls& c) {
         c.sum_call.output_strides = {1, 4};
       }},
      {"a result that isn't aligned", [](Calls& c) { c.sum_call.output = At(kOutput + 4); }},
      {"over a factor", [](Calls& c) { c.sum_call.output = At(kLeft + 64); }},
      {"over the bias", [](Calls& c) { c.sum_call.output = At(kBias - 64); }},
      {"a bias that the product would be written over", [](Calls& c) { c.terms[1].data = At(kProduct + 64); }},
      {"no elements",
       [](Calls& c) {
         c.factors[0].extents = {0, 6};
         c.terms[0].extents = c.product.output_extents = c.sum_call.output_extents = {0, 8};
       }},
      {"an empty sum",
       [](Calls& c) {
         c.factors[0].extents = {4, 0}, c.factors[1].extents = {0, 8};
       }},
      {"batches",
       [](Calls& c) {
         std::get<MatmulOp>(c.product_op).notation = {"bk", "bkn", "bn"};
         c.factors[1].extents = {4, 6, 8}, c.factors[1].strides = {48, 8, 1};
       }},
      // The last dim is not that of the columns.
      {"the product's columns first",
       [](Calls& c) {
         std::get<MatmulOp>(c.product_op).notation = {"mk", "kn", "nm"};
         c.factors[0].extents = {8, 6}, c.factors[1].extents = {6, 4}, c.factors[1].strides = {4, 1};
       }},
      {"columns of two dims",
       [](Calls& c) {
         std::get<MatmulOp>(c.product_op).notation = {"k", "kmn", "mn"};
         c.factors[0].extents = {6}, c.factors[0].strides = {1};
         c.factors[1].extents = {6, 4, 8}, c.factors[1].strides = {32, 8, 1};
       }},
      {"a matrix by a vector",
       [](Calls& c) {
         std::get<MatmulOp>(c.product_op).notation = {"mk", "k", "m"};
         c.factors[0].extents = {8, 6}, c.factors[1].extents = {6}, c.factors[1].strides = {1};
         c.terms[0].extents = c.product.output_extents = c.sum_call.output_extents = {8};
         c.terms[0].strides = c.product.output_strides = c.sum_call.output_strides = {1};
       }},
  };
  for (const Case& one : cases) {
    Calls calls;
    one.change(calls);
    EXPECT_FALSE(calls.Problem().has_value()) << one.name;
  }
}

// The library would add the bias before a product is rounded to 16 bits.
TEST(LtEpilogue, HalvesAndIntegersAreNot) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kI32, DType::kC64}) {
    EXPECT_FALSE(Calls(dtype).Problem().has_value()) << ToText(dtype);
  }
  // And what is widened on its way.
  Calls widened(DType::kF32, "add:f64(cast:f64(in0:f32), cast:f64(in1:f32))");
  widened.sum_call.output_dtype = DType::kF64;
  EXPECT_FALSE(widened.Problem().has_value());
}

TEST(LtEpilogue, AProductThatIsCutIsNot) {
  Calls calls;
  const int64_t rows = int64_t{1} << 24;  // 512 MiB of product: max_gpu_product_bytes is 128 MiB
  calls.factors[0].extents = {rows, 6};
  calls.terms[0].extents = calls.product.output_extents = calls.sum_call.output_extents = {rows, 8};
  EXPECT_TRUE(calls.Join().has_value());
  EXPECT_FALSE(calls.Problem().has_value());
}

}  // namespace
}  // namespace tessera::cuda
