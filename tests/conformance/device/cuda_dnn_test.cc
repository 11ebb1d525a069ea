// Attentions and convolutions on a CUDA device: by cuDNN where it is and takes them, else by the image's kernels, and
// in order with all else.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernel.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/half.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr StreamId kCompute = StreamId::kCompute, kExchange = StreamId::kExchange;
constexpr int kNotSupported = 3000, kExecutionFailed = 5000;  // of cudnnStatus_t

template <typename T>
std::vector<T> Normal(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> number;
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(number(random)));
  return values;
}

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kF32
                           : std::is_same_v<T, F16> ? DType::kF16
                                                    : DType::kBF16;

// A call whose operands are on the host, and as the device has them.
template <typename T>
class Case {
 public:
  void Add(const Shape& extents, uint32_t seed) {
    values_.push_back(Normal<T>(NumElements(extents), seed));
    AddInput(values_.back().data(), kDTypeOf<T>, extents);
  }
  // With one more batch dim, of so many elements that are all the same.
  void AddShared(const Shape& extents, int64_t sharing, uint32_t seed) {
    Add(extents, seed);
    if (sharing == 1) return;
    KernelInput& input = inputs_.back();
    const auto dim = static_cast<ptrdiff_t>(extents.size() - 2);
    input.extents.insert(input.extents.begin() + dim, sharing);
    input.strides.insert(input.strides.begin() + dim, 0);
  }
  void AddMask(const Shape& extents) { AddFloats(Normal<float>(NumElements(extents), 9), extents); }
  void AddValues(std::vector<T> values, const Shape& extents) {
    values_.push_back(std::move(values));
    AddInput(values_.back().data(), kDTypeOf<T>, extents);
  }
  // Behind all values.
  void AddFloats(std::vector<float> floats, const Shape& extents) {
    floats_.push_back(std::move(floats));
    AddInput(floats_.back().data(), DType::kF32, extents);
  }
  void SetResult(LocalOp op, const Shape& extents, int64_t first_row = 0) {
    op_ = std::move(op);
    result_.resize(static_cast<size_t>(NumElements(extents)));
    call_ = {.op = &op_,
             .inputs = inputs_,
             .output = result_.data(),
             .output_dtype = kDTypeOf<T>,
             .output_extents = extents,
             .output_strides = RowMajorStrides(extents)};
    for (const int64_t extent : extents) call_.output_box.push_back({0, extent});
    call_.output_box[extents.size() - 2].start += first_row;
    call_.output_box[extents.size() - 2].stop += first_row;
    if (std::holds_alternative<AttentionOp>(op_) || std::holds_alternative<AttentionGradientsOp>(op_)) {
      call_.scalars = scale_;
    }
  }
  // By the CPU.
  std::vector<T> Want() {
    EXPECT_EQ(RunKernel(call_), absl::OkStatus());
    return result_;
  }
  // The call with memory of the device, which has the operands from here on.
  KernelCall& On(OneGpu& gpu) {
    gpu.Reset();
    on_device_ = inputs_;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (i < values_.size()) {
        on_device_[i].data = gpu.Put(values_[i]);
      } else {
        on_device_[i].data = gpu.Put(floats_[i - values_.size()]);
      }
    }
    there_ = call_;
    there_.inputs = on_device_;
    there_.output = gpu.Put(std::vector<T>(result_.size(), T(777)));
    return there_;
  }
  // An attention's call for the logarithms of its rows, with the operands of `attention`.
  KernelCall LogarithmsOf(const KernelCall& attention, float* output) {
    const auto& op = std::get<AttentionOp>(op_);
    logarithms_ = AttentionLogarithmsOp{.is_causal = op.is_causal};
    of_logarithms_.assign(attention.inputs.begin(), attention.inputs.end());
    of_logarithms_.erase(of_logarithms_.begin() + 2);
    KernelCall call = attention;
    call.op = &logarithms_;
    call.inputs = of_logarithms_;
    call.output = output;
    call.output_dtype = DType::kF32;
    call.output_extents.pop_back();
    call.output_strides = RowMajorStrides(call.output_extents);
    call.output_box.pop_back();
    return call;
  }
  std::vector<float> WantLogarithms() {
    std::vector<float> logarithms(result_.size() / static_cast<size_t>(call_.output_extents.back()));
    EXPECT_EQ(RunKernel(LogarithmsOf(call_, logarithms.data())), absl::OkStatus());
    return logarithms;
  }
  absl::StatusOr<std::vector<T>> Run(OneGpu& gpu) {
    KernelCall& there = On(gpu);
    gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
    if (absl::Status status = gpu.Report(kCompute); !status.ok()) return status;
    return gpu.Get(static_cast<const T*>(there.output), result_.size());
  }

 private:
  void AddInput(const void* data, DType dtype, const Shape& extents) {
    inputs_.push_back({.data = data, .dtype = dtype, .extents = extents, .strides = RowMajorStrides(extents)});
  }
  LocalOp op_;
  std::vector<std::vector<T>> values_;
  std::vector<std::vector<float>> floats_;
  std::vector<KernelInput> inputs_, on_device_, of_logarithms_;
  LocalOp logarithms_;
  std::vector<T> result_;
  const std::vector<Scalar> scale_ = {Scalar::Float(0.25)};
  KernelCall call_, there_;
};

struct Attention {
  int64_t batch = 2, heads = 3, rows = 20, keys = 24, features = 16, values = 8;
  bool is_causal = false, has_mask = false;
  int64_t first_row = 0;
  int64_t sharing = 1;  // so many heads of queries for each
  Shape OfQueries(int64_t count, int64_t width) const {
    return sharing == 1 ? Shape{batch, heads, count, width} : Shape{batch, heads, sharing, count, width};
  }
  Shape mask = {};  // empty: one for all heads
  Shape OfMask() const {
    if (!mask.empty()) return mask;
    return sharing == 1 ? Shape{batch, 1, rows, keys} : Shape{batch, 1, 1, rows, keys};
  }
};
template <typename T>
std::unique_ptr<Case<T>> MakeCase(const Attention& of) {
  auto made = std::make_unique<Case<T>>();
  made->Add(of.OfQueries(of.rows, of.features), 1);
  made->AddShared({of.batch, of.heads, of.keys, of.features}, of.sharing, 2);
  made->AddShared({of.batch, of.heads, of.keys, of.values}, of.sharing, 3);
  if (of.has_mask) made->AddMask(of.OfMask());
  made->SetResult(AttentionOp{.is_causal = of.is_causal}, of.OfQueries(of.rows, of.values), of.first_row);
  return made;
}

// The gradients of such an attention, whose rows are the first ones. Its result and their logarithms may be known.
struct AttentionGradients {
  Attention attention = {};
  bool has_result = false;
};
template <typename T>
std::unique_ptr<Case<T>> MakeCase(const AttentionGradients& gradients) {
  const Attention& of = gradients.attention;
  const Shape mask = of.OfQueries(of.rows, of.keys);
  auto made = std::make_unique<Case<T>>();
  made->Add(of.OfQueries(of.rows, of.values), 4);
  made->Add(of.OfQueries(of.rows, of.features), 1);
  made->Add({of.batch, of.heads, of.keys, of.features}, 2);
  made->Add({of.batch, of.heads, of.keys, of.values}, 3);
  if (gradients.has_result) {
    Attention computed = of;
    computed.mask = mask;
    const auto attention = MakeCase<T>(computed);
    Shape rows = mask;
    rows.pop_back();
    made->AddValues(attention->Want(), of.OfQueries(of.rows, of.values));
    made->AddFloats(attention->WantLogarithms(), rows);
  }
  if (of.has_mask) made->AddMask(mask);
  const int64_t of_queries = of.sharing * of.rows * of.features;
  made->SetResult(AttentionGradientsOp{.is_causal = of.is_causal, .has_result = gradients.has_result},
                  {of.batch, of.heads, of_queries + of.keys * (of.features + of.values)});
  return made;
}

struct Convolution {
  Shape x = {4, 6, 9, 11}, weight = {8, 6, 3, 3};
  std::vector<int64_t> stride = {1, 1}, padding = {1, 1}, dilation = {1, 1};
  int64_t groups = 1;
};
template <typename T>
std::unique_ptr<Case<T>> MakeCase(const Convolution& of) {
  auto made = std::make_unique<Case<T>>();
  made->Add(of.x, 1);
  made->Add(of.weight, 2);
  const ConvOp op{.windows = {.stride = of.stride, .padding = of.padding, .dilation = of.dilation},
                  .groups = of.groups};
  made->SetResult(op, ConvOutput(op, of.x, of.weight).value());
  return made;
}

// The gradient of x, or of the weight, of such a convolution.
struct Gradient {
  ConvOperand of = ConvOperand::kX;
  Convolution convolution = {};
};
template <typename T>
std::unique_ptr<Case<T>> MakeCase(const Gradient& gradient) {
  auto made = std::make_unique<Case<T>>();
  const Convolution& of = gradient.convolution;
  const Windows windows = {.stride = of.stride, .padding = of.padding, .dilation = of.dilation};
  const bool is_of_x = gradient.of == ConvOperand::kX;
  made->Add(ConvOutput({windows, of.groups}, of.x, of.weight).value(), 1);
  made->Add(is_of_x ? of.weight : of.x, 2);
  made->SetResult(ConvGradientOp{.of = gradient.of, .windows = windows, .groups = of.groups},
                  is_of_x ? of.x : of.weight);
  return made;
}

// Results are rounded once or twice to their dtype, and their sums begin anywhere.
template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<T>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double most = 0;
  for (const T& one : want) most = std::max(most, std::abs(static_cast<double>(static_cast<float>(one))));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<float>(got[i]), static_cast<float>(want[i]), tolerance * most) << i;
  }
}
template <typename T>
constexpr double kTolerance = std::is_same_v<T, BF16>  ? 0x1p-6
                              : std::is_same_v<T, F16> ? 0x1p-9
                                                       : 0x1p-20;

// How many executions of the library a body makes; nothing can be said of a real one.
template <typename Body>
int ExecutionsOf(Body body) {
  const int before = TestDriver::Get().Calls("cudnnBackendExecute");
  body();
  return TestDriver::Get().Calls("cudnnBackendExecute") - before;
}
bool IsEmulated() { return TestDriver::Get().is_emulated(); }

// A real library may have no plan for shapes as small as these: it is said which.
void ExpectNoneButOfARealLibrary(const Warnings& warnings) {
  for (const std::string& text : warnings.texts) std::fprintf(stderr, "%s\n", text.c_str());
  if (!IsEmulated()) return;
  EXPECT_THAT(warnings.texts, IsEmpty());
}

class CudaDnn : public ::testing::Test {
 protected:
  const Setting least_{"TESSERA_CUDNN_LEAST", "0"};
};

template <typename T, typename Of>
void ExpectByLibrary(OneGpu& gpu, const Of& of, const char* what, int wanted = 1) {
  const auto one = MakeCase<T>(of);
  absl::StatusOr<std::vector<T>> got = absl::UnknownError("");
  const int executions = ExecutionsOf([&] { got = one->Run(gpu); });
  ASSERT_TRUE(got.ok()) << what << ": " << got.status();
  if (IsEmulated()) {
    EXPECT_EQ(executions, wanted) << what;
  }
  ExpectNear<T>(*got, one->Want(), kTolerance<T>);
}

std::vector<uint16_t> BitsOf(const std::vector<BF16>& values) {
  std::vector<uint16_t> bits;
  for (const BF16& value : values) bits.push_back(std::bit_cast<uint16_t>(value));
  return bits;
}

TEST_F(CudaDnn, AttentionsAreTheLibrarys) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  ExpectByLibrary<BF16>(gpu, Attention{}, "plain");
  ExpectByLibrary<F16>(gpu, Attention{}, "f16");
  ExpectByLibrary<BF16>(gpu, Attention{.rows = 24, .is_causal = true}, "causal");
  ExpectByLibrary<BF16>(gpu, Attention{.is_causal = true, .first_row = 4}, "rows in the middle");
  ExpectByLibrary<BF16>(gpu, Attention{.has_mask = true}, "with a mask");
  ExpectByLibrary<F16>(gpu, Attention{.rows = 24, .is_causal = true, .has_mask = true}, "causal with a mask");
  ExpectByLibrary<BF16>(gpu, Attention{.is_causal = true, .has_mask = true, .sharing = 4}, "heads that share keys");
  ExpectByLibrary<F16>(gpu, Attention{.heads = 1, .sharing = 2}, "two heads that share all keys");
  ExpectNoneButOfARealLibrary(warnings);
}

// The attention once more, and the gradients.
TEST_F(CudaDnn, SoAreAttentionsGradients) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  const auto expect = [&](const Attention& of, auto type, const char* what) {
    ExpectByLibrary<decltype(type)>(gpu, AttentionGradients{of}, what, 2);
  };
  expect({}, BF16{}, "plain");
  expect({}, F16{}, "f16");
  expect({.rows = 24, .is_causal = true}, BF16{}, "causal");
  expect({.has_mask = true}, BF16{}, "with a mask");
  expect({.rows = 24, .is_causal = true, .has_mask = true}, F16{}, "causal with a mask");
  expect({.is_causal = true, .has_mask = true, .sharing = 4}, BF16{}, "heads that share keys");
  expect({.batch = 1, .heads = 1, .sharing = 2}, F16{}, "two heads that share all keys");
  ExpectNoneButOfARealLibrary(warnings);
}

TEST_F(CudaDnn, AnAttentionAndItsLogarithmsAreOneCall) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  const auto expect = [&](const Attention& of, auto type, const char* what, int wanted = 1) {
    using T = decltype(type);
    const auto one = MakeCase<T>(of);
    const std::vector<float> rows = one->WantLogarithms();
    const KernelCall& attention = one->On(gpu);
    float* const at = gpu.Put(std::vector<float>(rows.size(), 777));
    const KernelCall logarithms = one->LogarithmsOf(attention, at);
    absl::Status status;
    const int executions = ExecutionsOf([&] {
      gpu.device().Hold();
      gpu.device().EnqueueRun(kCompute, KernelWork{attention, {}});
      gpu.device().EnqueueRun(kCompute, KernelWork{logarithms, {}});
      gpu.device().Flush();
      status = gpu.Report(kCompute);
    });
    ASSERT_TRUE(status.ok()) << what << ": " << status;
    if (IsEmulated()) {
      EXPECT_EQ(executions, wanted) << what;
    }
    const std::vector<T> want = one->Want();
    ExpectNear<T>(gpu.Get(static_cast<const T*>(attention.output), want.size()), want, kTolerance<T>);
    ExpectNear<float>(gpu.Get(at, rows.size()), rows, 0x1p-12);
  };
  expect({}, BF16{}, "plain");
  expect({.rows = 24, .is_causal = true, .has_mask = true}, F16{}, "causal with a mask");
  expect({.is_causal = true, .first_row = 4}, BF16{}, "rows in the middle");
  expect({.is_causal = true, .has_mask = true, .sharing = 4}, BF16{}, "heads that share keys");
  expect({}, float{}, "the image's", 0);
  ExpectNoneButOfARealLibrary(warnings);
}

TEST_F(CudaDnn, GradientsOfAKnownResultAreOneCall) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  const auto expect = [&](const Attention& of, auto type, const char* what, int wanted = 1) {
    ExpectByLibrary<decltype(type)>(gpu, AttentionGradients{of, true}, what, wanted);
  };
  expect({}, BF16{}, "plain");
  expect({.rows = 24, .is_causal = true, .has_mask = true}, F16{}, "causal with a mask");
  expect({.is_causal = true, .has_mask = true, .sharing = 4}, BF16{}, "heads that share keys");
  expect({.batch = 1, .heads = 1, .sharing = 2}, F16{}, "two heads that share all keys");
  expect({.is_causal = true, .has_mask = true}, float{}, "of products", 0);
  ExpectNoneButOfARealLibrary(warnings);
}

TEST_F(CudaDnn, AttentionsGradientsAreOfProductsWhereTheLibraryDoesntTakeThem) {
  OneGpu gpu;
  const auto expect = [&](const Attention& of, auto type, const char* what) {
    ExpectByLibrary<decltype(type)>(gpu, AttentionGradients{of}, what, 0);
  };
  expect({}, float{}, "f32");
  expect({.is_causal = true, .has_mask = true}, float{}, "f32, causal with a mask");
  expect({.features = 20, .is_causal = true}, BF16{}, "features");
  expect({.rows = 3, .has_mask = true}, F16{}, "few rows");
  expect({.is_causal = true, .has_mask = true, .sharing = 3}, float{}, "f32, heads that share keys");
}

TEST_F(CudaDnn, AttentionsGradientsHaveTheSameBitsEachTime) {
  OneGpu gpu;
  // This gives all of a real GPU work.
  const Attention large{.heads = 16, .rows = 1024, .keys = 1024, .features = 64, .values = 64, .is_causal = true};
  const auto one = MakeCase<BF16>(AttentionGradients{IsEmulated() ? Attention{} : large});
  const auto bits = [&] { return BitsOf(*one->Run(gpu)); };
  const std::vector<uint16_t> first = bits();
  const int repeats = IsEmulated() ? 5 : 200;
  for (int i = 0; i < repeats; ++i) ASSERT_EQ(bits(), first);
}

// 256 MiB may be had: of four heads that want 100 each, a call has two.
TEST_F(CudaDnn, AttentionsGradientsAreCutAlongHeads) {
  if (!IsEmulated()) GTEST_SKIP() << "wants what it is told to";
  const Setting workspace("TESSERA_EMULATOR_CUDNN_WORKSPACE", "104857600");
  OneGpu gpu;
  ExpectByLibrary<BF16>(gpu, AttentionGradients{{.batch = 1, .heads = 4, .has_mask = true}}, "cut", 4);
  const Attention shared{.batch = 1, .heads = 2, .has_mask = true, .sharing = 2};
  ExpectByLibrary<BF16>(gpu, AttentionGradients{shared}, "cut where queries share keys", 4);
}

// Where one of both calls has no plan, neither is the library's.
TEST_F(CudaDnn, AnOldLibraryIsAskedForGradientsOfWholeBlocksOfKeysAlone) {
  if (!IsEmulated()) GTEST_SKIP() << "has the version that it has";
  const Setting version("TESSERA_EMULATOR_CUDNN_VERSION", "91400");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    ExpectByLibrary<BF16>(gpu, AttentionGradients{{.batch = 1, .heads = 1, .keys = 128}}, "whole blocks", 2);
    ExpectByLibrary<BF16>(gpu, AttentionGradients{}, "24 keys", 0);
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuDNN is of version 91400, and its plans are right from 91501")));
}

TEST_F(CudaDnn, ConvolutionsAreTheLibrarysAndOfF32WithAllBits) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  ExpectByLibrary<BF16>(gpu, Convolution{}, "plain");
  ExpectByLibrary<F16>(gpu, Convolution{.stride = {2, 1}, .padding = {0, 2}, .dilation = {1, 2}}, "windows");
  ExpectByLibrary<float>(gpu, Convolution{}, "f32");
  ExpectByLibrary<float>(gpu, Convolution{.weight = {9, 2, 3, 3}, .groups = 3}, "groups");
  ExpectByLibrary<float>(
      gpu, Convolution{.x = {2, 4, 30}, .weight = {3, 4, 5}, .stride = {2}, .padding = {1}, .dilation = {1}}, "1-D");
  ExpectByLibrary<BF16>(gpu,
                        Convolution{.x = {1, 2, 5, 6, 7},
                                    .weight = {3, 2, 2, 3, 2},
                                    .stride = {1, 1, 1},
                                    .padding = {0, 1, 0},
                                    .dilation = {1, 1, 1}},
                        "3-D");
  ExpectNoneButOfARealLibrary(warnings);
}

TEST_F(CudaDnn, SoAreTheirGradients) {
  Warnings warnings;
  OneGpu gpu(warnings.Options());
  for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
    ExpectByLibrary<BF16>(gpu, Gradient{of}, "plain");
    ExpectByLibrary<F16>(gpu, Gradient{of, {.stride = {2, 1}, .padding = {0, 2}, .dilation = {1, 2}}}, "windows");
    ExpectByLibrary<float>(gpu, Gradient{of}, "f32");
    ExpectByLibrary<float>(gpu, Gradient{of, {.weight = {9, 2, 3, 3}, .groups = 3}}, "groups");
    ExpectByLibrary<float>(
        gpu, Gradient{of, {.x = {2, 4, 30}, .weight = {3, 4, 5}, .stride = {2}, .padding = {1}, .dilation = {1}}},
        "1-D");
  }
  ExpectNoneButOfARealLibrary(warnings);
}

TEST_F(CudaDnn, GradientsHaveTheSameBitsEachTime) {
  OneGpu gpu;
  // This gives all of a real GPU work.
  const Convolution large{.x = {16, 128, 56, 56}, .weight = {128, 128, 3, 3}};
  for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
    const auto one = MakeCase<BF16>(Gradient{of, IsEmulated() ? Convolution{} : large});
    const auto bits = [&] { return BitsOf(*one->Run(gpu)); };
    const std::vector<uint16_t> first = bits();
    const int repeats = IsEmulated() ? 5 : 100;
    for (int i = 0; i < repeats; ++i) ASSERT_EQ(bits(), first);
  }
}

TEST_F(CudaDnn, ACallHasTheSameBitsEachTimeAndOnePlan) {
  OneGpu gpu;
  // This gives all of a real GPU work.
  const Attention large{.heads = 16, .rows = 1024, .keys = 1024, .features = 64, .values = 64, .is_causal = true};
  const auto one = MakeCase<BF16>(IsEmulated() ? Attention{.rows = 40} : large);
  const auto bits = [&] { return BitsOf(*one->Run(gpu)); };
  const std::vector<uint16_t> first = bits();
  const int made = TestDriver::Get().Calls("cudnnBackendCreateDescriptor");
  const int created = TestDriver::Get().Calls("cudnnCreate");
  const int repeats = IsEmulated() ? 10 : 200;
  for (int i = 0; i < repeats; ++i) ASSERT_EQ(bits(), first);
  if (!IsEmulated()) return;
  EXPECT_EQ(TestDriver::Get().Calls("cudnnBackendCreateDescriptor") - made, 10) << "the pack of each call alone";
  EXPECT_EQ(TestDriver::Get().Calls("cudnnCreate"), created);
}

TEST_F(CudaDnn, WhatTheLibraryIsntAskedForIsTheImages) {
  OneGpu gpu;
  const auto executions = [&](auto of, auto type) {
    using T = decltype(type);
    return ExecutionsOf([&] {
      const auto one = MakeCase<T>(of);
      const absl::StatusOr<std::vector<T>> got = one->Run(gpu);
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectNear<T>(*got, one->Want(), kTolerance<T>);
    });
  };
  EXPECT_EQ(executions(Attention{}, float{}), 0);
  EXPECT_EQ(executions(Attention{.features = 20}, BF16{}), 0);
  EXPECT_EQ(executions(Attention{.rows = 3}, BF16{}), 0) << "few rows, whose keys grow with each call";
}

TEST(CudaDnnSize, SmallCallsAreTheImages) {
  OneGpu gpu;
  const auto one = MakeCase<BF16>(Attention{});
  EXPECT_EQ(ExecutionsOf([&] { EXPECT_TRUE(one->Run(gpu).ok()); }), 0);
}

TEST_F(CudaDnn, WithoutTheLibraryTheImagesKernelsComputeAndItIsSaidOnce) {
  const Setting library("TESSERA_CUDNN", "/nowhere/libcudnn.so.9");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    for (int i = 0; i < 2; ++i) {
      const auto one = MakeCase<BF16>(Attention{});
      ExpectNear<BF16>(*one->Run(gpu), one->Want(), kTolerance<BF16>);
      const auto gradients = MakeCase<BF16>(AttentionGradients{{.is_causal = true}});
      ExpectNear<BF16>(*gradients->Run(gpu), gradients->Want(), kTolerance<BF16>);
      const auto other = MakeCase<float>(Convolution{});
      ExpectNear<float>(*other->Run(gpu), other->Want(), kTolerance<float>);
      for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
        const auto gradient = MakeCase<float>(Gradient{of, {.stride = {2, 3}, .padding = {2, 0}, .dilation = {1, 2}}});
        ExpectNear<float>(*gradient->Run(gpu), gradient->Want(), kTolerance<float>);
      }
    }
  }
  EXPECT_THAT(warnings.texts,
              ElementsAre(HasSubstr("attentions and convolutions are computed by the image's own kernels: "
                                    "no libcudnn.so.9: /nowhere/libcudnn.so.9")));
}

TEST_F(CudaDnn, ALibraryOfAnotherMajorVersionIsNamedWithIt) {
  if (!IsEmulated()) GTEST_SKIP() << "has the version that it has";
  const Setting version("TESSERA_EMULATOR_CUDNN_VERSION", "80907");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const auto one = MakeCase<BF16>(Attention{});
    ExpectNear<BF16>(*one->Run(gpu), one->Want(), kTolerance<BF16>);
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuDNN is of version 80907, and one of 9.* is needed")));
}

TEST_F(CudaDnn, AGraphThatTheLibraryRefusesIsTheImages) {
  if (!IsEmulated()) GTEST_SKIP() << "refuses what it is told to";
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    ASSERT_TRUE(MakeCase<BF16>(Attention{})->Run(gpu).ok());
    // The graph's tensors, operations and itself are finalized before its heuristics are.
    const auto one = MakeCase<BF16>(Convolution{});
    for (int i = 0; i < 2; ++i) TestDriver::Get().Fail("cudnnBackendFinalize", 7, kNotSupported);
    EXPECT_EQ(ExecutionsOf([&] { ExpectNear<BF16>(*one->Run(gpu), one->Want(), kTolerance<BF16>); }), 0);
    // It stays so.
    EXPECT_EQ(ExecutionsOf([&] { ExpectNear<BF16>(*one->Run(gpu), one->Want(), kTolerance<BF16>); }), 0);
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuDNN has no plan that is exact enough for t0 = bf16[4,6,9,11]")));
}

TEST_F(CudaDnn, AFailureIsReportedOnceAndWhatFollowsRuns) {
  if (!IsEmulated()) GTEST_SKIP() << "fails when it is told to";
  OneGpu gpu;
  const auto one = MakeCase<BF16>(Attention{});
  ASSERT_TRUE(one->Run(gpu).ok());
  TestDriver::Get().Fail("cudnnBackendExecute", 1, kExecutionFailed);
  EXPECT_THAT(std::string(one->Run(gpu).status().message()), HasSubstr("cudnnBackendExecute"));
  ExpectByLibrary<BF16>(gpu, Attention{}, "afterwards");
}

// 64 MiB may be had: of two heads of two batches each wants 33, so each call has one.
TEST_F(CudaDnn, ACallThatWantsMoreMemoryThanItMayHaveIsCut) {
  if (!IsEmulated()) GTEST_SKIP() << "wants what it is told to";
  const Setting workspace("TESSERA_EMULATOR_CUDNN_WORKSPACE", "34603008");
  OneGpu gpu;
  const auto one = MakeCase<BF16>(Attention{.heads = 2, .has_mask = true});
  absl::StatusOr<std::vector<BF16>> got = absl::UnknownError("");
  EXPECT_EQ(ExecutionsOf([&] { got = one->Run(gpu); }), 4);
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectNear<BF16>(*got, one->Want(), kTolerance<BF16>);
}

TEST_F(CudaDnn, ACallThatCantBeCutSoFarIsTheImages) {
  if (!IsEmulated()) GTEST_SKIP() << "wants what it is told to";
  const Setting workspace("TESSERA_EMULATOR_CUDNN_WORKSPACE", "73400320");  // 70 MiB a head
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    const auto one = MakeCase<BF16>(Attention{});
    EXPECT_EQ(ExecutionsOf([&] { ExpectNear<BF16>(*one->Run(gpu), one->Want(), kTolerance<BF16>); }), 0);
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuDNN wants 73400320 bytes of memory, and may have 67108864")));
}

// A driver may wait for all streams in a call of the library, and what another stream stands at may need the loop.
TEST_F(CudaDnn, CallsAreEnqueuedWhenNoStreamStandsStill) {
  OneGpu gpu;
  EXPECT_TRUE(MakeCase<BF16>(Attention{})->Run(gpu).ok());  // its memory is there
  const auto one = MakeCase<BF16>(Attention{.rows = 32});
  for (int time = 0; time < 2; ++time) {  // not only where a plan has to be made
    const KernelCall& there = one->On(gpu);
    ExpectAwaitsStreams(
        gpu,
        [&] {
          gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
        },
        "cudnnBackendFinalize");
  }
}

TEST_F(CudaDnn, APlanThatTakesLongHoldsUpNoLightOp) {
  if (!IsEmulated()) GTEST_SKIP() << "a library that takes as long as it is told to";
  OneGpu gpu;
  const auto one = MakeCase<BF16>(Attention{.rows = 32});
  const KernelCall& there = one->On(gpu);
  ExpectHoldsUpNoLightOp(gpu, "cudnnBackendFinalize", [&] {
    gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
  });
  const auto got =
      gpu.Get(static_cast<const BF16*>(there.output), static_cast<size_t>(NumElements(there.output_extents)));
  ExpectNear<BF16>(got, one->Want(), kTolerance<BF16>);
}

// ---- hazards

// One stream writes the first operand, another attends, and the first writes it again. All is enqueued before anything
// runs.
template <typename Of>
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out, const Of& of) {
  TestDriver::Get().Seed(seed);
  OneGpu gpu;
  const auto one = MakeCase<BF16>(of);
  const KernelCall& there = one->On(gpu);
  const auto elements = NumElements(there.inputs[0].extents);
  const std::vector<BF16> other = Normal<BF16>(elements, 5);
  const BF16* from = gpu.Put(other);
  const CopyWork copy{.extents = {elements},
                      .element_bytes = 2,
                      .source = from,
                      .source_strides = {1},
                      .destination = const_cast<void*>(there.inputs[0].data),
                      .destination_strides = {1}};
  const auto run = [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); };
  OrderedWrites writes{copy, run, copy};
  if (std::is_same_v<Of, AttentionGradients>) ++writes.queued;  // two calls of the library
  return FindHazards(gpu, writes, left_out);
}

TEST_F(CudaDnn, AnOrderedAttentionHasNoHazards) {
  if (!IsEmulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing, Attention{})) {
      ADD_FAILURE() << seed << ": " << hazard;
    }
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing, AttentionGradients{})) {
      ADD_FAILURE() << "gradients, " << seed << ": " << hazard;
    }
  }
}

TEST_F(CudaDnn, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  if (!IsEmulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const LeftOut left_out : {LeftOut::kReadersWait, LeftOut::kWritersWait}) {
      EXPECT_THAT(FindHazards(seed, left_out, Attention{}), Contains(HasSubstr("cudnn"))) << seed;
      EXPECT_THAT(FindHazards(seed, left_out, AttentionGradients{}), Contains(HasSubstr("cudnn"))) << seed;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
