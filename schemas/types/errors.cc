#include "schemas/types/errors.h"

#include "absl/strings/cord.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status DTypeError(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(AbslView(message));
  status.SetPayload(kDTypeErrorPayload, absl::Cord());
  return status;
}

absl::Status IndexOutOfRangeError(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(AbslView(message));
  status.SetPayload(kIndexErrorPayload, absl::Cord());
  return status;
}

absl::Status LinalgError(std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(AbslView(message));
  status.SetPayload(kLinalgErrorPayload, absl::Cord());
  return status;
}

absl::Status WithMessage(const absl::Status& status, std::string_view message) {
  absl::Status changed(status.code(), AbslView(message));
  status.ForEachPayload([&changed](absl::string_view url, const absl::Cord& value) { changed.SetPayload(url, value); });
  return changed;
}

}  // namespace tessera
