// Functions of matrices, by LAPACK. Each matrix is copied to column-major memory, in f32 where elements have 16 bits,
// and its results to where they lie. Matrices of a batch are divided among the compute threads; a matrix is computed by
// one of them, so that the bits don't depend on their number.

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/cpu/blas_calls.h"
#include "kernels/cpu/element_types.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/lapack.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/strided.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/types/errors.h"

namespace tessera::cpu {
namespace {

// A matrix in memory of its own, column by column.
template <typename W>
struct Dense {
  int64_t rows = 0, columns = 0;
  std::vector<W> data;
  Dense(int64_t rows, int64_t columns) : rows(rows), columns(columns), data(static_cast<size_t>(rows * columns)) {}
  W& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i + j * rows)]; }
  // Never null, which LAPACK may look at where there is nothing.
  W* begin() {
    if (data.empty()) data.resize(1);
    return data.data();
  }
};

// Where a matrix's elements are.
template <typename T>
struct Strided {
  T* data = nullptr;
  int64_t row_stride = 0, column_stride = 0;
};

template <typename T, typename W>
void Load(const Strided<const T>& from, Dense<W>& to) {
  if constexpr (std::is_same_v<T, W>) {
    const int64_t extents[] = {to.rows, to.columns}, strides[] = {from.row_stride, from.column_stride},
                  dense[] = {1, to.rows};
    if (!to.data.empty()) CopyStrided(extents, sizeof(T), from.data, strides, to.data.data(), dense);
  } else {
    for (int64_t j = 0; j < to.columns; ++j) {
      for (int64_t i = 0; i < to.rows; ++i) {
        to.at(i, j) = static_cast<W>(from.data[i * from.row_stride + j * from.column_stride]);
      }
    }
  }
}

// The first rows and columns of `from`.
template <typename T, typename W>
void Store(Dense<W>& from, int64_t rows, int64_t columns, const Strided<T>& to) {
  if (rows == 0 || columns == 0) return;
  if constexpr (std::is_same_v<T, W>) {
    const int64_t extents[] = {rows, columns}, strides[] = {to.row_stride, to.column_stride}, dense[] = {1, from.rows};
    CopyStrided(extents, sizeof(T), from.data.data(), dense, to.data, strides);
  } else {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) to.data[i * to.row_stride + j * to.column_stride] = T(from.at(i, j));
    }
  }
}

template <typename W>
bool IsFinite(const Dense<W>& a) {
  for (const W& element : a.data) {
    if (!std::isfinite(std::real(element)) || !std::isfinite(std::imag(element))) return false;
  }
  return true;
}

template <typename W>
void SetIdentity(Dense<W>& a) {
  for (int64_t i = 0; i < std::min(a.rows, a.columns); ++i) a.at(i, i) = W{1};
}

// c = a b, square and in their own memory. In column-major order: of the transposed matrices, the other way round.
template <typename W>
void Multiply(Dense<W>& a, Dense<W>& b, Dense<W>& c) {
  const auto n = static_cast<blasint>(a.rows);
  Gemm(CblasNoTrans, CblasNoTrans, a.rows, a.rows, a.rows, b.begin(), n, a.begin(), n, W{0}, c.begin(), n);
}

// The transposed matrix, of complex numbers the conjugates.
template <typename W>
void Conjugate(const Dense<W>& from, Dense<W>& to) {
  for (int64_t j = 0; j < from.columns; ++j) {
    for (int64_t i = 0; i < from.rows; ++i) {
      const W& element = from.data[static_cast<size_t>(i + j * from.rows)];
      if constexpr (scalar::kIsComplex<W>) {
        to.at(j, i) = std::conj(element);
      } else {
        to.at(j, i) = element;
      }
    }
  }
}

// Pade's approximant of degree 13 of a / 2^s, whose 1-norm is below 5.37, squared s times (Higham, "The scaling and
// squaring method for the matrix exponential revisited", 2005). NaN of what isn't finite. False where the approximant's
// divisor is singular, which it never is but by rounding.
template <typename W>
bool Exponential(Dense<W>& a) {
  constexpr int kDegree = 13;
  const int64_t n = a.rows;
  double norm = 0;
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::abs(a.at(i, j));
    norm = std::max(norm, sum);
  }
  if (!IsFinite(a) || !std::isfinite(norm)) {
    std::fill(a.data.begin(), a.data.end(), W{std::numeric_limits<double>::quiet_NaN()});
    return true;
  }
  const int squarings = norm > 5.37 ? std::ilogb(norm / 5.37) + 1 : 0;
  for (W& element : a.data) element *= std::ldexp(1.0, -squarings);
  // c_k of sum c_k a^k over sum c_k (-a)^k; Horner's rule in a^2 for the even terms and for the odd ones by a.
  std::array<double, kDegree + 1> c = {1};
  for (size_t k = 1; k <= kDegree; ++k) {
    c[k] = c[k - 1] * static_cast<double>(kDegree - k + 1) / static_cast<double>(k * (2 * kDegree - k + 1));
  }
  Dense<W> square(n, n), even(n, n), odd(n, n), product(n, n);
  Multiply(a, a, square);
  for (int k = kDegree - 1; k >= 0; k -= 2) {
    for (Dense<W>* const sum : {&even, &odd}) {
      if (k < kDegree - 1) {
        Multiply(square, *sum, product);
        std::swap(*sum, product);
      }
      for (int64_t i = 0; i < n; ++i) sum->at(i, i) += c[static_cast<size_t>(sum == &even ? k : k + 1)];
    }
  }
  Multiply(a, odd, product);
  for (size_t i = 0; i < a.data.size(); ++i) {
    a.data[i] = even.data[i] + product.data[i];
    even.data[i] -= product.data[i];
  }
  std::vector<LapackInt> pivots(static_cast<size_t>(n) + 1);
  const auto size = static_cast<LapackInt>(n);
  if (n > 0 && Lapack<W>::Gesv(size, size, even.begin(), pivots.data(), a.begin()) != 0) return false;
  for (int step = 0; step < squarings; ++step) {
    Multiply(a, a, product);
    std::swap(a, product);
  }
  return true;
}

// One matrix of the batch: reads a (and b), writes the result.
template <typename T>
class Solver {
 public:
  using W = std::conditional_t<kIsHalf<T>, float, T>;
  using L = Lapack<W>;
  using R = decltype(std::abs(W{}));  // of singular values and eigenvalues
  using Int = LapackInt;

  Solver(const LinalgOp& op, int64_t m, int64_t n, int64_t k) : op_(op), m_(m), n_(n), k_(k) {}

  // `step`: of a result in one dim, from one element to the next.
  template <typename O>
  absl::Status Run(const Strided<const T>& a, const Strided<const T>& b, const Strided<O>& out, int64_t step) const {
    Dense<W> matrix(m_, n_);
    Load(a, matrix);
    if constexpr (scalar::kIsComplex<O>) {
      if (op_.kind == LinalgKind::kEig || op_.kind == LinalgKind::kEigvals) return Eig(matrix, out.data, step);
    }
    if constexpr (std::is_same_v<O, T>) {
      return Run(matrix, b, out, step);
    } else {
      return absl::InternalError("linalg: the function gives its operands' dtype");
    }
  }

 private:
  absl::Status Run(Dense<W>& matrix, const Strided<const T>& b, const Strided<T>& out, int64_t step) const {
    switch (op_.kind) {
      case LinalgKind::kCholesky: return Cholesky(matrix, out);
      case LinalgKind::kTriangularSolve: return SolveTriangle(matrix, b, out);
      case LinalgKind::kSolve:
      case LinalgKind::kInv: return Solve(matrix, b, out);
      case LinalgKind::kSlogdet: return Slogdet(matrix, out.data, step);
      case LinalgKind::kQr: return Qr(matrix, out.data, step);
      case LinalgKind::kReflectionSigns: return ReflectionSigns(matrix, out.data, step);
      case LinalgKind::kSvd:
      case LinalgKind::kSvdVals: return Svd(matrix, out.data, step);
      case LinalgKind::kEigh:
      case LinalgKind::kEigvalsh: return Eigh(matrix, out.data, step);
      case LinalgKind::kLu: return Lu(matrix, out.data, step);
      case LinalgKind::kPermutation: return Permutation(matrix, out.data, step);
      case LinalgKind::kExp: return Exp(matrix, out);
      case LinalgKind::kReflectors: return Reflectors(matrix, out.data, step);
      case LinalgKind::kBandSvd:
      case LinalgKind::kBandSvdVals: return BandSvd(matrix, b, out.data, step);
      case LinalgKind::kEig:
      case LinalgKind::kEigvals: break;
    }
    return absl::InternalError("linalg: unknown function");
  }

  static Int N(int64_t extent) { return static_cast<Int>(extent); }

  absl::Status Failed(const char* why) const { return LinalgError(std::string(NameOf(op_.kind)) + ": " + why); }

  // A matrix behind others in the output's last dim.
  template <typename O>
  Strided<O> Packed(O* out, int64_t step, int64_t start, int64_t columns) const {
    return {out + start * step, columns * step, step};
  }

  absl::Status Cholesky(Dense<W>& a, const Strided<T>& out) const {
    if (n_ > 0 && L::Potrf(op_.upper ? 'U' : 'L', N(n_), a.begin()) != 0) return Failed("not positive definite");
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = 0; i < n_; ++i) {
        if (op_.upper ? i > j : i < j) a.at(i, j) = W{0};
      }
    }
    Store(a, n_, n_, out);
    return absl::OkStatus();
  }

  absl::Status SolveTriangle(Dense<W>& a, const Strided<const T>& b, const Strided<T>& out) const {
    Dense<W> x(n_, k_);
    Load(b, x);
    const bool fails = n_ > 0 && k_ > 0 &&
                       L::Trtrs(op_.upper ? 'U' : 'L', op_.transposed ? 'T' : 'N', op_.unit_diagonal ? 'U' : 'N', N(n_),
                                N(k_), a.begin(), x.begin()) != 0;
    if (fails) return Failed("singular matrix");
    Store(x, n_, k_, out);
    return absl::OkStatus();
  }

  // inv: of the identity.
  absl::Status Solve(Dense<W>& a, const Strided<const T>& b, const Strided<T>& out) const {
    Dense<W> x(n_, k_);
    if (op_.kind == LinalgKind::kInv) {
      SetIdentity(x);
    } else {
      Load(b, x);
    }
    std::vector<Int> pivots(static_cast<size_t>(n_) + 1);
    const bool fails = n_ > 0 && L::Gesv(N(n_), N(k_), a.begin(), pivots.data(), x.begin()) != 0;
    if (fails) return Failed("singular matrix");
    Store(x, n_, k_, out);
    return absl::OkStatus();
  }

  absl::Status Slogdet(Dense<W>& a, T* out, int64_t step) const {
    std::vector<Int> pivots(static_cast<size_t>(n_) + 1);
    W sign{1};
    R logarithm{0};
    if (n_ > 0 && L::Getrf(N(n_), N(n_), a.begin(), pivots.data()) > 0) {
      sign = W{0};
      logarithm = -std::numeric_limits<R>::infinity();
    } else {
      for (int64_t i = 0; i < n_; ++i) {
        const W pivot = a.at(i, i);
        if (pivots[static_cast<size_t>(i)] != N(i) + 1) sign = -sign;
        if constexpr (scalar::kIsComplex<W>) {
          sign *= pivot / std::abs(pivot);
        } else {
          sign = pivot < 0 ? -sign : sign;
        }
        logarithm += std::log(std::abs(pivot));
      }
    }
    out[0] = T(sign);
    out[step] = T(logarithm);
    return absl::OkStatus();
  }

  absl::Status Qr(Dense<W>& a, T* out, int64_t step) const {
    const int64_t least = std::min(m_, n_), k = op_.full ? m_ : least;
    std::vector<W> tau(static_cast<size_t>(least) + 1);
    if (least > 0) L::Geqrf(N(m_), N(n_), a.begin(), tau.data());
    Dense<W> r(k, n_);
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = 0; i <= std::min(j, k - 1); ++i) r.at(i, j) = a.at(i, j);
    }
    Store(r, k, n_, Packed(out, step, m_ * k, n_));
    Dense<W> q(m_, k);
    if (least == 0) {
      SetIdentity(q);
    } else {
      std::copy_n(a.data.begin(), m_ * least, q.data.begin());
      L::Orgqr(N(m_), N(k), N(least), q.begin(), tau.data());
    }
    Store(q, m_, k, Packed(out, step, 0, k));
    return absl::OkStatus();
  }

  // An elimination of q - diag(signs), in which each sign is chosen against the pivot, as a reflection does it; a
  // column that is all in its pivot is not reflected.
  absl::Status ReflectionSigns(Dense<W>& q, T* out, int64_t step) const {
    for (int64_t p = 0; p < n_; ++p) {
      const W pivot = q.at(p, p);
      const bool stays = std::abs(std::real(pivot)) == 1;
      const W sign = stays ? pivot : std::real(pivot) < 0 ? W{1} : W{-1};
      out[p * step] = T(sign);
      if (stays) continue;
      for (int64_t i = p + 1; i < n_; ++i) q.at(i, p) /= pivot - sign;
      for (int64_t j = p + 1; j < n_; ++j) {
        const W factor = q.at(p, j);
        for (int64_t i = p + 1; i < n_; ++i) q.at(i, j) -= q.at(i, p) * factor;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Svd(Dense<W>& a, T* out, int64_t step) const {
    const bool has_vectors = op_.kind == LinalgKind::kSvd;
    const int64_t least = std::min(m_, n_), left = op_.full ? m_ : least, right = op_.full ? n_ : least;
    if (!IsFinite(a)) return Failed("did not converge: not all elements are finite");
    Dense<W> u(m_, has_vectors ? left : 0), vh(has_vectors ? right : 0, n_);
    std::vector<R> values(static_cast<size_t>(least) + 1);
    if (least == 0) {
      SetIdentity(u);
      SetIdentity(vh);
    } else if (Gesdd(!has_vectors ? 'N'
                     : op_.full   ? 'A'
                                  : 'S',
                     N(m_), N(n_), a.begin(), values.data(), u.begin(), vh.begin(),
                     N(std::max<int64_t>(vh.rows, 1))) != 0) {
      return Failed("did not converge");
    }
    const int64_t start = has_vectors ? m_ * left : 0;
    for (int64_t i = 0; i < least; ++i) out[(start + i) * step] = T(values[static_cast<size_t>(i)]);
    if (!has_vectors) return absl::OkStatus();
    Store(u, m_, left, Packed(out, step, 0, left));
    Store(vh, right, n_, Packed(out, step, start + least, n_));
    return absl::OkStatus();
  }

  absl::Status Eigh(Dense<W>& a, T* out, int64_t step) const {
    const bool has_vectors = op_.kind == LinalgKind::kEigh;
    if (!IsFinite(a)) return Failed("did not converge: not all elements are finite");
    std::vector<R> values(static_cast<size_t>(n_) + 1);
    if (n_ > 0 && Syevd(has_vectors ? 'V' : 'N', N(n_), a.begin(), values.data()) != 0) {
      return Failed("did not converge");
    }
    for (int64_t i = 0; i < n_; ++i) out[i * step] = T(values[static_cast<size_t>(i)]);
    if (has_vectors) Store(a, n_, n_, Packed(out, step, n_, n_));
    return absl::OkStatus();
  }

  absl::Status Eig(Dense<W>& a, std::complex<R>* out, int64_t step) const {
    const bool has_vectors = op_.kind == LinalgKind::kEig;
    if (!IsFinite(a)) return Failed("did not converge: not all elements are finite");
    std::vector<std::complex<R>> values(static_cast<size_t>(n_) + 1);
    Dense<std::complex<R>> vectors(has_vectors ? n_ : 0, has_vectors ? n_ : 0);
    if (n_ > 0 && Geev(has_vectors ? 'V' : 'N', N(n_), a.begin(), values.data(), vectors.begin()) != 0) {
      return Failed("did not converge");
    }
    for (int64_t i = 0; i < n_; ++i) out[i * step] = values[static_cast<size_t>(i)];
    if (has_vectors) Store(vectors, n_, n_, Packed(out, step, n_, n_));
    return absl::OkStatus();
  }

  // A singular matrix is no error: U has a 0 on its diagonal then.
  absl::Status Lu(Dense<W>& a, T* out, int64_t step) const {
    const int64_t least = std::min(m_, n_);
    std::vector<Int> pivots(static_cast<size_t>(least) + 1);
    if (least > 0) L::Getrf(N(m_), N(n_), a.begin(), pivots.data());
    Store(a, m_, n_, Packed(out, step, 0, n_));
    for (int64_t i = 0; i < least; ++i) {
      out[(m_ * n_ + i) * step] = T(static_cast<W>(static_cast<R>(pivots[static_cast<size_t>(i)] - 1)));
    }
    return absl::OkStatus();
  }

  absl::Status Reflectors(Dense<W>& a, T* out, int64_t step) const {
    std::vector<W> tau(static_cast<size_t>(n_) + 1);
    Dense<W> t(n_, n_);
    if (n_ > 0) {
      L::Geqrf(N(m_), N(n_), a.begin(), tau.data());
      L::Larft(N(m_), N(n_), a.begin(), tau.data(), t.begin());
    }
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = j + 1; i < n_; ++i) t.at(i, j) = W{0};
    }
    Store(a, m_, n_, Packed(out, step, 0, n_));
    Store(t, n_, n_, Packed(out, step, m_ * n_, n_));
    return absl::OkStatus();
  }

  // By a bidiagonal matrix (LAPACK's gbbrd and bdsqr), whose rotations b's columns follow.
  absl::Status BandSvd(Dense<W>& a, const Strided<const T>& b, T* out, int64_t step) const {
    const int64_t n = m_, width = n_ / 2, columns = op_.kind == LinalgKind::kBandSvd ? k_ : 0;
    if (!IsFinite(a)) return Failed("did not converge: not all elements are finite");
    if (n == 0) return absl::OkStatus();
    Dense<W> band(width + 1, n), sides(n, columns), turned(columns, n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = i; j <= std::min(i + width, n - 1); ++j) {
        band.at(width + i - j, j) = a.at(i, j - i / width * width);
      }
    }
    if (columns > 0) Load(b, sides);
    std::vector<R> values(static_cast<size_t>(n)), beside(static_cast<size_t>(n));
    // Rows turn with rows: of powers of two they would all be in the same few lines of the cache.
    const int64_t stride = n + 9;
    std::vector<W> apart(static_cast<size_t>(stride * columns) + 1);
    for (int64_t j = 0; j < columns; ++j) std::copy_n(sides.data.begin() + j * n, n, apart.begin() + j * stride);
    Gbbrd(N(n), N(columns), N(width), N(stride), band.begin(), values.data(), beside.data(), apart.data());
    for (int64_t j = 0; j < columns; ++j) std::copy_n(apart.begin() + j * stride, n, sides.data.begin() + j * n);
    Conjugate(sides, turned);
    if (Bdsqr(N(n), N(columns), values.data(), beside.data(), turned.begin()) != 0) return Failed("did not converge");
    for (int64_t i = 0; i < n; ++i) out[i * step] = T(values[static_cast<size_t>(i)]);
    Conjugate(turned, sides);
    Store(sides, n, columns, Packed(out, step, n, columns));
    return absl::OkStatus();
  }

  absl::Status Permutation(Dense<W>& pivots, T* out, int64_t step) const {
    std::vector<int64_t> rows(static_cast<size_t>(m_));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    for (int64_t i = 0; i < m_; ++i) {
      const double pivot = std::real(pivots.at(i, 0));
      if (!(pivot >= 0 && pivot < static_cast<double>(m_))) {
        return IndexOutOfRangeError(absl::StrCat("permutation: pivot ", pivot, " of ", m_, " rows"));
      }
      std::swap(rows[static_cast<size_t>(i)], rows[static_cast<size_t>(pivot)]);
    }
    for (int64_t i = 0; i < m_; ++i) out[i * step] = T(static_cast<W>(static_cast<R>(rows[static_cast<size_t>(i)])));
    return absl::OkStatus();
  }

  // In f64, whatever the elements: small elements of the result are differences of large ones.
  absl::Status Exp(Dense<W>& a, const Strided<T>& out) const {
    using Wide = std::conditional_t<scalar::kIsComplex<W>, std::complex<double>, double>;
    Dense<Wide> wide(n_, n_);
    std::copy(a.data.begin(), a.data.end(), wide.data.begin());
    if (!Exponential(wide)) return Failed("singular matrix");
    std::transform(wide.data.begin(), wide.data.end(), a.data.begin(), [](const Wide& x) { return static_cast<W>(x); });
    Store(a, n_, n_, out);
    return absl::OkStatus();
  }

  LinalgOp op_;
  int64_t m_, n_, k_;  // a is [m, n], b is [n, k]
};

// The batch's matrices: operand 0 is a, 1 is b (or a again), 2 the output.
struct Batch {
  LoopNest nest;
  Strides a, b, output;  // of the last two dims
};

Batch BatchOf(const KernelCall& call) {
  const KernelInput &first = call.inputs.front(), &last = call.inputs.back();
  const size_t dims = first.extents.size() - 2;
  const auto strides_of = [](const KernelInput& input) {
    return input.is_zero ? Strides(input.extents.size(), 0) : input.strides;
  };
  const Strides a = strides_of(first), b = strides_of(last), output = call.output_strides;
  const auto head = [dims](const Strides& s) { return Strides(s.begin(), s.begin() + static_cast<ptrdiff_t>(dims)); };
  const auto tail = [dims](const Strides& s) { return Strides(s.begin() + static_cast<ptrdiff_t>(dims), s.end()); };
  const Shape extents(first.extents.begin(), first.extents.begin() + static_cast<ptrdiff_t>(dims));
  return {Coalesce(extents, {head(a), head(b), head(output)}), tail(a), tail(b), tail(output)};
}

template <typename T, typename O>
absl::Status RunBatch(const LinalgOp& op, const KernelCall& call) {
  static const double kZero[2] = {0, 0};
  const KernelInput &first = call.inputs.front(), &last = call.inputs.back();
  const Batch batch = BatchOf(call);
  const size_t rank = first.extents.size();
  const int64_t m = first.extents[rank - 2], n = first.extents[rank - 1],
                k = call.inputs.size() == 2 ? last.extents[rank - 1] : n;
  const Solver<T> solver(op, m, n, k);
  const T* a = static_cast<const T*>(first.is_zero ? static_cast<const void*>(kZero) : first.data);
  const T* b = static_cast<const T*>(last.is_zero ? static_cast<const void*>(kZero) : last.data);
  O* out = static_cast<O*>(call.output);
  const bool is_matrix = batch.output.size() == 2;
  std::vector<absl::Status> failed(static_cast<size_t>(batch.nest.size));
  const auto run = [&](int64_t i) {
    const Strided<O> to = {out + PlaceOf(batch.nest, 2, i).offset, batch.output[0], is_matrix ? batch.output[1] : 0};
    failed[static_cast<size_t>(i)] =
        solver.Run({a + PlaceOf(batch.nest, 0, i).offset, batch.a[0], batch.a[1]},
                   {b + PlaceOf(batch.nest, 1, i).offset, batch.b[0], batch.b[1]}, to, batch.output[0]);
  };
  // Worth other threads where a matrix is.
  const bool is_large = m * n >= 32 * 32 && batch.nest.size > 1;
  if (is_large) {
    RunBlocks(batch.nest.size, run);
  } else {
    for (int64_t i = 0; i < batch.nest.size; ++i) run(i);
  }
  for (absl::Status& status : failed) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

// Eigenvalues are complex, of real matrices too.
template <typename T>
absl::Status RunKind(const LinalgOp& op, const KernelCall& call) {
  using R = decltype(std::abs(typename Solver<T>::W{}));
  const bool is_complex = op.kind == LinalgKind::kEig || op.kind == LinalgKind::kEigvals;
  return is_complex ? RunBatch<T, std::complex<R>>(op, call) : RunBatch<T, T>(op, call);
}

}  // namespace

absl::Status RunLinalg(const LinalgOp& op, const KernelCall& call) {
  if (absl::Status s = ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size()));
      !s.ok()) {
    return s;
  }
  std::vector<Shape> extents;
  for (const KernelInput& input : call.inputs) extents.push_back(input.extents);
  const absl::StatusOr<Shape> output = LinalgOutput(op, extents);
  if (!output.ok()) return output.status();
  const DType dtype = call.inputs.front().dtype;
  if (*output != call.output_extents || LinalgDType(op.kind, dtype) != call.output_dtype ||
      call.inputs.back().dtype != dtype) {
    return absl::InvalidArgumentError(absl::StrCat("linalg: ", ToText(*output), " of ", std::string(ToText(dtype)),
                                                   " to ", ToText(call.output_extents)));
  }
  for (const Shape& each : extents) {
    for (const int64_t extent : {each[each.size() - 2], each.back()}) {
      if (extent > std::numeric_limits<LapackInt>::max() / 8) {
        return absl::UnimplementedError(absl::StrCat("linalg: of matrices with an extent of ", extent));
      }
    }
  }
  if (NumElements(*output) == 0) return absl::OkStatus();
  switch (dtype) {
    case DType::kF16: return RunKind<F16>(op, call);
    case DType::kBF16: return RunKind<BF16>(op, call);
    case DType::kF32: return RunKind<float>(op, call);
    case DType::kF64: return RunKind<double>(op, call);
    case DType::kC64: return RunKind<std::complex<float>>(op, call);
    case DType::kC128: return RunKind<std::complex<double>>(op, call);
    default: return NoKernelFor("linalg", call.output_dtype);
  }
}

}  // namespace tessera::cpu
