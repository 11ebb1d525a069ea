#include "client/session_calls.h"

#include <algorithm>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_request.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string MoveText(const SpecEntry& entry) {
  std::string text = ToText(*entry.call);
  for (const ImplicitMove& move : entry.implicit) {
    StrAppend(&text, ": operand ", move.operand, " ", ToText(move.source), " is redistributed to ",
              ToText(move.destination.placements), ", at least ", move.bytes, " bytes");
  }
  const ImplicitMove& first = entry.implicit.front();
  StrAppend(&text, "; write x.redistribute(placements=", ToText(first.destination.placements), ") for it");
  return text;
}

absl::Status OneIsTaken(const OpCall& call, size_t results) {
  return absl::InvalidArgumentError(StrCat(ToText(call), ": one result is taken where it has ", results));
}

bool HasPendingSpec(absl::Span<const CallOperand> operands) {
  return std::any_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
    return operand.tensor != nullptr && !(*operand.tensor)->spec_known;
  });
}

using SpecOperands = absl::InlinedVector<SpecOperand, kInlineOperands>;

absl::Status FillOperands(SessionImpl* session, OpId op, absl::Span<const CallOperand> operands, SpecOperands* specs,
                          std::vector<RecordOperand>* out) {
  if (operands.size() > kMaxOperands) {
    return absl::InvalidArgumentError(
        StrCat(NameOf(op), ": takes at most ", kMaxOperands, " operands, not ", operands.size()));
  }
  out->reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const CallOperand& operand = operands[i];
    if (operand.tensor == nullptr) {
      specs->push_back({nullptr, operand.scalar});
      out->push_back({RecordOperand::Kind::kScalar, false, 0, operand.scalar});
      continue;
    }
    const HandleState& handle = **operand.tensor;
    if (handle.session.get() != session) {
      return absl::InvalidArgumentError(StrCat(NameOf(op), ": operand ", i, ", ", handle.SpecText(),
                                               ", is of another session; fetch it there and distribute it here"));
    }
    if (handle.planned != nullptr && PlanCapture::Current() == nullptr) return NeverRuns(handle);
    specs->push_back({&handle.KnownOrStandIn(), Scalar()});
    out->push_back({RecordOperand::Kind::kHandle, operand.last_use, handle.id, Scalar()});
  }
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(op));
  if (row->dtype_rule != DTypeRule::kBool || operands.size() != 2) return absl::OkStatus();
  for (const size_t i : {0, 1}) {
    SpecOperand& number = (*specs)[i];
    const SpecOperand& other = (*specs)[1 - i];
    if (number.spec != nullptr || other.spec == nullptr) continue;
    number.scalar = AsCompared(number.scalar, (*other.spec)->dtype);
    (*out)[i].scalar = number.scalar;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SessionCalls::ImplicitText(const SpecEntry& entry, ImplicitPolicy policy) {
  if (policy == ImplicitPolicy::kForbid) {
    return absl::FailedPreconditionError(
        StrCat(NameOf(entry.call->op, ThreadCalledAs()), ": implicit redistribution is forbidden: ", MoveText(entry)));
  }
  if (policy != ImplicitPolicy::kWarn && entry.implicit_bytes <= kWarnImplicitBytes) return "";
  return StrCat(ThreadCalledAs() == CalledAs::kOp ? "" : StrCat(NameOf(ThreadCalledAs()), ": "), MoveText(entry));
}

absl::Status SessionCalls::CheckImplicit(const SpecEntry& entry) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ImplicitText(entry, ThreadImplicitPolicy().value_or(implicit_policy_.load())));
  if (!text.empty()) TellImplicit(text);
  if (!text.empty()) session_.Log(ClientLogLevel::kWarning, text);
  return absl::OkStatus();
}

absl::StatusOr<SessionCalls::Resolved> SessionCalls::Resolve(const CallCompletion& complete,
                                                             absl::Span<const CallOperand> operands,
                                                             absl::Span<const SpecPtr> specs) {
  Resolved out;
  TESSERA_ASSIGN_OR_RETURN(out.call, complete(specs));
  out.record.called_as = ThreadCalledAs();
  SpecOperands listed;
  TESSERA_RETURN_IF_ERROR(FillOperands(&session_, out.call.op, operands, &listed, &out.record.operands));
  for (size_t i = 0; i < listed.size(); ++i) {
    if (specs[i] != nullptr) listed[i].spec = &specs[i];
  }
  TESSERA_ASSIGN_OR_RETURN(out.entry, specs_.Resolve(out.call, listed));
  out.record.call = out.call.scalars.empty() ? out.entry->call : std::make_shared<const OpCall>(out.call);
  return out;
}

OnCancel SessionCalls::SpreadTo(absl::Span<const CallOperand> operands) {
  const bool spreads = std::any_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
    return operand.tensor != nullptr && (*operand.tensor)->on_cancel == OnCancel::kSpreads;
  });
  return spreads ? OnCancel::kSpreads : OnCancel::kEnds;
}

SessionCalls::SessionCalls(SessionImpl& session)
    : session_(session), deferred_(std::make_unique<DeferredCalls>(session)) {}

SessionCalls::~SessionCalls() = default;

absl::StatusOr<HandlePtr> SessionCalls::Call(const OpCall& call, absl::Span<const CallOperand> operands) {
  TESSERA_ASSIGN_OR_RETURN(Results results, Submit(call, operands, ResultCount::kOne));
  return std::move(results[0]);
}

absl::StatusOr<SessionCalls::Results> SessionCalls::CallAll(const OpCall& call,
                                                            absl::Span<const CallOperand> operands) {
  return Submit(call, operands, ResultCount::kAny);
}

absl::StatusOr<SessionCalls::Results> SessionCalls::Submit(const OpCall& call, absl::Span<const CallOperand> operands,
                                                           ResultCount wanted) {
  absl::StatusOr<Results> results = Take(call, operands, wanted);
  if (!results.ok()) {
    const absl::Status why = session_.WhyRefused(results.status(), operands);
    const CallSite* const site = FindSite(SiteOfCall());
    return site == nullptr ? why : InWordsOf(*site, why);
  }
  if (Blocking::IsOn()) TESSERA_RETURN_IF_ERROR(session_.WaitForAll(*results));
  return results;
}

absl::StatusOr<SessionCalls::Results> SessionCalls::Take(const OpCall& call, absl::Span<const CallOperand> operands,
                                                         ResultCount wanted) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(CheckThreadRequest(NameOf(call.op)));
  TESSERA_RETURN_IF_ERROR(session_.AwaitRoom());
  session_.counters().calls.Add(1);
  if (HasPendingSpec(operands)) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<Results> deferred,
                             Defer([call](absl::Span<const SpecPtr>) { return call; }, operands));
    if (deferred.has_value() && wanted == ResultCount::kOne && deferred->size() != 1) {
      return OneIsTaken(call, deferred->size());
    }
    if (deferred.has_value()) return *std::move(deferred);
  }
  Record record;
  record.called_as = ThreadCalledAs();
  SpecOperands specs;
  TESSERA_RETURN_IF_ERROR(FillOperands(&session_, call.op, operands, &specs, &record.operands));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const SpecEntry> entry, specs_.Resolve(call, specs));
  if (wanted == ResultCount::kOne && entry->outputs.size() != 1) {
    return OneIsTaken(call, entry->outputs.size());
  }
  if (PlanCapture* capture = PlanCapture::Current()) return PlanFor(*capture, call, operands, *entry);
  if (!entry->implicit.empty() || entry->takes_values) {
    TESSERA_ASSIGN_OR_RETURN(const Results reduced, ReduceOnce(call, *entry, specs, operands));
    if (!reduced.empty()) {
      absl::InlinedVector<CallOperand, kInlineOperands> others(operands.begin(), operands.end());
      for (size_t i = 0; i < reduced.size(); ++i) {
        if (reduced[i] != nullptr) others[i].tensor = &reduced[i];
      }
      return Take(call, others, wanted);
    }
  }
  if (!entry->implicit.empty()) TESSERA_RETURN_IF_ERROR(CheckImplicit(*entry));
  if (call.scalars.empty()) {
    record.call = entry->call;
  } else {
    record.call = std::make_shared<const OpCall>(call);
  }
  Results results;
  const OnCancel on_cancel = SpreadTo(operands);
  for (const SpecPtr& output : entry->outputs) {
    results.push_back(session_.NewHandle(output, session_.next_handle_++));
    results.back()->on_cancel = on_cancel;
    if (results.size() == 1) {
      record.handle = results[0]->id;
    } else {
      record.more_results.push_back(results.back()->id);
    }
  }
  if (Recording* recording = Recording::Current()) {
    TESSERA_RETURN_IF_ERROR(recording->Add(session_, record, specs, entry->outputs));
  }
  session_.sites_.Note(record.handle, SiteOfCall());
  session_.Push(std::move(record));
  return results;
}

absl::StatusOr<SessionCalls::Results> SessionCalls::PlanFor(PlanCapture& capture, const OpCall& call,
                                                            absl::Span<const CallOperand> operands,
                                                            const SpecEntry& entry) {
  TESSERA_ASSIGN_OR_RETURN(PlanReport plan, Explain(call, operands));
  if (plan.outputs.size() != entry.outputs.size()) {
    return absl::InternalError(
        StrCat("explain: ", plan.outputs.size(), " outputs were planned, ", entry.outputs.size(), " are known"));
  }
  Results results;
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    results.push_back(
        session_.PlannedHandle(entry.outputs[i], plan.output_strides[i], MemoryOf(capture, plan, i, operands)));
  }
  capture.Add(std::move(plan));
  return results;
}

// The memory of a planned result: its own, or that of the operand in which it lies.
std::shared_ptr<const HeldMemory> SessionCalls::MemoryOf(PlanCapture& capture, const PlanReport& plan, size_t output,
                                                         absl::Span<const CallOperand> operands) {
  if (plan.output_operands[output] < 0) return capture.Hold({plan.outputs[output].mesh, plan.output_bytes[output]});
  int number = plan.output_operands[output];
  for (const CallOperand& operand : operands) {
    if (operand.tensor == nullptr || number-- > 0) continue;
    const HandleState& handle = **operand.tensor;
    return handle.planned == nullptr ? nullptr : handle.planned->memory;
  }
  return nullptr;
}

absl::StatusOr<PlanReport> SessionCalls::Explain(const OpCall& call, absl::Span<const CallOperand> operands) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(AwaitSpecs(operands));
  SpecOperands specs;
  std::vector<RecordOperand> named;
  TESSERA_RETURN_IF_ERROR(FillOperands(&session_, call.op, operands, &specs, &named));
  std::vector<ExplainOperand> list(named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    list[i].operand = named[i];
    if (operands[i].tensor == nullptr || (*operands[i].tensor)->planned == nullptr) continue;
    list[i].spec = (*operands[i].tensor)->spec;
    list[i].strides = (*operands[i].tensor)->planned->strides;
  }
  TESSERA_RETURN_IF_ERROR(specs_.Resolve(call, specs).status());
  TESSERA_RETURN_IF_ERROR(session_.AwaitTakenUp());
  auto [number, request] = session_.NewRequest();
  const PlanCapture* const capture = PlanCapture::Current();
  std::vector<HeldMemory> held = capture == nullptr ? std::vector<HeldMemory>() : capture->Held();
  session_.connection_->Explain(call, std::move(list), std::move(held),
                                SessionImpl::Request::AnswerIn(session_, number, request, &SessionImpl::Request::plan));
  TESSERA_RETURN_IF_ERROR(session_.WaitFor("explain", request));
  return request->plan;
}

// ---- calls that wait for a spec ----

absl::Status SessionCalls::AwaitSpecs(absl::Span<const CallOperand> operands) {
  for (const CallOperand& operand : operands) {
    if (operand.tensor != nullptr) TESSERA_RETURN_IF_ERROR((*operand.tensor)->session->AwaitSpec(**operand.tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SessionCalls::Results>> SessionCalls::Defer(const CallCompletion& complete,
                                                                         absl::Span<const CallOperand> operands) {
  if (!HasPendingSpec(operands)) return std::nullopt;
  // A plan and a recording are of specs.
  if (PlanCapture::Current() != nullptr || Recording::Strict() != nullptr) {
    TESSERA_RETURN_IF_ERROR(AwaitSpecs(operands));
    return std::nullopt;
  }
  TESSERA_RETURN_IF_ERROR(Recording::Refuse("the shape of an operand depends on values"));
  return deferred_->Add(complete, operands);
}

absl::StatusOr<HandlePtr> SessionCalls::CallLater(const CallCompletion& complete,
                                                  absl::Span<const CallOperand> operands) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_ASSIGN_OR_RETURN(std::optional<Results> deferred, Defer(complete, operands));
  if (deferred.has_value()) return std::move((*deferred)[0]);
  std::vector<SpecPtr> specs;
  for (const CallOperand& operand : operands) {
    specs.push_back(operand.tensor == nullptr ? nullptr : (*operand.tensor)->spec.get());
  }
  TESSERA_ASSIGN_OR_RETURN(const OpCall call, complete(specs));
  return Call(call, operands);
}

absl::StatusOr<std::vector<HandlePtr>> SessionCalls::CallCounted(std::string_view what,
                                                                 absl::Span<const CountedCall> calls,
                                                                 const HandlePtr& counts) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat(what, ": the shape of its result depends on values")));
  if (PlanCapture::Current() != nullptr) {
    return absl::FailedPreconditionError(StrCat(
        "explain: ", what, ": the shape of its result depends on values, and what is planned never runs: it has no ",
        "values to read"));
  }
  const auto bytes = static_cast<size_t>(NumElements(counts->KnownOrStandIn()->shape)) * sizeof(int64_t);
  if (session_.welcome().max_inline_bytes < bytes) {
    return absl::FailedPreconditionError(StrCat(what, ": the number of its elements can't be told in ", bytes,
                                                " bytes: max_inline_bytes of the ", "coordinator is ",
                                                session_.welcome().max_inline_bytes));
  }
  return deferred_->AddCounted(what, calls, counts);
}

}  // namespace tessera
