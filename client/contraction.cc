#include "client/contraction.h"

#include <string>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<Tensor> Einsum(std::string_view notation, const Tensor& a, const Tensor& b) {
  OpCall call;
  call.op = OpId::kEinsum;
  call.attributes.notation = std::string(notation);
  const Operand operands[] = {a, b};
  return CallOp(call, operands);
}

absl::StatusOr<Tensor> Bmm(const Tensor& a, const Tensor& b) {
  if (a.spec().rank() != 3 || b.spec().rank() != 3 || a.spec().shape[0] != b.spec().shape[0]) {
    return absl::InvalidArgumentError(
        StrCat("bmm: takes two batches of matrices: a is ", ToShortText(a.spec()), ", b is ", ToShortText(b.spec())));
  }
  return Einsum("bmk,bkn->bmn", a, b);
}

absl::StatusOr<Tensor> Addmm(const Tensor& c, const Tensor& a, const Tensor& b, double beta, double alpha) {
  TESSERA_ASSIGN_OR_RETURN(Tensor product, Einsum("mk,kn->mn", a, b));
  if (alpha != 1) {
    TESSERA_ASSIGN_OR_RETURN(product, Multiply(product, alpha));
  }
  if (beta == 0) return product;
  if (beta == 1) return Add(c, product);
  TESSERA_ASSIGN_OR_RETURN(const Tensor scaled, Multiply(c, beta));
  return Add(scaled, product);
}

absl::StatusOr<Tensor> Outer(const Tensor& a, const Tensor& b) { return Einsum("i,j->ij", a, b); }

absl::StatusOr<Tensor> Tensordot(const Tensor& a, const Tensor& b, int axes) {
  const int left = a.spec().rank() - axes;
  const int right = b.spec().rank() - axes;
  if (axes < 0 || left < 0 || right < 0) {
    return absl::InvalidArgumentError(
        StrCat("tensordot: axes ", axes, " do not fit a, ", ToShortText(a.spec()), ", and b, ", ToShortText(b.spec())));
  }
  std::string letters;
  for (int i = 0; i < left + axes + right; ++i) letters += static_cast<char>(i < 26 ? 'a' + i : 'A' + i - 26);
  const std::string rows = letters.substr(0, static_cast<size_t>(left));
  const std::string inner = letters.substr(static_cast<size_t>(left), static_cast<size_t>(axes));
  const std::string columns = letters.substr(static_cast<size_t>(left + axes));
  return Einsum(StrCat(rows, inner, ",", inner, columns, "->", rows, columns), a, b);
}

}  // namespace tessera
