// Functions of matrices, by LAPACK. Each matrix is copied to column-major memory, in f32 where elements have 16 bits,
// and its results to where they lie. Matrices of a batch are divided among the compute threads; a matrix is computed by
// one of them, so that the bits don't depend on their number.

#include <cmath>
#include <complex>
#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"

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
  absl::Status Run(const Strided<const T>& a, const Strided<const T>& b, const Strided<T>& out, int64_t step) const {
    Dense<W> matrix(m_, n_);
    Load(a, matrix);
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
    }
    return absl::InternalError("linalg: unknown function");
  }

 private:
  static Int N(int64_t extent) { return static_cast<Int>(extent); }

  absl::Status Failed(const char* why) const { return LinalgError(std::string(NameOf(op_.kind)) + ": " + why); }

  // A matrix behind others in the output's last dim.
  Strided<T> Packed(T* out, int64_t step, int64_t start, int64_t columns) const {
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
    if (n_ > 0 && L::Getrf(N(n_), a.begin(), pivots.data()) > 0) {
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

template <typename T>
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
  T* out = static_cast<T*>(call.output);
  const bool is_matrix = batch.output.size() == 2;
  std::vector<absl::Status> failed(static_cast<size_t>(batch.nest.size));
  const auto run = [&](int64_t i) {
    const Strided<T> to = {out + PlaceOf(batch.nest, 2, i).offset, batch.output[0], is_matrix ? batch.output[1] : 0};
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
  if (*output != call.output_extents || call.inputs.front().dtype != call.output_dtype ||
      call.inputs.back().dtype != call.output_dtype) {
    return absl::InvalidArgumentError(absl::StrCat("linalg: ", ToText(*output), " of ",
                                                   std::string(ToText(call.inputs.front().dtype)), " to ",
                                                   ToText(call.output_extents)));
  }
  for (const Shape& each : extents) {
    for (const int64_t extent : {each[each.size() - 2], each.back()}) {
      if (extent > std::numeric_limits<LapackInt>::max() / 8) {
        return absl::UnimplementedError(absl::StrCat("linalg: of matrices with an extent of ", extent));
      }
    }
  }
  if (NumElements(*output) == 0) return absl::OkStatus();
  switch (call.output_dtype) {
    case DType::kF16: return RunBatch<F16>(op, call);
    case DType::kBF16: return RunBatch<BF16>(op, call);
    case DType::kF32: return RunBatch<float>(op, call);
    case DType::kF64: return RunBatch<double>(op, call);
    case DType::kC64: return RunBatch<std::complex<float>>(op, call);
    case DType::kC128: return RunBatch<std::complex<double>>(op, call);
    default: return NoKernelFor("linalg", call.output_dtype);
  }
}

}  // namespace tessera::cpu
