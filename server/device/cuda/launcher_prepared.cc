// Runs of prepared kernels: one by one, or as a graph.

#include <algorithm>

#include "schemas/types/status_macros.h"
#include "server/device/cuda/launcher.h"

namespace tessera::cuda {

bool Launcher::SetSteps(const KernelWork& kernel, PreparedCall& prepared, const Workspace& workspace, Turn& turn) {
  Workspace own = workspace;
  if (MayFault(*kernel.call.op)) {
    const absl::StatusOr<std::byte*> word = words_.Take();
    if (!word.ok()) return false;
    own.fault_word = AddressOf(*word);
    turn.faults.push_back({.word = reinterpret_cast<int64_t*>(*word), .call = kernel.call});
  }
  prepared.StepsOf(kernel.call, own);
  return true;
}

absl::StatusOr<bool> Launcher::EnqueuePrepared(CUstream stream, absl::Span<const KernelWork* const> kernels,
                                               Turn& turn) {
  if (!turn.is_clear || !graphs_.has_value()) return false;
  std::vector<PreparedCall*>& run = run_;
  run.clear();
  int64_t bytes = 0;
  uint64_t launches = 0, last_form = 0;
  for (const KernelWork* kernel : kernels) {
    // The steps of a form lie in one place. An instance has each of its forms once, and they go up.
    PreparedCall* const prepared = kernel->form > last_form ? prepared_calls_.FindKernels(*kernel) : nullptr;
    if (prepared == nullptr || launches + prepared->launches().size() > kMaxGraphLaunches) break;
    launches += prepared->launches().size();
    bytes = std::max(bytes, prepared->workspace_bytes());
    last_form = kernel->form;
    run.push_back(prepared);
  }
  if (launches < kMinGraphLaunches || launches > turn.room) return false;
  const absl::StatusOr<Workspace> workspace = Reserve(stream, bytes, turn);
  bool is_set = workspace.ok();
  for (size_t k = 0; is_set && k < run.size(); ++k) is_set = SetSteps(*kernels[k], *run[k], *workspace, turn);
  if (!is_set) {  // each says by itself that there is no memory
    for (Fault& fault : turn.faults) Finish(fault).IgnoreError();
    turn.faults.clear();
    return false;
  }
  calls_.clear();
  for (size_t k = 0; k < run.size(); ++k) calls_.push_back({kernels[k]->form, run[k]});
  turn.operations = launches;
  turn.joined = run.size() - 1;
  if (!graphs_->Enqueue(stream, calls_)) {
    for (const PreparedCall* prepared : run) {
      for (const PreparedCall::Enqueued& one : prepared->launches()) TESSERA_RETURN_IF_ERROR(Run(stream, one));
    }
  }
  for (size_t k = 0; k < run.size(); ++k) CountReceived(*kernels[k]);
  return true;
}

}  // namespace tessera::cuda
