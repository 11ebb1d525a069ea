#include "server/device/cuda/prepared.h"

#include <algorithm>
#include <utility>
#include <variant>

namespace tessera::cuda {

bool PreparedCall::Add(const Launch& launch, KernelOf kernel_of, std::vector<Enqueued>& launches) {
  const absl::StatusOr<CUkernel> kernel = kernel_of(launch);
  if (kernel.ok()) launches.push_back({.launch = &launch, .kernel = *kernel});
  if (kernel.ok() || launch.otherwise.empty()) return kernel.ok();
  for (const Launch& other : launch.otherwise) {
    if (!Add(other, kernel_of, launches)) return false;
  }
  return true;
}

void PreparedCall::Resolve(KernelOf kernel_of) {
  if (std::exchange(is_resolved_, true)) return;
  std::vector<Enqueued> launches;
  for (const Step& step : patched_.steps()) {
    if (const auto* fill = std::get_if<Fill>(&step)) {
      launches.push_back({.fill = fill});
      continue;
    }
    const auto* launch = std::get_if<Launch>(&step);
    if (launch == nullptr || !Add(*launch, kernel_of, launches)) return;
  }
  launches_ = std::move(launches);
}

bool PreparedCall::IsOfKernels() const {
  return !launches_.empty() &&
         std::all_of(launches_.begin(), launches_.end(), [](const Enqueued& one) { return one.launch != nullptr; });
}

PreparedCall* PreparedCalls::FindKernels(const KernelWork& work) {
  const auto known = known_.find(work.form);
  if (work.form == 0 || known == known_.end() || !known->second.call.has_value()) return nullptr;
  PreparedCall& call = *known->second.call;
  return call.IsOfKernels() && call.Fits(work.call) ? &call : nullptr;
}

PreparedCall* PreparedCalls::Find(const KernelWork& work) {
  if (work.form == 0) return nullptr;
  const KernelCall& call = work.call;
  if (known_.size() >= kMaxPreparedCalls && !known_.contains(work.form)) known_.clear();
  const auto [at, is_new] = known_.try_emplace(work.form);
  Known& known = at->second;
  if (is_new) return nullptr;
  if (!std::exchange(known.was_tried, true)) {
    if (absl::StatusOr<PatchedCall> patched = PatchedCall::Make(call); patched.ok())
      known.call.emplace(*std::move(patched));
  }
  return known.call.has_value() && known.call->Fits(call) ? &*known.call : nullptr;
}

}  // namespace tessera::cuda
