#pragma once

// The functions of the emulated cuSOLVER and cuBLAS, in doubles, of matrices in column-major order. Each function is
// LAPACK's of that name, and gives its info: 0 where there is an answer.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::emulator {

struct Matrix {
  Matrix(int64_t of_rows, int64_t of_columns)
      : rows(of_rows), columns(of_columns), data(static_cast<size_t>(of_rows * of_columns)) {}
  int64_t rows, columns;
  std::vector<double> data;
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i + j * rows)]; }
};

int Potrf(Matrix& a, bool is_upper);
// Pivots count from 1.
int Getrf(Matrix& a, std::vector<int64_t>& pivots);
void Getrs(Matrix& lu, const std::vector<int64_t>& pivots, bool is_transposed, Matrix& b);
// x op(a) = b; a zero on the diagonal gives infinities.
void TrsmRight(Matrix& a, bool is_upper, bool is_transposed, bool has_unit_diagonal, Matrix& b);
void Geqrf(Matrix& a, std::vector<double>& tau);
// The first columns of Q, of as many reflections as tau has; a has them in its first columns.
void Orgqr(Matrix& a, const std::vector<double>& tau);
// Ascending eigenvalues, and eigenvectors in the place of a.
int Syevd(Matrix& a, bool is_upper, std::vector<double>& values);
// Descending singular values, and as many vectors as u and v have columns: a = u diag(values) v^T. Above 0 where an
// element isn't finite.
int Gesvdj(const Matrix& a, Matrix& u, std::vector<double>& values, Matrix& v);

}  // namespace tessera::emulator
