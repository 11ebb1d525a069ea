#pragma once

// DeferredCalls: the calls of a session that wait for a spec. The shape of nonzero's result depends on values; its
// handle is there at once, its spec is *pending*. A call on such a handle can't be resolved yet: it is kept here, and
// its results are handles with a pending spec, too. When the spec is known the call is resolved and queued like any
// other. The coordinator knows nothing of it: the calls that it gets have specs.
//
//   counts = shard_counts(mask)                      sent; their values are asked for
//   p      = filter(mask, lengths = counts)          here until the values come
//   y      = x[p] + 1                                here until p's spec is known
//
// Laws
// - A kept call needs what it waits for, so a call never overtakes one that it depends on; calls that need no pending
//   spec don't wait behind those that do. Operands are kept as handles, so nothing that a kept call reads is dropped or
//   given away before it is sent.
// - Some extents are known all the same (stack([m, m]) has two slices): they follow from the least and the greatest
// that
//   the others may be.
// - dtype and rank of a result are those of the call with stand-ins for the specs that are pending. Where no stand-in
//   fits (they broadcast in no way), the caller waits for the specs themselves.
// - A call whose results nobody holds any more is not made. A call that fails before its spec is known fails every call
//   that waits for it, with that cause.
// - At most kMaxDeferredCalls are kept; a caller that asks for more waits.
//
// Any thread adds; Advance runs on the connection's thread and waits for nothing.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "client/session_calls.h"

namespace tessera {

inline constexpr size_t kMaxDeferredCalls = 4096;  // docs/limits.md: max_deferred_calls

class DeferredCalls {
 public:
  using Results = SessionCalls::Results;

  // The session outlives it.
  explicit DeferredCalls(SessionImpl& session) : session_(session) {}

  // Keeps a call; nothing where it need not wait (any more): its operands' specs are known.
  absl::StatusOr<std::optional<Results>> Add(const CallCompletion& complete, absl::Span<const CallOperand> operands);
  // SessionCalls::CallCounted, done here; `counts` are on every worker of their mesh.
  absl::StatusOr<std::vector<HandlePtr>> AddCounted(std::string_view what, absl::Span<const CountedCall> calls,
                                                    const HandlePtr& counts);
  // Sends what need not wait any more. On the connection's thread alone.
  void Advance();
  // All that are kept fail.
  void FailAll(const absl::Status& why);
  // Kept calls fail, except those that lead to a tensor which runs on. The operands of such calls that have numbers are
  // added to `needed`.
  void CancelUnneeded(const absl::Status& why, const std::function<bool(const HandleState&)>& runs_on,
                      HandleSet& needed);
  // A handle goes whose spec never was known.
  void Forget(HandleState& handle);
  // Tells what moves without being asked for in calls that were sent since; on the caller's thread.
  void TellImplicit();

  // ---- with the session's mutex held ----
  bool empty() const { return calls_.empty(); }
  // Handles without a number, also those that failed without one.
  const absl::flat_hash_set<HandleState*>& unsent() const { return unsent_; }

 private:
  struct Count {
    HandlePtr tensor;
    std::string what;
    std::shared_ptr<SessionImpl::Request> request;  // once it is asked for
  };
  struct Operand {
    HandlePtr tensor;
    Scalar scalar;
    bool last_use = false;
  };
  struct Call {
    CallCompletion complete;
    CountedCompletion complete_counted;  // where the call needs counts; `complete` is null
    std::shared_ptr<Count> count;
    CalledAs called_as = CalledAs::kOp;
    SiteId site = 0;
    ImplicitPolicy policy = ImplicitPolicy::kAllow;
    std::vector<Operand> operands;
    absl::InlinedVector<std::weak_ptr<HandleState>, 1> results;
  };
  // A call that is taken out, to be sent or to fail.
  struct Ready {
    Call call;
    absl::Status status;
  };

  HandlePtr NewHandle(HandleState::Deferred deferred);
  // By result, the dims whose extents are known, whatever the operands' will be: those that are the same with the least
  // and with the greatest extents, as extents of results grow with those of operands. Nothing where that isn't known,
  // nor how many results there are.
  std::optional<std::vector<uint32_t>> FixedDims(const CallCompletion& complete, absl::Span<const CallOperand> operands,
                                                 absl::Span<const SpecPtr> greatest_outputs);
  void Fail(const Call& call, const absl::Status& why, std::vector<HandlePtr>& results);
  // With the mutex held.
  void Insert(uint64_t number, Call call);
  // The record that asks for the count. With the mutex held.
  Record Ask(Count& count);
  // The first call that may go on. Where a count must be asked for first, its record.
  std::optional<Ready> TakeReady(std::vector<Record>* asked);
  void Run(Ready ready);
  absl::Status Send(const Call& call, const std::vector<HandlePtr>& results);
  static absl::StatusOr<std::vector<int64_t>> ValuesOf(const Count& count);
  // The handle of a counted call's result.
  absl::StatusOr<HandlePtr> NewCounted(const CountedCall& counted, uint64_t number);
  absl::Status AwaitRoom();

  SessionImpl& session_;
  std::atomic<uint64_t> next_call_{1};
  // Guarded by the session's mutex; calls in the order in which they were asked for.
  std::map<uint64_t, Call> calls_;
  absl::flat_hash_set<HandleState*> unsent_;
  std::vector<std::string> implicit_;
  std::atomic<size_t> size_{0};
  std::atomic<bool> has_implicit_{false};
};

}  // namespace tessera
