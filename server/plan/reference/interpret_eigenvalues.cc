#include "server/plan/reference/interpret_eigenvalues.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numeric>
#include <utility>

#include "schemas/types/errors.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Complex = std::complex<double>;
using Vector = std::vector<Complex>;

size_t At(int64_t i, int64_t j, int64_t n) { return static_cast<size_t>(i * n + j); }

// The coefficients of det(x - a), the leading one first (Faddeev, LeVerrier).
std::vector<double> CharacteristicPolynomial(int64_t n, const std::vector<double>& a) {
  std::vector<double> coefficients = {1}, m(a.size(), 0);
  for (int64_t k = 1; k <= n; ++k) {
    std::vector<double> next(a.size(), 0);
    double trace = 0;
    for (int64_t i = 0; i < n; ++i) m[At(i, i, n)] += coefficients.back();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t l = 0; l < n; ++l) next[At(i, j, n)] += a[At(i, l, n)] * m[At(l, j, n)];
      }
      trace += next[At(i, i, n)];
    }
    coefficients.push_back(-trace / static_cast<double>(k));
    m = std::move(next);
  }
  return coefficients;
}

// All roots at once (Durand, Kerner).
Vector Roots(const std::vector<double>& coefficients) {
  double radius = 0;
  for (const double c : coefficients) radius = std::max(radius, std::abs(c));
  Vector roots;
  for (size_t i = 1; i < coefficients.size(); ++i) {
    roots.push_back((1 + radius) / 2 *
                    std::polar(1.0, 0.4 + 6.28 * static_cast<double>(i) / static_cast<double>(coefficients.size())));
  }
  for (int round = 0; round < 2000; ++round) {
    double moved = 0;
    for (size_t i = 0; i < roots.size(); ++i) {
      Complex value = 0, others = 1;
      for (const double c : coefficients) value = value * roots[i] + c;
      for (size_t j = 0; j < roots.size(); ++j) {
        if (j != i) others *= roots[i] - roots[j];
      }
      const Complex step = others == 0.0 ? Complex(0) : value / others;
      roots[i] -= step;
      moved = std::max(moved, std::abs(step) / (1 + std::abs(roots[i])));
    }
    if (moved < 1e-16) break;
  }
  for (Complex& root : roots) {
    if (std::abs(root.imag()) < 1e-9 * (1 + std::abs(root))) root.imag(0);
  }
  std::sort(roots.begin(), roots.end(), [](const Complex& x, const Complex& y) {
    const double apart = x.real() - y.real();
    return std::abs(apart) > 1e-9 * (1 + std::abs(x)) ? apart < 0 : x.imag() < y.imag();
  });
  return roots;
}

// A vector that a - root makes small, by inverse iteration: solved for with a pivot of nearly 0.
Vector Eigenvector(int64_t n, const std::vector<double>& elements, Complex root) {
  Vector x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = 1.0 / static_cast<double>(i + 2);
  double scale = 1e-300;
  for (const double element : elements) scale = std::max(scale, std::abs(element));
  for (int round = 0; round < 3; ++round) {
    Vector a(elements.begin(), elements.end());
    for (int64_t i = 0; i < n; ++i) a[At(i, i, n)] -= root;
    for (int64_t p = 0; p < n; ++p) {
      int64_t best = p;
      for (int64_t i = p + 1; i < n; ++i) best = std::abs(a[At(i, p, n)]) > std::abs(a[At(best, p, n)]) ? i : best;
      for (int64_t j = 0; j < n; ++j) std::swap(a[At(p, j, n)], a[At(best, j, n)]);
      std::swap(x[static_cast<size_t>(p)], x[static_cast<size_t>(best)]);
      if (std::abs(a[At(p, p, n)]) < 1e-15 * scale) a[At(p, p, n)] = 1e-15 * scale;
      for (int64_t i = p + 1; i < n; ++i) {
        const Complex factor = a[At(i, p, n)] / a[At(p, p, n)];
        for (int64_t j = p; j < n; ++j) a[At(i, j, n)] -= factor * a[At(p, j, n)];
        x[static_cast<size_t>(i)] -= factor * x[static_cast<size_t>(p)];
      }
    }
    double norm = 0;
    for (int64_t i = n - 1; i >= 0; --i) {
      for (int64_t j = i + 1; j < n; ++j) x[static_cast<size_t>(i)] -= a[At(i, j, n)] * x[static_cast<size_t>(j)];
      x[static_cast<size_t>(i)] /= a[At(i, i, n)];
      norm += std::norm(x[static_cast<size_t>(i)]);
    }
    for (Complex& each : x) each /= std::sqrt(norm);
  }
  const auto by_size = [](const Complex& y, const Complex& z) { return std::abs(y) < std::abs(z) * (1 - 1e-9); };
  const Complex largest = *std::max_element(x.begin(), x.end(), by_size);
  for (Complex& each : x) each *= std::abs(largest) / largest;
  return x;
}

Number ToNumber(const Complex& value) {
  return Number(ScalarValue{.dtype = DType::kC128, .f = value.real(), .i = 0, .imaginary = value.imag()});
}

}  // namespace

absl::StatusOr<std::vector<Number>> InterpretEigenvalues(LinalgKind kind, int64_t n,
                                                         const std::vector<double>& elements) {
  if (!std::all_of(elements.begin(), elements.end(), [](double x) { return std::isfinite(x); })) {
    return LinalgError(StrCat(NameOf(kind), ": did not converge: not all elements are finite"));
  }
  const Vector roots = Roots(CharacteristicPolynomial(n, elements));
  std::vector<Number> results;
  for (const Complex& root : roots) results.push_back(ToNumber(root));
  if (kind == LinalgKind::kEigvals) return results;
  std::vector<Vector> columns;
  for (const Complex& root : roots) columns.push_back(Eigenvector(n, elements, root));
  for (int64_t i = 0; i < n; ++i) {
    for (const Vector& column : columns) results.push_back(ToNumber(column[static_cast<size_t>(i)]));
  }
  return results;
}

}  // namespace tessera
