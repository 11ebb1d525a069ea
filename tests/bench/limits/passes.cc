#include "tests/bench/limits/passes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/bench/limits/processes.h"

// Built with -O3 -ffast-math -march=native: sums in any order, exponentials by vectors.

namespace tessera::bench {
namespace {

float Mean(const float* row, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += row[i];
  return sum / static_cast<float>(n);
}

float Variance(const float* row, int64_t n, float mean) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += (row[i] - mean) * (row[i] - mean);
  return sum / static_cast<float>(n);
}

void Softmax(const float* row, int64_t n, float* out) {
  float largest = row[0];
  for (int64_t i = 1; i < n; ++i) largest = std::max(largest, row[i]);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::exp(row[i] - largest);
    sum += out[i];
  }
  const float scale = 1 / sum;
  for (int64_t i = 0; i < n; ++i) out[i] *= scale;
}

void LayerNorm(const float* row, int64_t n, float* out) {
  const float mean = Mean(row, n), scale = 1 / std::sqrt(Variance(row, n, mean) + 1e-5F);
  for (int64_t i = 0; i < n; ++i) out[i] = (row[i] - mean) * scale;
}

void CumulativeSum(const float* row, int64_t n, float* out) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += row[i];
    out[i] = sum;
  }
}

void RunRow(const std::string& kind, const float* row, int64_t n, float* out) {
  if (kind == "var") {
    out[0] = Variance(row, n, Mean(row, n));
  } else if (kind == "softmax") {
    Softmax(row, n, out);
  } else if (kind == "layer_norm") {
    LayerNorm(row, n, out);
  } else {
    CumulativeSum(row, n, out);
  }
}

float* SharedFloats(int64_t count) {
  return reinterpret_cast<float*>(SharedBytes(static_cast<size_t>(count) * sizeof(float)));
}

}  // namespace

nlohmann::json MeasurePass(const PassCase& work) {
  const int64_t n = work.columns;
  float* const input = SharedFloats(work.rows * n);
  const int64_t out_columns = work.kind == "var" ? 1 : n;
  float* const output = SharedFloats(work.rows * out_columns);
  for (int64_t i = 0; i < work.rows * n; ++i) input[i] = static_cast<float>(i % 17) * 0.125F - 1;
  const auto run = [&](Team& team) {
    const int64_t piece = (work.rows + team.size() - 1) / team.size();
    const int64_t begin = std::min(work.rows, piece * team.self()), end = std::min(work.rows, begin + piece);
    for (int64_t r = begin; r < end; ++r) RunRow(work.kind, input + r * n, n, output + r * out_columns);
  };
  const std::vector<double> seconds = MeasureSeconds({work.processes, work.repetitions, nullptr, run});
  std::vector<float> again(static_cast<size_t>(n));
  for (const int64_t r : {int64_t{0}, work.rows / 2, work.rows - 1}) {
    RunRow(work.kind, input + r * n, n, again.data());
    CheckValues(std::equal(again.begin(), again.begin() + out_columns, output + r * out_columns), "a row");
  }
  return {{"variants", {{work.kind, seconds}}}};
}

}  // namespace tessera::bench
