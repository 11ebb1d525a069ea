#include "client/contraction.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/catalog_ops.h"
#include "client/session_calls.h"
#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/einsum_steps.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Says an error of an op of a function in the function's name. Errors of others stay theirs.
absl::Status SaidBy(CalledAs called_as, const absl::Status& status) {
  if (called_as == CalledAs::kOp) return status;
  std::string_view why = StdView(status.message());
  if (const size_t name = why.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"); why.substr(name, 2) == ": ") {
    if (why.substr(0, name) != "contraction" && !FindOpByName(why.substr(0, name)).ok()) return status;
    why.remove_prefix(name + 2);
  }
  return WithMessage(status, StrCat(NameOf(called_as), ": ", why));
}

// An addend that isn't read, because beta is 0, is checked all the same.
absl::Status CheckAddend(const Tensor& c, const Tensor& product) {
  if (c.session() != product.session()) {
    return absl::InvalidArgumentError(
        StrCat("addmm: c, ", ToText(c.spec()), ", is of another session; fetch it there and distribute it here"));
  }
  const absl::StatusOr<Shape> joined = BroadcastShapes(c.shape(), product.shape());
  if (joined.ok() && *joined == product.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("addmm: c of shape ", ToText(c.shape()),
                                           " is not broadcast to the product, of shape ", ToText(product.shape())));
}

// An op of addmm on a tensor that it made and does not use again: the result may take its memory.
absl::StatusOr<Tensor> CallOnOwn(OpId op, Tensor own, const Operand& other) {
  SessionImpl& session = *own.session();
  CallOperand operands[2];
  operands[0] = {&own.state(), Scalar(), session.MayDonate(own.state())};
  if (const auto* tensor = std::get_if<const Tensor*>(&other.value())) {
    operands[1].tensor = &(*tensor)->state();
  } else {
    operands[1].scalar = std::get<Scalar>(other.value());
  }
  absl::StatusOr<HandlePtr> result = session.calls().Call(OpCall{op, {}, {}}, operands);
  if (!result.ok()) return SaidBy(CalledAs::kAddmm, result.status());
  return Tensor(*std::move(result));
}

absl::StatusOr<Tensor> Product(CalledAs called_as, std::string_view notation, const Tensor& a, const Tensor& b,
                               std::string_view precision = "full") {
  const CalledAsScope scope(called_as);
  OpCall call;
  call.op = OpId::kEinsum;
  call.attributes.Set(attribute::notation, std::string(notation));
  if (precision != "full") call.attributes.Set(attribute::precision, std::string(precision));
  const Operand operands[] = {a, b};
  absl::StatusOr<Tensor> product = CallOp(call, operands);
  if (!product.ok()) return SaidBy(called_as, product.status());
  return product;
}

// A reduction over dims, with the sum's dtype.
absl::StatusOr<Tensor> Reduce(const Tensor& x, const std::vector<int64_t>& dims, DType dtype) {
  OpCall call;
  call.op = dtype == DType::kBool ? OpId::kAny : OpId::kSum;
  call.attributes.Set(attribute::dims, dims);
  if (dtype != DType::kBool) call.attributes.Set(attribute::dtype, dtype);
  const Operand operands[] = {x};
  return CallOp(call, operands);
}

absl::StatusOr<Tensor> Run(const EinsumStep& step, const Tensor& x, const Tensor& other, DType dtype,
                           std::string_view precision) {
  switch (step.kind) {
    case EinsumStepKind::kDiagonal: {
      TESSERA_ASSIGN_OR_RETURN(const Tensor permuted, PermuteDims(x, step.dims));
      return ops::Diagonal(permuted);
    }
    case EinsumStepKind::kCast: return ops::Astype(x, dtype);
    case EinsumStepKind::kSum: return Reduce(x, step.dims, dtype);
    case EinsumStepKind::kProduct: return Product(CalledAs::kEinsum, step.notation, x, other, precision);
    case EinsumStepKind::kPermute: return PermuteDims(x, step.dims);
  }
  return x;
}

}  // namespace

absl::StatusOr<Tensor> Einsum(std::string_view notation, absl::Span<const Tensor> operands,
                              std::string_view precision) {
  if (precision != "full" && precision != "tf32") {
    return absl::InvalidArgumentError(StrCat("einsum: precision is '", precision, "', not 'full' or 'tf32'"));
  }
  std::vector<EinsumOperand> shown;
  for (const Tensor& x : operands) shown.push_back({x.shape(), x.dtype()});
  const auto name_of = [&](size_t i) { return ToText(operands[i].spec()); };
  TESSERA_ASSIGN_OR_RETURN(const EinsumSteps plan, PlanEinsum(notation, shown, name_of));
  const CalledAsScope scope(CalledAs::kEinsum);
  std::vector<Tensor> slots(operands.begin(), operands.end());
  for (const EinsumStep& step : plan.steps) {
    Tensor& slot = slots[static_cast<size_t>(step.slot)];
    TESSERA_ASSIGN_OR_RETURN(slot, Run(step, slot, slots[static_cast<size_t>(step.other)], plan.dtype, precision));
  }
  return slots[static_cast<size_t>(plan.result)];
}

absl::StatusOr<Tensor> Einsum(std::string_view notation, const Tensor& a, const Tensor& b) {
  return Einsum(notation, {a, b});
}

absl::StatusOr<Tensor> Bmm(const Tensor& a, const Tensor& b) {
  if (a.rank() != 3 || b.rank() != 3 || a.spec().shape[0] != b.spec().shape[0]) {
    return absl::InvalidArgumentError(
        StrCat("bmm: takes two batches of matrices: a is ", ToShortText(a.spec()), ", b is ", ToShortText(b.spec())));
  }
  return Product(CalledAs::kBmm, "bmk,bkn->bmn", a, b);
}

absl::StatusOr<Tensor> Addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  const CalledAsScope scope(CalledAs::kAddmm);
  absl::StatusOr<Tensor> product = Product(CalledAs::kAddmm, "mk,kn->mn", a, b);
  if (!product.ok()) return product;
  TESSERA_RETURN_IF_ERROR(CheckAddend(c, *product));
  if (alpha != 1) product = CallOnOwn(OpId::kMul, *std::move(product), alpha);
  if (!product.ok() || beta == 0) return product;
  if (beta == 1) return CallOnOwn(OpId::kAdd, *std::move(product), c);
  const absl::StatusOr<Tensor> scaled = Multiply(c, beta);
  if (!scaled.ok()) return SaidBy(CalledAs::kAddmm, scaled.status());
  return CallOnOwn(OpId::kAdd, *std::move(product), *scaled);
}

absl::StatusOr<Tensor> Outer(const Tensor& a, const Tensor& b) { return Product(CalledAs::kOuter, "i,j->ij", a, b); }

absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, int axes) {
  if (axes < 0 || axes > std::min(a.rank(), b.rank())) {
    return absl::InvalidArgumentError(
        StrCat("tensordot: axes ", axes, " do not fit a, ", ToShortText(a.spec()), ", and b, ", ToShortText(b.spec())));
  }
  std::vector<int64_t> left(static_cast<size_t>(axes)), right(static_cast<size_t>(axes));
  std::iota(left.begin(), left.end(), a.rank() - axes);
  std::iota(right.begin(), right.end(), 0);
  return Tensordot(a, b, left, right);
}

absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, absl::Span<const int64_t> left,
                                 absl::Span<const int64_t> right) {
  TESSERA_ASSIGN_OR_RETURN(const std::string notation, TensordotNotation(a.rank(), b.rank(), left, right));
  return Product(CalledAs::kTensordot, notation, a, b);
}

}  // namespace tessera
