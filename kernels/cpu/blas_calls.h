#pragma once

// The products of BLAS by overload, for the four types that it has, on row-major memory, on the calling thread:
//
//   Gemm(ta, tb, m, n, k, a, lda, b, ldb, beta, c, ldc)   c = op(a) op(b) + beta c
//   Gemv(t, rows, columns, a, lda, x, beta, y, incy)      y = op(a) x + beta y, x dense
//
// With a beta of 0 the output isn't read.

#include <cblas.h>

#include <complex>
#include <cstdint>

namespace tessera::cpu {

inline void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const float* a, blasint lda,
                 const float* b, blasint ldb, float beta, float* c, blasint ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0f, a,
              lda, b, ldb, beta, c, ldc);
}
inline void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const double* a, blasint lda,
                 const double* b, blasint ldb, double beta, double* c, blasint ldc) {
  cblas_dgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0, a,
              lda, b, ldb, beta, c, ldc);
}
inline void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const std::complex<float>* a,
                 blasint lda, const std::complex<float>* b, blasint ldb, std::complex<float> beta,
                 std::complex<float>* c, blasint ldc) {
  const std::complex<float> one = 1;
  cblas_cgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), &one, a,
              lda, b, ldb, &beta, c, ldc);
}
inline void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, const std::complex<double>* a,
                 blasint lda, const std::complex<double>* b, blasint ldb, std::complex<double> beta,
                 std::complex<double>* c, blasint ldc) {
  const std::complex<double> one = 1;
  cblas_zgemm(CblasRowMajor, ta, tb, static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), &one, a,
              lda, b, ldb, &beta, c, ldc);
}
inline void Gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, const float* a, blasint lda, const float* x,
                 float beta, float* y, blasint incy) {
  cblas_sgemv(CblasRowMajor, t, static_cast<blasint>(rows), static_cast<blasint>(columns), 1.0f, a, lda, x, 1, beta, y,
              incy);
}
inline void Gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, const double* a, blasint lda, const double* x,
                 double beta, double* y, blasint incy) {
  cblas_dgemv(CblasRowMajor, t, static_cast<blasint>(rows), static_cast<blasint>(columns), 1.0, a, lda, x, 1, beta, y,
              incy);
}
inline void Gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, const std::complex<float>* a, blasint lda,
                 const std::complex<float>* x, std::complex<float> beta, std::complex<float>* y, blasint incy) {
  const std::complex<float> one = 1;
  cblas_cgemv(CblasRowMajor, t, static_cast<blasint>(rows), static_cast<blasint>(columns), &one, a, lda, x, 1, &beta, y,
              incy);
}
inline void Gemv(CBLAS_TRANSPOSE t, int64_t rows, int64_t columns, const std::complex<double>* a, blasint lda,
                 const std::complex<double>* x, std::complex<double> beta, std::complex<double>* y, blasint incy) {
  const std::complex<double> one = 1;
  cblas_zgemv(CblasRowMajor, t, static_cast<blasint>(rows), static_cast<blasint>(columns), &one, a, lda, x, 1, &beta, y,
              incy);
}

}  // namespace tessera::cpu
