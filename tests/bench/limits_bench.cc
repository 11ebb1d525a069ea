// The limits that the system is compared with, measured by two processes with nothing of ours between
// them: limits_bench [--quick] [--only NAME]. One JSON object on stdout with every sample in seconds:
//
//   rows_to_columns_8192_f64   each process writes its 4096 columns from both processes' rows, with plain
//                              loads and stores: whole rows by memcpy, and by streaming stores
//   dgemm_halves_2048          each process multiplies 1024x2048 by 2048x2048, f64, one BLAS thread

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cblas.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/blas_core.h"
#include "tests/bench/two_processes.h"

namespace tessera::bench {
namespace {

constexpr size_t kRows = 8192, kColumns = 8192, kHalf = 4096;

void CopyRow(double* to, const double* from) { std::memcpy(to, from, kHalf * sizeof(double)); }

void StreamRow(double* to, const double* from) {
#if defined(__SSE2__)
  for (size_t i = 0; i < kHalf; i += 2) _mm_stream_pd(to + i, _mm_loadu_pd(from + i));
#else
  CopyRow(to, from);
#endif
}

std::vector<double> MeasureRowsToColumns(int repetitions, void (*copy_row)(double*, const double*)) {
  double* rows[2];
  double* columns[2];
  for (int p = 0; p < 2; ++p) {
    rows[p] = reinterpret_cast<double*>(SharedBytes(kHalf * kColumns * sizeof(double)));
    columns[p] = reinterpret_cast<double*>(SharedBytes(kRows * kHalf * sizeof(double)));
  }
  std::vector<double> seconds = MeasureSeconds(
      repetitions,
      [&](int self) {
        for (size_t i = 0; i < kHalf * kColumns; ++i)
          rows[self][i] = static_cast<double>(i % 1000 + static_cast<size_t>(self));
        std::memset(columns[self], 1, kRows * kHalf * sizeof(double));
      },
      [&](int self) {
        for (size_t r = 0; r < kRows; ++r) {
          copy_row(columns[self] + r * kHalf,
                   rows[r / kHalf] + (r % kHalf) * kColumns + static_cast<size_t>(self) * kHalf);
        }
      });
  // The second process's last row, as it must be.
  if (columns[1][(kRows - 1) * kHalf + 5] != static_cast<double>(((kHalf - 1) * kColumns + kHalf + 5) % 1000 + 1)) {
    std::fprintf(stderr, "rows to columns: wrong values\n");
    std::exit(1);
  }
  return seconds;
}

std::vector<double> MeasureDgemmHalves(int repetitions) {
  constexpr int m = 1024, n = 2048, k = 2048;
  std::vector<double> a, b, c;
  return MeasureSeconds(
      repetitions,
      [&](int self) {
        openblas_set_num_threads(1);
        a.assign(static_cast<size_t>(m) * k, 0.5 + self);
        b.assign(static_cast<size_t>(k) * n, 0.25);
        c.assign(static_cast<size_t>(m) * n, 0);
      },
      [&](int) {
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1.0, a.data(), k, b.data(), n, 0.0, c.data(),
                    n);
      });
}

struct Options {
  int repetitions = 11;
  std::string only;  // empty: all
};

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.repetitions = 3;
    } else if (argument == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: limits_bench [--quick] [--only NAME]\n");
      std::exit(2);
    }
  }
  return options;
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  const auto wanted = [&options](const char* name) { return options.only.empty() || options.only == name; };
  nlohmann::json out = nlohmann::json::object();
  if (wanted("rows_to_columns_8192_f64")) {
    out["rows_to_columns_8192_f64"] = {{"memcpy_seconds", MeasureRowsToColumns(options.repetitions, CopyRow)},
                                       {"streaming_seconds", MeasureRowsToColumns(options.repetitions, StreamRow)},
                                       {"bytes", kRows * kColumns * sizeof(double)}};
  }
  if (wanted("dgemm_halves_2048")) {
    out["dgemm_halves_2048"] = {{"seconds", MeasureDgemmHalves(options.repetitions)},
                                {"flops", 2.0 * 2048 * 2048 * 2048}};
  }
  std::printf("%s\n", out.dump(2).c_str());
  return out.empty() ? 2 : 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  tessera::RestartWithKnownBlasCore(argv);  // the same BLAS kernels as a worker has
  return tessera::bench::Main(argc, argv);
}
