#pragma once

// Transforms: Fourier transforms by cuFFT, on streams.
//
//   auto transforms = Transforms::Open(gpu);
//   TESSERA_ASSIGN_OR_RETURN(Transforms::Parts parts, (*transforms)->Prepare(problem, max_workspace_bytes));
//   status = (*transforms)->Enqueue(stream, parts, workspace);
//
// Law: the same bits each time. "Results produced by the cuFFT library are deterministic (ie, bitwise reproducible) as
// long as the following are kept constant between runs: plan input parameters, cuFFT version, and GPU model" (its
// documentation): a problem has one plan, or is cut in halves by its extents alone, and no plan is chosen by time.
//
// A plan takes no memory of its own for its work. To make one, and to run it first, may load kernels, and the driver
// may wait then for all that runs in the context. Where the library says no, or fails, the status is Unimplemented:
// nothing but outputs and the workspace may have been written, so that another may compute it.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fourier_problem.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/cufft.h"

namespace tessera::cuda {

// The one that was used longest ago is let go of when there are so many, and made again. docs/limits.md:
// max_cufft_plans
inline constexpr size_t kMaxFourierPlans = 64;

class Transforms {
 public:
  // With the GPU's context current, as for every call. As Cufft::Open says it where there is no library.
  static absl::StatusOr<std::unique_ptr<Transforms>> Open(const Gpu& gpu, size_t max_plans = kMaxFourierPlans);
  Transforms(const Transforms&) = delete;
  Transforms& operator=(const Transforms&) = delete;

  class Plan;
  // Calls one after the other, each with its plan.
  struct Parts {
    std::vector<std::pair<FourierProblem, std::shared_ptr<Plan>>> calls;
    int64_t workspace_bytes = 0;  // of any one
  };
  // Unimplemented, too, where one line wants more memory than that.
  absl::StatusOr<Parts> Prepare(const FourierProblem& problem, int64_t max_workspace_bytes);
  // Whether Prepare has it without the library.
  bool Has(const FourierProblem& problem, int64_t max_workspace_bytes) const;
  absl::Status Enqueue(CUstream stream, const Parts& parts, CUdeviceptr workspace);

 private:
  struct Kept {
    absl::StatusOr<std::shared_ptr<Plan>> plan;    // that there can be none is kept, too
    std::list<const FourierShape*>::iterator use;  // the front was used last
  };
  Transforms(std::unique_ptr<const Cufft> library, size_t max_plans)
      : library_(std::move(library)), max_plans_(max_plans) {}
  absl::StatusOr<std::shared_ptr<Plan>> PlanOf(const FourierShape& shape);
  absl::StatusOr<std::shared_ptr<Plan>> MakePlan(const FourierShape& shape, bool* is_final);
  absl::Status Add(const FourierProblem& problem, int64_t max_workspace_bytes, Parts* parts);

  const std::unique_ptr<const Cufft> library_;
  const size_t max_plans_;
  std::map<FourierShape, Kept> kept_;
  std::list<const FourierShape*> uses_;  // keys of kept_
};

}  // namespace tessera::cuda
