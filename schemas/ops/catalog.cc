#include "schemas/ops/catalog.h"

#include <array>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using F = OpFamily;
using D = DTypeRule;
using P = PartialRule;
using S = ScalarOp;

// An elementwise row of one or two operands.
constexpr OpRow Elementwise(OpId id, std::string_view name, int operands, S op, D dtype, P partial,
                            std::string_view signature, std::string_view doc) {
  return {id, name, F::kElementwise, operands, operands, "", op, std::nullopt, dtype, partial, signature, doc};
}

constexpr OpRow Reduction(OpId id, std::string_view name, ReduceOp op, D dtype, P partial, std::string_view signature,
                          std::string_view doc) {
  return {id, name, F::kReduction, 1, 1, "", std::nullopt, op, dtype, partial, signature, doc};
}

// Rows without a scalar op, a reduce op or a notation.
constexpr OpRow Plain(OpId id, std::string_view name, F family, int operands, D dtype, P partial,
                      std::string_view signature, std::string_view doc) {
  return {id, name, family, operands, operands, "", std::nullopt, std::nullopt, dtype, partial, signature, doc};
}

constexpr std::array kRows = {
    Plain(OpId::kFull, "full", F::kCreation, 0, D::kAttribute, P::kNone,
          "full(shape, fill_value, *, dtype=None, device_mesh=None, placements=None)",
          "Returns a new tensor of the shape, filled with fill_value."),
    Plain(OpId::kArange, "arange", F::kCreation, 0, D::kAttribute, P::kNone,
          "arange(start, /, stop=None, step=1, *, dtype=None, device_mesh=None, placements=None)",
          "Returns evenly spaced values within the half-open interval [start, stop)."),
    Plain(OpId::kRand, "rand", F::kCreation, 0, D::kAttribute, P::kNone,
          "rand(*shape, dtype=None, device_mesh=None, placements=None)",
          "Returns uniform random numbers in [0, 1), the same on every mesh and placement."),
    Plain(OpId::kEye, "eye", F::kCreation, 0, D::kAttribute, P::kNone,
          "eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device_mesh=None, placements=None)",
          "Returns a matrix with ones on the k-th diagonal and zeros elsewhere."),
    Elementwise(OpId::kAdd, "add", 2, S::kAdd, D::kPromoteNumeric, P::kLinear, "add(x1, x2, /)",
                "Calculates the sum of each element of x1 with the respective element of x2."),
    Elementwise(OpId::kSub, "subtract", 2, S::kSub, D::kPromoteNumeric, P::kLinear, "subtract(x1, x2, /)",
                "Calculates the difference of each element of x1 with the respective element of x2."),
    Elementwise(OpId::kMul, "multiply", 2, S::kMul, D::kPromoteNumeric, P::kScale, "multiply(x1, x2, /)",
                "Calculates the product of each element of x1 with the respective element of x2."),
    Elementwise(OpId::kDiv, "divide", 2, S::kDiv, D::kFloating, P::kScale, "divide(x1, x2, /)",
                "Calculates the quotient of each element of x1 with the respective element of x2; integers give f64."),
    Elementwise(OpId::kMaximum, "maximum", 2, S::kMaximum, D::kPromoteNumeric, P::kExtreme, "maximum(x1, x2, /)",
                "Computes the larger of each element of x1 and the respective element of x2; NaN propagates."),
    Elementwise(OpId::kMinimum, "minimum", 2, S::kMinimum, D::kPromoteNumeric, P::kExtreme, "minimum(x1, x2, /)",
                "Computes the smaller of each element of x1 and the respective element of x2; NaN propagates."),
    Elementwise(OpId::kEqual, "equal", 2, S::kEqual, D::kBool, P::kNone, "equal(x1, x2, /)",
                "Computes the truth value of x1_i == x2_i for each element."),
    Elementwise(OpId::kNotEqual, "not_equal", 2, S::kNotEqual, D::kBool, P::kNone, "not_equal(x1, x2, /)",
                "Computes the truth value of x1_i != x2_i for each element."),
    Elementwise(OpId::kLess, "less", 2, S::kLess, D::kBool, P::kNone, "less(x1, x2, /)",
                "Computes the truth value of x1_i < x2_i for each element."),
    Elementwise(OpId::kLessEqual, "less_equal", 2, S::kLessEqual, D::kBool, P::kNone, "less_equal(x1, x2, /)",
                "Computes the truth value of x1_i <= x2_i for each element."),
    Elementwise(OpId::kGreater, "greater", 2, S::kGreater, D::kBool, P::kNone, "greater(x1, x2, /)",
                "Computes the truth value of x1_i > x2_i for each element."),
    Elementwise(OpId::kGreaterEqual, "greater_equal", 2, S::kGreaterEqual, D::kBool, P::kNone,
                "greater_equal(x1, x2, /)", "Computes the truth value of x1_i >= x2_i for each element."),
    Elementwise(OpId::kNeg, "negative", 1, S::kNeg, D::kPromoteNumeric, P::kLinear, "negative(x, /)",
                "Computes the numerical negative of each element."),
    Elementwise(OpId::kExp, "exp", 1, S::kExp, D::kFloating, P::kMonotone, "exp(x, /)",
                "Calculates e raised to each element; integers give f64."),
    // A pending term below 0 would give NaN where the maximum has a root, so P(max) does not pass.
    Elementwise(OpId::kSqrt, "sqrt", 1, S::kSqrt, D::kFloating, P::kNone, "sqrt(x, /)",
                "Calculates the square root of each element; integers give f64."),
    Elementwise(OpId::kRelu, "relu", 1, S::kRelu, D::kPromoteNumeric, P::kMonotone, "relu(x, /)",
                "Gives each element, or 0 where it is negative; NaN propagates."),
    OpRow{OpId::kWhere, "where", F::kElementwise, 3, 3, "", S::kWhere, std::nullopt, D::kWhere, P::kNone,
          "where(condition, x1, x2, /)", "Returns elements of x1 where condition is true and of x2 where it is false."},
    OpRow{OpId::kAsType, "astype", F::kElementwise, 1, 1, "", S::kCast, std::nullopt, D::kAttribute, P::kLinear,
          "astype(x, dtype, /)", "Copies a tensor to the dtype; a float out of an integer's range saturates."},
    Reduction(OpId::kSum, "sum", ReduceOp::kSum, D::kSum, P::kLinear,
              "sum(x, /, *, axis=None, dtype=None, keepdims=False)",
              "Calculates the sum over the axes; bool and i32 are summed as i64."),
    Reduction(OpId::kMean, "mean", ReduceOp::kSum, D::kFloating, P::kLinear, "mean(x, /, *, axis=None, keepdims=False)",
              "Calculates the arithmetic mean over the axes; integers give f64."),
    Reduction(OpId::kMax, "max", ReduceOp::kMax, D::kPromoteNumeric, P::kExtreme,
              "max(x, /, *, axis=None, keepdims=False)", "Calculates the maximum over the axes; NaN propagates."),
    Reduction(OpId::kMin, "min", ReduceOp::kMin, D::kPromoteNumeric, P::kExtreme,
              "min(x, /, *, axis=None, keepdims=False)", "Calculates the minimum over the axes; NaN propagates."),
    Plain(OpId::kArgMin, "argmin", F::kArgReduction, 1, D::kIndex, P::kNone,
          "argmin(x, /, *, axis=None, keepdims=False)",
          "Returns the indices of the minimum values along an axis; the first one of several."),
    Plain(OpId::kArgMax, "argmax", F::kArgReduction, 1, D::kIndex, P::kNone,
          "argmax(x, /, *, axis=None, keepdims=False)",
          "Returns the indices of the maximum values along an axis; the first one of several."),
    OpRow{OpId::kMatmul, "matmul", F::kContraction, 2, 2, "mk,kn->mn", std::nullopt, std::nullopt, D::kPromoteNumeric,
          P::kLinear, "matmul(x1, x2, /)",
          "Computes the matrix product; leading dims are broadcast, a 1-D operand is a vector."},
    OpRow{OpId::kEinsum, "einsum", F::kContraction, 2, 2, "", std::nullopt, std::nullopt, D::kPromoteNumeric,
          P::kLinear, "einsum(notation, x1, x2, /)",
          "Sums products over the letters that the output does not have; copies nothing to permute dims."},
    Plain(OpId::kTranspose, "permute_dims", F::kView, 1, D::kSame, P::kMove, "permute_dims(x, /, axes)",
          "Permutes the axes of a tensor; copies nothing."),
    Plain(OpId::kSlice, "slice", F::kView, 1, D::kSame, P::kMove, "x[index]",
          "Basic indexing with slices, integers and None; copies nothing unless a sharded dim is cut."),
    Plain(OpId::kReshape, "reshape", F::kView, 1, D::kSame, P::kMove, "reshape(x, /, shape)",
          "Reshapes a tensor in row-major order; refused where it would move data between workers."),
    OpRow{OpId::kRedistribute, "redistribute", F::kRedistribute, 1, kMaxOperands, "", std::nullopt, std::nullopt,
          D::kSame, P::kMove,
          "redistribute(x, /, device_mesh=None, placements=None, *, dtype=None, async_op=False, relabel=False)",
          "Gives the same tensor with other placements, moving the fewest bytes; several tensors move in one plan."},
};

constexpr size_t kIdLimit = 128;

// Row numbers by id, plus one; 0 where there is none.
constexpr std::array<uint8_t, kIdLimit> MakeRowById() {
  std::array<uint8_t, kIdLimit> rows = {};
  for (size_t i = 0; i < kRows.size(); ++i) rows[static_cast<size_t>(kRows[i].id)] = static_cast<uint8_t>(i + 1);
  return rows;
}
constexpr std::array<uint8_t, kIdLimit> kRowById = MakeRowById();

}  // namespace

absl::Span<const OpRow> Catalog() { return kRows; }

absl::StatusOr<const OpRow*> FindOp(OpId id) {
  const size_t number = static_cast<size_t>(id);
  if (number < kIdLimit && kRowById[number] != 0) return &kRows[kRowById[number] - size_t{1}];
  return absl::InvalidArgumentError(StrCat("unknown op number ", number));
}

std::string_view NameOf(OpId id) {
  const absl::StatusOr<const OpRow*> row = FindOp(id);
  return row.ok() ? (*row)->name : std::string_view("unknown op");
}

absl::StatusOr<const OpRow*> FindOpByName(std::string_view name) {
  std::string known;
  for (const OpRow& row : kRows) {
    if (row.name == name) return &row;
    StrAppend(&known, " ", row.name);
  }
  return absl::InvalidArgumentError(StrCat("unknown op \"", Printable(name, 40), "\"; known:", known));
}

}  // namespace tessera
