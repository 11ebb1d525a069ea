#pragma once

// HandleState: a client's name for a tensor, which Tensor and the session's queues share. The last reference drops the
// tensor, if the handle keeps it.
//
// The spec of a result whose shape depends on values that are not here yet is *pending* (deferred_calls.h): until it is
// known there is a stand-in, whose dtype and rank are right, and the handle has no number. `spec_known` turns true
// once, after `spec` and `id` are set; both are read only when it was seen.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "client/record.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

class SessionImpl;
class SpecCache;
using SpecPtr = std::shared_ptr<const TensorSpec>;

// The keeper of a tensor: the last reference to its handle drops it; or it stays until the session lets go of it or is
// closed, as the tensors of a resumed session do, which nobody here has asked to free.
enum class Keeper : uint8_t { kHandle, kSession };

// A tensor's spec. When a worker of its mesh is lost and copies of all shards live on, another mesh takes its place
// (schemas/types/living_mesh.h). Any thread may read; a spec that it has read stays there as long as the handle.
class CurrentSpec {
 public:
  const SpecPtr& get() const {
    const Replacement* latest = latest_.load(std::memory_order_acquire);
    return latest == nullptr ? first_ : latest->spec;
  }
  operator const SpecPtr&() const { return get(); }  // NOLINT: it stands for the pointer
  const TensorSpec& operator*() const { return *get(); }
  const TensorSpec* operator->() const { return get().get(); }
  // Before another thread has the handle.
  CurrentSpec& operator=(SpecPtr spec) {
    first_ = std::move(spec);
    return *this;
  }
  // Workers are lost: to where the coordinator moves the tensor. One at a time.
  void MoveFrom(absl::Span<const WorkerIndex> lost, SpecCache& specs);

 private:
  struct Replacement {
    SpecPtr spec;
    std::unique_ptr<Replacement> earlier;
  };
  SpecPtr first_;
  std::atomic<const Replacement*> latest_{nullptr};
  std::unique_ptr<Replacement> owned_;
  std::vector<WorkerIndex> lost_;  // of the first one's mesh
};

// A cancel (Ctrl-C in a wait) meets tensors that somebody holds and that aren't issued yet. kEnds: the tensor fails
// with Cancelled. kRunsOn: the tensor is computed, with all that leads to it: an in-place update has taken the place of
// the former value, which nobody has any more. kSpreads: kRunsOn, also for the results of calls on it. torch's tensors
// are such ones, since torch's own Ctrl-C loses none; by it they are known, too, where pending sums are reduced
// (session_reduced.cc).
enum class OnCancel : uint8_t { kEnds, kRunsOn, kSpreads };

struct HandleState : std::enable_shared_from_this<HandleState> {
  std::shared_ptr<SessionImpl> session;
  uint64_t id = 0;
  CurrentSpec spec;
  // A result that was planned and never runs (plan_capture.h); it has no id.
  struct Planned {
    Strides strides;
    std::shared_ptr<const HeldMemory> memory;  // null: that of a tensor which is there, or none
  };
  std::unique_ptr<const Planned> planned;
  // A result whose spec was pending when it was made.
  struct Deferred {
    SpecPtr stand_in;
    bool has_mesh = false;    // the stand-in's mesh is the tensor's
    uint64_t call = 0;        // its number among the deferred ones
    bool is_bound = false;    // no extent is larger than the stand-in's
    uint32_t fixed_dims = 0;  // a bit for each dim whose extent is the stand-in's for certain
  };
  std::unique_ptr<const Deferred> deferred;
  std::atomic<bool> spec_known{true};
  std::atomic<OnCancel> on_cancel{OnCancel::kEnds};
  uint64_t request = 0;  // that it was made in (request_state.h), or 0; set before another thread has the handle
  // Guarded by the session's mutex:
  Keeper keeper = Keeper::kHandle;
  bool watched = false;
  bool settled = false;
  bool failure_reported = false;  // to the caller: Sync tells it no more
  // Results to which ops have reduced a pending value, once (session_reduced.cc). They go when it goes.
  absl::InlinedVector<std::shared_ptr<HandleState>, 1> reduced;
  absl::Status failure;
  std::vector<std::function<void()>> on_settled;  // SessionImpl::Settle takes them

  void RaiseOnCancel(OnCancel least) {
    if (on_cancel < least) on_cancel = least;
  }

  // The spec, or what stands for it: of these the dtype and the rank are always right.
  const SpecPtr& KnownOrStandIn() const { return spec_known ? spec.get() : deferred->stand_in; }
  // "i64[?] spec pending" where it is not known.
  std::string SpecText() const;

  // The failure, if there is one, as the caller is told it.
  const absl::Status& TellFailure() {
    failure_reported = !failure.ok();
    return failure;
  }

  ~HandleState();
};
using HandlePtr = std::shared_ptr<HandleState>;

// The error of a wait for a planned result, or a read of it: FailedPrecondition.
absl::Status NeverRuns(const HandleState& planned);

}  // namespace tessera
