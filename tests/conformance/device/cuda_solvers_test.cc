// Functions of matrices on a CUDA device: by cuSOLVER and cuBLAS where they are and take them, else on the host, and in
// order with all else.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "schemas/ops/local_op.h"
#include "server/device/cuda/solvers.h"
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
constexpr int kExecutionFailed = 6;  // of cusolverStatus_t

// A function of two symmetric matrices whose eigenvalues are from 1 on, and of b.
template <typename T>
class Case {
 public:
  explicit Case(LinalgOp op, int64_t n = 6, int64_t k = 3) : op_(op) {
    std::mt19937 random(7);
    std::normal_distribution<double> number;
    std::vector<T> a(static_cast<size_t>(2 * n * n)), b(static_cast<size_t>(2 * n * k));
    std::vector<double> root(static_cast<size_t>(n * n));
    for (int64_t matrix = 0; matrix < 2; ++matrix) {
      for (double& value : root) value = number(random);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = i == j ? 1 : 0;
          for (int64_t l = 0; l < n; ++l)
            sum += root[static_cast<size_t>(i * n + l)] * root[static_cast<size_t>(j * n + l)];
          a[static_cast<size_t>((matrix * n + i) * n + j)] = static_cast<T>(sum);
        }
      }
    }
    for (T& value : b) value = static_cast<T>(number(random));
    values_ = {a, b};
    Shape output = {2, n, n};
    if (InputsOf(op.kind) == 2) output = {2, n, k};
    if (op.kind == LinalgKind::kQr) output = {2, 2 * n * n};
    if (op.kind == LinalgKind::kEigvalsh || op.kind == LinalgKind::kSvdVals) output = {2, n};
    if (op.kind == LinalgKind::kLu) output = {2, n * n + n};
    if (op.kind == LinalgKind::kSlogdet) output = {2, 2};
    inputs_ = {Input(values_[0].data(), {2, n, n})};
    if (InputsOf(op.kind) == 2) inputs_.push_back(Input(values_[1].data(), {2, n, k}));
    result_.resize(static_cast<size_t>(NumElements(output)));
    call_ = {.op = &op_,
             .inputs = inputs_,
             .output = result_.data(),
             .output_dtype = inputs_[0].dtype,
             .output_extents = output,
             .output_strides = RowMajorStrides(output)};
  }
  std::vector<T>& matrices() { return values_[0]; }
  std::vector<T> Want() {
    EXPECT_EQ(RunKernel(call_), absl::OkStatus());
    return result_;
  }
  KernelCall& On(OneGpu& gpu) {
    gpu.Reset();
    on_device_ = inputs_;
    for (size_t i = 0; i < inputs_.size(); ++i) on_device_[i].data = gpu.Put(values_[i]);
    there_ = call_;
    there_.inputs = on_device_;
    there_.output = gpu.Put(std::vector<T>(result_.size(), T(777)));
    return there_;
  }
  absl::StatusOr<std::vector<T>> Run(OneGpu& gpu) {
    KernelCall& there = On(gpu);
    gpu.device().EnqueueRun(kCompute, KernelWork{there, {}});
    if (absl::Status status = gpu.Report(kCompute); !status.ok()) return status;
    return gpu.Get(static_cast<const T*>(there.output), result_.size());
  }

 private:
  static KernelInput Input(const T* data, const Shape& extents) {
    return {.data = data,
            .dtype = std::is_same_v<T, double> ? DType::kF64 : DType::kF32,
            .extents = extents,
            .strides = RowMajorStrides(extents)};
  }
  LocalOp op_;
  std::vector<std::vector<T>> values_;
  std::vector<KernelInput> inputs_, on_device_;
  std::vector<T> result_;
  KernelCall call_, there_;
};

bool IsEmulated() { return TestDriver::Get().is_emulated(); }
int Calls(const char* function) { return TestDriver::Get().Calls(function); }

template <typename T>
void ExpectNear(const absl::StatusOr<std::vector<T>>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_TRUE(got.ok()) << what << ": " << got.status();
  double most = 1;
  for (const T value : want) most = std::max<double>(most, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR((*got)[i], want[i], (std::is_same_v<T, double> ? 0x1p-36 : 0x1p-10) * most) << what << ", " << i;
  }
}

// The calls that each matrix of the two takes.
const std::vector<std::tuple<LinalgKind, std::vector<const char*>, std::vector<const char*>>>& Functions() {
  static const auto& all = *new std::vector<std::tuple<LinalgKind, std::vector<const char*>, std::vector<const char*>>>{
      {LinalgKind::kCholesky, {"cusolverDnXpotrf"}, {"cusolverDnXpotrf"}},
      {LinalgKind::kTriangularSolve, {"cublasDtrsm_v2_64"}, {"cublasStrsm_v2_64"}},
      {LinalgKind::kSolve, {"cusolverDnXgetrf", "cusolverDnXgetrs"}, {"cusolverDnXgetrf", "cusolverDnXgetrs"}},
      {LinalgKind::kInv, {"cusolverDnXgetrf", "cusolverDnXgetrs"}, {"cusolverDnXgetrf", "cusolverDnXgetrs"}},
      {LinalgKind::kQr, {"cusolverDnXgeqrf", "cusolverDnDorgqr"}, {"cusolverDnXgeqrf", "cusolverDnSorgqr"}},
      {LinalgKind::kSvdVals, {"cusolverDnDgesvdj"}, {"cusolverDnSgesvdj"}},
      {LinalgKind::kLu, {"cusolverDnXgetrf"}, {"cusolverDnXgetrf"}},
      {LinalgKind::kSlogdet, {"cusolverDnXgetrf"}, {"cusolverDnXgetrf"}},
      {LinalgKind::kEigvalsh, {"cusolverDnXsyevd"}, {"cusolverDnXsyevd"}}};
  return all;
}

class CudaSolvers : public ::testing::Test {
 protected:
  const Setting least_{"TESSERA_CUSOLVER_LEAST", "0"};
};

template <typename T>
void ExpectByLibrary(OneGpu& gpu, LinalgKind kind, const std::vector<const char*>& calls) {
  Case<T> one(LinalgOp{.kind = kind});
  std::vector<int> before;
  for (const char* call : calls) before.push_back(Calls(call));
  const absl::StatusOr<std::vector<T>> got = one.Run(gpu);
  for (size_t i = 0; IsEmulated() && i < calls.size(); ++i) EXPECT_EQ(Calls(calls[i]) - before[i], 2) << calls[i];
  ExpectNear(got, one.Want(), std::string(NameOf(kind)));
}

TEST_F(CudaSolvers, AreTheLibrarys) {
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    for (const auto& [kind, doubles, singles] : Functions()) {
      ExpectByLibrary<double>(gpu, kind, doubles);
      ExpectByLibrary<float>(gpu, kind, singles);
    }
  }
  if (IsEmulated()) {
    EXPECT_THAT(warnings.texts, IsEmpty());
  }
}

TEST_F(CudaSolvers, HaveTheSameBitsEachTimeAndTakeMemoryOnce) {
  OneGpu gpu;
  for (const auto& [kind, doubles, singles] : Functions()) {
    Case<double> one(LinalgOp{.kind = kind}, IsEmulated() ? 6 : 512);
    const std::vector<double> first = *one.Run(gpu);
    const int taken = Calls("cuMemCreate");
    for (int i = 0; i < (IsEmulated() ? 3 : 50); ++i) {
      const std::vector<double> again = *one.Run(gpu);
      ASSERT_EQ(std::memcmp(again.data(), first.data(), first.size() * sizeof(double)), 0) << NameOf(kind) << ", " << i;
    }
    if (IsEmulated()) {
      EXPECT_EQ(Calls("cuMemCreate"), taken);
    }
  }
}

TEST(CudaSolversSize, SmallMatricesAreTheHosts) {
  OneGpu gpu;
  const int before = Calls("cusolverDnXpotrf");
  Case<double> one(LinalgOp{.kind = LinalgKind::kCholesky}, 127);
  ExpectNear(one.Run(gpu), one.Want(), "127");
  EXPECT_EQ(Calls("cusolverDnXpotrf"), before);
  if (!IsEmulated()) return;
  Case<double> other(LinalgOp{.kind = LinalgKind::kCholesky}, 128);
  ExpectNear(other.Run(gpu), other.Want(), "128");
  EXPECT_EQ(Calls("cusolverDnXpotrf"), before + 2);
}

TEST_F(CudaSolvers, MatricesWithoutAnAnswerAreErrorsThatSaySo) {
  OneGpu gpu;
  for (const auto& [kind, said] : std::vector<std::pair<LinalgKind, const char*>>{
           {LinalgKind::kCholesky, "cholesky: not positive definite"},
           {LinalgKind::kTriangularSolve, "triangular_solve: singular matrix"},
           {LinalgKind::kSolve, "solve: singular matrix"},
           {LinalgKind::kInv, "inv: singular matrix"}}) {
    Case<double> one(LinalgOp{.kind = kind});
    std::fill(one.matrices().begin() + 36, one.matrices().end(), 0.0);
    EXPECT_EQ(one.Run(gpu).status().message(), said);
  }
  for (const LinalgKind kind : {LinalgKind::kEigvalsh, LinalgKind::kSvdVals}) {
    Case<float> one(LinalgOp{.kind = kind});
    one.matrices()[50] = std::nanf("");
    EXPECT_EQ(one.Run(gpu).status().message(),
              std::string(NameOf(kind)) + ": did not converge: not all elements are finite");
  }
  ExpectByLibrary<float>(gpu, LinalgKind::kCholesky, {"cusolverDnXpotrf"});
}

TEST_F(CudaSolvers, WithoutALibraryTheHostComputesAndItIsSaidOnce) {
  for (const auto& [variable, file] : std::vector<std::pair<const char*, std::string>>{
           {"TESSERA_CUSOLVER", "libcusolver.so.12"}, {"TESSERA_CUBLAS", "libcublas.so.13"}}) {
    const Setting library(variable, "/nowhere/library.so");
    Warnings warnings;
    {
      OneGpu gpu(warnings.Options());
      for (const auto& [kind, doubles, singles] : Functions()) {
        Case<double> one(LinalgOp{.kind = kind});
        ExpectNear(one.Run(gpu), one.Want(), std::string(NameOf(kind)));
      }
    }
    EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("functions of matrices are computed on the host: no " + file +
                                                      ": /nowhere/library.so")));
  }
}

TEST_F(CudaSolvers, ALibraryOfAnotherMajorVersionIsNamedWithIt) {
  if (!IsEmulated()) GTEST_SKIP() << "has the version that it has";
  const Setting version("TESSERA_EMULATOR_CUSOLVER_VERSION", "11700");
  Warnings warnings;
  {
    OneGpu gpu(warnings.Options());
    Case<double> one(LinalgOp{.kind = LinalgKind::kInv});
    ExpectNear(one.Run(gpu), one.Want(), "inv");
  }
  EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("cuSOLVER is of version 11700, and one of 12.* is needed")));
}

// The libraries are there, and each call of them may fail: the host computes then, and the next one is asked for again.
TEST_F(CudaSolvers, WhereALibraryFailsTheHostComputes) {
  if (!IsEmulated()) GTEST_SKIP() << "fails when it is told to";
  for (const auto& [kind, doubles, singles] : Functions()) {
    std::vector<std::string> calls(doubles.begin(), doubles.end());
    const std::string first = calls.front();
    const bool asks = first.find("DnX") != std::string::npos || first.find("gesvdj") != std::string::npos;
    if (asks) calls.push_back(first + "_bufferSize");
    calls.emplace_back(kind == LinalgKind::kTriangularSolve ? "cublasSetWorkspace_v2" : "cusolverDnSetStream");
    for (const std::string& call : calls) {
      Warnings warnings;
      {
        OneGpu gpu(warnings.Options());
        TestDriver::Get().Fail(call.c_str(), 1, kExecutionFailed);
        Case<double> one(LinalgOp{.kind = kind});
        ExpectNear(one.Run(gpu), one.Want(), call);
        ExpectByLibrary<double>(gpu, kind, doubles);
      }
      EXPECT_THAT(warnings.texts, ElementsAre(HasSubstr("functions of matrices are computed on the host: cuda: ")))
          << call;
    }
  }
}

TEST_F(CudaSolvers, ALibraryThatTakesLongToBeginHoldsUpNoLightOp) {
  if (!IsEmulated()) GTEST_SKIP() << "a library that takes as long as it is told to";
  OneGpu gpu;
  Case<float> one(LinalgOp{.kind = LinalgKind::kCholesky});
  const KernelCall& there = one.On(gpu);
  ExpectHoldsUpNoLightOp(gpu, "cusolverDnCreate", [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); });
}

TEST_F(CudaSolvers, ACallThatWaitsForTheStreamHoldsUpNoLightOp) {
  if (!IsEmulated()) GTEST_SKIP() << "a library that takes as long as it is told to";
  OneGpu gpu;
  Case<float> one(LinalgOp{.kind = LinalgKind::kEigvalsh});
  const KernelCall& there = one.On(gpu);
  ExpectHoldsUpNoLightOp(gpu, "cusolverDnXsyevd", [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); });
  ExpectNear<float>(gpu.Get(static_cast<const float*>(there.output), one.Want().size()), one.Want(), "eigvalsh");
}

// They are more operations than a queue has room for.
TEST_F(CudaSolvers, CallsForManyMatricesHoldUpNoLightOp) {
  if (!IsEmulated()) GTEST_SKIP() << "a library that takes as long as it is told to";
  OneGpu gpu;
  constexpr int64_t kMatrices = cuda::kMaxSolverBatch + 1;
  std::vector<float> fours(kMatrices * 4), roots(kMatrices * 4);
  for (size_t i = 0; i < fours.size(); ++i) {
    if (i % 4 != 1 && i % 4 != 2) fours[i] = 4, roots[i] = 2;
  }
  const LocalOp op = LinalgOp{.kind = LinalgKind::kCholesky};
  const KernelInput matrices = {
      .data = gpu.Put(fours), .dtype = DType::kF32, .extents = {kMatrices, 2, 2}, .strides = {4, 2, 1}};
  float* const result = gpu.Put(std::vector<float>(fours.size(), 777));
  const KernelCall call{.op = &op,
                        .inputs = absl::MakeConstSpan(&matrices, 1),
                        .output = result,
                        .output_dtype = DType::kF32,
                        .output_extents = matrices.extents,
                        .output_strides = matrices.strides};
  ExpectHoldsUpNoLightOp(gpu, "cusolverDnXpotrf", [&] { gpu.device().EnqueueRun(kCompute, KernelWork{call, {}}); });
  EXPECT_EQ(gpu.Get(result, fours.size()), roots);
}

// ---- hazards

// One stream writes the matrices, another factors them, and the first writes them again. All is enqueued before
// anything runs.
std::vector<std::string> FindHazards(uint32_t seed, LeftOut left_out) {
  TestDriver::Get().Seed(seed);
  OneGpu gpu;
  Case<double> one(LinalgOp{.kind = LinalgKind::kCholesky});
  const KernelCall& there = one.On(gpu);
  const double* from = gpu.Put(one.matrices());
  const CopyWork copy{.extents = {NumElements(there.inputs[0].extents)},
                      .element_bytes = 8,
                      .source = from,
                      .source_strides = {1},
                      .destination = const_cast<void*>(there.inputs[0].data),
                      .destination_strides = {1}};
  // The work is a copy, the factorizations and two kernels.
  const auto run = [&] { gpu.device().EnqueueRun(kCompute, KernelWork{there, {}}); };
  return FindHazards(gpu, {copy, run, copy, 17}, left_out);
}

TEST_F(CudaSolvers, OrderedFunctionsHaveNoHazardsAndEachWaitThatIsLeftOutIsFound) {
  if (!IsEmulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
  for (uint32_t seed = 0; seed < 5; ++seed) {
    for (const std::string& hazard : FindHazards(seed, LeftOut::kNothing)) ADD_FAILURE() << seed << ": " << hazard;
    for (const LeftOut left_out : {LeftOut::kReadersWait, LeftOut::kWritersWait}) {
      EXPECT_THAT(FindHazards(seed, left_out), Contains(HasSubstr("copy"))) << seed;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
