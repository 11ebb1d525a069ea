#pragma once

// LAPACK's routines by the type of their elements: Fortran's, which OpenBLAS has. All arrays are in column-major order
// and dense. `info` is as LAPACK gives it: 0, or above 0 where there is no answer. Workspace is asked for and held
// here. For complex numbers Orgqr and Syevd are LAPACK's ungqr and heevd.

#include <algorithm>
#include <complex>
#include <cstdint>
#include <vector>

namespace tessera::cpu {

// As OpenBLAS is built on Debian: 32 bits.
using LapackInt = int32_t;

template <typename T>
struct Lapack;

// Calls call(workspace, its size, info) twice: asked for the size that is best, then with it.
template <typename T, typename Call>
LapackInt WithWorkspace(Call&& call) {
  LapackInt info = 0;
  T best{};
  call(&best, -1, &info);
  if (info != 0) return info;
  // A float has not every integer; the nearest one that it has is no less than half a percent below.
  const auto size = static_cast<LapackInt>(std::real(best) * 1.01) + 1;
  std::vector<T> work(static_cast<std::size_t>(size));
  call(work.data(), size, &info);
  return info;
}

// Routines that have the same parameters for all of s, d, c and z.
#define TESSERA_LAPACK_DECLARE(T, R, p, orgqr)                                                                         \
  extern "C" {                                                                                                         \
  void p##potrf_(const char*, const LapackInt*, T*, const LapackInt*, LapackInt*, std::size_t);                        \
  void p##trtrs_(const char*, const char*, const char*, const LapackInt*, const LapackInt*, const T*,                  \
                 const LapackInt*, T*, const LapackInt*, LapackInt*, std::size_t, std::size_t, std::size_t);           \
  void p##gesv_(const LapackInt*, const LapackInt*, T*, const LapackInt*, LapackInt*, T*, const LapackInt*,            \
                LapackInt*);                                                                                           \
  void p##getrf_(const LapackInt*, const LapackInt*, T*, const LapackInt*, LapackInt*, LapackInt*);                    \
  void p##geqrf_(const LapackInt*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*, LapackInt*);      \
  void p##orgqr##_(const LapackInt*, const LapackInt*, const LapackInt*, T*, const LapackInt*, const T*, T*,           \
                   const LapackInt*, LapackInt*);                                                                      \
  void p##bdsqr_(const char*, const LapackInt*, const LapackInt*, const LapackInt*, const LapackInt*, R*, R*, T*,      \
                 const LapackInt*, T*, const LapackInt*, T*, const LapackInt*, R*, LapackInt*, std::size_t);           \
  void p##larft_(const char*, const char*, const LapackInt*, const LapackInt*, const T*, const LapackInt*, const T*,   \
                 T*, const LapackInt*, std::size_t, std::size_t);                                                      \
  }                                                                                                                    \
  inline LapackInt Bdsqr(LapackInt n, LapackInt rows, R* d, R* e, T* u) {                                              \
    const char upper = 'U';                                                                                            \
    const LapackInt zero = 0, one = 1, stride = std::max(rows, one);                                                   \
    std::vector<R> work(4 * static_cast<std::size_t>(n));                                                              \
    LapackInt info = 0;                                                                                                \
    p##bdsqr_(&upper, &n, &zero, &rows, &zero, d, e, nullptr, &one, u, &stride, nullptr, &one, work.data(), &info, 1); \
    return info;                                                                                                       \
  }                                                                                                                    \
  template <>                                                                                                          \
  struct Lapack<T> {                                                                                                   \
    using Int = LapackInt;                                                                                             \
    static Int Potrf(char uplo, Int n, T* a) {                                                                         \
      Int info = 0;                                                                                                    \
      p##potrf_(&uplo, &n, a, &n, &info, 1);                                                                           \
      return info;                                                                                                     \
    }                                                                                                                  \
    static Int Trtrs(char uplo, char trans, char diag, Int n, Int k, const T* a, T* b) {                               \
      Int info = 0;                                                                                                    \
      p##trtrs_(&uplo, &trans, &diag, &n, &k, a, &n, b, &n, &info, 1, 1, 1);                                           \
      return info;                                                                                                     \
    }                                                                                                                  \
    static Int Gesv(Int n, Int k, T* a, Int* pivots, T* b) {                                                           \
      Int info = 0;                                                                                                    \
      p##gesv_(&n, &k, a, &n, pivots, b, &n, &info);                                                                   \
      return info;                                                                                                     \
    }                                                                                                                  \
    static Int Getrf(Int m, Int n, T* a, Int* pivots) {                                                                \
      Int info = 0;                                                                                                    \
      p##getrf_(&m, &n, a, &m, pivots, &info);                                                                         \
      return info;                                                                                                     \
    }                                                                                                                  \
    static Int Geqrf(Int m, Int n, T* a, T* tau) {                                                                     \
      return WithWorkspace<T>(                                                                                         \
          [&](T* work, Int size, Int* info) { p##geqrf_(&m, &n, a, &m, tau, work, &size, info); });                    \
    }                                                                                                                  \
    static Int Orgqr(Int m, Int n, Int k, T* a, const T* tau) {                                                        \
      return WithWorkspace<T>(                                                                                         \
          [&](T* work, Int size, Int* info) { p##orgqr##_(&m, &n, &k, a, &m, tau, work, &size, info); });              \
    }                                                                                                                  \
    static void Larft(Int m, Int k, const T* v, const T* tau, T* t) {                                                  \
      const char forward = 'F', columns = 'C';                                                                         \
      p##larft_(&forward, &columns, &m, &k, v, &m, tau, t, &k, 1, 1);                                                  \
    }                                                                                                                  \
  }

TESSERA_LAPACK_DECLARE(float, float, s, orgqr);
TESSERA_LAPACK_DECLARE(double, double, d, orgqr);
TESSERA_LAPACK_DECLARE(std::complex<float>, float, c, ungqr);
TESSERA_LAPACK_DECLARE(std::complex<double>, double, z, ungqr);
#undef TESSERA_LAPACK_DECLARE

// Singular values and eigenvalues, which are real.
#define TESSERA_LAPACK_REAL(T, p)                                                                                     \
  extern "C" {                                                                                                        \
  void p##gbbrd_(const char*, const LapackInt*, const LapackInt*, const LapackInt*, const LapackInt*,                 \
                 const LapackInt*, T*, const LapackInt*, T*, T*, T*, const LapackInt*, T*, const LapackInt*, T*,      \
                 const LapackInt*, T*, LapackInt*, std::size_t);                                                      \
  void p##gesdd_(const char*, const LapackInt*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*, T*, \
                 const LapackInt*, T*, const LapackInt*, LapackInt*, LapackInt*, std::size_t);                        \
  void p##syevd_(const char*, const char*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*,          \
                 LapackInt*, const LapackInt*, LapackInt*, std::size_t, std::size_t);                                 \
  void p##geev_(const char*, const char*, const LapackInt*, T*, const LapackInt*, T*, T*, T*, const LapackInt*, T*,   \
                const LapackInt*, T*, const LapackInt*, LapackInt*, std::size_t, std::size_t);                        \
  }                                                                                                                   \
  inline void Gbbrd(LapackInt n, LapackInt k, LapackInt width, LapackInt stride, T* band, T* d, T* e, T* c) {         \
    const char none = 'N';                                                                                            \
    const LapackInt zero = 0, rows = width + 1, one = 1;                                                              \
    std::vector<T> work(2 * static_cast<std::size_t>(n));                                                             \
    LapackInt info = 0;                                                                                               \
    p##gbbrd_(&none, &n, &n, &k, &zero, &width, band, &rows, d, e, nullptr, &one, nullptr, &one, c, &stride,          \
              work.data(), &info, 1);                                                                                 \
  }                                                                                                                   \
  inline LapackInt Geev(char job, LapackInt n, T* a, std::complex<T>* w, std::complex<T>* v) {                        \
    const auto size = static_cast<std::size_t>(n);                                                                    \
    std::vector<T> real(size), imaginary(size), columns(job == 'V' ? size * size : 1);                                \
    const char none = 'N';                                                                                            \
    const LapackInt info = WithWorkspace<T>([&](T* work, LapackInt count, LapackInt* failed) {                        \
      p##geev_(&none, &job, &n, a, &n, real.data(), imaginary.data(), nullptr, &n, columns.data(), &n, work, &count,  \
               failed, 1, 1);                                                                                         \
    });                                                                                                               \
    for (std::size_t j = 0; j < size; ++j) {                                                                          \
      w[j] = {real[j], imaginary[j]};                                                                                 \
      /* Of a pair the first column is the real part of both vectors, the second the imaginary one of the first. */   \
      const std::size_t first = imaginary[j] < 0 ? j - 1 : j;                                                         \
      const T sign = imaginary[j] == 0 ? T{0} : imaginary[j] > 0 ? T{1} : T{-1};                                      \
      for (std::size_t i = 0; job == 'V' && i < size; ++i) {                                                          \
        const T* const row = columns.data() + i;                                                                      \
        v[i + j * size] = {row[first * size], sign == 0 ? T{0} : sign * row[(first + 1) * size]};                     \
      }                                                                                                               \
    }                                                                                                                 \
    return info;                                                                                                      \
  }                                                                                                                   \
  inline LapackInt Gesdd(char job, LapackInt m, LapackInt n, T* a, T* s, T* u, T* vh, LapackInt vh_rows) {            \
    std::vector<LapackInt> integers(8 * static_cast<std::size_t>(std::min(m, n)));                                    \
    return WithWorkspace<T>([&](T* work, LapackInt size, LapackInt* info) {                                           \
      p##gesdd_(&job, &m, &n, a, &m, s, u, &m, vh, &vh_rows, work, &size, integers.data(), info, 1);                  \
    });                                                                                                               \
  }                                                                                                                   \
  inline LapackInt Syevd(char job, LapackInt n, T* a, T* w) {                                                         \
    const LapackInt count = 3 + 5 * n;                                                                                \
    std::vector<LapackInt> integers(static_cast<std::size_t>(count));                                                 \
    const char lower = 'L';                                                                                           \
    return WithWorkspace<T>([&](T* work, LapackInt size, LapackInt* info) {                                           \
      p##syevd_(&job, &lower, &n, a, &n, w, work, &size, integers.data(), &count, info, 1, 1);                        \
    });                                                                                                               \
  }
#define TESSERA_LAPACK_COMPLEX(R, p)                                                                                   \
  extern "C" {                                                                                                         \
  void p##gbbrd_(const char*, const LapackInt*, const LapackInt*, const LapackInt*, const LapackInt*,                  \
                 const LapackInt*, std::complex<R>*, const LapackInt*, R*, R*, std::complex<R>*, const LapackInt*,     \
                 std::complex<R>*, const LapackInt*, std::complex<R>*, const LapackInt*, std::complex<R>*, R*,         \
                 LapackInt*, std::size_t);                                                                             \
  void p##gesdd_(const char*, const LapackInt*, const LapackInt*, std::complex<R>*, const LapackInt*, R*,              \
                 std::complex<R>*, const LapackInt*, std::complex<R>*, const LapackInt*, std::complex<R>*,             \
                 const LapackInt*, R*, LapackInt*, LapackInt*, std::size_t);                                           \
  void p##heevd_(const char*, const char*, const LapackInt*, std::complex<R>*, const LapackInt*, R*, std::complex<R>*, \
                 const LapackInt*, R*, const LapackInt*, LapackInt*, const LapackInt*, LapackInt*, std::size_t,        \
                 std::size_t);                                                                                         \
  void p##geev_(const char*, const char*, const LapackInt*, std::complex<R>*, const LapackInt*, std::complex<R>*,      \
                std::complex<R>*, const LapackInt*, std::complex<R>*, const LapackInt*, std::complex<R>*,              \
                const LapackInt*, R*, LapackInt*, std::size_t, std::size_t);                                           \
  }                                                                                                                    \
  inline void Gbbrd(LapackInt n, LapackInt k, LapackInt width, LapackInt stride, std::complex<R>* band, R* d, R* e,    \
                    std::complex<R>* c) {                                                                              \
    const char none = 'N';                                                                                             \
    const LapackInt zero = 0, rows = width + 1, one = 1;                                                               \
    std::vector<std::complex<R>> work(static_cast<std::size_t>(n));                                                    \
    std::vector<R> reals(static_cast<std::size_t>(n));                                                                 \
    LapackInt info = 0;                                                                                                \
    p##gbbrd_(&none, &n, &n, &k, &zero, &width, band, &rows, d, e, nullptr, &one, nullptr, &one, c, &stride,           \
              work.data(), reals.data(), &info, 1);                                                                    \
  }                                                                                                                    \
  inline LapackInt Geev(char job, LapackInt n, std::complex<R>* a, std::complex<R>* w, std::complex<R>* v) {           \
    std::vector<R> reals(2 * static_cast<std::size_t>(n));                                                             \
    const char none = 'N';                                                                                             \
    return WithWorkspace<std::complex<R>>([&](std::complex<R>* work, LapackInt size, LapackInt* info) {                \
      p##geev_(&none, &job, &n, a, &n, w, nullptr, &n, v, &n, work, &size, reals.data(), info, 1, 1);                  \
    });                                                                                                                \
  }                                                                                                                    \
  inline LapackInt Gesdd(char job, LapackInt m, LapackInt n, std::complex<R>* a, R* s, std::complex<R>* u,             \
                         std::complex<R>* vh, LapackInt vh_rows) {                                                     \
    const auto least = static_cast<std::size_t>(std::min(m, n)), most = static_cast<std::size_t>(std::max(m, n));      \
    std::vector<LapackInt> integers(8 * least);                                                                        \
    std::vector<R> reals(least* std::max(5 * least + 7, 2 * most + 2 * least + 1) + 1);                                \
    return WithWorkspace<std::complex<R>>([&](std::complex<R>* work, LapackInt size, LapackInt* info) {                \
      p##gesdd_(&job, &m, &n, a, &m, s, u, &m, vh, &vh_rows, work, &size, reals.data(), integers.data(), info, 1);     \
    });                                                                                                                \
  }                                                                                                                    \
  inline LapackInt Syevd(char job, LapackInt n, std::complex<R>* a, R* w) {                                            \
    const LapackInt count = 3 + 5 * n, real_count = 1 + 5 * n + 2 * n * n;                                             \
    std::vector<LapackInt> integers(static_cast<std::size_t>(count));                                                  \
    std::vector<R> reals(static_cast<std::size_t>(real_count));                                                        \
    const char lower = 'L';                                                                                            \
    return WithWorkspace<std::complex<R>>([&](std::complex<R>* work, LapackInt size, LapackInt* info) {                \
      p##heevd_(&job, &lower, &n, a, &n, w, work, &size, reals.data(), &real_count, integers.data(), &count, info, 1,  \
                1);                                                                                                    \
    });                                                                                                                \
  }

TESSERA_LAPACK_REAL(float, s)
TESSERA_LAPACK_REAL(double, d)
TESSERA_LAPACK_COMPLEX(float, c)
TESSERA_LAPACK_COMPLEX(double, z)
#undef TESSERA_LAPACK_REAL
#undef TESSERA_LAPACK_COMPLEX

}  // namespace tessera::cpu
