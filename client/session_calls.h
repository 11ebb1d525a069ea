#pragma once

// SessionCalls: the calls of a session. It finds a call's results by the specs of its operands, gives them handles,
// and hands the session the call's record; a call whose operands have no spec yet is kept (deferred_calls.h).
//
//   TESSERA_ASSIGN_OR_RETURN(HandlePtr sum, session.calls().Call({OpId::kAdd, {}, {}}, {{&x}, {&y}}));
//
// Any thread may call. A call blocks only where the queue to the coordinator is full, or where a recording or a plan
// needs a spec that is pending.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/session_impl.h"

namespace tessera {

class SessionCalls {
 public:
  using Results = absl::InlinedVector<HandlePtr, 1>;

  // The session outlives it.
  explicit SessionCalls(SessionImpl& session);
  ~SessionCalls();

  // An op with one result; any op: its results in order.
  absl::StatusOr<HandlePtr> Call(const OpCall& call, absl::Span<const CallOperand> operands);
  absl::StatusOr<Results> CallAll(const OpCall& call, absl::Span<const CallOperand> operands);
  // Calls with one result that counts complete (DeferredCalls::AddCounted). Returns at once.
  absl::StatusOr<std::vector<HandlePtr>> CallCounted(std::string_view what, absl::Span<const CountedCall> calls,
                                                     const HandlePtr& counts);
  // A call that the specs of its operands complete; at once where they are known (deferred_calls.h).
  absl::StatusOr<HandlePtr> CallLater(const CallCompletion& complete, absl::Span<const CallOperand> operands);
  // The value without pending terms, reduced once: cut as `beside` (or null) is, else whole (session_reduced.cc).
  absl::StatusOr<HandlePtr> Reduced(const HandlePtr& tensor, const HandlePtr* beside);
  absl::StatusOr<PlanReport> Explain(const OpCall& call, absl::Span<const CallOperand> operands);
  // Runs a recording again, with these tensors and numbers; its kept results (session_replay.cc).
  absl::StatusOr<std::vector<HandlePtr>> Replay(const Recording& recording, absl::Span<const ReplayInput> inputs,
                                                absl::Span<const ReplayNumber> numbers);

  SpecCache& specs() { return specs_; }
  DeferredCalls& deferred() { return *deferred_; }
  void SetImplicitPolicy(ImplicitPolicy policy) { implicit_policy_ = policy; }
  ImplicitPolicy implicit_policy() const { return implicit_policy_; }

 private:
  friend class DeferredCalls;
  // A call with these specs of its operands; the record has no results yet.
  struct Resolved {
    OpCall call;
    Record record;
    std::shared_ptr<const SpecEntry> entry;
  };
  enum class ResultCount : uint8_t { kOne, kAny };

  absl::StatusOr<Results> Submit(const OpCall& call, absl::Span<const CallOperand> operands, ResultCount wanted);
  absl::StatusOr<Results> Take(const OpCall& call, absl::Span<const CallOperand> operands, ResultCount wanted);
  absl::StatusOr<Resolved> Resolve(const CallCompletion& complete, absl::Span<const CallOperand> operands,
                                   absl::Span<const SpecPtr> specs);
  static OnCancel SpreadTo(absl::Span<const CallOperand> operands);  // to the results of a call on these
  absl::Status CheckImplicit(const SpecEntry& entry);
  // The text that tells of implicit redistributions; an error where they are forbidden.
  static absl::StatusOr<std::string> ImplicitText(const SpecEntry& entry, ImplicitPolicy policy);

  // Keeps a call whose operands' specs are pending; nothing where they are known, or were waited for.
  absl::StatusOr<std::optional<Results>> Defer(const CallCompletion& complete, absl::Span<const CallOperand> operands);
  absl::Status AwaitSpecs(absl::Span<const CallOperand> operands);

  // For each operand that the call would reduce: what it is reduced to; empty where this call remembers nothing.
  absl::StatusOr<Results> ReduceOnce(const OpCall& call, const SpecEntry& entry, absl::Span<const SpecOperand> specs,
                                     absl::Span<const CallOperand> operands);
  absl::StatusOr<HandlePtr> Reduce(const HandlePtr& pending, const TensorSpec& wanted);
  HandlePtr FindReduced(HandleState& pending, const TensorSpec& wanted);

  // The results of a call that is planned only.
  absl::StatusOr<Results> PlanFor(PlanCapture& capture, const OpCall& call, absl::Span<const CallOperand> operands,
                                  const SpecEntry& entry);
  static std::shared_ptr<const HeldMemory> MemoryOf(PlanCapture& capture, const PlanReport& plan, size_t output,
                                                    absl::Span<const CallOperand> operands);

  SessionImpl& session_;
  SpecCache specs_;
  std::atomic<ImplicitPolicy> implicit_policy_{ImplicitPolicy::kAllow};
  const std::unique_ptr<DeferredCalls> deferred_;
};

}  // namespace tessera
