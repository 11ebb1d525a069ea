// GPU workers' speed, beside the GPU's own when it is asked directly, in turns in one run: gpu_bench [--quick]. One
// JSON object on stdout, a table on stderr. --quick takes sizes that an emulated driver manages too; its times say
// nothing.
//
// Each figure is a speed: the limit's time over ours. Limits are copies and products that this process gives the driver
// and cuBLASLt itself (the worker's descriptors, no service between); figures are of a cluster with one worker on the
// same GPU, or, where they are said to be the device's, of the worker's Device in this process.

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "client/catalog_ops.h"
#include "client/cluster.h"
#include "client/host_memory.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/cuda/cudnn_conv.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/dnn_plans.h"
#include "server/device/cuda/products.h"
#include "server/device/cuda/transforms.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Sizes {
  int64_t bytes = int64_t{1} << 30;  // of what is passed over
  int64_t square = 8192, f32_square = 4096;
  int64_t rows = 4096, images = 32, pixels = 56;  // of an attention; of a convolution, and in a line of one
  int64_t worker_bytes = int64_t{16} << 30;
  int products = 20, passes = 10, tiny_ops = 5000, rounds = 7;
};
constexpr Sizes kQuick = {.bytes = 1 << 16,
                          .square = 32,
                          .f32_square = 16,
                          .rows = 48,
                          .images = 1,
                          .pixels = 6,
                          .worker_bytes = 16 << 20,
                          .products = 2,
                          .passes = 2,
                          .tiny_ops = 20,
                          .rounds = 2};

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
double ProcessorSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// ---- asked directly

enum class Bias : uint8_t { kNone, kAdded };

// One stream of this process, and memory of the GPU in two halves.
class Direct {
 public:
  static absl::StatusOr<std::unique_ptr<Direct>> Open(int64_t half_bytes) {
    TESSERA_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
    TESSERA_ASSIGN_OR_RETURN(const cuda::Gpu gpu, cuda::Gpu::Open(*driver, 0));
    TESSERA_ASSIGN_OR_RETURN(auto memory, cuda::MakeMemory(gpu, 2 * half_bytes, cuda::Sharing::kPrivate));
    auto direct = std::unique_ptr<Direct>(new Direct(gpu, std::move(memory), half_bytes));
    TESSERA_RETURN_IF_ERROR(
        direct->Check("cuStreamCreate", driver->StreamCreate(&direct->stream_, CU_STREAM_NON_BLOCKING)));
    TESSERA_RETURN_IF_ERROR(direct->Check(
        "cuMemHostAlloc",
        driver->MemHostAlloc(&direct->pinned_, static_cast<size_t>(half_bytes), CU_MEMHOSTALLOC_PORTABLE)));
    return direct;
  }
  ~Direct() {
    if (pinned_ != nullptr) gpu_.driver->MemFreeHost(pinned_);
    if (stream_ != nullptr) gpu_.driver->StreamDestroy(stream_);
  }
  Direct(const Direct&) = delete;

  const cuda::Gpu& gpu() const { return gpu_; }
  std::byte* first() const { return memory_->data(); }
  std::byte* second() const { return memory_->data() + half_bytes_; }
  void* pinned() const { return pinned_; }
  std::string Name() const {
    char name[256] = {};
    return gpu_.driver->DeviceGetName(name, sizeof(name), gpu_.device) == CUDA_SUCCESS ? name : "a GPU";
  }

  absl::Status Copy(const void* from, void* to, int64_t bytes) {
    return Check("cuMemcpyAsync", gpu_.driver->MemcpyAsync(cuda::AddressOf(to), cuda::AddressOf(from),
                                                           static_cast<size_t>(bytes), stream_));
  }
  // Three matrices, one behind the other, in the first half. Their bias is at the start of the second one.
  absl::Status Multiply(DType dtype, ProductPrecision precision, int64_t n, Bias bias) {
    if (products_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(products_, cuda::Products::Open(gpu_, cuda::CublasLtLibraries()));
      TESSERA_ASSIGN_OR_RETURN(workspace_,
                               cuda::MakeMemory(gpu_, cuda::kProductWorkspaceBytes, cuda::Sharing::kPrivate));
    }
    const uint64_t at = cuda::AddressOf(first()), bytes = static_cast<uint64_t>(n * n * SizeBytes(dtype));
    const cuda::MatmulProblem problem = {.dtype = dtype,
                                         .precision = precision,
                                         .rows = n,
                                         .columns = n,
                                         .inner = n,
                                         .left = at,
                                         .right = at + bytes,
                                         .output = at + 2 * bytes,
                                         .bias = bias == Bias::kAdded ? cuda::AddressOf(second()) : 0};
    return products_->Enqueue(stream_, cuda::LtProblemsOf(problem), cuda::AddressOf(workspace_->data()));
  }
  // By a plan of cuDNN. Its operands are in the memory's halves.
  absl::Status RunByDnn(const cuda::DnnCall& call) {
    if (dnn_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(dnn_, cuda::DnnPlans::Open(gpu_));
      TESSERA_ASSIGN_OR_RETURN(dnn_workspace_,
                               cuda::MakeMemory(gpu_, cuda::kMaxConvolutionWorkspaceBytes, cuda::Sharing::kPrivate));
    }
    TESSERA_ASSIGN_OR_RETURN(const cuda::DnnPlans::Parts parts,
                             dnn_->Prepare(call, cuda::kMaxConvolutionWorkspaceBytes));
    return dnn_->Enqueue(stream_, parts, cuda::AddressOf(dnn_workspace_->data()));
  }
  // By a plan of cuFFT, from the memory's first half to the second.
  absl::Status Transform(int64_t lines, int64_t length) {
    if (transforms_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(transforms_, cuda::Transforms::Open(gpu_));
      TESSERA_ASSIGN_OR_RETURN(transforms_workspace_,
                               cuda::MakeMemory(gpu_, cuda::kMaxFourierWorkspaceBytes, cuda::Sharing::kPrivate));
    }
    const cuda::FourierProblem problem{
        .shape = {.length = length, .batch = lines, .input_distance = length, .output_distance = length},
        .input = cuda::AddressOf(first()),
        .output = cuda::AddressOf(second())};
    TESSERA_ASSIGN_OR_RETURN(const cuda::Transforms::Parts parts,
                             transforms_->Prepare(problem, cuda::kMaxFourierWorkspaceBytes));
    return transforms_->Enqueue(stream_, parts, cuda::AddressOf(transforms_workspace_->data()));
  }
  absl::Status Await() { return Check("cuStreamSynchronize", gpu_.driver->StreamSynchronize(stream_)); }

 private:
  Direct(const cuda::Gpu& gpu, std::unique_ptr<DeviceMemory> memory, int64_t half_bytes)
      : gpu_(gpu), memory_(std::move(memory)), half_bytes_(half_bytes) {}
  absl::Status Check(std::string_view call, CUresult result) const { return gpu_.driver->Check(call, result); }

  const cuda::Gpu gpu_;
  const std::unique_ptr<DeviceMemory> memory_;
  const int64_t half_bytes_;
  CUstream stream_ = nullptr;
  void* pinned_ = nullptr;
  std::unique_ptr<DeviceMemory> workspace_;
  std::unique_ptr<cuda::Products> products_;
  std::unique_ptr<DeviceMemory> dnn_workspace_;
  std::unique_ptr<cuda::DnnPlans> dnn_;
  std::unique_ptr<DeviceMemory> transforms_workspace_;
  std::unique_ptr<cuda::Transforms> transforms_;
};

// A worker's Device in this process.
class OwnDevice {
 public:
  static absl::StatusOr<std::unique_ptr<OwnDevice>> Begin(const cuda::Gpu& gpu) {
    auto own = std::unique_ptr<OwnDevice>(new OwnDevice());
    TESSERA_ASSIGN_OR_RETURN(own->device_, cuda::CudaDevice::Prepare(gpu));
    TESSERA_RETURN_IF_ERROR(own->device_->Begin({.counters = own->page_.get()}));
    return own;
  }
  void Run(DeviceWork work) { device_->EnqueueRun(StreamId::kCompute, std::move(work)); }
  absl::Status Await() {
    std::promise<absl::Status> reported;
    device_->EnqueueReport(StreamId::kCompute,
                           [&](absl::Status status, const RunTimes&) { reported.set_value(std::move(status)); });
    return reported.get_future().get();
  }

 private:
  OwnDevice()
      : page_(new (mmap(nullptr, kCounterPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                  CounterPage(),
              [](CounterPage* page) { munmap(page, kCounterPageBytes); }) {}

  const std::shared_ptr<CounterPage> page_;
  std::unique_ptr<cuda::CudaDevice> device_;
};

// ---- figures

// Enqueues so many and waits for the last.
using Run = std::function<absl::Status(int count)>;

class Bench {
 public:
  explicit Bench(const Sizes& sizes) : sizes_(sizes) {}

  // `share` of the limit's time is what counts: a half where one byte is read and the limit writes it, too.
  absl::Status Add(const std::string& name, double goal, int count, const Run& own, const std::string& limit_name,
                   const Run& limit, double share = 1) {
    std::vector<double> of_own, of_limit;
    for (int round = 0; round <= sizes_.rounds; ++round) {
      TESSERA_ASSIGN_OR_RETURN(const double own_s, Seconds(own, count));
      TESSERA_ASSIGN_OR_RETURN(const double limit_s, Seconds(limit, count));
      if (round == 0) continue;  // compiles, takes memory
      of_own.push_back(own_s);
      of_limit.push_back(share * limit_s);
    }
    const auto [best, median] = BestAndMedian(of_own);
    const auto [limit_best, limit_median] = BestAndMedian(of_limit);
    const double speed = limit_best / best;
    out_[name] = {{"seconds", best},
                  {"median_seconds", median},
                  {"limit", limit_name},
                  {"limit_seconds", limit_best},
                  {"limit_median_seconds", limit_median},
                  {"speed", speed},
                  {"median_speed", limit_median / median},
                  {"goal", goal},
                  {"reached", speed >= goal}};
    std::fprintf(stderr, "%-34s %11.3f us  %-24s %11.3f us  %5.2f  >= %.2f: %s\n", name.c_str(), best * 1e6,
                 limit_name.c_str(), limit_best * 1e6, speed, goal, speed >= goal ? "reached" : "MISSED");
    return absl::OkStatus();
  }
  // Beside a number of seconds that is the goal.
  absl::Status AddWithin(const std::string& name, double goal_s,
                         const std::function<absl::StatusOr<double>()>& seconds) {
    std::vector<double> all;
    for (int round = 0; round <= sizes_.rounds; ++round) {
      TESSERA_ASSIGN_OR_RETURN(const double one, seconds());
      if (round > 0) all.push_back(one);
    }
    const auto [best, median] = BestAndMedian(all);
    out_[name] = {{"seconds", best}, {"median_seconds", median}, {"goal_seconds", goal_s}, {"reached", best <= goal_s}};
    std::fprintf(stderr, "%-34s %11.3f us  %46s <= %.0f us: %s\n", name.c_str(), best * 1e6, "", goal_s * 1e6,
                 best <= goal_s ? "reached" : "MISSED");
    return absl::OkStatus();
  }
  void Skip(const std::string& name, const absl::Status& why) {
    out_[name] = {{"skipped", std::string(why.message())}};
    std::fprintf(stderr, "%-34s not measured: %s\n", name.c_str(), std::string(why.message()).c_str());
  }
  const nlohmann::ordered_json& out() const { return out_; }

 private:
  static absl::StatusOr<double> Seconds(const Run& run, int count) {
    const Clock::time_point start = Clock::now();
    TESSERA_RETURN_IF_ERROR(run(count));
    return SecondsSince(start) / count;
  }
  static std::pair<double, double> BestAndMedian(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return {all.front(), all[all.size() / 2]};
  }

  const Sizes& sizes_;
  nlohmann::ordered_json out_;
};

// The last of several calls in a row, waited for; earlier ones are let go of as they are made.
Run InARow(std::function<absl::StatusOr<Tensor>()> call) {
  return [call = std::move(call)](int count) -> absl::Status {
    std::optional<Tensor> last;
    for (int i = 0; i < count; ++i) {
      TESSERA_ASSIGN_OR_RETURN(last, call());
    }
    return last->Wait();
  };
}

class Figures {
 public:
  Figures(const Sizes& sizes, Direct& direct, const Session& session, Mesh mesh, Bench& bench)
      : sizes_(sizes), direct_(direct), session_(session), mesh_(std::move(mesh)), bench_(bench) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(AddProduct("matmul_bf16", DType::kBF16, sizes_.square, ProductPrecision::kFull));
    TESSERA_RETURN_IF_ERROR(AddProduct("matmul_f32", DType::kF32, sizes_.f32_square, ProductPrecision::kFull));
    TESSERA_RETURN_IF_ERROR(AddProduct("matmul_tf32", DType::kF32, sizes_.f32_square, ProductPrecision::kTf32));
    TESSERA_RETURN_IF_ERROR(
        AddProduct("linear_f32", DType::kF32, sizes_.f32_square, ProductPrecision::kFull, Bias::kAdded));
    TESSERA_RETURN_IF_ERROR(
        AddProduct("linear_tf32", DType::kF32, sizes_.f32_square, ProductPrecision::kTf32, Bias::kAdded));
    TESSERA_RETURN_IF_ERROR(AddPasses());
    TESSERA_RETURN_IF_ERROR(AddReductionsAndScans());
    TESSERA_RETURN_IF_ERROR(AddIndices());
    TESSERA_RETURN_IF_ERROR(AddTransfers());
    TESSERA_RETURN_IF_ERROR(AddCopies());
    TESSERA_RETURN_IF_ERROR(AddTinyOps());
    TESSERA_RETURN_IF_ERROR(AddAttention("attention_bf16", false));
    TESSERA_RETURN_IF_ERROR(AddAttention("attention_bf16_causal", true));
    TESSERA_RETURN_IF_ERROR(AddAttentionGradients("attention_backward_bf16", 1));
    TESSERA_RETURN_IF_ERROR(AddAttentionGradients("attention_backward_bf16_of_a_result", 1, Known::kResult));
    TESSERA_RETURN_IF_ERROR(AddAttentionGradients("attention_backward_bf16_of_shared_keys", 4));
    const int64_t wide = std::max<int64_t>(sizes_.rows / 64, 8);
    const int64_t line = sizes_.pixels;
    TESSERA_RETURN_IF_ERROR(
        AddConvolution("conv_bf16", DType::kBF16, {sizes_.images, 4 * wide, line, line}, {4 * wide, 4 * wide, 3, 3}));
    TESSERA_RETURN_IF_ERROR(
        AddConvolution("conv_f32", DType::kF32, {sizes_.images, wide, 2 * line, 2 * line}, {wide, wide, 3, 3}));
    for (const ConvOperand of : {ConvOperand::kX, ConvOperand::kWeight}) {
      TESSERA_RETURN_IF_ERROR(
          AddConvGradient(of, DType::kBF16, {sizes_.images, 4 * wide, line, line}, {4 * wide, 4 * wide, 3, 3}));
    }
    TESSERA_RETURN_IF_ERROR(AddTransform("fft_of_a_vector", 1, sizes_.rows * sizes_.rows));
    TESSERA_RETURN_IF_ERROR(AddTransform("fft_of_rows", sizes_.rows, sizes_.rows));
    // Within 1.1 times what PyTorch took on an H100.
    TESSERA_RETURN_IF_ERROR(AddMatrices("cholesky", "cholesky", sizes_.rows, 1, 2.16e-3));
    TESSERA_RETURN_IF_ERROR(AddMatrices("solve", "solve", sizes_.rows, 2, 20.2e-3));
    TESSERA_RETURN_IF_ERROR(AddMatrices("qr", "qr", sizes_.rows / 2, 1, 12.3e-3));
    TESSERA_RETURN_IF_ERROR(AddMatrices("eigh", "eigh", sizes_.rows / 4, 1, 13.1e-3));
    TESSERA_RETURN_IF_ERROR(AddMatrices("svd", "svd", sizes_.rows / 4, 1, 62.4e-3));
    return AddMatrices("lu", "lu", sizes_.rows, 1, 20.2e-3);  // within what solve takes
  }

 private:
  absl::StatusOr<Tensor> Ones(DType dtype, const Shape& shape) const {
    Creation creation;
    creation.shape = shape;
    creation.dtype = dtype;
    creation.mesh = mesh_;
    creation.placements = Placements{Placement::Replicate()};
    return ops::Full(session_, creation, {Scalar::Float(1)});
  }
  bench::Run DirectCopy() {
    return [this](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        TESSERA_RETURN_IF_ERROR(direct_.Copy(direct_.first(), direct_.second(), sizes_.bytes));
      }
      return direct_.Await();
    };
  }

  // With a bias beside one call of the library where it adds that, else beside the product alone.
  absl::Status AddProduct(const std::string& name, DType dtype, int64_t n, ProductPrecision precision,
                          Bias bias = Bias::kNone) {
    if (absl::Status status = direct_.Multiply(dtype, precision, n, Bias::kNone); !status.ok()) {
      bench_.Skip(name, status);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const Tensor a, Ones(dtype, {n, n}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor b, Ones(dtype, {n, n}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor row, Ones(dtype, {n}));
    ops::MatmulOptions options;
    if (precision == ProductPrecision::kTf32) options.precision = "tf32";
    const auto own = [&]() -> absl::StatusOr<Tensor> {
      if (bias == Bias::kNone) return ops::Matmul(a, b, options);
      TESSERA_ASSIGN_OR_RETURN(const Tensor product, ops::Matmul(a, b, options));
      return ops::Add(product, row);
    };
    const bool is_librarys = bias == Bias::kAdded && direct_.Multiply(dtype, precision, n, bias).ok();
    const auto direct = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        TESSERA_RETURN_IF_ERROR(direct_.Multiply(dtype, precision, n, is_librarys ? bias : Bias::kNone));
      }
      return direct_.Await();
    };
    return bench_.Add(StrCat(name, "_", n), 0.97, sizes_.products, InARow(own),
                      is_librarys ? "cuBLASLt with the bias" : "cuBLASLt itself", direct);
  }

  absl::Status AddPasses() {
    const int64_t columns = std::min<int64_t>(4096, sizes_.bytes / 4 / 16);
    TESSERA_ASSIGN_OR_RETURN(const Tensor x, Ones(DType::kF32, {sizes_.bytes / 4 / columns, columns}));
    const auto chain = [&]() -> absl::StatusOr<Tensor> {
      TESSERA_ASSIGN_OR_RETURN(Tensor y, ops::Multiply(x, 0.5));
      TESSERA_ASSIGN_OR_RETURN(y, ops::Add(y, 1.0));
      TESSERA_ASSIGN_OR_RETURN(y, ops::Abs(y));
      TESSERA_ASSIGN_OR_RETURN(y, ops::Multiply(y, y));
      TESSERA_ASSIGN_OR_RETURN(y, ops::Subtract(y, x));
      return ops::Relu(y);
    };
    TESSERA_RETURN_IF_ERROR(
        bench_.Add("chain_of_6_maps", 0.9, sizes_.passes, InARow(chain), "device copy", DirectCopy()));
    TESSERA_RETURN_IF_ERROR(bench_.Add("sum", 0.85, sizes_.passes, InARow([&] { return ops::Sum(x); }),
                                       "half of a device copy", DirectCopy(), 0.5));
    TESSERA_RETURN_IF_ERROR(bench_.Add("softmax", 0.85, sizes_.passes, InARow([&] { return ops::Softmax(x); }),
                                       "device copy", DirectCopy()));
    TESSERA_RETURN_IF_ERROR(bench_.Add("layer_norm", 0.85, sizes_.passes, InARow([&] { return ops::LayerNorm(x); }),
                                       "device copy", DirectCopy()));
    const auto variances = [&] { return ops::Var(x, {.axis = {{1}}}); };
    return bench_.Add("var_of_rows", 0.85, sizes_.passes, InARow(variances), "half of a device copy", DirectCopy(),
                      0.5);
  }

  // Each reads everything once; a scan writes it, too.
  absl::Status AddReductionsAndScans() {
    const int64_t columns = std::min<int64_t>(4096, sizes_.bytes / 4 / 16);
    TESSERA_ASSIGN_OR_RETURN(const Tensor x, Ones(DType::kF32, {sizes_.bytes / 4 / columns, columns}));
    const auto read = [&](const char* name, std::function<absl::StatusOr<Tensor>()> call) {
      return bench_.Add(name, 0.9, sizes_.passes, InARow(std::move(call)), "half of a device copy", DirectCopy(), 0.5);
    };
    TESSERA_RETURN_IF_ERROR(read("sum_of_rows", [&] { return ops::Sum(x, ops::SumOptions{{{1}}, {}, false}); }));
    TESSERA_RETURN_IF_ERROR(read("sum_of_columns", [&] { return ops::Sum(x, ops::SumOptions{{{0}}, {}, false}); }));
    TESSERA_RETURN_IF_ERROR(read("max", [&] { return ops::Max(x); }));
    TESSERA_RETURN_IF_ERROR(read("argmax_of_rows", [&] { return ops::Argmax(x, {.axis = {{1}}}); }));
    TESSERA_RETURN_IF_ERROR(read("argmax_of_columns", [&] { return ops::Argmax(x, {.axis = {{0}}}); }));
    TESSERA_RETURN_IF_ERROR(bench_.Add("cumulative_sum_of_rows", 0.8, sizes_.passes, InARow([&] {
                                         return ops::CumulativeSum(x, ops::CumulativeSumOptions{{{1}}, {}});
                                       }),
                                       "device copy", DirectCopy()));
    // A quarter of the bytes, in one line.
    TESSERA_ASSIGN_OR_RETURN(const Tensor line, Ones(DType::kF32, {sizes_.bytes / 16}));
    return bench_.Add("cumulative_sum_of_a_vector", 0.8, sizes_.passes, InARow([&] {
                        return ops::CumulativeSum(line, ops::CumulativeSumOptions{{{0}}, {}});
                      }),
                      "quarter of a device copy", DirectCopy(), 0.25);
  }

  // Rows of 1 KiB in an order that is no neighbours': as many as there are to gather, a 16th to scatter.
  absl::Status AddIndices() {
    const int64_t columns = 256, rows = std::max<int64_t>(16, sizes_.bytes / 4 / columns);
    const auto mixed = [&](int64_t count) -> absl::StatusOr<Tensor> {
      Creation creation;
      creation.shape = {count};
      creation.dtype = DType::kI64;
      creation.mesh = mesh_;
      creation.placements = Placements{Placement::Replicate()};
      TESSERA_ASSIGN_OR_RETURN(Tensor numbers, ops::Arange(session_, creation, {Scalar::Int(0), Scalar::Int(7919)}));
      return ops::Remainder(numbers, rows);
    };
    TESSERA_ASSIGN_OR_RETURN(const Tensor x, Ones(DType::kF32, {rows, columns}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor all, mixed(rows));
    TESSERA_RETURN_IF_ERROR(bench_.Add("gather_of_rows", 0.9, sizes_.passes,
                                       InARow([&] { return ops::TakeAlongAxis(x, all, {.axis = {{0}}}); }),
                                       "device copy", DirectCopy()));
    const int64_t few_rows = std::max<int64_t>(1, rows / 16);
    TESSERA_ASSIGN_OR_RETURN(const Tensor few, mixed(few_rows));
    TESSERA_ASSIGN_OR_RETURN(const Tensor updates, Ones(DType::kF32, {few_rows, columns}));
    const auto add = [&] { return ops::Scatter(x, few, updates, {.axis = {{0}}, .mode = "add"}); };
    TESSERA_RETURN_IF_ERROR(bench_.Add("scatter_add_of_rows", 0.7, 1, InARow(add), "device copy", DirectCopy()));
    // As gradients of an embedding: as many updates as there are rows, most rows have one.
    const auto add_all = [&] { return ops::Scatter(x, all, x, {.axis = {{0}}, .mode = "add"}); };
    TESSERA_RETURN_IF_ERROR(
        bench_.Add("scatter_add_of_all_rows", 0.4, 1, InARow(add_all), "device copy", DirectCopy()));
    // A quarter of the bytes that a copy of all has; 4 passes over keys, and over places.
    TESSERA_ASSIGN_OR_RETURN(const Tensor keys, Numbers(DType::kF32, {sizes_.bytes / 16}, 7));
    const auto sort = [&] { return ops::Sort(keys, {}); };
    TESSERA_RETURN_IF_ERROR(bench_.Add("sort_of_a_vector", 0.075, 1, InARow(sort), "device copy", DirectCopy(), 0.25));
    const auto argsort = [&] { return ops::Argsort(keys, {}); };
    TESSERA_RETURN_IF_ERROR(
        bench_.Add("argsort_of_a_vector", 0.075, 1, InARow(argsort), "device copy", DirectCopy(), 0.25));
    // All keys are read six times, and those of a copy once, and written.
    const int64_t first = std::min<int64_t>(100, sizes_.bytes / 16);
    const auto topk = [&] { return ops::ArgsortFirst(keys, first, {.axis = {{0}}, .descending = true}); };
    return bench_.Add("topk_of_a_vector", 0.25, sizes_.passes, InARow(topk), "device copy", DirectCopy(), 0.25);
  }

  absl::Status AddTransfers() {
    const Shape shape = {sizes_.bytes / 4};
    std::vector<float> values(static_cast<size_t>(shape[0]), 1.0f);
    const auto up = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        TESSERA_ASSIGN_OR_RETURN(const Tensor x,
                                 session_.DistributeTensor(MakeHostView(DType::kF32, shape, values.data()), mesh_,
                                                           {Placement::Replicate()}));
        TESSERA_RETURN_IF_ERROR(x.Wait());
      }
      return absl::OkStatus();
    };
    const auto pinned = [&](bool is_up) -> bench::Run {
      return [this, is_up](int count) -> absl::Status {
        for (int i = 0; i < count; ++i) {
          const void* from = is_up ? direct_.pinned() : direct_.first();
          TESSERA_RETURN_IF_ERROR(direct_.Copy(from, is_up ? direct_.first() : direct_.pinned(), sizes_.bytes));
        }
        return direct_.Await();
      };
    };
    TESSERA_RETURN_IF_ERROR(bench_.Add("upload", 0.8, 1, up, "pinned copy", pinned(true)));
    TESSERA_ASSIGN_OR_RETURN(const Tensor x, Ones(DType::kF32, shape));
    const auto down = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        TESSERA_RETURN_IF_ERROR(x.FullTensorTo({DType::kF32, shape, reinterpret_cast<char*>(values.data())}));
      }
      return absl::OkStatus();
    };
    return bench_.Add("download", 0.8, 1, down, "pinned copy", pinned(false));
  }

  // The device's, of half of the memory: rows of a matrix twice as wide, and a matrix that is turned.
  absl::Status AddCopies() {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<OwnDevice> device, OwnDevice::Begin(direct_.gpu()));
    int64_t columns = 1;
    while (columns * columns * 2 < sizes_.bytes / 4) columns *= 2;
    const int64_t rows = sizes_.bytes / 4 / 2 / columns;
    const auto run = [&](Strides from) -> bench::Run {
      return [&, from = std::move(from)](int count) -> absl::Status {
        for (int i = 0; i < count; ++i) {
          device->Run(CopyWork{.extents = {rows, columns},
                               .source = direct_.first(),
                               .source_strides = from,
                               .destination = direct_.second(),
                               .destination_strides = {columns, 1}});
        }
        return device->Await();
      };
    };
    TESSERA_RETURN_IF_ERROR(bench_.Add("strided_copy_by_the_device", 1 / 1.15, sizes_.passes, run({2 * columns, 1}),
                                       "half of a device copy", DirectCopy(), 0.5));
    return bench_.Add("transposing_copy_by_the_device", 1 / 1.15, sizes_.passes, run({1, rows}),
                      "half of a device copy", DirectCopy(), 0.5);
  }

  absl::Status AddTinyOps() {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<OwnDevice> device, OwnDevice::Begin(direct_.gpu()));
    const LocalOp plus = MapOp{{{{ScalarOp::kInput, DType::kF32, 0},
                                 {ScalarOp::kInput, DType::kF32, 0},
                                 {ScalarOp::kAdd, DType::kF32, 0, 1}}}};
    const std::vector<KernelInput> inputs = {
        {.data = direct_.first(), .dtype = DType::kF32, .extents = {16}, .strides = {1}}};
    const KernelCall call = {.op = &plus,
                             .inputs = inputs,
                             .output = direct_.second(),
                             .output_dtype = DType::kF32,
                             .output_extents = {16},
                             .output_strides = {1}};
    const auto many = [&]() -> absl::Status {
      for (int i = 0; i < sizes_.tiny_ops; ++i) device->Run(KernelWork{call, {}});
      return device->Await();
    };
    TESSERA_RETURN_IF_ERROR(bench_.AddWithin("tiny_op_of_the_device", 10e-6, [&]() -> absl::StatusOr<double> {
      const Clock::time_point start = Clock::now();
      TESSERA_RETURN_IF_ERROR(many());
      return SecondsSince(start) / sizes_.tiny_ops;
    }));
    return bench_.AddWithin("tiny_op_of_the_device_host_time", 5e-6, [&]() -> absl::StatusOr<double> {
      const double start = ProcessorSeconds();
      TESSERA_RETURN_IF_ERROR(many());
      return (ProcessorSeconds() - start) / sizes_.tiny_ops;
    });
  }

  // Numbers in [0, 1), since a GPU computes with ones faster than with others.
  absl::StatusOr<Tensor> Numbers(DType dtype, const Shape& shape, int64_t seed) const {
    Creation creation;
    creation.shape = shape;
    creation.dtype = DType::kF32;
    creation.mesh = mesh_;
    creation.placements = Placements{Placement::Replicate()};
    TESSERA_ASSIGN_OR_RETURN(const Tensor numbers, ops::Rand(session_, creation, {Scalar::Int(seed), Scalar::Int(0)}));
    return ops::Astype(numbers, dtype);
  }
  // The call on memory of this process: inputs in the first half, the result in the second.
  absl::Status AddByDnn(const std::string& name, const std::function<absl::StatusOr<Tensor>()>& own,
                        const std::optional<cuda::DnnCall>& call) {
    return AddByDnn(name, own, call.has_value() ? std::vector{*call} : std::vector<cuda::DnnCall>());
  }
  absl::Status AddByDnn(const std::string& name, const std::function<absl::StatusOr<Tensor>()>& own,
                        const std::vector<cuda::DnnCall>& calls) {
    const auto run = [&] {
      absl::Status status = calls.empty() ? absl::UnimplementedError("cuDNN isn't asked") : absl::OkStatus();
      for (const cuda::DnnCall& call : calls) status.Update(direct_.RunByDnn(call));
      return status;
    };
    if (absl::Status status = run(); !status.ok()) {
      bench_.Skip(name, status);
      return absl::OkStatus();
    }
    const auto direct = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) TESSERA_RETURN_IF_ERROR(run());
      return direct_.Await();
    };
    return bench_.Add(name, 0.95, sizes_.products, InARow(own), "cuDNN itself", direct);
  }
  static KernelInput InputAt(std::byte* at, DType dtype, const Shape& shape) {
    return {.data = at, .dtype = dtype, .extents = shape, .strides = RowMajorStrides(shape)};
  }
  KernelCall CallTo(const Shape& shape, DType dtype) const {
    KernelCall call{.output = direct_.second(), .output_dtype = dtype, .output_extents = shape};
    call.output_strides = RowMajorStrides(shape);
    for (const int64_t extent : shape) call.output_box.push_back({0, extent});
    return call;
  }

  absl::Status AddAttention(const std::string& name, bool is_causal) {
    const Shape shape = {4, 16, sizes_.rows, 64};
    TESSERA_ASSIGN_OR_RETURN(const Tensor q, Numbers(DType::kBF16, shape, 1));
    TESSERA_ASSIGN_OR_RETURN(const Tensor k, Numbers(DType::kBF16, shape, 2));
    TESSERA_ASSIGN_OR_RETURN(const Tensor v, Numbers(DType::kBF16, shape, 3));
    const int64_t bytes = NumElements(shape) * 2;
    std::vector<KernelInput> inputs;
    for (int i = 0; i < 3; ++i) inputs.push_back(InputAt(direct_.first() + i * bytes, DType::kBF16, shape));
    const Scalar scale[] = {Scalar::Float(0.125)};
    KernelCall call = CallTo(shape, DType::kBF16);
    call.inputs = inputs;
    call.scalars = scale;
    ops::ScaledDotProductAttentionOptions options;
    options.is_causal = is_causal;
    return AddByDnn(
        name, [&] { return ops::ScaledDotProductAttention(q, k, v, std::nullopt, options); },
        cuda::AttentionByDnn({.is_causal = is_causal}, call));
  }

  // 16 heads of queries, so many of which share one of keys. The attention's result and its logarithms may be known.
  enum class Known : uint8_t { kNothing, kResult };
  absl::Status AddAttentionGradients(const std::string& name, int64_t sharing, Known known = Known::kNothing) {
    const int64_t rows = sizes_.rows, features = 64, heads = 16 / sharing, of_head = rows * features;
    const Shape queries = sharing == 1 ? Shape{4, 16, rows, features} : Shape{4, heads, sharing, rows, features};
    const Shape keys = {4, heads, rows, features};
    std::vector<Tensor> tensors;
    std::vector<KernelInput> inputs;
    std::byte* at = direct_.first();
    cuda::SharedHeads shared{.count = sharing};
    for (size_t i = 0; i < 4; ++i) {
      TESSERA_ASSIGN_OR_RETURN(Tensor tensor, Numbers(DType::kBF16, i < 2 ? queries : keys, 1));
      tensors.push_back(std::move(tensor));
      inputs.push_back(InputAt(at, DType::kBF16, {4 * heads, rows, features}));
      if (i < 2) inputs.back().strides[0] = sharing * of_head;
      shared.strides[i] = i < 2 ? of_head : 0;
      at += 4 * 16 * of_head * 2;
    }
    const Scalar scale[] = {Scalar::Float(0.125)};
    KernelCall call = CallTo({4 * heads, (sharing + 2) * of_head}, DType::kBF16);
    call.inputs = inputs;
    call.scalars = scale;
    // Any memory will do: the library's time depends on no value.
    std::vector<KernelInput> result;
    if (known == Known::kResult) {
      result = {inputs[0], InputAt(direct_.first(), DType::kF32, {4 * heads, rows, 1})};
      TESSERA_ASSIGN_OR_RETURN(Tensor logarithms, Numbers(DType::kF32, {4, 16, rows}, 1));
      tensors.push_back(tensors[0]);
      tensors.push_back(std::move(logarithms));
    }
    const auto calls = cuda::AttentionGradientsByDnn(
        {}, call, direct_.second() + (NumElements(call.output_extents) * 2 + 255) / 256 * 256, shared, result);
    std::vector<cuda::DnnCall> direct;
    if (calls.has_value() && calls->attention.has_value()) direct.push_back(*calls->attention);
    if (calls.has_value()) direct.push_back(calls->gradients);
    return AddByDnn(
        name,
        [&] {
          const auto& t = tensors;
          if (known == Known::kNothing) return ops::AttentionGradients(t[0], t[1], t[2], t[3], scale[0]);
          return ops::AttentionGradientsOfResult(t[0], t[1], t[2], t[3], t[4], t[5], scale[0]);
        },
        direct);
  }

  absl::Status AddConvolution(const std::string& name, DType dtype, const Shape& x, const Shape& weight) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor images, Numbers(dtype, x, 4));
    TESSERA_ASSIGN_OR_RETURN(const Tensor by, Numbers(dtype, weight, 5));
    const int64_t bytes = (NumElements(x) * SizeBytes(dtype) + 255) / 256 * 256;
    const std::vector<KernelInput> inputs = {InputAt(direct_.first(), dtype, x),
                                             InputAt(direct_.first() + bytes, dtype, weight)};
    const ConvOp op{.windows = {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}}};
    TESSERA_ASSIGN_OR_RETURN(const Shape result, ConvOutput(op, x, weight));
    KernelCall call = CallTo(result, dtype);
    call.inputs = inputs;
    return AddByDnn(
        name,
        [&] {
          return ops::ConvWindows(images, by, {1, 1}, {1, 1}, {1, 1});
        },
        cuda::ConvolutionByDnn(op, call));
  }

  // The convolution's result has the shape of x.
  absl::Status AddConvGradient(ConvOperand of, DType dtype, const Shape& x, const Shape& weight) {
    const bool is_of_x = of == ConvOperand::kX;
    const Shape &of_other = is_of_x ? weight : x, &wanted = is_of_x ? x : weight;
    TESSERA_ASSIGN_OR_RETURN(const Tensor gradient, Numbers(dtype, x, 6));
    TESSERA_ASSIGN_OR_RETURN(const Tensor other, Numbers(dtype, of_other, 7));
    const int64_t bytes = (NumElements(x) * SizeBytes(dtype) + 255) / 256 * 256;
    const std::vector<KernelInput> inputs = {InputAt(direct_.first(), dtype, x),
                                             InputAt(direct_.first() + bytes, dtype, of_other)};
    const ConvGradientOp op{.of = of, .windows = {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}}};
    KernelCall call = CallTo(wanted, dtype);
    call.inputs = inputs;
    return AddByDnn(
        is_of_x ? "conv_backward_x_bf16" : "conv_backward_weight_bf16",
        [&]() -> absl::StatusOr<Tensor> {
          if (is_of_x) return ops::ConvBackwardX(gradient, other, wanted, {1, 1}, {1, 1}, {1, 1});
          return ops::ConvBackwardWeight(gradient, other, wanted, {1, 1}, {1, 1}, {1, 1});
        },
        cuda::ConvGradientByDnn(op, call));
  }

  // A function of f32 matrices [n, n], which are symmetric and positive definite: the most of each row is on the
  // diagonal.
  absl::Status AddMatrices(const std::string& name, const std::string& function, int64_t n, size_t operands,
                           double goal_s) {
    Creation creation;
    creation.shape = {n, n};
    creation.dtype = DType::kF32;
    creation.mesh = mesh_;
    creation.placements = Placements{Placement::Replicate()};
    TESSERA_ASSIGN_OR_RETURN(const Tensor one, ops::Eye(session_, creation, {Scalar::Int(0)}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor large, ops::Multiply(one, static_cast<double>(n)));
    TESSERA_ASSIGN_OR_RETURN(const Tensor ones, Ones(DType::kF32, {n, n}));
    TESSERA_ASSIGN_OR_RETURN(const Tensor matrix, ops::Add(large, ones));
    const std::vector<Operand> all(operands, Operand(matrix));
    return bench_.AddWithin("linalg_" + name, goal_s, [&]() -> absl::StatusOr<double> {
      const Clock::time_point start = Clock::now();
      TESSERA_ASSIGN_OR_RETURN(const std::vector<Tensor> results, ops::MatrixFunction(all, function, {}));
      TESSERA_RETURN_IF_ERROR(results[0].Wait());
      return SecondsSince(start);
    });
  }

  // Beside a plan of cuFFT that this process gives the library.
  absl::Status AddTransform(const std::string& name, int64_t lines, int64_t length) {
    if (absl::Status status = direct_.Transform(lines, length); !status.ok()) {
      bench_.Skip(name, status);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(const Tensor x, Numbers(DType::kC64, {lines, length}, 6));
    const auto limit = [&](int count) -> absl::Status {
      for (int i = 0; i < count; ++i) TESSERA_RETURN_IF_ERROR(direct_.Transform(lines, length));
      return direct_.Await();
    };
    return bench_.Add(name, 0.95, sizes_.passes,
                      InARow([&] { return ops::Fft(x, {.n = {}, .axis = {{1}}, .norm = "backward"}); }), "cuFFT",
                      limit);
  }

  const Sizes& sizes_;
  Direct& direct_;
  const Session& session_;
  const Mesh mesh_;
  Bench& bench_;
};

absl::Status Main(const Sizes& sizes) {
  const int64_t matrices = std::max(sizes.square * sizes.square * 2, sizes.f32_square * sizes.f32_square * 4) * 3;
  const int64_t attention = int64_t{4} * 16 * sizes.rows * 64 * 2 * 5;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Direct> direct,
                           Direct::Open(std::max({sizes.bytes, matrices, attention, int64_t{2} << 20})));
  ClusterOptions options;
  options.device = DeviceKind::kCuda;
  options.memory_bytes = sizes.worker_bytes;
  TESSERA_ASSIGN_OR_RETURN(const LocalCluster cluster, LocalCluster::Start(options));
  TESSERA_ASSIGN_OR_RETURN(const Session session, cluster.Connect());
  TESSERA_ASSIGN_OR_RETURN(Mesh mesh, session.DefaultMesh());
  Bench bench(sizes);
  std::fprintf(stderr, "device: %s\n", direct->Name().c_str());
  TESSERA_RETURN_IF_ERROR(Figures(sizes, *direct, session, std::move(mesh), bench).Run());
  const nlohmann::ordered_json out = {{"device", direct->Name()}, {"bytes", sizes.bytes}, {"figures", bench.out()}};
  std::printf("%s\n", out.dump(2).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  bool is_quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      is_quick = true;
    } else {
      std::fprintf(stderr, "usage: gpu_bench [--quick]\n");
      return 2;
    }
  }
  const absl::Status status = tessera::bench::Main(is_quick ? tessera::bench::kQuick : tessera::bench::Sizes());
  if (status.ok()) return 0;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
