// Prepared calls on a CUDA device: results, what a launch costs the host, and the driver's calls for an op.

#include <cstdio>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/host/monotonic_clock.h"
#include "schemas/ops/local_op.h"
#include "server/device/cuda/launcher.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/vector_forms.h"
#include "tests/emulator/cuda/test_driver.h"
#include "tests/support/allocation_counter.h"

namespace tessera::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute;
constexpr int64_t kCount = Form::kCount;

class CudaPrepared : public ::testing::Test {
 protected:
  std::vector<float> Run(const KernelWork& work) {
    gpu_.device().EnqueueRun(kCompute, work);
    EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
    return gpu_.Get(static_cast<const float*>(work.call.output), kCount);
  }
  float* Numbers(float first) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < kCount; ++i) numbers.push_back(first + static_cast<float>(i));
    return gpu_.Put(numbers);
  }
  float* Nothing() { return gpu_.Put(std::vector<float>(kCount, -77)); }

  OneGpu gpu_;
};

TEST_F(CudaPrepared, HaveTheResultsOfEachCallsOwnOperandsAndScalars) {
  Form form(MapOf("mul:f32(in0:f32, arg0:f32)"), 1);
  for (int time = 0; time < 6; ++time) {
    const float* from = Numbers(static_cast<float>(100 * time));
    form.scalars = {Scalar::Float(time + 0.5)};
    std::vector<float> want;
    for (int64_t i = 0; i < kCount; ++i) {
      want.push_back((static_cast<float>(100 * time) + static_cast<float>(i)) * (static_cast<float>(time) + 0.5F));
    }
    EXPECT_EQ(Run(form.At({from}, Nothing())), want) << time;
  }
}

TEST_F(CudaPrepared, OperandsThatShareBytesAreLaunchedAsTheyLie) {
  Form form(MapOf("sub:f32(in0:f32, in1:f32)"), 2);
  for (int time = 0; time < 4; ++time) {
    float* both = gpu_.Put(std::vector<float>(2 * kCount, 5));
    float* const less = Numbers(1);
    std::vector<float> want;
    for (int64_t i = 0; i < kCount; ++i) want.push_back(5 - static_cast<float>(1 + i));
    // Apart; then over an input, in place; then over a part of it.
    EXPECT_EQ(Run(form.At({both, less}, Nothing())), want) << time;
    EXPECT_EQ(Run(form.At({both, less}, both + 4)), want) << time;
    both = gpu_.Put(std::vector<float>(kCount, 5));
    EXPECT_EQ(Run(form.At({both, less}, both)), want) << time;
  }
}

TEST_F(CudaPrepared, ABadIndexIsThatOfItsCall) {
  const LocalOp gather = GatherOp{.dim = 0};
  std::vector<KernelInput> inputs(2);
  float* const to = Nothing();
  for (int64_t bad : {40, 50, 60, 70}) {
    const int64_t* const indices = gpu_.Put(std::vector<int64_t>{1, bad});
    inputs = {Form::VectorAt(Numbers(0)), {.data = indices, .dtype = DType::kI64, .extents = {2}, .strides = {1}}};
    gpu_.device().EnqueueRun(kCompute, KernelWork{.call = {.op = &gather,
                                                           .inputs = inputs,
                                                           .output = to,
                                                           .output_dtype = DType::kF32,
                                                           .output_extents = {2},
                                                           .output_strides = {1}},
                                                  .form = 3});
    EXPECT_THAT(std::string(gpu_.Report(kCompute).message()), ::testing::HasSubstr("index " + std::to_string(bad)));
  }
}

// A launch, and one call for all words.
TEST_F(CudaPrepared, AnOpIsTwoCallsOfTheDriver) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "the emulated driver counts its calls";
  Form form(MapOf("add:f32(in0:f32, in1:f32)"), 4);
  const KernelWork work = form.At({Numbers(0), Numbers(1)}, Nothing());
  for (int time = 0; time < 5; ++time) {
    gpu_.device().Drain();
    // While nothing passes for long, the loop asks whether the device still works.
    const auto calls = [&] { return driver.Calls() - driver.Calls("cuStreamQuery"); };
    const int before = calls();
    gpu_.device().EnqueueRun(kCompute, work);
    EXPECT_EQ(gpu_.Report(kCompute), absl::OkStatus());
    if (time < 2) continue;  // the map is compiled, and the call prepared
    EXPECT_EQ(calls() - before, 2) << time;
  }
}

// ---- what a launch costs the host

int launches = 0;
CUresult Launched(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**,
                  void**) {
  ++launches;
  return CUDA_SUCCESS;
}

// A launcher whose launches cost nothing.
class LaunchCost : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(TestDriver::Get().skip(), "");
    driver_ = **cuda::Driver::Load();
    driver_.LaunchKernel = Launched;
    gpu_ = *cuda::Gpu::Open(driver_, 0);
    launcher_ = *cuda::Launcher::Make(gpu_);
    ASSERT_EQ(driver_.StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
  void TearDown() override {
    if (stream_ != nullptr) driver_.StreamDestroy(stream_);
  }
  struct Cost {
    double ns = 0, allocations = 0, launches = 0;  // of a call
  };
  Cost CostOf(const DeviceWork& work) {
    const auto run = [&](int times) {
      for (int time = 0; time < times; ++time) {
        cuda::Launcher::Turn turn{.workspace = workspace_, .is_clear = true, .room = 1000};
        ASSERT_EQ(launcher_->Enqueue(stream_, work, turn), absl::OkStatus());
        if (turn.wants == cuda::Launcher::Wants::kMade) {
          turn.made->wait(false);
          --time;
          continue;
        }
        ASSERT_EQ(turn.wants, cuda::Launcher::Wants::kNothing);
      }
    };
    run(4);
    constexpr int kTimes = 2000;
    const int64_t allocations = AllocationCount(), start_ns = MonotonicNs();
    const int before = launches;
    run(kTimes);
    const auto each = [](int64_t all) { return static_cast<double>(all) / kTimes; };
    return {.ns = each(MonotonicNs() - start_ns),
            .allocations = each(AllocationCount() - allocations),
            .launches = each(launches - before)};
  }

  cuda::Driver driver_;
  cuda::Gpu gpu_;
  std::unique_ptr<cuda::Launcher> launcher_;
  CUstream stream_ = nullptr;
  cuda::StreamWorkspace workspace_;
};

// Addresses are numbers here.
float* At(uint64_t address) { return reinterpret_cast<float*>(address); }

TEST_F(LaunchCost, OfAPreparedCallIsNoAllocation) {
  struct Case {
    const char* what;
    Form form;
    size_t scalars = 0;
    int64_t outputs = kCount;
  };
  Case cases[] = {{"map", Form(MapOf("add:f32(in0:f32, in1:f32)"), 11)},
                  {"map with a scalar", Form(MapOf("add:f32(in0:f32, mul:f32(in1:f32, arg0:f32))"), 12), 1},
                  {"sum", Form(ReduceLocalOp{ReduceOp::kSum, {0}}, 13), 0, 1},
                  {"fill", Form(FillOp{}, 14), 1}};
  for (Case& one : cases) {
    std::vector<const float*> from = {At(0x100000), At(0x200000)};
    if (std::holds_alternative<ReduceLocalOp>(one.form.op)) from.pop_back();
    if (std::holds_alternative<FillOp>(one.form.op)) from.clear();
    one.form.scalars = std::vector<Scalar>(one.scalars, Scalar::Float(2));
    const KernelWork work = one.form.At(from, At(0x300000), one.outputs);
    KernelWork unknown = work;
    unknown.form = 0;
    const Cost direct = CostOf(unknown), prepared = CostOf(work);
    std::printf("%s: %.0f ns and %.1f allocations a call, prepared %.0f ns and %.1f\n", one.what, direct.ns,
                direct.allocations, prepared.ns, prepared.allocations);
    EXPECT_GT(direct.allocations, 0) << one.what;
    EXPECT_EQ(prepared.allocations, 0) << one.what;
    EXPECT_EQ(prepared.launches, 1) << one.what;
  }
}

}  // namespace
}  // namespace tessera::testing
