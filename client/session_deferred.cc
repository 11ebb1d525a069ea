// Waits for specs that are pending (deferred_calls.h).

#include "client/deferred_calls.h"
#include "client/session_calls.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

std::string HandleState::SpecText() const {
  if (spec_known) return ToText(*spec);
  const int rank = deferred->stand_in->rank();
  std::string text = StrCat(ToText(deferred->stand_in->dtype), "[");
  for (int d = 0; d < rank; ++d) StrAppend(&text, d == 0 ? "?" : ",?");
  return StrCat(text, "] spec pending");
}

absl::Status SessionImpl::AwaitSpec(HandleState& handle, std::optional<double> timeout_s) {
  if (handle.spec_known) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(WaitUntil(StrCat("wait for the shape of ", handle.SpecText()), timeout_s,
                                    [&] { return handle.spec_known || !handle.failure.ok(); }));
  calls_->deferred().TellImplicit();
  std::lock_guard<std::mutex> lock(mutex_);
  return handle.spec_known ? absl::OkStatus() : handle.TellFailure();
}

absl::Status SessionImpl::AwaitDeferred(std::string_view what) {
  TESSERA_RETURN_IF_ERROR(WaitUntil(what, std::nullopt, [this] { return calls_->deferred().empty(); }));
  calls_->deferred().TellImplicit();
  return absl::OkStatus();
}

}  // namespace tessera
