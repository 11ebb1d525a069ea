#include "tests/emulator/cuda/cusolver/matrices.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace tessera::emulator {

int Potrf(Matrix& a, bool is_upper) {
  const int64_t n = a.rows;
  const auto of = [&](int64_t i, int64_t j) -> double& { return is_upper ? a.at(j, i) : a.at(i, j); };
  for (int64_t j = 0; j < n; ++j) {
    double sum = of(j, j);
    for (int64_t k = 0; k < j; ++k) sum -= of(j, k) * of(j, k);
    if (!(sum > 0)) return static_cast<int>(j + 1);
    of(j, j) = std::sqrt(sum);
    for (int64_t i = j + 1; i < n; ++i) {
      double rest = of(i, j);
      for (int64_t k = 0; k < j; ++k) rest -= of(i, k) * of(j, k);
      of(i, j) = rest / of(j, j);
    }
  }
  return 0;
}

int Getrf(Matrix& a, std::vector<int64_t>& pivots) {
  const int64_t m = a.rows, n = a.columns, least = std::min(m, n);
  int info = 0;
  pivots.assign(static_cast<size_t>(least), 0);
  for (int64_t p = 0; p < least; ++p) {
    int64_t largest = p;
    for (int64_t i = p + 1; i < m; ++i) {
      if (std::abs(a.at(i, p)) > std::abs(a.at(largest, p))) largest = i;
    }
    pivots[static_cast<size_t>(p)] = largest + 1;
    for (int64_t j = 0; j < n; ++j) std::swap(a.at(p, j), a.at(largest, j));
    if (a.at(p, p) == 0) {
      if (info == 0) info = static_cast<int>(p + 1);
      continue;
    }
    for (int64_t i = p + 1; i < m; ++i) {
      a.at(i, p) /= a.at(p, p);
      for (int64_t j = p + 1; j < n; ++j) a.at(i, j) -= a.at(i, p) * a.at(p, j);
    }
  }
  return info;
}

void Getrs(Matrix& lu, const std::vector<int64_t>& pivots, bool is_transposed, Matrix& b) {
  const int64_t n = lu.rows;
  for (int64_t c = 0; c < b.columns; ++c) {
    if (!is_transposed) {
      for (int64_t i = 0; i < n; ++i) std::swap(b.at(i, c), b.at(pivots[static_cast<size_t>(i)] - 1, c));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < i; ++k) b.at(i, c) -= lu.at(i, k) * b.at(k, c);
      }
      for (int64_t i = n - 1; i >= 0; --i) {
        for (int64_t k = i + 1; k < n; ++k) b.at(i, c) -= lu.at(i, k) * b.at(k, c);
        b.at(i, c) /= lu.at(i, i);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t k = 0; k < i; ++k) b.at(i, c) -= lu.at(k, i) * b.at(k, c);
        b.at(i, c) /= lu.at(i, i);
      }
      for (int64_t i = n - 1; i >= 0; --i) {
        for (int64_t k = i + 1; k < n; ++k) b.at(i, c) -= lu.at(k, i) * b.at(k, c);
      }
      for (int64_t i = n - 1; i >= 0; --i) std::swap(b.at(i, c), b.at(pivots[static_cast<size_t>(i)] - 1, c));
    }
  }
}

void TrsmRight(Matrix& a, bool is_upper, bool is_transposed, bool has_unit_diagonal, Matrix& b) {
  const int64_t n = a.rows;
  const auto of = [&](int64_t i, int64_t j) {
    const double value = is_transposed ? a.at(j, i) : a.at(i, j);
    return i == j && has_unit_diagonal ? 1.0 : value;
  };
  // Columns of x, each of those before it in the triangle's order.
  const bool goes_up = is_upper != is_transposed;
  for (int64_t step = 0; step < n; ++step) {
    const int64_t j = goes_up ? step : n - 1 - step;
    for (int64_t r = 0; r < b.rows; ++r) {
      double rest = b.at(r, j);
      for (int64_t before = 0; before < step; ++before) {
        const int64_t k = goes_up ? before : n - 1 - before;
        rest -= b.at(r, k) * of(k, j);
      }
      b.at(r, j) = rest / of(j, j);
    }
  }
}

void Geqrf(Matrix& a, std::vector<double>& tau) {
  const int64_t m = a.rows, n = a.columns;
  tau.assign(static_cast<size_t>(std::min(m, n)), 0);
  for (int64_t p = 0; p < std::min(m, n); ++p) {
    double norm = 0;
    for (int64_t i = p + 1; i < m; ++i) norm = std::hypot(norm, a.at(i, p));
    if (norm == 0) continue;
    const double alpha = a.at(p, p), beta = -std::copysign(std::hypot(alpha, norm), alpha);
    const double scale = (beta - alpha) / beta;
    tau[static_cast<size_t>(p)] = scale;
    for (int64_t i = p + 1; i < m; ++i) a.at(i, p) /= alpha - beta;
    a.at(p, p) = beta;
    for (int64_t j = p + 1; j < n; ++j) {
      double sum = a.at(p, j);
      for (int64_t i = p + 1; i < m; ++i) sum += a.at(i, p) * a.at(i, j);
      a.at(p, j) -= scale * sum;
      for (int64_t i = p + 1; i < m; ++i) a.at(i, j) -= scale * sum * a.at(i, p);
    }
  }
}

void Orgqr(Matrix& a, const std::vector<double>& tau) {
  Matrix q(a.rows, a.columns);
  for (int64_t j = 0; j < std::min(a.rows, a.columns); ++j) q.at(j, j) = 1;
  for (int64_t p = static_cast<int64_t>(tau.size()) - 1; p >= 0; --p) {
    for (int64_t j = 0; j < q.columns; ++j) {
      double sum = q.at(p, j);
      for (int64_t i = p + 1; i < a.rows; ++i) sum += a.at(i, p) * q.at(i, j);
      sum *= tau[static_cast<size_t>(p)];
      q.at(p, j) -= sum;
      for (int64_t i = p + 1; i < a.rows; ++i) q.at(i, j) -= sum * a.at(i, p);
    }
  }
  a = std::move(q);
}

// Jacobi's rotations.
int Syevd(Matrix& a, bool is_upper, std::vector<double>& values) {
  constexpr int kSweeps = 60;
  const int64_t n = a.rows;
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < j; ++i) (is_upper ? a.at(j, i) : a.at(i, j)) = is_upper ? a.at(i, j) : a.at(j, i);
  }
  Matrix v(n, n);
  for (int64_t i = 0; i < n; ++i) v.at(i, i) = 1;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (a.at(p, q) == 0) continue;
        const double theta = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        const double c = std::cos(theta), s = std::sin(theta);
        for (int64_t k = 0; k < n; ++k) {
          const double x = a.at(k, p), y = a.at(k, q);
          a.at(k, p) = c * x - s * y, a.at(k, q) = s * x + c * y;
        }
        for (int64_t k = 0; k < n; ++k) {
          const double x = a.at(p, k), y = a.at(q, k);
          a.at(p, k) = c * x - s * y, a.at(q, k) = s * x + c * y;
          const double u = v.at(k, p), w = v.at(k, q);
          v.at(k, p) = c * u - s * w, v.at(k, q) = s * u + c * w;
        }
      }
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return a.at(x, x) < a.at(y, y); });
  Matrix sorted(n, n);
  values.clear();
  for (int64_t j = 0; j < n; ++j) {
    const int64_t from = order[static_cast<size_t>(j)];
    values.push_back(a.at(from, from));
    for (int64_t i = 0; i < n; ++i) sorted.at(i, j) = v.at(i, from);
  }
  a = std::move(sorted);
  return 0;
}

namespace {

Matrix Transposed(const Matrix& a) {
  Matrix turned(a.columns, a.rows);
  for (int64_t j = 0; j < a.columns; ++j) {
    for (int64_t i = 0; i < a.rows; ++i) turned.at(j, i) = a.data[static_cast<size_t>(i + j * a.rows)];
  }
  return turned;
}
double Dot(Matrix& a, int64_t p, Matrix& b, int64_t q) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows; ++i) sum += a.at(i, p) * b.at(i, q);
  return sum;
}
void Rotate(Matrix& a, int64_t p, int64_t q, double c, double s) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const double x = a.at(i, p), y = a.at(i, q);
    a.at(i, p) = c * x - s * y, a.at(i, q) = s * x + c * y;
  }
}
// Columns from `first` on become such that all are orthonormal.
void Complete(Matrix& u, int64_t first) {
  int64_t unit = 0;
  for (int64_t j = first; j < u.columns; ++unit) {
    for (int64_t i = 0; i < u.rows; ++i) u.at(i, j) = i == unit ? 1 : 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k < j; ++k) {
        const double part = Dot(u, k, u, j);
        for (int64_t i = 0; i < u.rows; ++i) u.at(i, j) -= part * u.at(i, k);
      }
    }
    const double norm = std::sqrt(Dot(u, j, u, j));
    if (norm * norm * static_cast<double>(u.rows) < 0.5) continue;
    for (int64_t i = 0; i < u.rows; ++i) u.at(i, j) /= norm;
    ++j;
  }
}

}  // namespace

// Hestenes' rotations of columns. Every second pair of vectors has the other sign, as it may.
int Gesvdj(const Matrix& a, Matrix& u, std::vector<double>& values, Matrix& v) {
  if (a.rows < a.columns) return Gesvdj(Transposed(a), v, values, u);
  for (const double element : a.data) {
    if (!std::isfinite(element)) return static_cast<int>(a.columns + 1);
  }
  constexpr int kSweeps = 60;
  const int64_t n = a.columns;
  Matrix w = a, turned(n, n);
  for (int64_t i = 0; i < n; ++i) turned.at(i, i) = 1;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        const double first = Dot(w, p, w, p), second = Dot(w, q, w, q), both = Dot(w, p, w, q);
        if (std::abs(both) <= 1e-18 * std::sqrt(first * second)) continue;
        const double theta = 0.5 * std::atan2(2 * both, second - first);
        Rotate(w, p, q, std::cos(theta), std::sin(theta));
        Rotate(turned, p, q, std::cos(theta), std::sin(theta));
      }
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::vector<double> norms;
  for (int64_t j = 0; j < n; ++j) norms.push_back(std::sqrt(Dot(w, j, w, j)));
  const auto norm_of = [&](int64_t j) { return norms[static_cast<size_t>(j)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return norm_of(x) > norm_of(y); });
  values.clear();
  int64_t known = 0;
  for (int64_t j = 0; j < n; ++j) {
    const int64_t from = order[static_cast<size_t>(j)];
    const double norm = norm_of(from), sign = j % 2 == 0 ? 1 : -1;
    values.push_back(norm);
    for (int64_t i = 0; i < n && v.columns > 0; ++i) v.at(i, j) = sign * turned.at(i, from);
    if (u.columns == 0 || norm <= 1e-14 * norm_of(order[0])) continue;
    for (int64_t i = 0; i < a.rows; ++i) u.at(i, j) = sign * w.at(i, from) / norm;
    known = j + 1;
  }
  Complete(u, known);
  return 0;
}

}  // namespace tessera::emulator
