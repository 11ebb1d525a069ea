#include "client/values.h"

#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status CheckCount(std::string_view what, DType dtype, const Shape& shape, int64_t count) {
  for (const int64_t extent : shape) {
    if (extent < 0) return absl::InvalidArgumentError(StrCat(what, ": the shape is ", ToText(shape), ", below 0"));
  }
  if (NumElements(shape) == count) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(what, ": ", count, " values for ", ToText(dtype), ToText(shape),
                                           ", which has ", NumElements(shape), " elements"));
}

absl::Status CheckDType(std::string_view what, DType wanted, DType dtype, std::string_view of) {
  if (wanted == dtype) return absl::OkStatus();
  return DTypeError(
      StrCat(what, ": ", ToText(wanted), " values are wanted, ", of, " has ", ToText(dtype), "; ops::Astype casts"));
}

absl::Status CheckOneElement(const Tensor& tensor) {
  TESSERA_RETURN_IF_ERROR(tensor.AwaitSpec());
  if (NumElements(tensor.shape()) == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("item: ", ToText(tensor.spec()), " has ", NumElements(tensor.shape()), " elements, not one"));
}

}  // namespace tessera
