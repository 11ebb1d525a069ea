#include "schemas/ops/check_range.h"

#include <algorithm>
#include <string>

#include "schemas/types/str_cat.h"

namespace tessera {

bool IsInRange(const Scalar& number, absl::Span<const Scalar> scalars) {
  const auto is_in = [&scalars](auto number, auto low, auto high, auto of) {
    return (number >= low && number <= high) || (scalars.size() > 2 && number == of(scalars[2]));
  };
  if (number.dtype() == DType::kI64) {
    return is_in(number.AsInt(), scalars[0].AsInt(), scalars[1].AsInt(), [](const Scalar& s) { return s.AsInt(); });
  }
  return is_in(number.AsDouble(), scalars[0].AsDouble(), scalars[1].AsDouble(),
               [](const Scalar& s) { return s.AsDouble(); });
}

absl::Status NumberOutOfRange(const CheckRangeOp& op, const Scalar& number, absl::Span<const Scalar> scalars) {
  std::string what = op.what;
  std::replace(what.begin(), what.end(), '_', ' ');
  absl::Status status = absl::InvalidArgumentError(
      StrCat(what, " ", ToText(number), " is not from ", ToText(scalars[0]), " to ", ToText(scalars[1])));
  status.SetPayload(kNumberErrorPayload, absl::Cord());
  return status;
}

}  // namespace tessera
