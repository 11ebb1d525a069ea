// The behaviour of cuBLASLt on which server/device/cuda/products.h relies: of the emulated one here, by tools/gpu_test
// of the real one.

#include "server/device/cuda/products.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/float8.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"
#include "tests/emulator/cuda/test_driver.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kBytes = int64_t{8} << 20;
// The places of a, b, d and a bias in the memory.
constexpr int64_t kPlaces[] = {0, kBytes / 4, kBytes / 2, kBytes * 3 / 4};

template <typename T>
constexpr DType kTypeOf = DType::kF32;
template <>
constexpr DType kTypeOf<F16> = DType::kF16;
template <>
constexpr DType kTypeOf<BF16> = DType::kBF16;
template <>
constexpr DType kTypeOf<double> = DType::kF64;

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, double>) return value;
  return static_cast<double>(static_cast<float>(value));
}

class CublasLtProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& skip = testing::TestDriver::Get().skip(); !skip.empty()) GTEST_SKIP() << skip;
    driver_ = Driver::Load().value();
    gpu_ = Gpu::Open(*driver_, 0).value();
    auto products = Products::Open(gpu_, CublasLtLibraries());
    if (absl::IsNotFound(products.status())) GTEST_SKIP() << products.status();
    ASSERT_TRUE(products.ok()) << products.status();
    products_ = *std::move(products);
    for (CUstream& stream : streams_) Expect(driver_->StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* pinned = nullptr;
    Expect(driver_->MemHostAlloc(&pinned, kBytes, 0));
    pinned_ = static_cast<std::byte*>(pinned);
    std::memset(pinned_, 0, kBytes);
    memory_ = *MakeMemory(gpu_, kBytes, Sharing::kPrivate);
    for (auto& workspace : workspaces_) workspace = *MakeMemory(gpu_, kProductWorkspaceBytes, Sharing::kPrivate);
  }
  void TearDown() override {
    if (pinned_ == nullptr) return;
    for (CUstream stream : streams_) {
      Expect(driver_->StreamSynchronize(stream));
      Expect(driver_->StreamDestroy(stream));
    }
    products_ = nullptr;
    Expect(driver_->MemFreeHost(pinned_));
  }
  void Expect(CUresult result) const { EXPECT_TRUE(driver_->Check("", result).ok()) << driver_->Check("", result); }

  // The host's picture of the memory, which the runs bring there and back.
  template <typename T>
  T* At(int place) const {
    return reinterpret_cast<T*>(pinned_ + kPlaces[place]);
  }
  uint64_t Address(int place) const { return AddressOf(memory_->data()) + static_cast<uint64_t>(kPlaces[place]); }
  // Copies the bytes of each place that the test uses.
  void Copy(const std::byte* from, std::byte* to, CUstream stream) const {
    for (const int64_t place : kPlaces) {
      Expect(driver_->MemcpyAsync(AddressOf(to + place), AddressOf(from + place), used_bytes_, stream));
    }
  }
  absl::Status Enqueue(const MatmulProblem& problem, size_t stream = 0) {
    return Enqueue(LtProblemsOf(problem), stream);
  }
  absl::Status Enqueue(const std::vector<LtProblem>& problems, size_t stream) {
    return products_->Enqueue(streams_[stream], problems, AddressOf(workspaces_[stream]->data()));
  }
  absl::Status Run(const MatmulProblem& problem) {
    Copy(pinned_, memory_->data(), streams_[0]);
    const absl::Status status = Enqueue(problem);
    Copy(memory_->data(), pinned_, streams_[0]);
    Expect(driver_->StreamSynchronize(streams_[0]));
    return status;
  }
  template <typename T>
  void AgreesOnEveryShape();
  // Sum of `count` ones.
  template <typename T>
  double SumOfOnes(int64_t count);
  template <typename T>
  void HasTheSameBitsEachTime();
  // The number of shapes with which the library adds a bias, to the product's bits.
  template <typename T>
  int CountBiased(ProductPrecision precision);
  bool AddsBias(MatmulProblem problem) { return products_->AddsBias(LtProblemsOf(problem)[0].shape); }

  const Driver* driver_ = nullptr;
  Gpu gpu_;
  std::unique_ptr<Products> products_;
  std::array<CUstream, 2> streams_ = {};
  std::array<std::unique_ptr<DeviceMemory>, 2> workspaces_;
  std::unique_ptr<DeviceMemory> memory_;
  std::byte* pinned_ = nullptr;
  size_t used_bytes_ = 1 << 16;
};

template <typename T>
void CublasLtProducts::AgreesOnEveryShape() {
  constexpr int64_t kElements = 7000;  // of a place
  used_bytes_ = kElements * sizeof(T);
  for (const auto& [m, k, n] : {std::tuple{5, 7, 3}, {1, 40, 9}, {33, 64, 17}, {16, 1, 1}, {16, 32, 24}}) {
    for (const int64_t batch : {1, 3}) {
      for (const KernelStore store : {KernelStore::kWrite, KernelStore::kAdd}) {
        for (int64_t e = 0; e < kElements; ++e) {
          for (int place : {0, 1, 2}) At<T>(place)[e] = T(static_cast<float>((e * 7 + place * 3) % 11 - 5));
        }
        std::vector<T> want(At<T>(2), At<T>(2) + kElements);
        for (int64_t i = 0; i < batch * m * n; ++i) {
          double sum = store == KernelStore::kAdd ? ToDouble(want[static_cast<size_t>(i)]) : 0;
          for (int64_t p = 0; p < k; ++p) {
            sum += ToDouble(At<T>(0)[i / n * k + p]) * ToDouble(At<T>(1)[(i / (m * n) * k + p) * n + i % n]);
          }
          want[static_cast<size_t>(i)] = T(sum);
        }
        const absl::Status status = Run({.dtype = kTypeOf<T>,
                                         .batch = batch,
                                         .rows = m,
                                         .columns = n,
                                         .inner = k,
                                         .left = Address(0),
                                         .right = Address(1),
                                         .output = Address(2),
                                         .store = store});
        ASSERT_TRUE(status.ok()) << status << " " << batch;
        // The sign of a sum that is zero is nobody's promise.
        for (int64_t i = 0; i < batch * m * n; ++i) {
          for (T* element : {&want[static_cast<size_t>(i)], &At<T>(2)[i]}) {
            if (ToDouble(*element) == 0) *element = T(0.0F);
          }
        }
        // And nothing beside the elements.
        ASSERT_EQ(std::memcmp(want.data(), At<T>(2), want.size() * sizeof(T)), 0)
            << ToText(kTypeOf<T>) << " " << m << "x" << k << "x" << n << ", batch " << batch;
      }
    }
  }
}

TEST_F(CublasLtProducts, AgreeOnEveryShapeOfF16) { AgreesOnEveryShape<F16>(); }
TEST_F(CublasLtProducts, AgreeOnEveryShapeOfBF16) { AgreesOnEveryShape<BF16>(); }
TEST_F(CublasLtProducts, AgreeOnEveryShapeOfF32) { AgreesOnEveryShape<float>(); }
TEST_F(CublasLtProducts, AgreeOnEveryShapeOfF64) { AgreesOnEveryShape<double>(); }

// Right is dense along the inner dim. GPUs before compute capability 8.9 have none.
TEST_F(CublasLtProducts, MultiplyFloatsOf8BitsToF32) {
  const auto number = [](DType dtype, int place, int64_t e) {
    const auto value = static_cast<float>((e * 7 + place * 3) % 11 - 5) / 4;
    return dtype == DType::kF8E4M3 ? std::pair(F8E4M3(value).bits, value) : std::pair(F8E5M2(value).bits, value);
  };
  constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;
  for (const auto& factors : {std::array{kE4M3, kE4M3}, {kE4M3, kE5M2}, {kE5M2, kE4M3}, {kE5M2, kE5M2}}) {
    for (const auto& [m, k, n, batch] :
         {std::tuple{16, 32, 16, 1}, {32, 64, 48, 3}, {16, 20, 16, 1}, {16, 32, 18, 1}}) {
      MatmulProblem problem = {.factors = factors, .batch = batch, .rows = m, .columns = n, .inner = k};
      problem.left = Address(0), problem.right = Address(1), problem.output = Address(2);
      const bool is_taken = k % 16 == 0 && n % 4 == 0 && factors != std::array{kE5M2, kE5M2};
      const absl::StatusOr<bool> has = products_->HasAlgorithms(LtProblemsOf(problem));
      ASSERT_TRUE(has.ok()) << has.status();
      if (!*has && !testing::TestDriver::Get().is_emulated()) continue;
      ASSERT_EQ(*has, is_taken) << m << "x" << k << "x" << n;
      EXPECT_FALSE(products_->AddsBias(LtProblemsOf(problem)[0].shape));
      if (!is_taken) continue;
      std::vector<float> left, right;
      for (int64_t e = 0; e < batch * m * k; ++e) {
        const auto [bits, value] = number(factors[0], 0, e);
        At<uint8_t>(0)[e] = bits;
        left.push_back(value);
      }
      for (int64_t e = 0; e < batch * n * k; ++e) {
        const auto [bits, value] = number(factors[1], 1, e);
        At<uint8_t>(1)[e] = bits;
        right.push_back(value);
      }
      const absl::Status status = Run(problem);
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < batch * m * n; ++i) {
        float sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          sum +=
              left[static_cast<size_t>(i / n * k + p)] * right[static_cast<size_t>((i / (m * n) * n + i % n) * k + p)];
        }
        ASSERT_EQ(At<float>(2)[i], sum) << m << "x" << k << "x" << n << " at " << i;
      }
    }
  }
}

TEST_F(CublasLtProducts, WhatIsWrittenOverIsntRead) {
  for (int64_t e = 0; e < 64; ++e) {
    At<float>(0)[e] = At<float>(1)[e] = 1;
    At<float>(2)[e] = std::numeric_limits<float>::quiet_NaN();
  }
  ASSERT_TRUE(
      Run({.rows = 8, .columns = 8, .inner = 8, .left = Address(0), .right = Address(1), .output = Address(2)}).ok());
  for (int64_t e = 0; e < 64; ++e) EXPECT_EQ(At<float>(2)[e], 8);
}

// A tensor core of TF32 drops the last 13 bits.
TEST_F(CublasLtProducts, AllBitsOfF32AreRead) {
  constexpr int64_t kSize = 64;
  for (int64_t i = 0; i < kSize * kSize; ++i) {
    At<float>(0)[i] = i / kSize == i % kSize ? 1 : 0;
    At<float>(1)[i] = 1 + static_cast<float>(i) * 0x1p-23f;
  }
  ASSERT_TRUE(Run({.rows = kSize,
                   .columns = kSize,
                   .inner = kSize,
                   .left = Address(0),
                   .right = Address(1),
                   .output = Address(2)})
                  .ok());
  for (int64_t i = 0; i < kSize * kSize; ++i) ASSERT_EQ(At<float>(2)[i], At<float>(1)[i]) << i;
}

template <typename T>
double CublasLtProducts::SumOfOnes(int64_t count) {
  for (int64_t i = 0; i < count; ++i) At<T>(0)[i] = At<T>(1)[i] = T(1.0f);
  const absl::Status status = Run({.dtype = kTypeOf<T>,
                                   .rows = 1,
                                   .columns = 1,
                                   .inner = count,
                                   .left = Address(0),
                                   .right = Address(1),
                                   .output = Address(2)});
  EXPECT_TRUE(status.ok()) << status;
  return ToDouble(*At<T>(2));
}
// A sum in the dtype stands still at 256 and at 2048.
TEST_F(CublasLtProducts, SumsOfHalvesAreInF32) {
  EXPECT_EQ(SumOfOnes<BF16>(1 << 14), 1 << 14);
  EXPECT_EQ(SumOfOnes<F16>(1 << 14), 1 << 14);
}

// Few outputs and long sums are what an algorithm cuts in parts.
template <typename T>
void CublasLtProducts::HasTheSameBitsEachTime() {
  constexpr int64_t kInner = 1 << 12, kRows = 8;
  used_bytes_ = kInner * kRows * sizeof(T);
  std::mt19937 random(5);
  std::uniform_real_distribution<float> numbers(-1, 1);
  for (int64_t i = 0; i < kInner * kRows; ++i) {
    At<T>(0)[i] = T(numbers(random));
    At<T>(1)[i] = T(numbers(random));
  }
  std::vector<T> first;
  for (int run = 0; run < 5; ++run) {
    const absl::Status status = Run({.dtype = kTypeOf<T>,
                                     .rows = kRows,
                                     .columns = kRows,
                                     .inner = kInner,
                                     .left = Address(0),
                                     .right = Address(1),
                                     .output = Address(2)});
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<T> result(At<T>(2), At<T>(2) + kRows * kRows);
    if (run == 0) first = result;
    EXPECT_EQ(std::memcmp(result.data(), first.data(), result.size() * sizeof(T)), 0) << run;
  }
}
TEST_F(CublasLtProducts, HaveTheSameBitsEachTime) {
  HasTheSameBitsEachTime<BF16>();
  HasTheSameBitsEachTime<F16>();
  HasTheSameBitsEachTime<float>();
  HasTheSameBitsEachTime<double>();
}

// Each element is that of the product alone and then one sum, rounded once. Long sums of few elements are what an
// algorithm cuts in parts.
template <typename T>
int CublasLtProducts::CountBiased(ProductPrecision precision) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> numbers(-1, 1);
  int biased = 0;
  for (const auto& [m, k, n] :
       {std::tuple{5, 7, 3}, {1, 40, 10}, {33, 64, 18}, {16, 1, 2}, {16, 32, 24}, {8, 4096, 8}, {192, 256, 320}}) {
    const auto elements = static_cast<size_t>(std::max({m * k, k * n, m * n + 8}));
    used_bytes_ = elements * sizeof(T);
    for (int place : {0, 1, 3}) {
      for (size_t e = 0; e < elements; ++e) At<T>(place)[e] = T(numbers(random)) * T(numbers(random));
    }
    std::fill(At<T>(0), At<T>(0) + k, T(0));  // the first row is the bias's
    At<T>(3)[0] = T(-0.0);
    At<T>(3)[n - 1] = std::numeric_limits<T>::quiet_NaN();
    MatmulProblem problem = {.dtype = kTypeOf<T>,
                             .precision = precision,
                             .rows = m,
                             .columns = n,
                             .inner = k,
                             .left = Address(0),
                             .right = Address(1),
                             .output = Address(2)};
    const absl::Status alone = Run(problem);
    EXPECT_TRUE(alone.ok()) << alone;
    std::vector<T> want(At<T>(2), At<T>(2) + elements);
    for (int64_t i = 0; i < m * n; ++i) want[static_cast<size_t>(i)] += At<T>(3)[i % n];
    problem.bias = Address(3);
    if (!AddsBias(problem)) {
      EXPECT_TRUE(absl::IsUnimplemented(Enqueue(problem)));
      continue;
    }
    ++biased;
    const absl::Status both = Run(problem);
    EXPECT_TRUE(both.ok()) << both;
    int wrong = 0;
    for (size_t e = 0; e < elements; ++e) {
      const bool are_nan = std::isnan(want[e]) && std::isnan(At<T>(2)[e]);
      wrong += !are_nan && std::memcmp(&want[e], &At<T>(2)[e], sizeof(T)) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << ToText(kTypeOf<T>) << " " << m << "x" << k << "x" << n;
  }
  return biased;
}

TEST_F(CublasLtProducts, ABiasIsAddedToTheProductsBits) {
  EXPECT_GT(CountBiased<float>(ProductPrecision::kFull), 0);
  EXPECT_GT(CountBiased<float>(ProductPrecision::kTf32), 0);
  // A library may have none for f64.
  EXPECT_GE(CountBiased<double>(ProductPrecision::kFull), testing::TestDriver::Get().is_emulated() ? 1 : 0);
}

TEST_F(CublasLtProducts, ABiasThatTakesMoreWorkspaceThanThereIsIsRefused) {
  if (!testing::TestDriver::Get().is_emulated()) return;  // what another library takes is its own affair
  EXPECT_TRUE(AddsBias({.rows = 1000, .columns = 1000, .inner = 64}));
  // The product takes 26 of 32 MiB, and with a bias 39.
  EXPECT_FALSE(AddsBias({.rows = 1800, .columns = 1800, .inner = 64}));
}

TEST_F(CublasLtProducts, ABiasIsAskedForOnceAndAgainWhereThatFailed) {
  const testing::TestDriver& driver = testing::TestDriver::Get();
  if (!driver.is_emulated()) return;  // fails when it is told to
  const MatmulProblem first = {.rows = 4, .columns = 4, .inner = 4}, second = {.rows = 6, .columns = 4, .inner = 4};
  const MatmulProblem third = {.rows = 8, .columns = 4, .inner = 4};
  driver.Fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_FALSE(AddsBias(first));
  EXPECT_FALSE(AddsBias(first));
  driver.Fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_ALLOC_FAILED);
  EXPECT_FALSE(AddsBias(second));
  EXPECT_TRUE(AddsBias(second));
  driver.Fail("cublasLtMatmulAlgoCheck", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_TRUE(AddsBias(second));
  EXPECT_FALSE(AddsBias(third));  // the first that asks
}

TEST_F(CublasLtProducts, ABiasThatIsRefusedAfterAllIsNotTriedAgain) {
  const testing::TestDriver& driver = testing::TestDriver::Get();
  if (!driver.is_emulated()) return;  // fails when it is told to
  MatmulProblem problem = {
      .rows = 4, .columns = 4, .inner = 4, .left = Address(0), .right = Address(1), .output = Address(2)};
  problem.bias = Address(3);
  ASSERT_TRUE(AddsBias(problem));
  driver.Fail("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_TRUE(absl::IsUnimplemented(Run(problem)));
  EXPECT_FALSE(AddsBias(problem));
  problem.bias = 0;
  EXPECT_TRUE(Run(problem).ok());
}

TEST_F(CublasLtProducts, AsManyBatchesAsAreAskedForAtOnce) {
  used_bytes_ = (kMaxLtBatch + 1) * sizeof(float);
  for (int64_t i = 0; i < kMaxLtBatch + 1; ++i) {
    At<float>(0)[i] = static_cast<float>(i);
    At<float>(1)[i] = 2;
  }
  ASSERT_TRUE(Run({.batch = kMaxLtBatch + 1,
                   .rows = 1,
                   .columns = 1,
                   .inner = 1,
                   .left = Address(0),
                   .right = Address(1),
                   .output = Address(2)})
                  .ok());
  for (int64_t i = 0; i < kMaxLtBatch + 1; ++i) ASSERT_EQ(At<float>(2)[i], 2 * static_cast<float>(i));
}

TEST_F(CublasLtProducts, WhatHasNoAlgorithmIsRefusedBeforeAnythingRuns) {
  std::vector<LtProblem> problems = LtProblemsOf(
      {.batch = 2, .rows = 4, .columns = 4, .inner = 4, .left = Address(0), .right = Address(1), .output = Address(2)});
  problems.push_back(problems[0]);
  problems[1].shape.b.rows = 3;  // of an inner dim of 4
  for (int64_t e = 0; e < 16; ++e) At<float>(0)[e] = At<float>(1)[e] = 1;
  Copy(pinned_, memory_->data(), streams_[0]);
  EXPECT_TRUE(absl::IsUnimplemented(Enqueue(problems, 0)));
  Copy(memory_->data(), pinned_, streams_[0]);
  Expect(driver_->StreamSynchronize(streams_[0]));
  EXPECT_EQ(*At<float>(2), 0);
}

TEST_F(CublasLtProducts, AreInOrderWithTheirStreamAndNoOther) {
  for (int64_t e = 0; e < 16; ++e) At<float>(0)[e] = At<float>(1)[e] = 1;
  const auto problem = [&](int left, int output) {
    return MatmulProblem{
        .rows = 4, .columns = 4, .inner = 4, .left = Address(left), .right = Address(1), .output = Address(output)};
  };
  ASSERT_TRUE(Enqueue(problem(0, 2)).ok());  // what is loaded once is loaded
  // The second stream's product has the first one's for its operand.
  CUevent event = nullptr;
  Expect(driver_->EventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Copy(pinned_, memory_->data(), streams_[0]);
  ASSERT_TRUE(Enqueue(problem(0, 2), 0).ok());
  Expect(driver_->EventRecord(event, streams_[0]));
  Expect(driver_->StreamWaitEvent(streams_[1], event, 0));
  Expect(driver_->EventDestroy(event));
  ASSERT_TRUE(Enqueue(problem(2, 0), 1).ok());
  Expect(driver_->StreamSynchronize(streams_[1]));
  Copy(memory_->data(), pinned_, streams_[1]);
  Expect(driver_->StreamSynchronize(streams_[1]));
  EXPECT_EQ(*At<float>(2), 4);
  EXPECT_EQ(*At<float>(0), 16);
}

TEST_F(CublasLtProducts, TheHeuristicIsAskedOnceForAShape) {
  const auto problem = [&](int64_t rows, uint64_t offset) {
    return MatmulProblem{
        .rows = rows, .columns = 4, .inner = 4, .left = Address(0) + offset, .right = Address(1), .output = Address(2)};
  };
  int64_t number = 0;
  for (const auto& [rows, offset, asked] : {std::tuple{4, 0, 1}, {4, 256, 1}, {4, 16, 1}, {5, 0, 2}, {4, 0, 2}}) {
    ASSERT_TRUE(Run(problem(rows, static_cast<uint64_t>(offset))).ok());
    EXPECT_EQ(products_->asked(), asked) << ++number;
  }
}

}  // namespace
}  // namespace tessera::cuda
