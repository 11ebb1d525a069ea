#pragma once

// DnnPlans: attentions, convolutions and their gradients by cuDNN, on streams.
//
//   auto plans = DnnPlans::Open(gpu);
//   TESSERA_ASSIGN_OR_RETURN(DnnPlans::Parts parts, (*plans)->Prepare(call, max_workspace_bytes));
//   status = (*plans)->Enqueue(stream, parts, workspace);
//
// Law: a graph has one plan (dnn_plan.h). A call whose plan wants more memory than it may have is cut in halves, as its
// graph says (DnnCut), until each part fits: by extents alone, with one version of the library.
//
// Every call may load kernels, and the driver may wait then for all that runs in the context.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/dnn_plan.h"

namespace tessera::cuda {

// The one that was used longest ago is forgotten when there are so many, and made again. docs/limits.md:
// max_cudnn_plans
inline constexpr size_t kMaxDnnPlans = 1024;

class DnnPlans {
 public:
  // With the GPU's context current, as for every call. As Cudnn::Open says it where there is no library, and what the
  // library says where it doesn't start.
  static absl::StatusOr<std::unique_ptr<DnnPlans>> Open(const Gpu& gpu, size_t max_plans = kMaxDnnPlans);
  ~DnnPlans();
  DnnPlans(const DnnPlans&) = delete;
  DnnPlans& operator=(const DnnPlans&) = delete;

  // Calls one after the other, each with its plan.
  struct Parts {
    std::vector<std::pair<DnnCall, std::shared_ptr<const DnnPlan>>> calls;
    int64_t workspace_bytes = 0;  // of any one
  };
  // Unimplemented where the library has no plan, or one that wants more memory than that and can't be cut.
  absl::StatusOr<Parts> Prepare(const DnnCall& call, int64_t max_workspace_bytes);
  // Whether Prepare has it without the library.
  bool Has(const DnnCall& call, int64_t max_workspace_bytes) const;
  absl::Status Enqueue(CUstream stream, const Parts& parts, CUdeviceptr workspace);

  // Plans that were made so far.
  int64_t made() const { return made_; }

 private:
  struct Kept {
    absl::StatusOr<std::shared_ptr<const DnnPlan>> plan;  // that there is none is kept, too
    std::list<const DnnGraph*>::iterator use;             // the front was used last
  };
  DnnPlans(std::unique_ptr<const Cudnn> library, DnnHandle handle, size_t max_plans)
      : library_(std::move(library)), handle_(handle), max_plans_(max_plans) {}
  absl::StatusOr<std::shared_ptr<const DnnPlan>> PlanOf(const DnnGraph& graph);
  absl::Status Add(const DnnCall& call, int64_t max_workspace_bytes, Parts* parts);

  const std::unique_ptr<const Cudnn> library_;
  const DnnHandle handle_;
  const size_t max_plans_;
  CUstream stream_ = nullptr;  // of the handle
  std::map<DnnGraph, Kept> kept_;
  std::list<const DnnGraph*> uses_;  // keys of kept_
  int64_t made_ = 0;
};

}  // namespace tessera::cuda
