#include "schemas/ops/fourier_op.h"

#include <algorithm>

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {

absl::StatusOr<DType> FourierResult(FourierKind kind, DType input) {
  const DTypeKind of = Kind(input);
  if (of != DTypeKind::kFloat && of != DTypeKind::kComplex) return DTypeError("needs a floating-point dtype");
  if (of == DTypeKind::kComplex && kind == FourierKind::kRealForward) return DTypeError("needs a real dtype");
  const bool is_double = input == DType::kF64 || input == DType::kC128;
  if (kind == FourierKind::kRealBackward) return is_double ? DType::kF64 : DType::kF32;
  return is_double ? DType::kC128 : DType::kC64;
}

std::string ToText(const FourierOp& op) {
  std::string text =
      StrCat("fourier(", kFourierKindNames[static_cast<size_t>(op.kind)], "; dim=", op.dim, "; length=", op.length);
  if (op.scale != FourierScale::kNone) StrAppend(&text, "; ", kFourierScaleNames[static_cast<size_t>(op.scale)]);
  return text + ")";
}

absl::StatusOr<FourierOp> ParseFourierOp(Scanner& scanner) {
  FourierOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view kind, scanner.TakeIdentifier());
  const auto* const found = std::find(kFourierKindNames.begin(), kFourierKindNames.end(), kind);
  if (found == kFourierKindNames.end())
    return scanner.Error("forward, backward, real_forward or real_backward before here");
  op.kind = static_cast<FourierKind>(found - kFourierKindNames.begin());
  for (const std::string_view token : {";", "dim", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.dim, scanner.TakeInteger());
  for (const std::string_view token : {";", "length", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.length, scanner.TakeInteger());
  if (scanner.TryTake(";")) {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view scale, scanner.TakeIdentifier());
    if (scale != "by_root" && scale != "by_length") return scanner.Error("by_root or by_length before here");
    op.scale = scale == "by_root" ? FourierScale::kByRoot : FourierScale::kByLength;
  }
  TESSERA_RETURN_IF_ERROR(ValidateFourierOp(op, 1, 0));
  return op;
}

absl::Status ValidateFourierOp(const FourierOp& op, int inputs, int scalars) {
  if (static_cast<size_t>(op.kind) >= kFourierKindNames.size() ||
      static_cast<size_t>(op.scale) >= kFourierScaleNames.size()) {
    return absl::InvalidArgumentError("fourier: unknown kind or scale");
  }
  if (op.length < 1 || op.length > kMaxFourierLength) {
    return absl::InvalidArgumentError(StrCat("a length of ", op.length, "; from 1 to ", kMaxFourierLength));
  }
  if (op.dim < 0 || op.dim >= kMaxRank) return IndexOutOfRangeError(StrCat("fourier: dim ", op.dim));
  if (inputs == 1 && scalars == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("fourier: takes 1 input and no scalars, not ", inputs, " and ", scalars));
}

}  // namespace tessera
