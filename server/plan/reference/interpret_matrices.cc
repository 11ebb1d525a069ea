#include "server/plan/reference/interpret_matrices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/reference/interpret_eigenvalues.h"

namespace tessera {
namespace {

struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> elements;  // row-major

  Matrix(int64_t rows, int64_t columns) : rows(rows), columns(columns), elements(Count(rows, columns)) {}
  static size_t Count(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }
  double& at(int64_t i, int64_t j) { return elements[static_cast<size_t>(i * columns + j)]; }
  double at(int64_t i, int64_t j) const { return elements[static_cast<size_t>(i * columns + j)]; }
};

Matrix Identity(int64_t n) {
  Matrix one(n, n);
  for (int64_t i = 0; i < n; ++i) one.at(i, i) = 1;
  return one;
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

Matrix Product(const Matrix& x, const Matrix& y) {
  Matrix product(x.rows, y.columns);
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < y.columns; ++j) {
      for (int64_t k = 0; k < x.columns; ++k) product.at(i, j) += x.at(i, k) * y.at(k, j);
    }
  }
  return product;
}

absl::StatusOr<Matrix> Cholesky(const Matrix& a, bool upper) {
  Matrix l(a.rows, a.rows);
  for (int64_t j = 0; j < a.rows; ++j) {
    for (int64_t i = j; i < a.rows; ++i) {
      double sum = upper ? a.at(j, i) : a.at(i, j);
      for (int64_t k = 0; k < j; ++k) sum -= l.at(i, k) * l.at(j, k);
      if (i == j && !(sum > 0)) return LinalgError("cholesky: not positive definite");
      l.at(i, j) = i == j ? std::sqrt(sum) : sum / l.at(j, j);
    }
  }
  return upper ? Transposed(l) : l;
}

// Elimination with the largest pivots; `a` becomes the upper triangle, `b` follows. The sign of the permutation.
double Eliminate(Matrix& a, Matrix& b) {
  double sign = 1;
  for (int64_t p = 0; p < a.rows; ++p) {
    int64_t best = p;
    for (int64_t i = p + 1; i < a.rows; ++i) best = std::abs(a.at(i, p)) > std::abs(a.at(best, p)) ? i : best;
    if (best != p) {
      sign = -sign;
      for (int64_t j = 0; j < a.columns; ++j) std::swap(a.at(p, j), a.at(best, j));
      for (int64_t j = 0; j < b.columns; ++j) std::swap(b.at(p, j), b.at(best, j));
    }
    if (a.at(p, p) == 0) continue;
    for (int64_t i = p + 1; i < a.rows; ++i) {
      const double factor = a.at(i, p) / a.at(p, p);
      for (int64_t j = p; j < a.columns; ++j) a.at(i, j) -= factor * a.at(p, j);
      for (int64_t j = 0; j < b.columns; ++j) b.at(i, j) -= factor * b.at(p, j);
    }
  }
  return sign;
}

// x of a x = b, with an upper triangle or a lower one.
absl::StatusOr<Matrix> Substitute(const Matrix& a, Matrix b, bool upper, bool unit_diagonal, const char* name) {
  for (int64_t step = 0; step < a.rows; ++step) {
    const int64_t i = upper ? a.rows - 1 - step : step;
    if (!unit_diagonal && a.at(i, i) == 0) return LinalgError(StrCat(name, ": singular matrix"));
    for (int64_t j = 0; j < b.columns; ++j) {
      double sum = b.at(i, j);
      for (int64_t k = upper ? i + 1 : 0; k < (upper ? a.rows : i); ++k) sum -= a.at(i, k) * b.at(k, j);
      b.at(i, j) = unit_diagonal ? sum : sum / a.at(i, i);
    }
  }
  return b;
}

// Householder's reflections with LAPACK's signs: Q [m, m] and R [m, n].
std::pair<Matrix, Matrix> Qr(const Matrix& a) {
  Matrix q = Identity(a.rows), r = a;
  for (int64_t p = 0; p < std::min(a.rows, a.columns); ++p) {
    double below = 0;
    for (int64_t i = p + 1; i < a.rows; ++i) below += r.at(i, p) * r.at(i, p);
    if (below == 0) continue;
    const double pivot = r.at(p, p), norm = std::sqrt(pivot * pivot + below);
    const double to = pivot < 0 ? norm : -norm;
    std::vector<double> v(static_cast<size_t>(a.rows), 0);
    for (int64_t i = p; i < a.rows; ++i) v[static_cast<size_t>(i)] = i == p ? pivot - to : r.at(i, p);
    const double scale = 2 / std::inner_product(v.begin(), v.end(), v.begin(), 0.0);
    for (int64_t j = 0; j < a.columns; ++j) {
      double dot = 0;
      for (int64_t i = p; i < a.rows; ++i) dot += v[static_cast<size_t>(i)] * r.at(i, j);
      for (int64_t i = p; i < a.rows; ++i) r.at(i, j) -= scale * dot * v[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < a.rows; ++i) {
      double dot = 0;
      for (int64_t j = p; j < a.rows; ++j) dot += q.at(i, j) * v[static_cast<size_t>(j)];
      for (int64_t j = p; j < a.rows; ++j) q.at(i, j) -= scale * dot * v[static_cast<size_t>(j)];
    }
    for (int64_t i = p + 1; i < a.rows; ++i) r.at(i, p) = 0;
  }
  return {q, r};
}

// R and the vectors of the reflections below it [m, n], and T [n, n]: T's columns follow from H_0 ... H_j-1 (I - scale
// v v^T).
std::pair<Matrix, Matrix> Reflectors(Matrix a) {
  const int64_t m = a.rows, n = a.columns;
  Matrix t(n, n);
  for (int64_t p = 0; p < n; ++p) {
    double below = 0;
    for (int64_t i = p + 1; i < m; ++i) below += a.at(i, p) * a.at(i, p);
    if (below == 0) continue;
    const double pivot = a.at(p, p), norm = std::sqrt(pivot * pivot + below), to = pivot < 0 ? norm : -norm;
    const double scale = (to - pivot) / to;
    std::vector<double> v(static_cast<size_t>(m), 0);
    for (int64_t i = p; i < m; ++i) v[static_cast<size_t>(i)] = i == p ? 1 : a.at(i, p) / (pivot - to);
    for (int64_t j = p + 1; j < n; ++j) {
      double dot = 0;
      for (int64_t i = p; i < m; ++i) dot += v[static_cast<size_t>(i)] * a.at(i, j);
      for (int64_t i = p; i < m; ++i) a.at(i, j) -= scale * dot * v[static_cast<size_t>(i)];
    }
    std::vector<double> dots(static_cast<size_t>(p), 0);  // of the earlier vectors with v
    for (int64_t k = 0; k < p; ++k) {
      for (int64_t i = p; i < m; ++i) dots[static_cast<size_t>(k)] += a.at(i, k) * v[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < p; ++i) {
      for (int64_t k = i; k < p; ++k) t.at(i, p) -= scale * t.at(i, k) * dots[static_cast<size_t>(k)];
    }
    t.at(p, p) = scale;
    a.at(p, p) = to;
    for (int64_t i = p + 1; i < m; ++i) a.at(i, p) = v[static_cast<size_t>(i)];
  }
  return {a, t};
}

// As linalg_op.h says it: the signs against the pivots of an elimination.
std::vector<double> ReflectionSigns(Matrix q) {
  std::vector<double> signs;
  for (int64_t p = 0; p < q.rows; ++p) {
    const double pivot = q.at(p, p);
    if (std::abs(pivot) == 1) {
      signs.push_back(pivot);
      continue;
    }
    signs.push_back(pivot < 0 ? 1 : -1);
    for (int64_t i = p + 1; i < q.rows; ++i) {
      const double factor = q.at(i, p) / (pivot - signs.back());
      for (int64_t j = p + 1; j < q.rows; ++j) q.at(i, j) -= factor * q.at(p, j);
    }
  }
  return signs;
}

// Jacobi's rotations: eigenvalues, the least first, and eigenvectors as columns, of the lower triangle.
std::pair<std::vector<double>, Matrix> Eigh(Matrix a) {
  const int64_t n = a.rows;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) a.at(i, j) = a.at(j, i);
  }
  Matrix v = Identity(n);
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (a.at(p, q) == 0) continue;
        const double angle = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        const auto rotate = [&](double& x, double& y) {
          const double first = c * x - s * y;
          y = s * x + c * y;
          x = first;
        };
        for (int64_t k = 0; k < n; ++k) rotate(a.at(k, p), a.at(k, q));
        for (int64_t k = 0; k < n; ++k) rotate(a.at(p, k), a.at(q, k));
        for (int64_t k = 0; k < n; ++k) rotate(v.at(k, p), v.at(k, q));
      }
    }
  }
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t x, int64_t y) { return a.at(x, x) < a.at(y, y); });
  std::vector<double> values;
  Matrix vectors(n, n);
  for (int64_t j = 0; j < n; ++j) {
    const int64_t from = order[static_cast<size_t>(j)];
    values.push_back(a.at(from, from));
    for (int64_t i = 0; i < n; ++i) vectors.at(i, j) = v.at(i, from);
  }
  return {values, vectors};
}

// U [m, m], S and Vh [n, n], from the eigenvectors of a^T a and a QR of what a makes of them.
struct Decomposition {
  Matrix u;
  std::vector<double> s;
  Matrix vh;
};
Decomposition Svd(const Matrix& a) {
  if (a.rows < a.columns) {
    Decomposition t = Svd(Transposed(a));
    return {Transposed(t.vh), t.s, Transposed(t.u)};
  }
  const int64_t m = a.rows, n = a.columns;
  Matrix square(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < m; ++k) square.at(i, j) += a.at(k, i) * a.at(k, j);
    }
  }
  const Matrix v = Eigh(square).second;
  Matrix vh(n, n), turned(m, n);
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < n; ++i) vh.at(j, i) = v.at(i, n - 1 - j);
  }
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < n; ++k) turned.at(i, j) += a.at(i, k) * vh.at(j, k);
    }
  }
  auto [q, r] = Qr(turned);
  std::vector<double> s;
  for (int64_t j = 0; j < n; ++j) {
    s.push_back(std::abs(r.at(j, j)));
    for (int64_t i = 0; r.at(j, j) < 0 && i < m; ++i) q.at(i, j) = -q.at(i, j);
  }
  return {q, s, vh};
}

// The matrix that linalg_op.h gives by blocks of a band.
Matrix BandMatrix(const Matrix& a) {
  const int64_t width = a.columns / 2;
  Matrix band(a.rows, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = i; j <= std::min(i + width, a.rows - 1); ++j) band.at(i, j) = a.at(i, j - i / width * width);
  }
  return band;
}

// L below the diagonal and U, then the pivots, by elimination with the largest ones.
std::pair<Matrix, std::vector<double>> Lu(Matrix a) {
  std::vector<double> pivots;
  for (int64_t p = 0; p < std::min(a.rows, a.columns); ++p) {
    int64_t best = p;
    for (int64_t i = p + 1; i < a.rows; ++i) best = std::abs(a.at(i, p)) > std::abs(a.at(best, p)) ? i : best;
    pivots.push_back(static_cast<double>(best));
    for (int64_t j = 0; best != p && j < a.columns; ++j) std::swap(a.at(p, j), a.at(best, j));
    for (int64_t i = p + 1; a.at(p, p) != 0 && i < a.rows; ++i) {
      a.at(i, p) /= a.at(p, p);
      for (int64_t j = p + 1; j < a.columns; ++j) a.at(i, j) -= a.at(i, p) * a.at(p, j);
    }
  }
  return {a, pivots};
}

absl::StatusOr<std::vector<double>> Permutation(const Matrix& pivots) {
  std::vector<double> rows(static_cast<size_t>(pivots.rows));
  std::iota(rows.begin(), rows.end(), 0.0);
  for (int64_t i = 0; i < pivots.rows; ++i) {
    const double pivot = pivots.at(i, 0);
    if (!(pivot >= 0 && pivot < static_cast<double>(pivots.rows))) {
      return IndexOutOfRangeError(StrCat("permutation: pivot ", pivot, " of ", pivots.rows, " rows"));
    }
    std::swap(rows[static_cast<size_t>(i)], rows[static_cast<size_t>(pivot)]);
  }
  return rows;
}

// The series of a / 2^s, squared s times.
Matrix Exponential(Matrix a) {
  double norm = 0;
  for (const double element : a.elements) norm += std::abs(element);
  const int squarings = std::isfinite(norm) && norm > 0.5 ? std::ilogb(norm) + 2 : 0;
  for (double& element : a.elements) element = std::ldexp(element, -squarings);
  Matrix sum = Identity(a.rows), term = sum;
  for (int k = 1; k <= 20; ++k) {
    term = Product(term, a);
    for (size_t i = 0; i < sum.elements.size(); ++i) sum.elements[i] += term.elements[i] /= k;
  }
  for (int step = 0; step < squarings; ++step) sum = Product(sum, sum);
  return sum;
}

// Results as they lie behind each other.
class Packer {
 public:
  void Add(const Matrix& a, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) elements_.push_back(a.at(i, j));
    }
  }
  void Add(const std::vector<double>& values) { elements_.insert(elements_.end(), values.begin(), values.end()); }
  std::vector<double> Take() && { return std::move(elements_); }

 private:
  std::vector<double> elements_;
};

absl::StatusOr<std::vector<double>> Solved(const LinalgOp& op, Matrix a, Matrix b) {
  const char* const name = op.kind == LinalgKind::kInv ? "inv" : "solve";
  if (op.kind == LinalgKind::kTriangularSolve) {
    const bool upper = op.upper != op.transposed;
    TESSERA_ASSIGN_OR_RETURN(const Matrix x, Substitute(op.transposed ? Transposed(a) : a, std::move(b), upper,
                                                        op.unit_diagonal, "triangular_solve"));
    return x.elements;
  }
  Eliminate(a, b);
  TESSERA_ASSIGN_OR_RETURN(const Matrix x, Substitute(a, std::move(b), true, false, name));
  return x.elements;
}

std::vector<double> SignAndLogarithm(Matrix a) {
  Matrix none(a.rows, 0);
  double sign = Eliminate(a, none), logarithm = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    if (a.at(i, i) == 0) return {0, -std::numeric_limits<double>::infinity()};
    sign = a.at(i, i) < 0 ? -sign : sign;
    logarithm += std::log(std::abs(a.at(i, i)));
  }
  return {sign, logarithm};
}

// The results of one matrix, one element after the other.
absl::StatusOr<std::vector<double>> Results(const LinalgOp& op, const Matrix& a, const Matrix& b) {
  const int64_t m = a.rows, n = a.columns, least = std::min(m, n);
  const bool iterates = op.kind == LinalgKind::kSvd || op.kind == LinalgKind::kSvdVals ||
                        op.kind == LinalgKind::kEigh || op.kind == LinalgKind::kEigvalsh ||
                        op.kind == LinalgKind::kBandSvd || op.kind == LinalgKind::kBandSvdVals;
  const bool is_finite = std::all_of(a.elements.begin(), a.elements.end(), [](double x) { return std::isfinite(x); });
  if (iterates && !is_finite) {
    return LinalgError(StrCat(NameOf(op.kind), ": did not converge: not all elements are finite"));
  }
  Packer packer;
  switch (op.kind) {
    case LinalgKind::kCholesky: {
      TESSERA_ASSIGN_OR_RETURN(const Matrix l, Cholesky(a, op.upper));
      return l.elements;
    }
    case LinalgKind::kTriangularSolve:
    case LinalgKind::kSolve: return Solved(op, a, b);
    case LinalgKind::kInv: return Solved(op, a, Identity(n));
    case LinalgKind::kSlogdet: return SignAndLogarithm(a);
    case LinalgKind::kReflectionSigns: return ReflectionSigns(a);
    case LinalgKind::kQr: {
      const int64_t k = op.full ? m : least;
      const auto [q, r] = Qr(a);
      packer.Add(q, m, k);
      packer.Add(r, k, n);
      break;
    }
    case LinalgKind::kSvd: {
      const Decomposition parts = Svd(a);
      packer.Add(parts.u, m, op.full ? m : least);
      packer.Add(parts.s);
      packer.Add(parts.vh, op.full ? n : least, n);
      break;
    }
    case LinalgKind::kSvdVals: return Svd(a).s;
    case LinalgKind::kEigh:
    case LinalgKind::kEigvalsh: {
      const auto [values, vectors] = Eigh(a);
      packer.Add(values);
      if (op.kind == LinalgKind::kEigh) packer.Add(vectors, n, n);
      break;
    }
    case LinalgKind::kLu: {
      const auto [factors, pivots] = Lu(a);
      packer.Add(factors, m, n);
      packer.Add(pivots);
      break;
    }
    case LinalgKind::kReflectors: {
      const auto [factors, t] = Reflectors(a);
      packer.Add(factors, m, n);
      packer.Add(t, n, n);
      break;
    }
    case LinalgKind::kBandSvd: {
      const Decomposition parts = Svd(BandMatrix(a));
      packer.Add(parts.s);
      packer.Add(Product(Transposed(parts.u), b), m, b.columns);
      break;
    }
    case LinalgKind::kBandSvdVals: return Svd(BandMatrix(a)).s;
    case LinalgKind::kPermutation: return Permutation(a);
    case LinalgKind::kExp: return Exponential(a).elements;
    case LinalgKind::kEig:
    case LinalgKind::kEigvals: return absl::InternalError("linalg: InterpretLinalg has complex results for itself");
  }
  return std::move(packer).Take();
}

absl::StatusOr<std::vector<Number>> AsNumbers(const absl::StatusOr<std::vector<double>>& results) {
  if (!results.ok()) return results.status();
  return std::vector<Number>(results->begin(), results->end());
}

// The matrix at an index of the batch.
Matrix Read(const StridedNumbers& from, const Shape& batch) {
  const size_t dims = batch.size();
  Matrix a(from.extents[dims], from.extents[dims + 1]);
  Shape index = batch;
  index.resize(dims + 2);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) {
      index[dims] = i;
      index[dims + 1] = j;
      a.at(i, j) = static_cast<double>(from.Read(index));
    }
  }
  return a;
}

}  // namespace

absl::Status InterpretLinalg(const LinalgOp& op, const std::vector<StridedNumbers>& inputs,
                             const StridedNumbers& output) {
  const Shape& extents = inputs[0].extents;
  const Shape batch(extents.begin(), extents.end() - 2);
  const Shape result(output.extents.begin() + static_cast<ptrdiff_t>(batch.size()), output.extents.end());
  const bool has_complex_values = op.kind == LinalgKind::kEig || op.kind == LinalgKind::kEigvals;
  if (Kind(inputs[0].dtype) == DTypeKind::kComplex) {
    return absl::UnimplementedError("linalg: of complex numbers Interpret has no meaning");
  }
  absl::Status failed;
  ForEachIndex(batch, [&](const Shape& index) {
    if (!failed.ok()) return;
    const Matrix a = Read(inputs.front(), index);
    absl::StatusOr<std::vector<Number>> results = has_complex_values
                                                      ? InterpretEigenvalues(op.kind, a.rows, a.elements)
                                                      : AsNumbers(Results(op, a, Read(inputs.back(), index)));
    if (!results.ok()) {
      failed = results.status();
      return;
    }
    size_t next = 0;
    ForEachIndex(result, [&](const Shape& inner) {
      Shape at = index;
      at.insert(at.end(), inner.begin(), inner.end());
      output.Write(at, (*results)[next++]);
    });
  });
  return failed;
}

}  // namespace tessera
