#include "server/device/cuda/dnn_plans.h"

#include <algorithm>
#include <optional>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {

absl::StatusOr<std::unique_ptr<DnnPlans>> DnnPlans::Open(const Gpu& gpu, size_t max_plans) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cudnn> library, Cudnn::Open());
  DnnHandle handle = nullptr;
  TESSERA_RETURN_IF_ERROR(library->Check("cudnnCreate", library->Create(&handle)));
  return std::unique_ptr<DnnPlans>(new DnnPlans(std::move(library), handle, max_plans));
}

DnnPlans::~DnnPlans() {
  kept_.clear();
  library_->Destroy(handle_);
}

absl::StatusOr<std::shared_ptr<const DnnPlan>> DnnPlans::PlanOf(const DnnGraph& graph) {
  if (const auto known = kept_.find(graph); known != kept_.end()) {
    uses_.splice(uses_.begin(), uses_, known->second.use);
    return known->second.plan;
  }
  absl::StatusOr<std::unique_ptr<DnnPlan>> made = DnnPlan::Make(*library_, {.handle = handle_}, graph);
  ++made_;
  // A graph that makes no sense to the library isn't supported by it either.
  if (absl::IsInvalidArgument(made.status())) {
    made = absl::UnimplementedError(StrCat(StdView(made.status().message()), ", for ", TextOf(graph)));
  }
  // Another error (memory that is short) is no answer.
  if (!made.ok() && !absl::IsUnimplemented(made.status())) return made.status();
  if (kept_.size() >= max_plans_) {
    const DnnGraph* last = uses_.back();
    uses_.pop_back();
    kept_.erase(kept_.find(*last));
  }
  using Answer = absl::StatusOr<std::shared_ptr<const DnnPlan>>;
  Answer plan = made.ok() ? Answer(*std::move(made)) : Answer(made.status());
  const auto added = kept_.emplace(graph, Kept{plan, uses_.end()}).first;
  uses_.push_front(&added->first);
  added->second.use = uses_.begin();
  return plan;
}

absl::Status DnnPlans::Add(const DnnCall& call, int64_t max_workspace_bytes, Parts* parts) {
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const DnnPlan> plan, PlanOf(call.graph));
  if (plan->workspace_bytes() <= max_workspace_bytes) {
    parts->workspace_bytes = std::max(parts->workspace_bytes, plan->workspace_bytes());
    parts->calls.emplace_back(call, std::move(plan));
    return absl::OkStatus();
  }
  const std::optional<std::pair<DnnCall, DnnCall>> halves = HalvesOf(call);
  if (!halves.has_value()) {
    return absl::UnimplementedError(StrCat("cuDNN wants ", plan->workspace_bytes(), " bytes of memory, and may have ",
                                           max_workspace_bytes, ", for ", TextOf(call.graph)));
  }
  TESSERA_RETURN_IF_ERROR(Add(halves->first, max_workspace_bytes, parts));
  return Add(halves->second, max_workspace_bytes, parts);
}

absl::StatusOr<DnnPlans::Parts> DnnPlans::Prepare(const DnnCall& call, int64_t max_workspace_bytes) {
  Parts parts;
  TESSERA_RETURN_IF_ERROR(Add(call, max_workspace_bytes, &parts));
  return parts;
}

bool DnnPlans::Has(const DnnCall& call, int64_t max_workspace_bytes) const {
  const auto known = kept_.find(call.graph);
  if (known == kept_.end()) return false;
  const absl::StatusOr<std::shared_ptr<const DnnPlan>>& plan = known->second.plan;
  if (!plan.ok() || (*plan)->workspace_bytes() <= max_workspace_bytes) return true;
  const std::optional<std::pair<DnnCall, DnnCall>> halves = HalvesOf(call);
  return !halves.has_value() || (Has(halves->first, max_workspace_bytes) && Has(halves->second, max_workspace_bytes));
}

absl::Status DnnPlans::Enqueue(CUstream stream, const Parts& parts, CUdeviceptr workspace) {
  if (stream_ != stream) {
    TESSERA_RETURN_IF_ERROR(library_->Check("cudnnSetStream", library_->SetStream(handle_, stream)));
    stream_ = stream;
  }
  for (const auto& [call, plan] : parts.calls) TESSERA_RETURN_IF_ERROR(plan->Run(handle_, call, workspace));
  return absl::OkStatus();
}

}  // namespace tessera::cuda
