// Products of matrices on a CUDA device: by cuBLASLt where it is, else by the image's kernels, and in order with all
// else.

#include "server/device/cuda/products.h"

#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/device/device_arrays.h"
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

struct Warnings {
  cuda::CudaDeviceOptions Options() {
    return {.warn = [this](const absl::Status& why) { texts.emplace_back(why.message()); }};
  }
  std::vector<std::string> texts;
};

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
    // What would fail if the library were called.
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

enum class LeftOut { kNothing, kProductsWait, kWritersWait };

// One stream writes an operand, another multiplies by it, and the first writes it again. All is enqueued before
// anything runs.
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out) {
  const TestDriver& driver = TestDriver::Get();
  driver.Seed(seed);
  OneGpu gpu;
  const float *ones = gpu.Put(Ones(64)), *twos = gpu.Put(std::vector<float>(64, 2));
  float *operand = gpu.Put(std::vector<float>(64)), *result = gpu.Put(std::vector<float>(64));
  const Product product(operand, ones, result, 8, 8, 8);
  const auto copy = [&](const float* from) {
    return CopyWork{.extents = {64},
                    .element_bytes = 4,
                    .source = from,
                    .source_strides = {1},
                    .destination = operand,
                    .destination_strides = {1}};
  };
  gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});  // what is made once is made
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
  gpu.device().Drain();
  const size_t before = driver.Hazards().size();
  driver.Hold();
  gpu.device().EnqueueRun(kExchange, copy(ones));
  gpu.device().EnqueueSignal(kExchange, 1);
  if (left_out != LeftOut::kProductsWait) gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
  gpu.device().EnqueueRun(kCompute, KernelWork{product.call, {}});
  gpu.device().EnqueueSignal(kCompute, 1);
  if (left_out != LeftOut::kWritersWait) gpu.device().EnqueueWait(kExchange, {WorkerIndex(0), kCompute, 1});
  gpu.device().EnqueueRun(kExchange, copy(twos));
  std::promise<void> done[2];
  size_t reported = 0;
  for (const StreamId stream : {kCompute, kExchange}) {
    gpu.device().EnqueueReport(stream, [&done, n = reported++](absl::Status status, const RunTimes&) {
      EXPECT_EQ(status, absl::OkStatus());
      done[n].set_value();
    });
  }
  // Two copies, the product, two signals and two reports; and two to a wait, as the host looks before it.
  const int queued = left_out == LeftOut::kNothing ? 11 : 9;
  while (driver.Queued() < queued) std::this_thread::yield();
  driver.Release();
  for (std::promise<void>& one : done) one.get_future().get();
  if (left_out == LeftOut::kNothing) {
    EXPECT_THAT(gpu.Get(result, 64), Each(8)) << seed;
  }
  std::vector<std::string> hazards = driver.Hazards();
  hazards.erase(hazards.begin(), hazards.begin() + static_cast<std::ptrdiff_t>(before));
  return hazards;
}

TEST(CudaProductHazards, AnOrderedProductHasNone) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing)) ADD_FAILURE() << seed << ": " << hazard;
  }
}

TEST(CudaProductHazards, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(FindHazards(seed, LeftOut::kProductsWait), Contains(HasSubstr("product"))) << seed;
    EXPECT_THAT(FindHazards(seed, LeftOut::kWritersWait), Contains(HasSubstr("product"))) << seed;
  }
}

}  // namespace
}  // namespace tessera::testing
