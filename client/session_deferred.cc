// A session's part in pending specs: the waits for them, and the calls that wait (deferred_calls.h).

#include <algorithm>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
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
  deferred_->TellImplicit();
  std::lock_guard<std::mutex> lock(mutex_);
  return handle.spec_known ? absl::OkStatus() : handle.TellFailure();
}

absl::Status SessionImpl::AwaitSpecs(absl::Span<const CallOperand> operands) {
  for (const CallOperand& operand : operands) {
    if (operand.tensor != nullptr) TESSERA_RETURN_IF_ERROR((*operand.tensor)->session->AwaitSpec(**operand.tensor));
  }
  return absl::OkStatus();
}

absl::Status SessionImpl::AwaitDeferred(std::string_view what) {
  TESSERA_RETURN_IF_ERROR(WaitUntil(what, std::nullopt, [this] { return deferred_->empty(); }));
  deferred_->TellImplicit();
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SessionImpl::Results>> SessionImpl::Defer(const CallCompletion& complete,
                                                                       absl::Span<const CallOperand> operands) {
  const bool is_pending = std::any_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
    return operand.tensor != nullptr && !(*operand.tensor)->spec_known;
  });
  if (!is_pending) return std::nullopt;
  // A plan and a recording are of specs.
  if (PlanCapture::Current() != nullptr || Recording::Strict() != nullptr) {
    TESSERA_RETURN_IF_ERROR(AwaitSpecs(operands));
    return std::nullopt;
  }
  TESSERA_RETURN_IF_ERROR(Recording::Refuse("the shape of an operand depends on values"));
  return deferred_->Add(complete, operands);
}

absl::StatusOr<HandlePtr> SessionImpl::CallLater(const CallCompletion& complete,
                                                 absl::Span<const CallOperand> operands) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_ASSIGN_OR_RETURN(std::optional<Results> deferred, Defer(complete, operands));
  if (deferred.has_value()) return std::move((*deferred)[0]);
  std::vector<SpecPtr> specs;
  for (const CallOperand& operand : operands) {
    specs.push_back(operand.tensor == nullptr ? nullptr : (*operand.tensor)->spec.get());
  }
  TESSERA_ASSIGN_OR_RETURN(const OpCall call, complete(specs));
  return Call(call, operands);
}

absl::StatusOr<std::vector<HandlePtr>> SessionImpl::CallCounted(std::string_view what,
                                                                absl::Span<const CountedCall> calls,
                                                                const HandlePtr& counts) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat(what, ": the shape of its result depends on values")));
  if (PlanCapture::Current() != nullptr) {
    return absl::FailedPreconditionError(StrCat(
        "explain: ", what, ": the shape of its result depends on values, and what is planned never runs: it has no ",
        "values to read"));
  }
  const auto bytes = static_cast<size_t>(NumElements(counts->KnownOrStandIn()->shape)) * sizeof(int64_t);
  if (welcome().max_inline_bytes < bytes) {
    return absl::FailedPreconditionError(StrCat(what, ": the number of its elements can't be told in ", bytes,
                                                " bytes: max_inline_bytes of the ", "coordinator is ",
                                                welcome().max_inline_bytes));
  }
  return deferred_->AddCounted(what, calls, counts);
}

}  // namespace tessera
