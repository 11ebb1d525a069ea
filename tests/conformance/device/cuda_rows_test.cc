// Row programs on a CUDA device: kernels that follow each other in a stream as one launch, where NVRTC is, and in order
// with all else.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr StreamId kCompute = StreamId::kCompute;
// As little as is joined (min_joined_bytes).
constexpr int64_t kRows = 512, kCount = 128, kAll = kRows * kCount;
// As little as is read in passes: longer than max_row_program_bytes, as many as min_row_program_passes; and as many
// columns as min_row_program_columns.
const Shape kWhole = {kRows, kCount}, kLong = {64, (1 << 14) + 4}, kColumns = {2, 4, 64, 128};
constexpr float kUntouched = -77.25;

std::vector<float> Untouched(int64_t count) { return std::vector<float>(static_cast<size_t>(count), kUntouched); }

// Rows less their maximum, divided by the sum of that: steps that have the same bits on the host. Only the last of four
// kernels writes what others read.
struct Shares {
  explicit Shares(OneGpu& gpu, const float* x, Shape whole_extents = kWhole)
      : rows(NumElements(whole_extents) / whole_extents[1]),
        all(NumElements(whole_extents)),
        most(gpu.Put(Untouched(rows))),
        less(gpu.Put(Untouched(all))),
        sum(gpu.Put(Untouched(rows))),
        result(gpu.Put(Untouched(all))) {
    const auto at_place = [](const float* at, const Shape& extents) {
      return KernelInput{.data = at, .dtype = DType::kF32, .extents = extents, .strides = RowMajorStrides(extents)};
    };
    Shape one_extents = whole_extents;
    one_extents[1] = 1;
    const auto whole = [&](const float* at) { return at_place(at, whole_extents); };
    const auto one = [&](const float* at) { return at_place(at, one_extents); };
    operands = {{whole(x)}, {whole(x), one(most)}, {whole(less)}, {whole(less), one(sum)}};
    const KernelInput outputs[] = {one(most), whole(less), one(sum), whole(result)};
    const int readers[] = {1, 2, 1, 0};
    for (size_t c = 0; c < 4; ++c) {
      calls.push_back({.op = &ops[c],
                       .inputs = operands[c],
                       .output = const_cast<void*>(outputs[c].data),
                       .output_dtype = DType::kF32,
                       .output_extents = outputs[c].extents,
                       .output_strides = outputs[c].strides,
                       .output_readers = readers[c]});
    }
  }
  Shares(const Shares&) = delete;

  void Push(Device& device) const {
    for (const KernelCall& call : calls) device.EnqueueRun(kCompute, KernelWork{call, {}});
  }
  // All at once: the device is idle before.
  void Enqueue(Device& device) const {
    device.Drain();
    device.Hold();
    Push(device);
    device.Flush();
  }

  LocalOp ops[4] = {ReduceLocalOp{ReduceOp::kMax, {1}}, MapOp{*ParseExpression("sub:f32(in0:f32, in1:f32)")},
                    ReduceLocalOp{ReduceOp::kSum, {1}}, MapOp{*ParseExpression("div:f32(in0:f32, in1:f32)")}};
  const int64_t rows, all;
  float *const most, *const less, *const sum, *const result;
  std::vector<std::vector<KernelInput>> operands;
  std::vector<KernelCall> calls;
};

class CudaRows : public ::testing::Test {
 protected:
  void Open(cuda::CudaDeviceOptions options = {}, const Shape& whole = kWhole) {
    shares_ = nullptr;
    gpu_ = nullptr;
    gpu_ = std::make_unique<OneGpu>(std::move(options));
    shares_ = std::make_unique<Shares>(*gpu_, gpu_->Put(NumbersOf(whole)), whole);
  }
  // Integers, whose sums are exact in any order.
  static std::vector<float> NumbersOf(const Shape& whole) {
    std::vector<float> numbers;
    for (int64_t e = 0; e < NumElements(whole); ++e) numbers.push_back(static_cast<float>(e * 7919 % 673 - 336));
    return numbers;
  }
  static std::vector<float> WantOf(const Shape& whole) {
    std::vector<float> want = NumbersOf(whole);
    const auto count = static_cast<size_t>(whole[1]);
    const size_t inner = want.size() / static_cast<size_t>(whole[0]) / count;  // elements of a row lie so far apart
    for (size_t row = 0; row < want.size() / count; ++row) {
      float* const first = want.data() + row / inner * inner * count + row % inner;
      float most = first[0], sum = 0;
      for (size_t e = 0; e < count; ++e) most = std::max(most, first[e * inner]);
      for (size_t e = 0; e < count; ++e) sum += first[e * inner] -= most;
      for (size_t e = 0; e < count; ++e) first[e * inner] /= sum;
    }
    return want;
  }
  void ExpectOneLaunch() {
    const int before = IsEmulated() ? TestDriver::Get().Calls("cuLaunchKernel") : 0;
    EXPECT_EQ(Run(), absl::OkStatus());
    if (IsEmulated()) {
      EXPECT_EQ(TestDriver::Get().Calls("cuLaunchKernel") - before, 1);
    }
    EXPECT_FALSE(WereAllWritten());
  }
  std::vector<float> Result() { return gpu_->Get(shares_->result, static_cast<size_t>(shares_->all)); }
  std::vector<float> RunApart() {
    for (const KernelCall& call : shares_->calls) {
      gpu_->device().EnqueueRun(kCompute, KernelWork{call, {}});
      EXPECT_EQ(gpu_->Report(kCompute), absl::OkStatus());
    }
    EXPECT_TRUE(WereAllWritten());
    std::vector<float> result = Result();
    for (const auto& [at, count] : {std::pair(shares_->most, shares_->rows),
                                    {shares_->less, shares_->all},
                                    {shares_->sum, shares_->rows},
                                    {shares_->result, shares_->all}}) {
      gpu_->Upload(Untouched(count).data(), reinterpret_cast<std::byte*>(at), count * 4);
    }
    return result;
  }
  // Whether all that is between was written; else nothing was.
  bool WereAllWritten() {
    const auto untouched = [&](const float* at, int64_t count) {
      const std::vector<float> values = gpu_->Get(at, static_cast<size_t>(count));
      return std::count(values.begin(), values.end(), kUntouched);
    };
    const int64_t rows = shares_->rows, all = shares_->all;
    const auto left = untouched(shares_->most, rows) + untouched(shares_->less, all) + untouched(shares_->sum, rows);
    EXPECT_TRUE(left == 0 || left == 2 * rows + all) << left;
    return left == 0;
  }
  // Reports what became of all four.
  absl::Status Run() {
    shares_->Enqueue(gpu_->device());
    return gpu_->Report(kCompute);
  }
  static bool IsEmulated() { return TestDriver::Get().is_emulated(); }

  std::unique_ptr<OneGpu> gpu_;
  std::unique_ptr<Shares> shares_;
};

TEST_F(CudaRows, AreOneLaunchWithTheBitsOfOneByOne) {
  Open();
  const std::vector<float> want = RunApart();
  ExpectOneLaunch();
  EXPECT_EQ(Result(), want);
  EXPECT_EQ(want, WantOf(kWhole));
}

TEST_F(CudaRows, OfLongRowsAndOfColumnsAreOneLaunch) {
  for (const Shape& whole : {kLong, kColumns}) {
    Open({}, whole);
    ExpectOneLaunch();
    EXPECT_EQ(Result(), WantOf(whole)) << whole[1];
  }
}

TEST_F(CudaRows, WithoutNvrtcAreRunOneByOne) {
  for (const char* library : {"/nowhere/libnvrtc.so", "tests/emulator/cuda/libnvrtc_that_fails.so"}) {
    Warnings warnings;
    std::vector<float> want;
    {
      Open();
      want = RunApart();
    }
    const Setting without("TESSERA_NVRTC", library);
    const Setting nothing_kept("XDG_CACHE_HOME", "/nowhere");
    Open(warnings.Options());
    EXPECT_EQ(Run(), absl::OkStatus()) << library;
    EXPECT_EQ(Result(), want) << library;
    EXPECT_TRUE(WereAllWritten()) << library;
    shares_ = nullptr;
    gpu_ = nullptr;
  }
}

// The first one then runs by itself, and the others are a program of their own.
TEST_F(CudaRows, AreOtherProgramsWhereTheDriverRefusesOne) {
  if (!IsEmulated()) GTEST_SKIP() << "refuses what it is told to";
  Open();
  const std::vector<float> want = RunApart();
  TestDriver::Get().Fail("cuLibraryLoadData", 1, CUDA_ERROR_INVALID_IMAGE);
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(Run(), absl::OkStatus()) << time;
    EXPECT_EQ(Result(), want) << time;
    EXPECT_THAT(gpu_->Get(shares_->most, kRows), Not(Contains(kUntouched))) << time;
    EXPECT_THAT(gpu_->Get(shares_->less, kAll), Each(kUntouched)) << time;
  }
}

TEST_F(CudaRows, ThatAreNotThereYetArentWaitedFor) {
  Open();
  const std::vector<float> want = RunApart();
  gpu_->device().EnqueueRun(kCompute, KernelWork{shares_->calls[0], {}});
  EXPECT_EQ(gpu_->Report(kCompute), absl::OkStatus());
  gpu_->device().Hold();
  for (size_t c = 1; c < 4; ++c) gpu_->device().EnqueueRun(kCompute, KernelWork{shares_->calls[c], {}});
  gpu_->device().Flush();
  EXPECT_EQ(gpu_->Report(kCompute), absl::OkStatus());
  EXPECT_EQ(Result(), want);
  EXPECT_THAT(gpu_->Get(shares_->less, kAll), Each(kUntouched));
}

TEST_F(CudaRows, BehindASignalAreAnotherProgram) {
  Open();
  const std::vector<float> want = RunApart();
  gpu_->device().Drain();
  gpu_->device().Hold();
  for (size_t c = 0; c < 4; ++c) {
    if (c == 2) gpu_->device().EnqueueSignal(kCompute, 1);
    KernelCall call = shares_->calls[c];
    call.output_readers = 0;
    gpu_->device().EnqueueRun(kCompute, KernelWork{call, {}});
  }
  gpu_->device().Flush();
  const int before = IsEmulated() ? TestDriver::Get().Calls("cuLaunchKernel") : 0;
  EXPECT_EQ(gpu_->Report(kCompute), absl::OkStatus());
  EXPECT_EQ(Result(), want);
  if (IsEmulated()) {
    EXPECT_LE(TestDriver::Get().Calls("cuLaunchKernel") - before, 2);
  }
}

TEST_F(CudaRows, WhatReadsPeersMemoryIsRunByItself) {
  Open();
  const std::vector<float> want = RunApart();
  int64_t bytes = 0;
  const std::vector<ReceivedCount> received = {{&bytes, 40}};
  gpu_->device().Drain();
  gpu_->device().Hold();
  for (size_t c = 0; c < 4; ++c) {
    gpu_->device().EnqueueRun(kCompute,
                              c == 1 ? KernelWork{shares_->calls[c], received} : KernelWork{shares_->calls[c], {}});
  }
  gpu_->device().Flush();
  EXPECT_EQ(gpu_->Report(kCompute), absl::OkStatus());
  EXPECT_EQ(Result(), want);
  EXPECT_EQ(bytes, 40);
}

// A driver may wait for all streams as it loads a program.
TEST_F(CudaRows, AreLoadedWhenNoStreamStandsStill) {
  Open();
  const std::vector<float> want = RunApart();
  ExpectAwaitsStreams(*gpu_, [&] { shares_->Push(gpu_->device()); });
  EXPECT_EQ(Result(), want);
}

TEST_F(CudaRows, AFailureIsReportedOnceAndWhatFollowsRuns) {
  if (!IsEmulated()) GTEST_SKIP() << "fails when it is told to";
  Open();
  const std::vector<float> want = RunApart();
  EXPECT_EQ(Run(), absl::OkStatus());
  TestDriver::Get().Fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_THAT(std::string(Run().message()), HasSubstr("cuLaunchKernel rows_"));
  EXPECT_EQ(Run(), absl::OkStatus());
  EXPECT_EQ(Result(), want);
}

// ---- hazards

// One stream writes the operand, another computes of it, and the first writes it again. All is enqueued before anything
// runs.
std::vector<std::string> HazardsOf(uint32_t seed, LeftOut left_out) {
  TestDriver::Get().Seed(seed);
  OneGpu gpu;
  const float *ones = gpu.Put(std::vector<float>(kAll, 1)), *twos = gpu.Put(std::vector<float>(kAll, 2));
  float* x = gpu.Put(std::vector<float>(kAll));
  const Shares shares(gpu, x);
  const auto copy = [&](const float* from) {
    return CopyWork{.extents = {kAll},
                    .element_bytes = 4,
                    .source = from,
                    .source_strides = {1},
                    .destination = x,
                    .destination_strides = {1}};
  };
  return FindHazards(gpu, {copy(ones), [&] { shares.Push(gpu.device()); }, copy(twos)}, left_out);
}

TEST(CudaRowHazards, OrderedProgramsHaveNone) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 6; ++seed) {
    for (const std::string& hazard : HazardsOf(seed, LeftOut::kNothing)) ADD_FAILURE() << seed << ": " << hazard;
  }
}

TEST(CudaRowHazards, EachWaitThatIsLeftOutIsFoundInEveryOrder) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 6; ++seed) {
    for (const LeftOut left_out : {LeftOut::kReadersWait, LeftOut::kWritersWait}) {
      EXPECT_THAT(HazardsOf(seed, left_out), Contains(HasSubstr("rows_"))) << seed;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
