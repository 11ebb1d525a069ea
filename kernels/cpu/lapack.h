#pragma once

// LAPACK's routines by the type of their elements: Fortran's, which OpenBLAS has (s, d; c and z have the same names).
// All arrays are in column-major order and dense. `info` is as LAPACK gives it: 0, or above 0 where there is no answer.
// Workspace is asked for and held here.

#include <cstdint>
#include <vector>

namespace tessera::cpu {

// As OpenBLAS is built on Debian: 32 bits.
using LapackInt = int32_t;

template <typename T>
struct Lapack;

#define TESSERA_LAPACK(T, p)                                                                                          \
  extern "C" {                                                                                                        \
  void p##potrf_(const char*, const LapackInt*, T*, const LapackInt*, LapackInt*, std::size_t);                       \
  void p##trtrs_(const char*, const char*, const char*, const LapackInt*, const LapackInt*, const T*,                 \
                 const LapackInt*, T*, const LapackInt*, LapackInt*, std::size_t, std::size_t, std::size_t);          \
  void p##gesv_(const LapackInt*, const LapackInt*, T*, const LapackInt*, LapackInt*, T*, const LapackInt*,           \
                LapackInt*);                                                                                          \
  void p##getrf_(const LapackInt*, const LapackInt*, T*, const LapackInt*, LapackInt*, LapackInt*);                   \
  void p##geqrf_(const LapackInt*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*, LapackInt*);     \
  void p##orgqr_(const LapackInt*, const LapackInt*, const LapackInt*, T*, const LapackInt*, const T*, T*,            \
                 const LapackInt*, LapackInt*);                                                                       \
  void p##gesdd_(const char*, const LapackInt*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*, T*, \
                 const LapackInt*, T*, const LapackInt*, LapackInt*, LapackInt*, std::size_t);                        \
  void p##syevd_(const char*, const char*, const LapackInt*, T*, const LapackInt*, T*, T*, const LapackInt*,          \
                 LapackInt*, const LapackInt*, LapackInt*, std::size_t, std::size_t);                                 \
  }                                                                                                                   \
  template <>                                                                                                         \
  struct Lapack<T> {                                                                                                  \
    using Int = LapackInt;                                                                                            \
    using Real = T;                                                                                                   \
    static Int Potrf(char uplo, Int n, T* a) {                                                                        \
      Int info = 0;                                                                                                   \
      p##potrf_(&uplo, &n, a, &n, &info, 1);                                                                          \
      return info;                                                                                                    \
    }                                                                                                                 \
    static Int Trtrs(char uplo, char trans, char diag, Int n, Int k, const T* a, T* b) {                              \
      Int info = 0;                                                                                                   \
      p##trtrs_(&uplo, &trans, &diag, &n, &k, a, &n, b, &n, &info, 1, 1, 1);                                          \
      return info;                                                                                                    \
    }                                                                                                                 \
    static Int Gesv(Int n, Int k, T* a, Int* pivots, T* b) {                                                          \
      Int info = 0;                                                                                                   \
      p##gesv_(&n, &k, a, &n, pivots, b, &n, &info);                                                                  \
      return info;                                                                                                    \
    }                                                                                                                 \
    static Int Getrf(Int n, T* a, Int* pivots) {                                                                      \
      Int info = 0;                                                                                                   \
      p##getrf_(&n, &n, a, &n, pivots, &info);                                                                        \
      return info;                                                                                                    \
    }                                                                                                                 \
    static Int Geqrf(Int m, Int n, T* a, T* tau) {                                                                    \
      return WithWork([&](T* work, Int size, Int* info) { p##geqrf_(&m, &n, a, &m, tau, work, &size, info); });       \
    }                                                                                                                 \
    static Int Orgqr(Int m, Int n, Int k, T* a, const T* tau) {                                                       \
      return WithWork([&](T* work, Int size, Int* info) { p##orgqr_(&m, &n, &k, a, &m, tau, work, &size, info); });   \
    }                                                                                                                 \
    static Int Gesdd(char job, Int m, Int n, T* a, Real* s, T* u, T* vh, Int vh_rows) {                               \
      std::vector<Int> integers(8 * static_cast<std::size_t>(m < n ? m : n));                                         \
      return WithWork([&](T* work, Int size, Int* info) {                                                             \
        p##gesdd_(&job, &m, &n, a, &m, s, u, &m, vh, &vh_rows, work, &size, integers.data(), info, 1);                \
      });                                                                                                             \
    }                                                                                                                 \
    static Int Syevd(char job, Int n, T* a, Real* w) {                                                                \
      const Int count = 3 + 5 * n;                                                                                    \
      std::vector<Int> integers(static_cast<std::size_t>(count));                                                     \
      const char lower = 'L';                                                                                         \
      return WithWork([&](T* work, Int size, Int* info) {                                                             \
        const Int integer_size = size < 0 ? -1 : count;                                                               \
        p##syevd_(&job, &lower, &n, a, &n, w, work, &size, integers.data(), &integer_size, info, 1, 1);               \
      });                                                                                                             \
    }                                                                                                                 \
                                                                                                                      \
   private:                                                                                                           \
    /* Twice: what workspace is best, then with it. */                                                                \
    template <typename Call>                                                                                          \
    static Int WithWork(Call&& call) {                                                                                \
      Int info = 0;                                                                                                   \
      T best = 0;                                                                                                     \
      call(&best, -1, &info);                                                                                         \
      if (info != 0) return info;                                                                                     \
      /* A float has not every integer; what it has is no less than half a percent below. */                          \
      const Int size = static_cast<Int>(best * T(1.01)) + 1;                                                          \
      std::vector<T> work(static_cast<std::size_t>(size));                                                            \
      call(work.data(), size, &info);                                                                                 \
      return info;                                                                                                    \
    }                                                                                                                 \
  }

TESSERA_LAPACK(float, s);
TESSERA_LAPACK(double, d);

}  // namespace tessera::cpu
