#include "client/contraction.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/contraction.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Says an error of one of a speaker's ops in the speaker's name. Errors of others stay theirs.
absl::Status SaidBy(Speaker speaker, const absl::Status& status) {
  if (speaker == Speaker::kOp) return status;
  std::string_view why = StdView(status.message());
  if (const size_t name = why.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"); why.substr(name, 2) == ": ") {
    if (why.substr(0, name) != "contraction" && !FindOpByName(why.substr(0, name)).ok()) return status;
    why.remove_prefix(name + 2);
  }
  return WithMessage(status, StrCat(NameOf(speaker), ": ", why));
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
  absl::StatusOr<HandlePtr> result = session.Call(OpCall{op, {}, {}}, operands);
  if (!result.ok()) return SaidBy(Speaker::kAddmm, result.status());
  return Tensor(*std::move(result));
}

absl::StatusOr<Tensor> Product(Speaker speaker, std::string_view notation, const Tensor& a, const Tensor& b) {
  const SpeakAs speak(speaker);
  OpCall call;
  call.op = OpId::kEinsum;
  call.attributes.Set(attribute::notation, std::string(notation));
  const Operand operands[] = {a, b};
  absl::StatusOr<Tensor> product = CallOp(call, operands);
  if (!product.ok()) return SaidBy(speaker, product.status());
  return product;
}

// The dims of x, longer than 1, whose letters neither the output has nor y, or y with an extent of 1, which stands for
// every index of x: the sum over them is one of x alone.
std::vector<int64_t> DimsOfOneAlone(const Tensor& x, std::string_view letters, const Tensor& y, std::string_view other,
                                    std::string_view output) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < letters.size(); ++d) {
    const int in_other = DimOf(other, letters[d]);
    const bool is_needed =
        DimOf(output, letters[d]) >= 0 || (in_other >= 0 && y.shape()[static_cast<size_t>(in_other)] != 1);
    if (!is_needed && x.shape()[d] != 1) dims.push_back(static_cast<int64_t>(d));
  }
  return dims;
}

// In the product's dtype. Takes the dims out of `letters` too.
absl::StatusOr<Tensor> SumOver(const Tensor& x, const std::vector<int64_t>& dims, DType dtype, std::string& letters) {
  if (dims.empty()) return x;
  for (size_t i = dims.size(); i-- > 0;) letters.erase(static_cast<size_t>(dims[i]), 1);
  OpCall call;
  call.op = OpId::kSum;
  call.attributes.Set(attribute::dims, dims);
  call.attributes.Set(attribute::dtype, dtype);
  const Operand operands[] = {x};
  return CallOp(call, operands);
}

}  // namespace

absl::StatusOr<Tensor> Einsum(std::string_view notation, const Tensor& a, const Tensor& b) {
  absl::StatusOr<Contraction> letters = ParseContraction(notation);
  const absl::StatusOr<DType> dtype = Promote(a.dtype(), b.dtype());
  // The product says what is wrong with them.
  if (!letters.ok() || !dtype.ok() || *dtype == DType::kBool || static_cast<int>(letters->left.size()) != a.rank() ||
      static_cast<int>(letters->right.size()) != b.rank()) {
    return Product(Speaker::kEinsum, notation, a, b);
  }
  const std::vector<int64_t> left = DimsOfOneAlone(a, letters->left, b, letters->right, letters->output);
  const std::vector<int64_t> right = DimsOfOneAlone(b, letters->right, a, letters->left, letters->output);
  if (left.empty() && right.empty()) return Product(Speaker::kEinsum, notation, a, b);
  const SpeakAs speak(Speaker::kEinsum);
  TESSERA_ASSIGN_OR_RETURN(const Tensor x, SumOver(a, left, *dtype, letters->left));
  TESSERA_ASSIGN_OR_RETURN(const Tensor y, SumOver(b, right, *dtype, letters->right));
  return Product(Speaker::kEinsum, ToText(*letters), x, y);
}

absl::StatusOr<Tensor> Bmm(const Tensor& a, const Tensor& b) {
  if (a.rank() != 3 || b.rank() != 3 || a.spec().shape[0] != b.spec().shape[0]) {
    return absl::InvalidArgumentError(
        StrCat("bmm: takes two batches of matrices: a is ", ToShortText(a.spec()), ", b is ", ToShortText(b.spec())));
  }
  return Product(Speaker::kBmm, "bmk,bkn->bmn", a, b);
}

absl::StatusOr<Tensor> Addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  const SpeakAs speak(Speaker::kAddmm);
  absl::StatusOr<Tensor> product = Product(Speaker::kAddmm, "mk,kn->mn", a, b);
  if (!product.ok()) return product;
  TESSERA_RETURN_IF_ERROR(CheckAddend(c, *product));
  if (alpha != 1) product = CallOnOwn(OpId::kMul, *std::move(product), alpha);
  if (!product.ok() || beta == 0) return product;
  if (beta == 1) return CallOnOwn(OpId::kAdd, *std::move(product), c);
  const absl::StatusOr<Tensor> scaled = Multiply(c, beta);
  if (!scaled.ok()) return SaidBy(Speaker::kAddmm, scaled.status());
  return CallOnOwn(OpId::kAdd, *std::move(product), *scaled);
}

absl::StatusOr<Tensor> Outer(const Tensor& a, const Tensor& b) { return Product(Speaker::kOuter, "i,j->ij", a, b); }

absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, int axes) {
  const int left = a.rank() - axes;
  const int right = b.rank() - axes;
  if (axes < 0 || left < 0 || right < 0) {
    return absl::InvalidArgumentError(
        StrCat("tensordot: axes ", axes, " do not fit a, ", ToShortText(a.spec()), ", and b, ", ToShortText(b.spec())));
  }
  std::string letters;
  for (int i = 0; i < left + axes + right; ++i) letters += static_cast<char>(i < 26 ? 'a' + i : 'A' + i - 26);
  const std::string rows = letters.substr(0, static_cast<size_t>(left));
  const std::string inner = letters.substr(static_cast<size_t>(left), static_cast<size_t>(axes));
  const std::string columns = letters.substr(static_cast<size_t>(left + axes));
  return Product(Speaker::kTensordot, StrCat(rows, inner, ",", inner, columns, "->", rows, columns), a, b);
}

}  // namespace tessera
