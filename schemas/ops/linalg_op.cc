#include "schemas/ops/linalg_op.h"

#include <algorithm>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

struct NamedFlag {
  std::string_view name;
  bool LinalgOp::*flag;
};
constexpr std::array<NamedFlag, 4> kFlags = {{{"upper", &LinalgOp::upper},
                                              {"full", &LinalgOp::full},
                                              {"transposed", &LinalgOp::transposed},
                                              {"unit_diagonal", &LinalgOp::unit_diagonal}}};

bool Takes(LinalgKind kind, bool LinalgOp::*flag) {
  switch (kind) {
    case LinalgKind::kCholesky: return flag == &LinalgOp::upper;
    case LinalgKind::kTriangularSolve: return flag != &LinalgOp::full;
    case LinalgKind::kQr:
    case LinalgKind::kSvd: return flag == &LinalgOp::full;
    default: return false;
  }
}

// The product and the sum of extents; -1 beyond 64 bits.
int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}
int64_t Plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum) ? -1 : sum;
}

}  // namespace

DType LinalgDType(LinalgKind kind, DType matrices) {
  if (kind != LinalgKind::kEig && kind != LinalgKind::kEigvals) return matrices;
  return matrices == DType::kF64 || matrices == DType::kC128 ? DType::kC128 : DType::kC64;
}

absl::StatusOr<Shape> LinalgResult(const LinalgOp& op, absl::Span<const Shape> matrices) {
  const int64_t m = matrices[0][0], n = matrices[0][1];
  const bool is_any = op.kind == LinalgKind::kQr || op.kind == LinalgKind::kSvd || op.kind == LinalgKind::kSvdVals ||
                      op.kind == LinalgKind::kLu || op.kind == LinalgKind::kPermutation ||
                      op.kind == LinalgKind::kReflectors || op.kind == LinalgKind::kBandSvd ||
                      op.kind == LinalgKind::kBandSvdVals;
  if (!is_any && m != n) return absl::InvalidArgumentError("needs square matrices");
  const int64_t least = std::min(m, n), k = op.full ? m : least;
  Shape result;
  switch (op.kind) {
    case LinalgKind::kCholesky:
    case LinalgKind::kExp:
    case LinalgKind::kInv: return matrices[0];
    case LinalgKind::kTriangularSolve:
    case LinalgKind::kSolve:
      if (matrices[1][0] != n) return absl::InvalidArgumentError("the rows of the matrices differ");
      return matrices[1];
    case LinalgKind::kSlogdet: return Shape{2};
    case LinalgKind::kReflectionSigns:
    case LinalgKind::kEigvals:
    case LinalgKind::kEigvalsh: return Shape{n};
    case LinalgKind::kPermutation:
      if (n != 1) return absl::InvalidArgumentError("pivots are one column");
      return Shape{m};
    case LinalgKind::kSvdVals: return Shape{least};
    case LinalgKind::kQr: result = {Plus(Times(m, k), Times(k, n))}; break;
    case LinalgKind::kEig:
    case LinalgKind::kEigh: result = {Plus(n, Times(n, n))}; break;
    case LinalgKind::kLu: result = {Plus(Times(m, n), least)}; break;
    case LinalgKind::kReflectors:
      if (m < n) return absl::InvalidArgumentError("needs matrices with no more columns than rows");
      result = {Plus(Times(m, n), Times(n, n))};
      break;
    case LinalgKind::kBandSvd:
    case LinalgKind::kBandSvdVals:
      if (n < 2 || n % 2 != 0 || m % (n / 2) != 0)
        return absl::InvalidArgumentError("needs rows in blocks of the band");
      if (op.kind == LinalgKind::kBandSvdVals) return Shape{m};
      if (matrices[1][0] != m) return absl::InvalidArgumentError("the rows of the matrices differ");
      result = {Plus(m, Times(m, matrices[1][1]))};
      break;
    case LinalgKind::kSvd: result = {Plus(Plus(Times(m, k), least), Times(op.full ? n : least, n))}; break;
  }
  if (result[0] < 0) return absl::InvalidArgumentError("the result is beyond 64 bits");
  return result;
}

absl::StatusOr<Shape> LinalgOutput(const LinalgOp& op, absl::Span<const Shape> inputs) {
  std::array<Shape, 2> matrices;
  const size_t rank = inputs[0].size();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].size() < 2) return absl::InvalidArgumentError("needs matrices, of at least 2 dims");
    if (inputs[i].size() != rank || !std::equal(inputs[0].begin(), inputs[0].end() - 2, inputs[i].begin())) {
      return absl::InvalidArgumentError("the batches differ");
    }
    matrices[i].assign(inputs[i].end() - 2, inputs[i].end());
  }
  TESSERA_ASSIGN_OR_RETURN(const Shape result, LinalgResult(op, absl::MakeConstSpan(matrices.data(), inputs.size())));
  Shape output(inputs[0].begin(), inputs[0].end() - 2);
  output.insert(output.end(), result.begin(), result.end());
  return output;
}

std::string ToText(const LinalgOp& op) {
  std::string text = StrCat("linalg(", NameOf(op.kind));
  for (const NamedFlag& each : kFlags) {
    if (op.*each.flag) StrAppend(&text, "; ", each.name);
  }
  return text + ")";
}

absl::StatusOr<LinalgOp> ParseLinalgOp(Scanner& scanner) {
  LinalgOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner.TakeIdentifier());
  const auto found = std::find(kLinalgKindNames.begin(), kLinalgKindNames.end(), name);
  if (found == kLinalgKindNames.end()) return scanner.Error("a function of matrices before here");
  op.kind = static_cast<LinalgKind>(found - kLinalgKindNames.begin());
  while (scanner.TryTake(";")) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view flag, scanner.TakeIdentifier());
    const auto known = std::find_if(kFlags.begin(), kFlags.end(), [&](const NamedFlag& f) { return f.name == flag; });
    if (known == kFlags.end()) return scanner.Error("upper, full, transposed or unit_diagonal before here");
    op.*(known->flag) = true;
  }
  TESSERA_RETURN_IF_ERROR(ValidateLinalgOp(op, InputsOf(op.kind), 0));
  return op;
}

absl::Status ValidateLinalgOp(const LinalgOp& op, int inputs, int scalars) {
  if (static_cast<size_t>(op.kind) >= kLinalgKindNames.size()) {
    return absl::InvalidArgumentError("linalg: unknown function");
  }
  if (inputs != InputsOf(op.kind) || scalars != 0) {
    return absl::InvalidArgumentError(StrCat("linalg: ", NameOf(op.kind), " takes ", InputsOf(op.kind),
                                             " inputs and no scalars, not ", inputs, " and ", scalars));
  }
  for (const NamedFlag& each : kFlags) {
    if (op.*each.flag && !Takes(op.kind, each.flag)) {
      return absl::InvalidArgumentError(StrCat("linalg: ", NameOf(op.kind), " is never ", each.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
