#pragma once

// A function of matrices as cuSOLVER and cuBLAS take it: pure, no library, no device. Matrices are in column-major
// order, dense, those of a batch one behind the other.

#include <cstdint>

namespace tessera::cuda {

enum class SolverCall : uint8_t {
  kPotrf,  // matrix [n,n] becomes its Cholesky factor, of the triangle `is_upper`
  kGetrf,  // matrix [m,n] becomes L and U, vector its pivots (int64 [min(m,n)])
  kGetrs,  // of these, or of what they are of transposed: right [n,k] becomes x
  kTrsm,   // right [k,n] becomes x with x op(matrix) = right, of the triangle `is_upper`
  kGeqrf,  // matrix [m,n] becomes R and reflections, vector what these are scaled by ([min(m,n)])
  kOrgqr,  // matrix [m,k] becomes the first columns of Q, of n reflections
  kSyevd,  // matrix [n,n] becomes its eigenvectors, vector the eigenvalues, of the triangle `is_upper`
  // vector becomes the singular values of matrix [m,n], the largest first; with vectors right U [m,k] and other V
  // [n,k], k = min(m,n), or `is_full` U [m,m] and V [n,n]. The matrix becomes anything.
  kGesvdj,
};

struct SolverProblem {
  SolverCall call = SolverCall::kPotrf;
  bool is_double = false;
  bool is_upper = false, is_transposed = false, has_unit_diagonal = false, has_vectors = false, is_full = false;
  int64_t batch = 1, m = 0, n = 0, k = 0;
  uint64_t matrix = 0, vector = 0, right = 0, other = 0;  // addresses
  // Between those of a batch, in elements.
  int64_t matrix_distance = 0, vector_distance = 0, right_distance = 0, other_distance = 0;
  uint64_t info = 0;  // of int32, one a matrix: 0 where it has an answer
  // The extent of the op's matrices: below some size the host is faster.
  int64_t least_extent = 0;
};

}  // namespace tessera::cuda
