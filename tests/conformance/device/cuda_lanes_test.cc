// The lanes of a CUDA device: what takes the batch lane long holds up nothing of the light lane.

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/local_op.h"
#include "schemas/types/shape.h"
#include "tests/conformance/device/device_arrays.h"
#include "tests/conformance/device/library_tests.h"
#include "tests/emulator/cuda/test_driver.h"

namespace {
struct {
  std::promise<void> has_begun, may_end;
} eigenvalues;
}  // namespace

// LAPACK's, in the library's place: all are 0, and take until the test lets them end.
extern "C" void dgeev_(const char*, const char*, const int32_t* n, double*, const int32_t*, double* real,
                       double* imaginary, double*, const int32_t*, double*, const int32_t*, double* work,
                       const int32_t* size, int32_t* info, size_t, size_t) {
  *info = 0;
  *work = 1;  // the size, where it is asked for
  if (*size < 0) return;
  eigenvalues.has_begun.set_value();
  eigenvalues.may_end.get_future().wait();
  std::fill_n(real, *n, 0);
  std::fill_n(imaginary, *n, 0);
}

namespace tessera::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StreamId kBatch = StreamId::kCompute, kLight = StreamId::kComputeLight;
constexpr const char* kNvrtc = "tests/emulator/cuda/libnvrtc_that_fails.so";
// A light op that is held up isn't reported at all until the test lets go of the batch lane.
constexpr std::chrono::seconds kLongEnough(30);

// An op of one input, of arrays of one shape.
struct Call {
  Call(const std::string& text, const Shape& shape, const double* input, double* result)
      : Call(*ParseLocalOp(text), shape, input, result) {}
  Call(LocalOp what, const Shape& shape, const double* input, double* result) : op(std::move(what)) {
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

CopyWork Copy(const double* from, double* to) {
  return {.extents = {2},
          .element_bytes = 8,
          .source = from,
          .source_strides = {1},
          .destination = to,
          .destination_strides = {1}};
}

std::future<absl::Status> ReportOf(OneGpu& gpu, StreamId stream) {
  auto reported = std::make_shared<std::promise<absl::Status>>();
  gpu.device().EnqueueReport(
      stream, [reported](absl::Status status, const RunTimes&) { reported->set_value(std::move(status)); });
  return reported->get_future();
}

bool IsThere(std::future<absl::Status>& report) {
  return report.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// The process has a libnvrtc whose next program takes until it is let go of.
class HeldNvrtc {
 public:
  HeldNvrtc() : path_("TESSERA_NVRTC", kNvrtc), library_(dlopen(kNvrtc, RTLD_NOW | RTLD_LOCAL)) { Call("hold"); }
  ~HeldNvrtc() {
    Release();
    dlclose(library_);
  }
  // Until the program is there.
  void Await() { Call("await"); }
  void Release() { Call("release"); }

 private:
  void Call(const std::string& name) {
    reinterpret_cast<void (*)()>(dlsym(library_, ("tessera_nvrtc_" + name).c_str()))();
  }
  const Setting path_, nothing_kept_{"XDG_CACHE_HOME", "/nowhere"};
  void* const library_;
};

// Both have maps that are in no image; the light one's is compiled while the batch one's is.
TEST(CudaLanes, ALightOpWaitsForNoProgramOfTheBatchLane) {
  HeldNvrtc nvrtc;
  OneGpu gpu;
  const double* a = gpu.Put<double>({2, 3});
  double *x = gpu.Put<double>({0, 0}), *y = gpu.Put<double>({0, 0}), *z = gpu.Put<double>({0, 0});
  const Call batch("map(add:f64(in0:f64, mul:f64(in0:f64, in0:f64)))", {2}, a, x),
      light("map(mul:f64(in0:f64, mul:f64(in0:f64, in0:f64)))", {2}, a, y);
  gpu.device().EnqueueRun(kBatch, KernelWork{batch.call, {}});
  std::future<absl::Status> of_batch = ReportOf(gpu, kBatch);
  nvrtc.Await();
  gpu.device().EnqueueRun(kLight, Copy(a, z));
  std::future<absl::Status> copied = ReportOf(gpu, kLight);
  EXPECT_EQ(copied.wait_for(kLongEnough), std::future_status::ready);
  gpu.device().EnqueueRun(kLight, KernelWork{light.call, {}});
  std::future<absl::Status> computed = ReportOf(gpu, kLight);
  EXPECT_EQ(computed.wait_for(kLongEnough), std::future_status::ready);
  EXPECT_FALSE(IsThere(of_batch));
  nvrtc.Release();
  for (std::future<absl::Status>* report : {&copied, &computed, &of_batch}) EXPECT_EQ(report->get(), absl::OkStatus());
  EXPECT_THAT(gpu.Get(x, 2), ElementsAre(6, 12));
  EXPECT_THAT(gpu.Get(y, 2), ElementsAre(8, 27));
  EXPECT_THAT(gpu.Get(z, 2), ElementsAre(2, 3));
}

// The host computes the eigenvalues until the test lets it end. A product by cuBLASLt wants a worker that is clear.
TEST(CudaLanes, ALightOpWaitsForNoHostStepOfTheBatchLane) {
  OneGpu gpu;
  const double* four = gpu.Put<double>({4, 0, 0, 4});
  double *values = gpu.Put<double>({1, 1, 1, 1}), *root = gpu.Put<double>({0, 0, 0, 0}),
         *square = gpu.Put<double>({0, 0, 0, 0});
  Call batch("linalg(eigvals)", {2, 2}, four, values);
  batch.call.output_dtype = DType::kC128;
  batch.call.output_extents = {2};
  batch.call.output_strides = {1};
  batch.call.output_box = {{0, 2}};
  const Call light("linalg(cholesky)", {2, 2}, four, root);
  Call product(MatmulOp{}, {2, 2}, four, square);
  product.inputs.push_back(product.inputs[0]);
  product.call.inputs = product.inputs;
  gpu.device().EnqueueRun(kBatch, KernelWork{batch.call, {}});
  std::future<absl::Status> of_batch = ReportOf(gpu, kBatch);
  eigenvalues.has_begun.get_future().wait();
  gpu.device().EnqueueRun(kLight, KernelWork{light.call, {}});
  std::future<absl::Status> computed = ReportOf(gpu, kLight);
  EXPECT_EQ(computed.wait_for(kLongEnough), std::future_status::ready) << "a host step of the other lane came first";
  gpu.device().EnqueueRun(kLight, KernelWork{product.call, {}});
  std::future<absl::Status> multiplied = ReportOf(gpu, kLight);
  EXPECT_EQ(multiplied.wait_for(kLongEnough), std::future_status::ready) << "the worker was not clear";
  EXPECT_FALSE(IsThere(of_batch));
  eigenvalues.may_end.set_value();
  for (std::future<absl::Status>* report : {&computed, &multiplied, &of_batch}) {
    EXPECT_EQ(report->get(), absl::OkStatus());
  }
  EXPECT_THAT(gpu.Get(values, 4), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(gpu.Get(root, 4), ElementsAre(2, 0, 0, 2));
  EXPECT_THAT(gpu.Get(square, 4), ElementsAre(16, 0, 0, 16));
}

// The first copy that the driver gets fails.
TEST(CudaLanes, ALightItemIsTheNextToBeSubmitted) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "fails when it is told to";
  OneGpu gpu;
  const double* a = gpu.Put<double>({2, 3});
  double *x = gpu.Put<double>({0, 0}), *y = gpu.Put<double>({0, 0});
  gpu.device().Drain();
  gpu.device().Hold();
  for (int i = 0; i < 40; ++i) gpu.device().EnqueueRun(kBatch, Copy(a, x));
  gpu.device().EnqueueRun(kLight, Copy(a, y));
  TestDriver::Get().Fail("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  gpu.device().Flush();
  EXPECT_EQ(gpu.Report(kBatch), absl::OkStatus());
  EXPECT_THAT(std::string(gpu.Report(kLight).message()), HasSubstr("cuMemcpyAsync"));
}

// It comes while the loop submits the batch lane's items, which it hears of as a map can't be compiled.
TEST(CudaLanes, ALightItemThatComesMeanwhileIsTheNext) {
  if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "fails when it is told to";
  const Setting without("TESSERA_NVRTC", "/nowhere/libnvrtc.so");
  std::unique_ptr<OneGpu> gpu;
  const double* a = nullptr;
  double *x = nullptr, *y = nullptr;
  gpu = std::make_unique<OneGpu>(cuda::CudaDeviceOptions{.warn = [&](const absl::Status&) {
    gpu->device().EnqueueRun(kLight, Copy(a, y));
    TestDriver::Get().Fail("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  }});
  a = gpu->Put<double>({2, 3});
  x = gpu->Put<double>({0, 0});
  y = gpu->Put<double>({0, 0});
  const Call batch("map(add:f64(in0:f64, mul:f64(in0:f64, in0:f64)))", {2}, a, x);
  gpu->device().EnqueueRun(kBatch, KernelWork{batch.call, {}});
  EXPECT_EQ(gpu->Report(kBatch), absl::OkStatus());
  EXPECT_THAT(gpu->Get(x, 2), ElementsAre(6, 12));
  EXPECT_THAT(std::string(gpu->Report(kLight).message()), HasSubstr("cuMemcpyAsync"));
}

}  // namespace
}  // namespace tessera::testing
