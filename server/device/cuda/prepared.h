#pragma once

// PreparedCalls: kernel calls that come again, kept as launches whose addresses alone are written anew
// (kernels/cuda/patched_call.h), with the kernels that they launch.
//
//   PreparedCall* prepared = calls.Find(work);    // null: it is launched as LaunchKernel says
//   prepared->StepsOf(call, workspace);           // as LaunchKernel
//   prepared->launches()                          // these as kernels, from the first time on that they have run
//
// A call is known by its form (KernelWork::form). It is prepared when its form is seen for the second time, since most
// programs of a shell run once.
//
// Law: a call whose operands lie otherwise to each other than the prepared one's finds nothing. Used by one thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/patched_call.h"
#include "server/device/device.h"

namespace tessera::cuda {

// Forms that are known at once; beyond that all are forgotten. docs/limits.md: max_prepared_calls
inline constexpr size_t kMaxPreparedCalls = 4096;

class PreparedCall {
 public:
  // One of the two: a kernel with what it is launched with, or a fill.
  struct Enqueued {
    const Launch* launch = nullptr;
    CUkernel kernel = nullptr;
    const Fill* fill = nullptr;
  };

  explicit PreparedCall(PatchedCall patched) : patched_(std::move(patched)) {}

  bool Fits(const KernelCall& call) const { return patched_.Fits(call); }
  int64_t workspace_bytes() const { return patched_.workspace_bytes(); }
  const std::vector<Step>& StepsOf(const KernelCall& call, const Workspace& workspace) {
    return patched_.StepsOf(call, workspace);
  }
  // The steps that StepsOf gave last. Nothing where they are not known to be loaded kernels and fills alone.
  const std::vector<Enqueued>& launches() const { return launches_; }
  // Whether they are kernels alone, and known.
  bool IsOfKernels() const;
  absl::Span<const uint64_t> addresses() const { return patched_.addresses(); }
  bool IsApartFrom(const PreparedCall& other) const { return patched_.IsApartFrom(other.patched_); }
  // After the steps were enqueued, so that each kernel is loaded: `kernel_of` gives a launch's, or why there is none.
  using KernelOf = absl::FunctionRef<absl::StatusOr<CUkernel>(const Launch&)>;
  void Resolve(KernelOf kernel_of);

 private:
  static bool Add(const Launch& launch, KernelOf kernel_of, std::vector<Enqueued>& launches);
  PatchedCall patched_;
  std::vector<Enqueued> launches_;
  bool is_resolved_ = false;
};

class PreparedCalls {
 public:
  PreparedCall* Find(const KernelWork& work);
  // Likewise, of a call that is known to be kernels alone; and the look doesn't count as a time that the form is seen.
  PreparedCall* FindKernels(const KernelWork& work);

 private:
  struct Known {
    bool was_tried = false;
    std::optional<PreparedCall> call;
  };
  std::unordered_map<uint64_t, Known> known_;  // by form
};

}  // namespace tessera::cuda
