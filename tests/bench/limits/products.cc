#include "tests/bench/limits/products.h"

#include <algorithm>
#include <vector>

#include <cblas.h>

#include "tests/bench/limits/processes.h"

namespace tessera::bench {
namespace {

// Small integers, so that sums are exact in any order.
double Value(size_t i, size_t j) { return static_cast<double>((i * 7 + j * 3) % 9) - 4.0; }

struct Range {
  int begin = 0;
  int size = 0;
};

Range Part(int extent, const Team& team) {
  const int piece = (extent + team.size() - 1) / team.size();
  const int begin = std::min(extent, piece * team.self());
  return {begin, std::min(piece, extent - begin)};
}

struct Matrices {
  double *a, *b, *c;              // m x k, k x n, m x n; seen by all
  std::vector<double*> products;  // inner: m x n of each process
};

double* SharedDoubles(size_t count) { return reinterpret_cast<double*>(SharedBytes(count * sizeof(double))); }

Matrices MakeMatrices(const ProductCase& work) {
  const auto m = static_cast<size_t>(work.m), n = static_cast<size_t>(work.n), k = static_cast<size_t>(work.k);
  Matrices matrices{SharedDoubles(m * k), SharedDoubles(k * n), SharedDoubles(m * n), {}};
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < k; ++j) matrices.a[i * k + j] = Value(i, j);
  }
  for (size_t i = 0; i < k; ++i) {
    for (size_t j = 0; j < n; ++j) matrices.b[i * n + j] = Value(i, j);
  }
  for (int p = 0; p < work.processes && work.split == "inner"; ++p) matrices.products.push_back(SharedDoubles(m * n));
  return matrices;
}

void Multiply(const ProductCase& work, const Matrices& matrices, Range rows, Range columns, Range inner, double* c) {
  if (rows.size == 0 || columns.size == 0 || inner.size == 0) return;
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows.size, columns.size, inner.size, 1.0,
              matrices.a + static_cast<ptrdiff_t>(rows.begin) * work.k + inner.begin, work.k,
              matrices.b + static_cast<ptrdiff_t>(inner.begin) * work.n + columns.begin, work.n, 0.0,
              c + static_cast<ptrdiff_t>(rows.begin) * work.n + columns.begin, work.n);
}

void SumProducts(const ProductCase& work, const Matrices& matrices, Range rows) {
  const size_t begin = static_cast<size_t>(rows.begin) * static_cast<size_t>(work.n);
  const size_t end = begin + static_cast<size_t>(rows.size) * static_cast<size_t>(work.n);
  for (size_t i = begin; i < end; ++i) {
    double sum = matrices.products[0][i];
    for (size_t p = 1; p < matrices.products.size(); ++p) sum += matrices.products[p][i];
    matrices.c[i] = sum;
  }
}

void RunPart(const ProductCase& work, const Matrices& matrices, Team& team) {
  const Range all_rows{0, work.m}, all_columns{0, work.n}, all_inner{0, work.k};
  if (work.split == "rows") {
    Multiply(work, matrices, Part(work.m, team), all_columns, all_inner, matrices.c);
  } else if (work.split == "columns") {
    Multiply(work, matrices, all_rows, Part(work.n, team), all_inner, matrices.c);
  } else {
    Multiply(work, matrices, all_rows, all_columns, Part(work.k, team),
             matrices.products[static_cast<size_t>(team.self())]);
    team.Meet();
    SumProducts(work, matrices, Part(work.m, team));
  }
}

void CheckProduct(const ProductCase& work, const Matrices& matrices) {
  for (int sample = 0; sample < 64; ++sample) {
    const auto i = static_cast<size_t>(sample) * 7919 % static_cast<size_t>(work.m);
    const auto j = static_cast<size_t>(sample) * 104729 % static_cast<size_t>(work.n);
    double sum = 0;
    for (size_t l = 0; l < static_cast<size_t>(work.k); ++l) sum += Value(i, l) * Value(l, j);
    CheckValues(matrices.c[i * static_cast<size_t>(work.n) + j] == sum, "an element of the product");
  }
}

}  // namespace

nlohmann::json MeasureProduct(const ProductCase& work) {
  openblas_set_num_threads(1);
  const Matrices matrices = MakeMatrices(work);
  const auto run = [&](Team& team) { RunPart(work, matrices, team); };
  const std::vector<double> seconds = MeasureSeconds({work.processes, work.repetitions, nullptr, run});
  CheckProduct(work, matrices);
  return {{"variants", {{work.split, seconds}}}, {"flops", 2.0 * work.m * work.n * work.k}};
}

}  // namespace tessera::bench
