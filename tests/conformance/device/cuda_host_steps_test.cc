// Steps that a CUDA device computes on the host: in order with its stream, with bounded memory, and with its errors
// where they belong.

#include "server/device/cuda/host_steps.h"

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/device/device_arrays.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
// tests/emulator/cuda:libnvrtc_that_fails.so, from where tests run.
constexpr const char* kNvrtcThatFails = "tests/emulator/cuda/libnvrtc_that_fails.so";

LocalOp Parsed(const std::string& text) {
  absl::StatusOr<LocalOp> op = ParseLocalOp(text);
  EXPECT_TRUE(op.ok()) << text << ": " << op.status();
  return op.ok() ? *op : LocalOp(FillOp{});
}

// An op of f64 arrays of one shape.
struct Call {
  Call(const std::string& text, Shape shape, const double* input, double* result) : op(Parsed(text)) {
    inputs = {{.data = input, .dtype = DType::kF64, .extents = shape, .strides = RowMajorStrides(shape)}};
    call = {.op = &op,
            .inputs = inputs,
            .output = result,
            .output_dtype = DType::kF64,
            .output_extents = shape,
            .output_strides = RowMajorStrides(shape)};
    for (const int64_t extent : shape) call.output_box.push_back({0, extent});
  }
  Call(const Call&) = delete;
  LocalOp op;
  std::vector<KernelInput> inputs;
  KernelCall call;
};

CopyWork Copy(const double* from, double* to, int64_t count) {
  return {.extents = {count},
          .element_bytes = 8,
          .source = from,
          .source_strides = {1},
          .destination = to,
          .destination_strides = {1}};
}

// The device has waited for others: from then on a stream stands on the GPU at the gate of a host step.
void MeetOthers(OneGpu& gpu) {
  gpu.device().EnqueueAsync(kExchange, [](Device::Done done) { done(absl::OkStatus()); });
  EXPECT_EQ(gpu.Report(kExchange), absl::OkStatus());
}

// n rows of 4 on the diagonal.
std::vector<double> Fours(int64_t n) {
  std::vector<double> a(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) a[static_cast<size_t>(i * n + i)] = 4;
  return a;
}

// The process has another NVRTC than that of the machine; empty: its own.
class Nvrtc {
 public:
  explicit Nvrtc(const char* path) { setenv("TESSERA_NVRTC", path, 1); }
  ~Nvrtc() { unsetenv("TESSERA_NVRTC"); }
};

TEST(HostSteps, AnElementThatIsReadManyTimesIsInPinnedMemoryOnce) {
  const LocalOp op = Parsed("linalg(inv)");
  const KernelInput inputs[] = {
      {.dtype = DType::kF32, .extents = {5, 3, 3}, .strides = {0, 1, -3}},
      {.dtype = DType::kF32, .extents = {5, 3, 3}, .is_zero = true},
  };
  double output[1];
  const KernelCall call{.op = &op,
                        .inputs = inputs,
                        .output = output,
                        .output_dtype = DType::kF32,
                        .output_extents = {5, 3, 3},
                        .output_strides = {9, 3, 1}};
  EXPECT_EQ(cuda::HostStepBytes(call), 64 + 192);  // 36 and 180, each a multiple of 64
  alignas(64) std::byte memory[256];
  const auto step = cuda::MakeHostStep(call, memory);
  ASSERT_EQ(step->before.size(), 1u);
  EXPECT_THAT(step->before[0].extents, ElementsAre(1, 3, 3));
  EXPECT_THAT(step->call.inputs[0].strides, ElementsAre(0, 3, 1));
  ASSERT_EQ(step->after.size(), 1u);
  EXPECT_EQ(step->after[0].source, memory + 64);
  EXPECT_EQ(step->after[0].destination, output);
}

TEST(CudaHostSteps, AreInOrderWithTheirStream) {
  const TestDriver& driver = TestDriver::Get();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    driver.Seed(seed);
    const size_t hazards = driver.Hazards().size();
    OneGpu gpu;
    if (seed % 2 == 1) MeetOthers(gpu);
    const double* given = gpu.Put<double>({4, 0, 0, 9});
    double *x = gpu.Put<double>({1, 0, 0, 1}), *y = gpu.Put<double>({0, 0, 0, 0}), *z = gpu.Put<double>({0, 0, 0, 0});
    const Call first("linalg(cholesky)", {2, 2}, x, y), second("linalg(cholesky)", {2, 2}, y, x);
    gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
    gpu.device().EnqueueRun(kCompute, Copy(given, x, 4));
    gpu.device().EnqueueRun(kCompute, KernelWork{first.call, {}});
    gpu.device().EnqueueRun(kCompute, Copy(y, z, 4));
    gpu.device().EnqueueRun(kCompute, KernelWork{second.call, {}});
    gpu.device().EnqueueSignal(kExchange, 1);
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(z, 4), ElementsAre(2, 0, 0, 3)) << seed;
    EXPECT_THAT(gpu.Get(x, 4), ElementsAre(std::sqrt(2.0), 0, 0, std::sqrt(3.0))) << seed;
    EXPECT_EQ(driver.Hazards().size(), hazards);
  }
}

TEST(CudaHostSteps, AStreamThatStandsStillHoldsUpNoOther) {
  OneGpu gpu;
  const double* a = gpu.Put<double>({4, 0, 0, 9});
  double *y = gpu.Put<double>({0, 0, 0, 0}), *z = gpu.Put<double>({0, 0, 0, 0});
  const Call parked("linalg(cholesky)", {2, 2}, a, y), other("linalg(cholesky)", {2, 2}, a, z);
  gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
  gpu.device().EnqueueRun(kCompute, KernelWork{parked.call, {}});
  gpu.device().EnqueueRun(kExchange, KernelWork{other.call, {}});
  EXPECT_EQ(gpu.Report(kExchange), absl::OkStatus());
  EXPECT_THAT(gpu.Get(z, 4), ElementsAre(2, 0, 0, 3));
  EXPECT_THAT(gpu.Get(y, 4), ElementsAre(0, 0, 0, 0));
  gpu.device().EnqueueSignal(kExchange, 1);
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
  EXPECT_THAT(gpu.Get(y, 4), ElementsAre(2, 0, 0, 3));
}

TEST(CudaHostSteps, ADeviceEndsWithStepsUnderWay) {
  for (const bool has_met_others : {false, true}) {
    std::optional<Call> call;  // which outlives the items
    OneGpu gpu;
    if (has_met_others) MeetOthers(gpu);
    const double* a = gpu.Put(Fours(64));
    double* y = gpu.Put(Fours(64));
    call.emplace("linalg(cholesky)", Shape{64, 64}, a, y);
    for (int i = 0; i < 10; ++i) gpu.device().EnqueueRun(kCompute, KernelWork{call->call, {}});
    gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
    for (int i = 0; i < 10; ++i) gpu.device().EnqueueRun(kCompute, KernelWork{call->call, {}});
  }
}

TEST(CudaHostSteps, AnErrorIsOfItsOpAlone) {
  OneGpu gpu;
  const double *bad = gpu.Put<double>({-1, 0, 0, 9}), *good = gpu.Put<double>({4, 0, 0, 9});
  double* y = gpu.Put<double>({0, 0, 0, 0});
  const Call fails("linalg(cholesky)", {2, 2}, bad, y), works("linalg(cholesky)", {2, 2}, good, y);
  gpu.device().EnqueueRun(kCompute, KernelWork{fails.call, {}});
  const absl::Status status = gpu.Report(kCompute);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("cholesky"));
  gpu.device().EnqueueRun(kCompute, KernelWork{works.call, {}});
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
  EXPECT_THAT(gpu.Get(y, 4), ElementsAre(2, 0, 0, 3));
}

TEST(CudaHostSteps, WhatNeedsTooMuchMemoryOfTheHostSaysSo) {
  OneGpu gpu({.max_host_step_bytes = 1 << 20});
  const double* a = gpu.Put(Fours(300));
  double* y = gpu.Put(Fours(300));
  const Call large("linalg(cholesky)", {300, 300}, a, y), small("linalg(cholesky)", {1, 1}, a, y);
  gpu.device().EnqueueRun(kCompute, KernelWork{large.call, {}});
  const absl::Status status = gpu.Report(kCompute);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("linalg(cholesky): no kernel for a GPU"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs 1440000 bytes of pinned memory; 1048576 are allowed"));
  gpu.device().EnqueueRun(kCompute, KernelWork{small.call, {}});
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
}

TEST(CudaHostSteps, GrowWhileEarlierOnesAreUnderWay) {
  OneGpu gpu;
  MeetOthers(gpu);
  std::vector<double*> results;
  std::vector<std::unique_ptr<Call>> calls;
  gpu.device().EnqueueWait(kCompute, {WorkerIndex(0), kExchange, 1});
  for (const int64_t n : {2, 300, 3, 500}) {
    const double* a = gpu.Put(Fours(n));
    results.push_back(gpu.Put(Fours(n)));
    calls.push_back(std::make_unique<Call>("linalg(cholesky)", Shape{n, n}, a, results.back()));
    gpu.device().EnqueueRun(kCompute, KernelWork{calls.back()->call, {}});
  }
  gpu.device().EnqueueSignal(kExchange, 1);
  EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
  for (double* result : results) EXPECT_THAT(gpu.Get(result, 2), ElementsAre(2, 0));
}

class WithoutPrograms : public ::testing::TestWithParam<const char*> {};

// A map, and a reduction of one: computed on the host, and said once why.
TEST_P(WithoutPrograms, MapsAreComputedOnTheHost) {
  const Nvrtc nvrtc(GetParam());
  std::vector<std::string> warnings;
  {
    OneGpu gpu({.warn = [&](const absl::Status& why) { warnings.emplace_back(why.message()); }});
    const double* a = gpu.Put<double>({1, 2, 3, 4});
    double *y = gpu.Put<double>({0, 0, 0, 0}), *sum = gpu.Put<double>({0});
    const Call map("map(mul:f64(in0:f64, in0:f64))", {4}, a, y);
    Call reduction("reduce(sum; dims=[0]; map=mul:f64(in0:f64, in0:f64))", {4}, y, sum);
    reduction.call.output_extents = {1};
    reduction.call.output_box = {{0, 1}};
    gpu.device().EnqueueRun(kCompute, KernelWork{map.call, {}});
    gpu.device().EnqueueRun(kCompute, KernelWork{reduction.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(y, 4), ElementsAre(1, 4, 9, 16));
    EXPECT_THAT(gpu.Get(sum, 1), ElementsAre(1 + 16 + 81 + 256));
    // Over its own operand, as far as kernels may.
    const Call in_place("map(mul:f64(in0:f64, in0:f64))", {4}, y, y);
    gpu.device().EnqueueRun(kCompute, KernelWork{in_place.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(y, 4), ElementsAre(1, 16, 81, 256));
  }
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("is computed on the host: maps: "));
  EXPECT_THAT(warnings[0], HasSubstr(GetParam() == kNvrtcThatFails ? "this NVRTC compiles nothing" : GetParam()));
}
// Each a launch; nothing is loaded for one of the image. The results of both, one after the other.
std::vector<double> RunCommonMaps(int loads_of_each) {
  const TestDriver& driver = TestDriver::Get();
  std::vector<double> results;
  std::vector<std::string> warnings;
  {
    OneGpu gpu({.warn = [&](const absl::Status& why) { warnings.emplace_back(why.message()); }});
    const double *a = gpu.Put<double>({1, 2, -3, 0.7}), *b = gpu.Put<double>({0.1, 2, 1.5, 1e308});
    for (const char* text : {"map(add:f64(in0:f64, in1:f64))", "map(exp:f64(in0:f64))"}) {
      double* const y = gpu.Put<double>({0, 0, 0, 0});
      Call map(text, {4}, a, y);
      if (std::string(text).find("in1") != std::string::npos) {
        map.inputs.push_back(map.inputs[0]);
        map.inputs[1].data = b;
        map.call.inputs = map.inputs;
      }
      const int loads = driver.Calls("cuLibraryLoadData"), launches = driver.Calls("cuLaunchKernel");
      gpu.device().EnqueueRun(kCompute, KernelWork{map.call, {}});
      EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
      for (const double result : gpu.Get(y, 4)) results.push_back(result);
      if (!driver.is_emulated()) continue;
      EXPECT_EQ(driver.Calls("cuLaunchKernel") - launches, 1) << text;
      EXPECT_EQ(driver.Calls("cuLibraryLoadData") - loads, loads_of_each) << text;
    }
  }
  EXPECT_THAT(warnings, ElementsAre());
  return results;
}

TEST_P(WithoutPrograms, CommonMapsAreKernelsOfTheImageWithTheSameBits) {
  std::vector<double> of_image;
  {
    const Nvrtc nvrtc(GetParam());
    of_image = RunCommonMaps(0);
  }
  setenv("TESSERA_COMMON_MAPS", "none", 1);
  const std::vector<double> compiled = RunCommonMaps(1);
  unsetenv("TESSERA_COMMON_MAPS");
  EXPECT_EQ(of_image, compiled);
  EXPECT_EQ(of_image[2], -1.5);
}
INSTANTIATE_TEST_SUITE_P(Nvrtc, WithoutPrograms, ::testing::Values("/nowhere/libnvrtc.so", kNvrtcThatFails),
                         [](const auto& info) { return info.param == kNvrtcThatFails ? "Fails" : "IsMissing"; });

TEST(CudaHostSteps, AProgramThatTheDriverDoesntTakeIsComputedOnTheHost) {
  std::vector<std::string> warnings;
  {
    OneGpu gpu({.warn = [&](const absl::Status& why) { warnings.emplace_back(why.message()); }});
    const double* a = gpu.Put<double>({1, 2, 3, 4});
    double* y = gpu.Put<double>({0, 0, 0, 0});
    const Call map("map(add:f64(in0:f64, in0:f64))", {4}, a, y);
    TestDriver::Get().Fail("cuLibraryLoadData", 1, 222);  // PTX of a newer toolkit than the driver's
    gpu.device().EnqueueRun(kCompute, KernelWork{map.call, {}});
    EXPECT_EQ(gpu.Report(kCompute), absl::OkStatus());
    EXPECT_THAT(gpu.Get(y, 4), ElementsAre(2, 4, 6, 8));
  }
  if (!TestDriver::Get().is_emulated()) return;
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("cuLibraryLoadData")));
}

}  // namespace
}  // namespace tessera::testing
