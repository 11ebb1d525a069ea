// Products of matrices on a CUDA device: by cuBLASLt where it is, else by the image's kernels, and in order with all
// else.

#include "server/device/cuda/products.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Matcher;

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;

// left, rows x inner, by right, inner x columns; dense in f32.
struct Product {
  Product(const float* left, const float* right, float* result, int64_t rows, int64_t inner, int64_t columns) {
    inputs = {{.data = left, .dtype = DType::kF32, .extents = {rows, inner}, .strides = {inner, 1}},
              {.data = right, .dtype = DType::kF32, .extents = {inner, columns}, .strides = {columns, 1}}};
    call = {.op = &op,
            .inputs = inputs,
            .output = result,
            .output_dtype = DType::kF32,
            .output_extents = {rows, columns},
            .output_strides = {columns, 1}};
  }
  Product(const Product&) = delete;
  LocalOp op = MatmulOp{};
  std::vector<KernelInput> inputs;
  KernelCall call;
};

// Another cuBLASLt than the one that is there.
class Library {
 public:
  explicit Library(const char* path) { setenv("TESSERA_CUBLASLT", path, 1); }
  ~Library() { unsetenv("TESSERA_CUBLASLT"); }
};

std::vector<float> Ones(size_t count) { return std::vector<float>(count, 1); }

TEST(CudaProducts, WithoutTheLibraryAreTheImagesAndItIsSaidOnce) {
  const Library library("/nowhere/libcublasLt.so.13");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const float* ones = gpu.Put(Ones(64));
    float* result = gpu.Put(std::vector<float>(64));
    const Product product(ones, ones, result, 8, 8, 8);
    for (int i = 0; i < 2; ++i) gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(result, 64), Each(8));
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("products are computed by the image's own kernels: no cuBLASLt: "
                                                    "/nowhere/libcublasLt.so.13")));
}

// 1 + 2^-12 is 1 in TF32.
TEST(CudaProducts, ReadFactorsWithAllBitsUnlessTf32IsAskedFor) {
  OneGpu gpu;
  constexpr float kFactor = 1 + 0x1p-12f;
  const float *factors = gpu.Put(std::vector<float>(64, kFactor)), *ones = gpu.Put(Ones(64));
  float* result = gpu.Put(std::vector<float>(64));
  Product product(factors, ones, result, 8, 8, 8);
  const auto multiply = [&] {
    gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    return gpu.Get(result, 64);
  };
  EXPECT_THAT(multiply(), Each(8 * kFactor));
  std::get<MatmulOp>(product.op).notation.precision = ProductPrecision::kTf32;
  // A GPU may have been given an algorithm that reads all bits.
  const Matcher<float> in_tf32 = TestDriver::Get().is_emulated() ? Matcher<float>(8) : AllOf(Ge(8), Le(8 * kFactor));
  EXPECT_THAT(multiply(), Each(in_tf32));
}

// As of another version.
TEST(CudaProducts, ALibraryThatLacksAFunctionIsNamedWithIt) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "another library of the emulated driver's";
  const Library library("tests/emulator/cuda/libcuda.so.1");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const float* ones = gpu.Put(Ones(64));
    float* result = gpu.Put(std::vector<float>(64));
    const Product product(ones, ones, result, 8, 8, 8);
    gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(result, 64), Each(8));
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("libcuda.so.1 has no cublasLtCreate")));
}

TEST(CudaProducts, WhatTheHeuristicRefusesIsTheImagesAndTheRestIsTheLibrarys) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "refuses what it is told to";
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const float* ones = gpu.Put(Ones(64));
    float *first = gpu.Put(std::vector<float>(64)), *second = gpu.Put(std::vector<float>(64));
    const Product refused(ones, ones, first, 8, 8, 8), known(ones, ones, second, 4, 8, 8);
    TestDriver::Get().Fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
    gpu.device().EnqueueRun(kCompute, KernelWork{refused.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    // This would fail if the library were called.
    TestDriver::Get().Fail("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
    gpu.device().EnqueueRun(kCompute, KernelWork{refused.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(first, 64), Each(8));
    gpu.device().EnqueueRun(kCompute, KernelWork{known.call, {}});
    EXPECT_THAT(std::string(gpu.Report(kCompute).message()), HasSubstr("cublasLtMatmul of f32 8 x 8 by 8 x 4"));
    gpu.device().EnqueueRun(kCompute, KernelWork{known.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(second, 32), Each(8));
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuBLASLt has no algorithm for f32 8 x 8 by 8 x 8, batch 1")));
}

TEST(CudaProducts, AnErrorThatIsNoAnswerIsAskedForAgain) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "fails when it is told to";
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const float* ones = gpu.Put(Ones(64));
    float* result = gpu.Put(std::vector<float>(64));
    const Product product(ones, ones, result, 8, 8, 8);
    TestDriver::Get().Fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_ALLOC_FAILED);
    gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    EXPECT_THAT(std::string(gpu.Report(kCompute).message()), HasSubstr("CUBLAS_STATUS_ALLOC_FAILED"));
    gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(result, 64), Each(8));
  }
  EXPECT_THAT(warnings.texts, IsEmpty());
}

TEST(CudaProducts, TheirWorkspaceIsTakenAtTheStart) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "fails when it is told to";
  const cuda::Gpu gpu = *cuda::Gpu::Open(*cuda::Driver::Load().value(), 0);
  TestDriver::Get().Fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const absl::Status status = cuda::CudaDevice::Prepare(gpu).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("33554432 bytes wanted"));
}

TEST(CudaProducts, OfStreamsThatNothingOrdersHaveAWorkspaceEach) {
  const TestDriver& driver = TestDriver::Get();
  OneGpu gpu;
  const float* ones = gpu.Put(Ones(64 * 64));
  float *first = gpu.Put(std::vector<float>(64)), *second = gpu.Put(std::vector<float>(64));
  const Product one(ones, ones, first, 8, 64, 8), other(ones, ones, second, 8, 64, 8);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    driver.Seed(seed);
    const size_t hazards = driver.Hazards().size();
    gpu.device().EnqueueRun(kCompute, KernelWork{one.call, {}});
    gpu.device().EnqueueRun(kExchange, KernelWork{other.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_EQ(gpu.Report(kExchange), absl::OkStatus());
    EXPECT_THAT(gpu.Get(first, 64), Each(64)) << seed;
    EXPECT_THAT(gpu.Get(second, 64), Each(64)) << seed;
    EXPECT_EQ(driver.Hazards().size(), hazards) << seed;
  }
}

// ---- a product and the sum with its bias

// left, rows x inner, by right, inner x columns, and the sum with `columns` of a bias.
struct Linear {
  Linear(const float* left, const float* right, const float* bias, float* of_product, float* result, int64_t rows,
         int64_t inner, int64_t columns)
      : product(left, right, of_product, rows, inner, columns) {
    product.call.output_readers = 1;
    terms = {{.data = of_product, .dtype = DType::kF32, .extents = {rows, columns}, .strides = {columns, 1}},
             {.data = bias, .dtype = DType::kF32, .extents = {columns}, .strides = {1}}};
    sum = product.call;
    sum.op = &op;
    sum.inputs = terms;
    sum.output = result;
    sum.output_readers = 0;
  }
  Linear(const Linear&) = delete;
  // Both at once: the device is idle before.
  void Enqueue(Device& device) {
    device.Drain();
    device.Hold();
    device.EnqueueRun(kCompute, KernelWork{product.call, {}});
    device.EnqueueRun(kCompute, KernelWork{sum, {}});
    device.Flush();
  }
  Product product;
  LocalOp op = MapOp{*ParseExpression("add:f32(in0:f32, in1:f32)")};
  std::vector<KernelInput> terms;
  KernelCall sum;
};

// The content of the product's memory before: where the library adds the bias, afterwards, too.
constexpr float kUntouched = -77;

class CudaBiases : public ::testing::Test {
 protected:
  // Thirds, which round.
  std::vector<float> Thirds(int64_t count, int factor) {
    std::vector<float> values;
    for (int64_t e = 0; e < count; ++e) values.push_back(static_cast<float>(e * factor % 23 - 11) / 3);
    return values;
  }
  std::unique_ptr<Linear> MakeLinear(int64_t rows, int64_t inner, int64_t columns) {
    results_ = static_cast<size_t>(rows * columns);
    of_product_ = gpu_.Put(std::vector<float>(results_, kUntouched));
    result_ = gpu_.Put(std::vector<float>(results_));
    return std::make_unique<Linear>(gpu_.Put(Thirds(rows * inner, 7)), gpu_.Put(Thirds(inner * columns, 5)),
                                    gpu_.Put(Thirds(columns, 3)), of_product_, result_, rows, inner, columns);
  }
  bool WasProductWritten() {
    const std::vector<float> values = gpu_.Get(of_product_, results_);
    const auto left = std::count(values.begin(), values.end(), kUntouched);
    EXPECT_TRUE(left == 0 || left == static_cast<std::ptrdiff_t>(results_)) << left;
    return left == 0;
  }
  std::vector<float> Run(Linear& linear) {
    linear.Enqueue(gpu_.device());
    EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
    return gpu_.Get(result_, results_);
  }
  // One after the other.
  std::vector<float> RunApart(Linear& linear) {
    linear.product.call.output_readers = 0;
    std::vector<float> values = Run(linear);
    EXPECT_TRUE(WasProductWritten());
    linear.product.call.output_readers = 1;
    gpu_.Upload(std::vector<float>(results_, kUntouched).data(), reinterpret_cast<std::byte*>(of_product_),
                static_cast<int64_t>(results_ * sizeof(float)));
    return values;
  }
  static bool IsEmulated() { return TestDriver::Get().is_emulated(); }

  OneGpu gpu_;
  size_t results_ = 0;
  float *of_product_ = nullptr, *result_ = nullptr;
};

TEST_F(CudaBiases, AreAddedByTheLibraryWithTheBitsOfASumOfTheirOwn) {
  int joined = 0;
  for (const auto& [m, k, n] : {std::tuple{4, 6, 8}, {1, 40, 16}, {33, 100, 18}, {5, 7, 3}, {3, 600, 1000}}) {
    for (const ProductPrecision precision : {ProductPrecision::kFull, ProductPrecision::kTf32}) {
      gpu_.Reset();
      const auto linear = MakeLinear(m, k, n);
      std::get<MatmulOp>(linear->product.op).notation.precision = precision;
      const std::vector<float> want = RunApart(*linear);
      EXPECT_EQ(Run(*linear), want) << m << "x" << k << "x" << n;
      const bool was_written = WasProductWritten();
      joined += was_written ? 0 : 1;
      if (IsEmulated()) {
        EXPECT_EQ(was_written, n % 2 != 0) << n;  // it refuses an odd number of columns
      }
    }
  }
  EXPECT_GT(joined, 0);
}

// Weights are copied to the workspace first, which grows.
TEST_F(CudaBiases, OfFactorsThatLieOtherwiseHaveTheSameBits) {
  constexpr int64_t kInner = 1100, kColumns = 500;  // 2.2 MB
  const auto linear = MakeLinear(2, kInner, kColumns);
  const std::vector<float> want = RunApart(*linear);
  const std::vector<float> weights = Thirds(kInner * kColumns, 5);
  std::vector<float> turned(weights.size());
  for (size_t i = 0; i < turned.size(); ++i) turned[i % kColumns * kInner + i / kColumns] = weights[i];
  linear->product.inputs[1].data = gpu_.Put(turned);
  linear->product.inputs[1].strides = {1, kInner};
  EXPECT_EQ(Run(*linear), want);
  if (IsEmulated()) {
    EXPECT_FALSE(WasProductWritten());
  }
}

TEST_F(CudaBiases, OfProductsThatOthersReadAreAddedBehindThem) {
  const auto linear = MakeLinear(4, 6, 8);
  const std::vector<float> want = RunApart(*linear);
  for (const int readers : {0, 2}) {
    linear->product.call.output_readers = readers;
    EXPECT_EQ(Run(*linear), want);
    EXPECT_TRUE(WasProductWritten()) << readers;
  }
}

TEST_F(CudaBiases, ThatTheAlgorithmDoesntAddAreAddedBehindIt) {
  if (!IsEmulated()) GTEST_SKIP() << "refuses what it is told to";
  // Each of a shape of its own, which hasn't been asked for.
  for (const auto& [call, inner] : {std::pair("cublasLtMatmulAlgoCheck", 6), std::pair("cublasLtMatmul", 10)}) {
    const auto linear = MakeLinear(4, inner, 8);
    const std::vector<float> want = RunApart(*linear);
    TestDriver::Get().Fail(call, 1, CUBLAS_STATUS_NOT_SUPPORTED);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Run(*linear), want) << call;
      EXPECT_TRUE(WasProductWritten()) << call;
    }
  }
}

TEST_F(CudaBiases, ThatAreNotThereYetArentWaitedFor) {
  const auto linear = MakeLinear(4, 6, 8);
  const std::vector<float> want = RunApart(*linear);
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->product.call, {}});
  EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
  EXPECT_TRUE(WasProductWritten());
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->sum, {}});
  EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
  EXPECT_EQ(gpu_.Get(result_, results_), want);
}

TEST_F(CudaBiases, BehindASignalAreNoPartOfTheProduct) {
  const auto linear = MakeLinear(4, 6, 8);
  const std::vector<float> want = RunApart(*linear);
  gpu_.device().Drain();
  gpu_.device().Hold();
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->product.call, {}});
  gpu_.device().EnqueueSignal(kCompute, 1);
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->sum, {}});
  gpu_.device().Flush();
  EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
  EXPECT_EQ(gpu_.Get(result_, results_), want);
  EXPECT_TRUE(WasProductWritten());
}

// A driver may wait for all streams in a call of the library, and what another stream stands at may need the loop.
TEST_F(CudaBiases, AreEnqueuedWhenNoStreamStandsStill) {
  const auto linear = MakeLinear(4, 14, 8);  // a shape of its own
  const std::vector<float> want = RunApart(*linear);
  for (int time = 0; time < 2; ++time) {  // not only where something has to be loaded
    ExpectAwaitsStreams(gpu_, [&] {
      gpu_.device().EnqueueRun(kCompute, KernelWork{linear->product.call, {}});
      gpu_.device().EnqueueRun(kCompute, KernelWork{linear->sum, {}});
    });
    EXPECT_EQ(gpu_.Get(result_, results_), want);
  }
}

TEST_F(CudaBiases, WhatBothTakeFromPeersIsCounted) {
  const auto linear = MakeLinear(4, 6, 8);
  int64_t first = 0, second = 0;
  const std::vector<ReceivedCount> of_product = {{&first, 40}}, of_sum = {{&first, 2}, {&second, 7}};
  gpu_.device().Drain();
  gpu_.device().Hold();
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->product.call, of_product});
  gpu_.device().EnqueueRun(kCompute, KernelWork{linear->sum, of_sum});
  gpu_.device().Flush();
  EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
  EXPECT_EQ(first, 42);
  EXPECT_EQ(second, 7);
  if (IsEmulated()) {
    EXPECT_FALSE(WasProductWritten());
  }
}

TEST_F(CudaBiases, AFailureIsReportedOnceAndWhatFollowsRuns) {
  if (!IsEmulated()) GTEST_SKIP() << "fails when it is told to";
  const auto linear = MakeLinear(4, 6, 8);
  const std::vector<float> want = RunApart(*linear);
  TestDriver::Get().Fail("cublasLtMatmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  linear->Enqueue(gpu_.device());
  EXPECT_THAT(std::string(gpu_.Report(kCompute).message()), HasSubstr("cublasLtMatmul of f32 8 x 6 by 6 x 4"));
  EXPECT_EQ(Run(*linear), want);
  EXPECT_FALSE(WasProductWritten());
}

// ---- hazards

enum class Written { kFactor, kBias };

// One stream writes an operand, another multiplies by it or has it for the product's bias, and the first writes it
// again. All is enqueued before anything runs.
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out, Written written) {
  const TestDriver& driver = TestDriver::Get();
  driver.Seed(seed);
  OneGpu gpu;
  const float *ones = gpu.Put(Ones(64)), *twos = gpu.Put(std::vector<float>(64, 2));
  float *operand = gpu.Put(std::vector<float>(64)), *result = gpu.Put(std::vector<float>(64));
  const Product product(operand, ones, result, 8, 8, 8);
  const Linear linear(ones, ones, operand, gpu.Put(std::vector<float>(64)), result, 8, 8, 8);
  const auto copy = [&](const float* from) {
    return CopyWork{.extents = {64},
                    .element_bytes = 4,
                    .source = from,
                    .source_strides = {1},
                    .destination = operand,
                    .destination_strides = {1}};
  };
  const auto multiply = [&] {
    if (written == Written::kFactor) return gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
    gpu.device().EnqueueRun(kCompute, KernelWork{linear.product.call, {}});
    gpu.device().EnqueueRun(kCompute, KernelWork{linear.sum, {}});
  };
  std::vector<std::string> hazards = FindHazards(gpu, {copy(ones), multiply, copy(twos)}, left_out);
  if (left_out == LeftOut::kNothing) {
    EXPECT_THAT(gpu.Get(result, 64), Each(written == Written::kFactor ? 8 : 9)) << seed;
  }
  return hazards;
}

TEST(CudaProductHazards, AnOrderedProductHasNone) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const Written written : {Written::kFactor, Written::kBias}) {
      for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing, written)) {
        ADD_FAILURE() << seed << ": " << hazard;
      }
    }
  }
}

TEST(CudaProductHazards, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const Written written : {Written::kFactor, Written::kBias}) {
      for (const LeftOut left_out : {LeftOut::kReadersWait, LeftOut::kWritersWait}) {
        EXPECT_THAT(FindHazards(seed, left_out, written), Contains(HasSubstr("product"))) << seed;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
