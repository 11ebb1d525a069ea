// ScaLAPACK on f64: scalapack_bench product M N K REPETITIONS, and scalapack_bench redistribute M N REPETITIONS
// (rows to columns by pdgemr2d). Products run on every grid of the ranks and with several block sizes; operands
// lie where the grid wants them before the time starts. Its matrices are column-major.

#include <algorithm>

#include "ranks.h"

extern "C" {
void Cblacs_get(int context, int what, int* value);
void Cblacs_gridinit(int* context, const char* order, int rows, int columns);
void Cblacs_gridinfo(int context, int* rows, int* columns, int* row, int* column);
void Cblacs_gridexit(int context);
int numroc_(const int* n, const int* block, const int* coordinate, const int* source, const int* count);
void descinit_(int* descriptor, const int* m, const int* n, const int* mb, const int* nb, const int* row,
               const int* column, const int* context, const int* leading, int* info);
void pdgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const double* alpha,
             const double* a, const int* ia, const int* ja, const int* da, const double* b, const int* ib,
             const int* jb, const int* db, const double* beta, double* c, const int* ic, const int* jc, const int* dc);
void Cpdgemr2d(int m, int n, const double* a, int ia, int ja, const int* da, double* b, int ib, int jb, const int* db,
               int context);
}

namespace tessera::bench {
namespace {

// Small integers, so that sums are exact in any order.
double LeftValue(int i, int j) { return static_cast<double>((i * 7 + j * 3) % 9) - 4.0; }
double RightValue(int i, int j) { return static_cast<double>((i * 5 + j) % 7) - 3.0; }

struct Grid {
  int context = 0, rows = 1, columns = 1, row = 0, column = 0;
  Grid(int rows_wanted, int columns_wanted) {
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "Row-major", rows_wanted, columns_wanted);
    Cblacs_gridinfo(context, &rows, &columns, &row, &column);
  }
};

// A block-cyclic matrix: this rank's part and its descriptor.
struct Matrix {
  const Grid& grid;
  int m, n, mb, nb, local_m, local_n;
  int descriptor[9];
  std::vector<double> data;

  Matrix(const Grid& on, int rows, int columns, int row_block, int column_block)
      : grid(on), m(rows), n(columns), mb(std::min(rows, row_block)), nb(std::min(columns, column_block)) {
    const int zero = 0;
    local_m = numroc_(&m, &mb, &grid.row, &zero, &grid.rows);
    local_n = numroc_(&n, &nb, &grid.column, &zero, &grid.columns);
    const int leading = std::max(1, local_m);
    int info = 0;
    descinit_(descriptor, &m, &n, &mb, &nb, &zero, &zero, &grid.context, &leading, &info);
    CheckValues(info == 0, "descinit");
    data.assign(static_cast<size_t>(leading) * static_cast<size_t>(std::max(1, local_n)), -1.0);
  }
  int GlobalRow(int i) const { return (i / mb * grid.rows + grid.row) * mb + i % mb; }
  int GlobalColumn(int j) const { return (j / nb * grid.columns + grid.column) * nb + j % nb; }

  template <typename Visit>
  void Each(Visit visit) {
    for (int j = 0; j < local_n; ++j) {
      for (int i = 0; i < local_m; ++i) {
        visit(GlobalRow(i), GlobalColumn(j),
              data[static_cast<size_t>(j) * static_cast<size_t>(local_m) + static_cast<size_t>(i)]);
      }
    }
  }
};

constexpr int kOne = 1;

std::vector<double> MeasureProduct(const Grid& grid, int m, int n, int k, int block, int repetitions) {
  Matrix a(grid, m, k, block, block), b(grid, k, n, block, block), c(grid, m, n, block, block);
  a.Each([](int i, int j, double& value) { value = LeftValue(i, j); });
  b.Each([](int i, int j, double& value) { value = RightValue(i, j); });
  const double alpha = 1, beta = 0;
  auto seconds = MeasureSeconds(repetitions, [&] {
    pdgemm_("N", "N", &m, &n, &k, &alpha, a.data.data(), &kOne, &kOne, a.descriptor, b.data.data(), &kOne, &kOne,
            b.descriptor, &beta, c.data.data(), &kOne, &kOne, c.descriptor);
  });
  int checked = 0;
  c.Each([&](int i, int j, double& value) {
    if ((i * 31 + j) % 65537 != 0 || ++checked > 8) return;
    double sum = 0;
    for (int l = 0; l < k; ++l) sum += LeftValue(i, l) * RightValue(l, j);
    CheckValues(value == sum, "pdgemm");
  });
  return seconds;
}

Variants Products(int m, int n, int k, int repetitions) {
  Variants variants;
  for (int rows = 1; rows <= Ranks(); ++rows) {
    if (Ranks() % rows != 0) continue;
    const Grid grid(rows, Ranks() / rows);
    for (const int block : {64, 128, 256}) {
      const std::string name =
          "grid " + std::to_string(rows) + "x" + std::to_string(Ranks() / rows) + " block " + std::to_string(block);
      variants[name] = MeasureProduct(grid, m, n, k, block, repetitions);
    }
    Cblacs_gridexit(grid.context);
  }
  return variants;
}

// Row-major rows to columns are column-major columns to rows.
Variants RowsToColumns(int m, int n, int repetitions) {
  const int ranks = Ranks();
  const Grid source_grid(1, ranks), destination_grid(ranks, 1);
  Matrix source(source_grid, n, m, n, (m + ranks - 1) / ranks);
  Matrix destination(destination_grid, n, m, (n + ranks - 1) / ranks, m);
  source.Each([](int i, int j, double& value) { value = LeftValue(i, j); });
  Variants variants;
  variants["pdgemr2d"] = MeasureSeconds(repetitions, [&] {
    Cpdgemr2d(n, m, source.data.data(), 1, 1, source.descriptor, destination.data.data(), 1, 1, destination.descriptor,
              source_grid.context);
  });
  destination.Each([](int i, int j, double& value) { CheckValues(value == LeftValue(i, j), "pdgemr2d"); });
  return variants;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  MPI_Init(&argc, &argv);
  std::vector<int> numbers;
  for (int i = 2; i < argc; ++i) numbers.push_back(std::atoi(argv[i]));
  const std::string work = argc > 1 ? argv[1] : "";
  if (work == "product" && numbers.size() == 4) {
    PrintVariants(Products(numbers[0], numbers[1], numbers[2], numbers[3]));
  } else if (work == "redistribute" && numbers.size() == 3) {
    PrintVariants(RowsToColumns(numbers[0], numbers[1], numbers[2]));
  } else {
    CheckValues(false, "usage: scalapack_bench product M N K REPETITIONS | redistribute M N REPETITIONS");
  }
  MPI_Finalize();
}
