#pragma once

// LinalgOp: a function of whole matrices, which are the last two dims of its inputs; the dims before them are a batch,
// and each of its matrices is one's own. Results that are several (Q and R) lie in one output, behind each other in its
// last dim, each in row-major order: f64[7,4,3] has the reduced Q and R of its matrices in f64[7,21], 12 elements of Q
// and 9 of R.
//
//   kind               inputs           result for each matrix
//   cholesky           a [n,n]          [n,n]: L with L L^H = a, of a's lower triangle; `upper`: U with U^H U = a, of
//                                       the upper one
//   triangular_solve   a [n,n], b [n,k] [n,k]: x with a x = b, of a's lower triangle or `upper`; `transposed`: of a^T;
//                                       `unit_diagonal`: with ones on the diagonal, which isn't read
//   solve              a [n,n], b [n,k] [n,k]: x with a x = b
//   inv                a [n,n]          [n,n]
//   slogdet            a [n,n]          [2]: sign and logarithm of the determinant's size; 0 and -inf of a singular one
//   qr                 a [m,n]          Q [m,k], R [k,n] with k = min(m, n), or m with `full`
//   reflection_signs   q [n,n]          [n]: see below
//   svd                a [m,n]          U [m,k], S [k], Vh [k,n] with k = min(m, n), or `full`: U [m,m], Vh [n,n]
//   svdvals            a [m,n]          [min(m, n)]: singular values, the largest first
//   eigh               a [n,n]          eigenvalues [n], the least first, and eigenvectors [n,n], of the lower triangle
//   eigvalsh           a [n,n]          [n]
//   eig                a [n,n]          eigenvalues [n], in LAPACK's order, and eigenvectors [n,n], as columns of norm
//                                       1: complex, of real matrices too, whose pairs are each other's conjugates
//   eigvals            a [n,n]          [n], complex
//   lu                 a [m,n]          L below the diagonal, without its ones, and U [m,n]; pivots [min(m, n)]: as row
//                                       i was eliminated it changed places with row pivots[i], counted from 0
//   permutation        pivots [m,1]     [m]: the row of a that pivots bring to each place; a of them in order is L U
//   exp                a [n,n]          [n,n]: the sum of a^k / k!
//   reflectors         a [m,n], m >= n  R, and the vectors V below the diagonal, without their ones [m,n]; T [n,n]:
//                                       a = Q R with Q = I - V T V^H
//   band_svd           a [n,2w],        S [n], the largest first, and U^H b [n,k] of the band matrix U S V^H: see below
//                      b [n,k]
//   band_svdvals       a [n,2w]         S [n] of the band matrix
//
// A QR of pieces (TSQR) has rows of R with other signs than one that Householder's reflections make of the whole. The
// first n rows of its Q tell which: reflection_signs gives for each column the sign that makes it that of the
// reflections (Ballard, Demmel, Grigori, Jacquelin, Knight, Nguyen: "Reconstructing Householder vectors from
// tall-skinny QR", 2014, their modified LU decomposition).
//
// A band matrix that is above its diagonal alone, w elements wide, is given by blocks of w rows, n / w of them: the
// block on the diagonal, and the one on its right, which is a lower triangle. With w = 2 and n = 4 row 1 is (0, a11,
// a12, 0) and has elements 1, 2 and 3 of the whole matrix's row; w elements, and zeros of the triangles, are not read.
//
// A matrix that has no answer (singular, where it is divided by; not positive definite; one with a NaN or an infinity,
// where values are found by iteration) is an error of the call with kLinalgErrorPayload.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/dtype.h"
#include "schemas/types/shape.h"

namespace tessera {

class Scanner;

enum class LinalgKind : uint8_t {
  kCholesky = 0,
  kTriangularSolve = 1,
  kSolve = 2,
  kInv = 3,
  kSlogdet = 4,
  kQr = 5,
  kReflectionSigns = 6,
  kSvd = 7,
  kSvdVals = 8,
  kEigh = 9,
  kEigvalsh = 10,
  kEig = 11,
  kEigvals = 12,
  kLu = 13,
  kPermutation = 14,
  kExp = 15,
  kReflectors = 16,
  kBandSvd = 17,
  kBandSvdVals = 18,
};
inline constexpr std::array<std::string_view, 19> kLinalgKindNames = {"cholesky",
                                                                      "triangular_solve",
                                                                      "solve",
                                                                      "inv",
                                                                      "slogdet",
                                                                      "qr",
                                                                      "reflection_signs",
                                                                      "svd",
                                                                      "svdvals",
                                                                      "eigh",
                                                                      "eigvalsh",
                                                                      "eig",
                                                                      "eigvals",
                                                                      "lu",
                                                                      "permutation",
                                                                      "exp",
                                                                      "reflectors",
                                                                      "band_svd",
                                                                      "band_svdvals"};

struct LinalgOp {
  LinalgKind kind = LinalgKind::kCholesky;
  bool upper = false;          // cholesky, triangular_solve
  bool full = false;           // qr, svd
  bool transposed = false;     // triangular_solve
  bool unit_diagonal = false;  // triangular_solve
  bool operator==(const LinalgOp&) const = default;
};

inline std::string_view NameOf(LinalgKind kind) { return kLinalgKindNames[static_cast<size_t>(kind)]; }
inline int InputsOf(LinalgKind kind) {
  return kind == LinalgKind::kTriangularSolve || kind == LinalgKind::kSolve || kind == LinalgKind::kBandSvd ? 2 : 1;
}
// The dtype of the result, of matrices of this one.
DType LinalgDType(LinalgKind kind, DType matrices);
// The extents of one result, of matrices with these; InvalidArgument that says how they should be.
absl::StatusOr<Shape> LinalgResult(const LinalgOp& op, absl::Span<const Shape> matrices);
// The same of inputs with their batch, which is the same for all.
absl::StatusOr<Shape> LinalgOutput(const LinalgOp& op, absl::Span<const Shape> inputs);

// "linalg(qr; full)".
std::string ToText(const LinalgOp& op);
// Parses the text between the parentheses.
absl::StatusOr<LinalgOp> ParseLinalgOp(Scanner& scanner);
absl::Status ValidateLinalgOp(const LinalgOp& op, int inputs, int scalars);

}  // namespace tessera
