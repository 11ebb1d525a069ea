#include "client/request.h"

#include <cmath>
#include <utility>

#include "client/request_state.h"
#include "client/session_impl.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<Request> Request::Start(const Session& session, const RequestOptions& options) {
  const std::optional<double>& timeout_s = options.timeout_s;
  if (timeout_s.has_value() && (!std::isfinite(*timeout_s) || *timeout_s < 0 || *timeout_s > 1e6)) {
    return absl::InvalidArgumentError(StrCat("request: timeout is ", *timeout_s, " s, it must be in [0, 1e6]"));
  }
  TESSERA_RETURN_IF_ERROR(session.impl()->Check());
  auto state = std::make_shared<RequestState>(session.impl(), timeout_s);
  if (timeout_s.has_value()) {
    session.impl()->After(*timeout_s, [weak = std::weak_ptr<RequestState>(state)] {
      const std::shared_ptr<RequestState> late = weak.lock();
      if (late == nullptr) return;
      late->End(absl::DeadlineExceededError(StrCat("the request was not done after ", late->timeout_s(), " s")));
    });
  }
  return Request(std::move(state));
}

void Request::Cancel(const std::string& reason) const {
  state_->End(
      absl::CancelledError(StrCat("the request was cancelled by the client", reason.empty() ? "" : ": ", reason)));
}

absl::Status Request::status() const { return state_->status(); }

Request::Scope::Scope(const Request& request) : outer_(SetThreadRequest(request.state_)) {}
Request::Scope::~Scope() { SetThreadRequest(std::move(outer_)); }

}  // namespace tessera
