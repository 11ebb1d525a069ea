// The CPU kernels against memcpy of the same bytes in the same run. One JSON object on stdout: for each
// kernel its seconds (best of several), the bytes it reads and writes, and its ratio to memcpy of as
// many bytes read.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kernels/cpu/blas_core.h"
#include "kernels/kernel.h"

namespace tessera::bench {
namespace {

double BestSeconds(int repetitions, const std::function<void()>& run) {
  run();
  double best = 1e30;
  for (int r = 0; r < repetitions; ++r) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

struct Bench {
  int repetitions;
  nlohmann::json out;

  void Add(const std::string& name, int64_t bytes_read, double memcpy_seconds, const std::function<void()>& run) {
    const double seconds = BestSeconds(repetitions, run);
    out[name] = {{"seconds", seconds}, {"bytes_read", bytes_read}, {"ratio_to_memcpy", seconds / memcpy_seconds}};
  }
};

// Memory as an arena's buffers are: it begins with a cache line.
class Array {
 public:
  Array(size_t count, float value) : data_(static_cast<float*>(std::aligned_alloc(4096, count * sizeof(float)))) {
    std::fill_n(data_, count, value);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { std::free(data_); }
  float* data() { return data_; }
  const float* data() const { return data_; }

 private:
  float* data_;
};

KernelInput Input(const Array& data, const Shape& extents) {
  return {.data = data.data(), .dtype = DType::kF32, .extents = extents, .strides = RowMajorStrides(extents)};
}

void AddSize(Bench& bench, int64_t n) {
  const std::string size = std::to_string(n * n * 4 / (1 << 20)) + "MiB";
  const size_t count = static_cast<size_t>(n * n);
  const Array a(count, 1.5f), b(count, 2.5f);
  Array c(count, 0.5f);
  const int64_t bytes = n * n * 4;
  const double copy =
      BestSeconds(bench.repetitions, [&] { std::memcpy(c.data(), a.data(), static_cast<size_t>(bytes)); });
  bench.out["memcpy_" + size] = {{"seconds", copy}, {"bytes_read", bytes}};
  const Shape square{n, n};
  const Strides rows = RowMajorStrides(square);
  bench.Add("copy_dense_" + size, bytes, copy, [&] { CopyStrided(square, 4, a.data(), rows, c.data(), rows); });
  bench.Add("copy_half_rows_" + size, bytes / 2, copy / 2, [&] {
    CopyStrided({n, n / 2}, 4, a.data() + n / 2, rows, c.data(), {n / 2, 1});
  });
  bench.Add("copy_transposed_" + size, bytes, copy, [&] { CopyStrided(square, 4, a.data(), {1, n}, c.data(), rows); });
  const std::vector<ReduceTerm> terms = {{a.data(), rows}, {b.data(), rows}};
  bench.Add("reduce_two_terms_" + size, 2 * bytes, copy * 1.5,
            [&] { ReduceTerms(ReduceOp::kSum, DType::kF32, square, terms, c.data(), rows); });
  for (int64_t dim : {0, 1}) {
    const LocalOp op = ReduceLocalOp{ReduceOp::kSum, {dim}};
    Shape kept = square;
    kept[static_cast<size_t>(dim)] = 1;
    const KernelInput inputs[] = {Input(a, square)};
    const KernelCall call{.op = &op,
                          .inputs = inputs,
                          .output = c.data(),
                          .output_dtype = DType::kF32,
                          .output_extents = kept,
                          .output_strides = RowMajorStrides(kept)};
    bench.Add("sum_dim" + std::to_string(dim) + "_" + size, bytes, copy, [&] { RunKernel(call).IgnoreError(); });
  }
  for (ScalarOp scalar_op : {ScalarOp::kAdd, ScalarOp::kExp}) {
    Expression expression{{{ScalarOp::kInput, DType::kF32, 0}}};
    const bool binary = Arity(scalar_op) == 2;
    if (binary) expression.nodes.push_back({ScalarOp::kInput, DType::kF32, 1});
    expression.nodes.push_back({scalar_op, DType::kF32, 0, binary ? 1 : 0});
    const LocalOp op = MapOp{expression};
    std::vector<KernelInput> inputs = {Input(a, square)};
    if (binary) inputs.push_back(Input(b, square));
    KernelCall call{.op = &op,
                    .inputs = inputs,
                    .output = c.data(),
                    .output_dtype = DType::kF32,
                    .output_extents = square,
                    .output_strides = rows};
    bench.Add(std::string(ToText(scalar_op)) + "_" + size, bytes * Arity(scalar_op), copy,
              [&] { RunKernel(call).IgnoreError(); });
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  tessera::bench::Bench bench{quick ? 3 : 9, {}};
  tessera::SetKernelThreads(1);
  tessera::bench::AddSize(bench, 512);
  tessera::bench::AddSize(bench, quick ? 2048 : 8192);
  std::printf("%s\n", bench.out.dump(2).c_str());
  return 0;
}
