// Fourier transforms on a CUDA device: by cuFFT where it is and takes them, else on the host, and in order with all
// else.

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "schemas/ops/local_op.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using C64 = std::complex<float>;
using C128 = std::complex<double>;

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
// Values of cufftResult.
constexpr int kAllocFailed = 2, kExecFailed = 6, kSetupFailed = 7, kNotSupported = 16;

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, float>    ? DType::kF32
                           : std::is_same_v<T, double> ? DType::kF64
                           : std::is_same_v<T, C64>    ? DType::kC64
                                                       : DType::kC128;

template <typename T>
std::vector<T> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> number;
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      values.push_back(static_cast<T>(number(random)));
    } else {
      const double real = number(random);
      values.emplace_back(static_cast<typename T::value_type>(real),
                          static_cast<typename T::value_type>(number(random)));
    }
  }
  return values;
}

// Whole arrays, or every second row or element of a larger one.
enum class Lying : uint8_t { kDense, kColumns, kApart };

struct Of {
  FourierKind kind = FourierKind::kForward;
  Shape extents = {6, 12};
  int64_t dim = 1, length = 12;
  FourierScale scale = FourierScale::kNone;
  Lying input = Lying::kDense, output = Lying::kDense;
};

Strides StridesOf(const Shape& extents, Lying lying) {
  Strides strides = RowMajorStrides(extents);
  if (lying == Lying::kColumns) {
    int64_t stride = 1;
    for (size_t d = 0; d < extents.size(); ++d) strides[d] = std::exchange(stride, stride * extents[d]);
  }
  if (lying == Lying::kApart) {
    for (int64_t& stride : strides) stride *= 2;
  }
  return strides;
}

// A transform whose operands are on the host, and as the device has them.
template <typename From, typename To>
class Case {
 public:
  explicit Case(const Of& of, uint32_t seed = 1) {
    op_ = FourierOp{.kind = of.kind, .dim = of.dim, .length = of.length, .scale = of.scale};
    Shape given = of.extents;
    given[static_cast<size_t>(of.dim)] = std::get<FourierOp>(op_).given();
    values_ = Normal<From>(2 * 2 * NumElements(of.extents), seed);
    result_.resize(static_cast<size_t>(4 * NumElements(given)), To(777));
    inputs_ = {{.data = values_.data(),
                .dtype = kDTypeOf<From>,
                .extents = of.extents,
                .strides = StridesOf(of.extents, of.input)}};
    call_ = {.op = &op_,
             .inputs = inputs_,
             .output = result_.data(),
             .output_dtype = kDTypeOf<To>,
             .output_extents = given,
             .output_strides = StridesOf(given, of.output)};
  }
  std::vector<To> Want() {
    EXPECT_EQ(RunKernel(call_), absl::OkStatus());
    return result_;
  }
  // The call with memory of the device, which has the operands from here on.
  KernelCall& On(OneGpu& gpu) {
    gpu.Reset();
    on_device_ = inputs_;
    on_device_[0].data = gpu.Put(values_);
    there_ = call_;
    there_.inputs = on_device_;
    there_.output = gpu.Put(std::vector<To>(result_.size(), To(777)));
    return there_;
  }
  absl::StatusOr<std::vector<To>> Run(OneGpu& gpu) {
    KernelCall& there = On(gpu);
    gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
    if (absl::Status status = gpu.Report(kCompute); !status.ok()) return status;
    // The library may write over an operand, and nobody may see it.
    const std::vector<From> after = gpu.Get(static_cast<const From*>(on_device_[0].data), values_.size());
    EXPECT_EQ(std::memcmp(after.data(), values_.data(), values_.size() * sizeof(From)), 0) << "the input is another";
    return gpu.Get(static_cast<const To*>(there.output), result_.size());
  }
  const std::vector<From>& values() const { return values_; }

 private:
  LocalOp op_;
  std::vector<From> values_;
  std::vector<KernelInput> inputs_, on_device_;
  std::vector<To> result_;
  KernelCall call_, there_;
};

bool IsEmulated() { return TestDriver::Get().is_emulated(); }
int Calls(const char* function) { return TestDriver::Get().Calls(function); }

template <typename To>
void ExpectNear(const absl::StatusOr<std::vector<To>>& got, const std::vector<To>& want, const std::string& what = "") {
  ASSERT_TRUE(got.ok()) << what << ": " << got.status();
  const bool is_double = sizeof(To) == 16 || std::is_same_v<To, double>;
  double most = 1;
  for (const To& value : want) most = std::max<double>(most, value == To(777) ? 0 : std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs((*got)[i] - want[i]), (is_double ? 0x1p-44 : 0x1p-18) * most) << what << ", element " << i;
  }
}

// On a real GPU nothing can be said of calls.
template <typename From, typename To>
void ExpectByLibrary(OneGpu& gpu, const Of& of, int calls, const std::string& what) {
  Case<From, To> one(of);
  const int before = Calls("cufftXtExec");
  const absl::StatusOr<std::vector<To>> got = one.Run(gpu);
  if (IsEmulated()) {
    EXPECT_EQ(Calls("cufftXtExec") - before, calls) << what;
  }
  ExpectNear(got, one.Want(), what);
}

TEST(CudaTransforms, AreTheLibrarysInEveryLayout) {
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    ExpectByLibrary<C64, C64>(gpu, {}, 1, "rows");
    ExpectByLibrary<C64, C64>(gpu, {.kind = FourierKind::kBackward, .scale = FourierScale::kByLength}, 1, "backward");
    ExpectByLibrary<C128, C128>(gpu, {.scale = FourierScale::kByRoot}, 1, "doubles");
    ExpectByLibrary<float, C64>(gpu, {}, 1, "of real numbers");
    ExpectByLibrary<C64, C64>(gpu, {.extents = {12, 6}, .dim = 0}, 1, "columns");
    ExpectByLibrary<C64, C64>(gpu, {.extents = {3, 12, 5}}, 1, "a dim in the middle");
    ExpectByLibrary<C64, C64>(gpu, {.extents = {12}, .dim = 0}, 1, "a line");
    ExpectByLibrary<C64, C64>(gpu, {.length = 7}, 1, "cut");
    ExpectByLibrary<C64, C64>(gpu, {.length = 20, .scale = FourierScale::kByLength}, 1, "continued with zeros");
    ExpectByLibrary<C64, C64>(gpu, {.length = 1}, 1, "one element");
    for (const Lying input : {Lying::kDense, Lying::kColumns, Lying::kApart}) {
      for (const Lying output : {Lying::kDense, Lying::kColumns, Lying::kApart}) {
        for (const FourierScale scale : {FourierScale::kNone, FourierScale::kByRoot}) {
          const Of of{.extents = {3, 4, 10}, .dim = 2, .length = 10, .scale = scale, .input = input, .output = output};
          ExpectByLibrary<C64, C64>(gpu, of, 1, "complex");
          Of real = of;
          real.kind = FourierKind::kRealForward;
          ExpectByLibrary<float, C64>(gpu, real, 1, "real forward");
          ExpectByLibrary<double, C128>(gpu, real, 1, "real forward of doubles");
          real.kind = FourierKind::kRealBackward;
          ExpectByLibrary<C64, float>(gpu, real, 1, "real backward");
          ExpectByLibrary<C128, double>(gpu, real, 1, "real backward of doubles");
        }
      }
    }
    ExpectByLibrary<C64, C64>(gpu, {.extents = {0, 12}}, 0, "none");
  }
  if (IsEmulated()) {
    EXPECT_THAT(warnings.texts, IsEmpty());
  }
}

TEST(CudaTransforms, HaveTheSameBitsEachTimeAndOnePlan) {
  OneGpu gpu;
  Case<C64, C64> one(IsEmulated() ? Of{} : Of{.extents = {64, 1 << 12}, .length = 1 << 12});
  const std::vector<C64> first = *one.Run(gpu);
  const int made = Calls("cufftXtMakePlanMany"), taken = Calls("cuMemCreate");
  const int repeats = IsEmulated() ? 10 : 200;
  for (int i = 0; i < repeats; ++i) {
    const std::vector<C64> again = *one.Run(gpu);
    ASSERT_EQ(std::memcmp(again.data(), first.data(), first.size() * sizeof(C64)), 0) << i;
  }
  if (!IsEmulated()) return;
  EXPECT_EQ(Calls("cufftXtMakePlanMany"), made);
  EXPECT_EQ(Calls("cuMemCreate"), taken) << "memory is taken once";
}

// 64 are kept; the first is made again.
TEST(CudaTransforms, PlansThatAreNotUsedAreLetGoOf) {
  if (!IsEmulated()) GTEST_SKIP() << "calls are what the emulated driver counts";
  OneGpu gpu;
  const auto run = [&](int64_t lines) { ASSERT_TRUE((Case<C64, C64>({.extents = {lines, 12}}).Run(gpu)).ok()); };
  for (int64_t lines = 1; lines <= 64; ++lines) run(lines);
  const int made = Calls("cufftXtMakePlanMany");
  run(1);
  EXPECT_EQ(Calls("cufftXtMakePlanMany"), made);
  run(65);
  run(2);
  EXPECT_EQ(Calls("cufftXtMakePlanMany") - made, 2);
}

TEST(CudaTransforms, WithoutTheLibraryTheHostComputesAndItIsSaidOnce) {
  const Setting library("TESSERA_CUFFT", "/nowhere/libcufft.so.12");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    for (int i = 0; i < 2; ++i) {
      ExpectByLibrary<C64, C64>(gpu, {.scale = FourierScale::kByRoot}, 0, "complex");
      ExpectByLibrary<C64, float>(gpu, {.kind = FourierKind::kRealBackward}, 0, "real");
    }
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("Fourier transforms are computed on the host: "
                                                    "no libcufft.so.12: /nowhere/libcufft.so.12")));
}

TEST(CudaTransforms, ALibraryOfAnotherMajorVersionIsNamedWithIt) {
  if (!IsEmulated()) GTEST_SKIP() << "has the version that it has";
  const Setting version("TESSERA_EMULATOR_CUFFT_VERSION", "11303");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    ExpectByLibrary<C64, C64>(gpu, {}, 0, "complex");
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuFFT is of version 11303, and one of 12.* is needed")));
}

// The library is there, and each call of it may fail: the host computes then, and the next one is asked for again.
TEST(CudaTransforms, WhereTheLibraryFailsTheHostComputes) {
  if (!IsEmulated()) GTEST_SKIP() << "fails when it is told to";
  for (const auto& [call, result, name] : std::vector<std::tuple<const char*, int, const char*>>{
           {"cufftCreate", kSetupFailed, "cufftCreate: CUFFT_SETUP_FAILED (7)"},
           {"cufftSetAutoAllocation", kSetupFailed, "cufftSetAutoAllocation: CUFFT_SETUP_FAILED (7)"},
           {"cufftXtMakePlanMany", kAllocFailed, "cufftXtMakePlanMany: CUFFT_ALLOC_FAILED (2)"},
           {"cufftSetStream", kSetupFailed, "cufftSetStream: CUFFT_SETUP_FAILED (7)"},
           {"cufftSetWorkArea", kSetupFailed, "cufftSetWorkArea: CUFFT_SETUP_FAILED (7)"},
           {"cufftXtExec", kExecFailed, "cufftXtExec: CUFFT_EXEC_FAILED (6)"}}) {
    Warnings warnings;
    {
      OneGpu gpu(warnings.Options());
      // The plan is asked for as the turn is looked at, and again as it runs.
      TestDriver::Get().Fail(call, 1, result);
      Case<C64, C64> one({.extents = {3, 12}, .scale = FourierScale::kByLength});
      ExpectNear(one.Run(gpu), one.Want(), call);
      ExpectByLibrary<C64, C64>(gpu, {.extents = {3, 12}}, 1, std::string(call) + ", afterwards");
    }
    EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr(name)));
  }
}

TEST(CudaTransforms, WhatTheLibraryRefusesItIsntAskedForAgain) {
  if (!IsEmulated()) GTEST_SKIP() << "refuses what it is told to";
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    TestDriver::Get().Fail("cufftXtMakePlanMany", 1, kNotSupported);
    for (int i = 0; i < 2; ++i) ExpectByLibrary<C64, C64>(gpu, {}, 0, "refused");
    ExpectByLibrary<C64, C64>(gpu, {.extents = {5, 12}}, 1, "another");
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("CUFFT_NOT_SUPPORTED (16), for 6 transforms of 12 complex")));
}

// 512 MiB may be had: of six lines each wants 200.
TEST(CudaTransforms, ACallThatWantsMoreMemoryThanItMayHaveIsCut) {
  if (!IsEmulated()) GTEST_SKIP() << "wants what it is told to";
  const Setting workspace("TESSERA_EMULATOR_CUFFT_WORKSPACE", "209715200");
  OneGpu gpu;
  ExpectByLibrary<C64, C64>(gpu, {}, 4, "halves of halves: 1 and 2 lines, twice");
  // Real lines of an odd number of elements begin at an odd one: two stay together, and one is over.
  ExpectByLibrary<float, C64>(gpu, {.kind = FourierKind::kRealForward, .extents = {5, 9}, .length = 9}, 3,
                              "real numbers");
}

TEST(CudaTransforms, ALineThatWantsTooMuchIsTheHosts) {
  if (!IsEmulated()) GTEST_SKIP() << "wants what it is told to";
  const Setting workspace("TESSERA_EMULATOR_CUFFT_WORKSPACE", "629145600");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    ExpectByLibrary<C64, C64>(gpu, {}, 0, "600 MiB a line");
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuFFT wants 629145600 bytes of memory, and may have 536870912")));
}

// A driver may wait for all streams in a call of the library, and what another stream stands at may need the loop.
TEST(CudaTransforms, CallsAreEnqueuedWhenNoStreamStandsStill) {
  OneGpu gpu;
  Case<C64, C64> other({.extents = {5, 12}}), one({.extents = {7, 12}});
  EXPECT_TRUE(other.Run(gpu).ok());  // its memory is there
  const KernelCall& there = one.On(gpu);
  for (int time = 0; time < 2; ++time) {  // not only where a plan has to be made
    ExpectAwaitsStreams(
        gpu,
        [&] {
          gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
        },
        "cufftXtMakePlanMany");
  }
}

TEST(CudaTransforms, APlanThatTakesLongHoldsUpNoLightOp) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "a library that takes as long as it is told to";
  OneGpu gpu;
  Case<C64, C64> one({});
  const KernelCall& there = one.On(gpu);
  ExpectHoldsUpNoLightOp(gpu, "cufftXtMakePlanMany", [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); });
}

// ---- hazards

// One stream writes the input, another transforms it, and the first writes it again. All is enqueued before anything
// runs.
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out) {
  TestDriver::Get().Seed(seed);
  OneGpu gpu;
  Case<C64, C64> one({});
  const KernelCall& there = one.On(gpu);
  const C64* from = gpu.Put(one.values());
  const CopyWork copy{.extents = {NumElements(there.inputs[0].extents)},
                      .element_bytes = 8,
                      .source = from,
                      .source_strides = {1},
                      .destination = const_cast<void*>(there.inputs[0].data),
                      .destination_strides = {1}};
  const auto run = [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); };
  return FindHazards(gpu, {copy, run, copy}, left_out);
}

TEST(CudaTransforms, OrderedTransformsHaveNoHazardsAndEachWaitThatIsLeftOutIsFound) {
  if (!IsEmulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing)) ADD_FAILURE() << seed << ": " << hazard;
    for (const LeftOut left_out : {LeftOut::kReadersWait, LeftOut::kWritersWait}) {
      EXPECT_THAT(FindHazards(seed, left_out), Contains(HasSubstr("cufft"))) << seed;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
