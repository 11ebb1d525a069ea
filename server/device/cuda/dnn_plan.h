#pragma once

// DnnPlan: a graph (kernels/cuda/dnn_graph.h) as a plan of cuDNN.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DnnPlan> plan, DnnPlan::Make(library, {.handle = handle}, graph));
//   if (plan->workspace_bytes() <= limit) status = plan->Run(handle, call, workspace);
//
// Law: a graph has one plan, the first that the library's heuristics name, mode A before what it falls back to, of
// those that can be finalized and are exact enough: none that is not deterministic, rounds its inputs, sums in fewer
// bits, or goes by transforms (FFT, Winograd); and none with tensor cores where the graph permits none. Nothing is
// measured.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/dnn_graph.h"
#include "server/device/cuda/cudnn.h"

namespace tessera::cuda {

// A plan's target: the handle's device; or without one, a device that is described.
struct DnnTarget {
  DnnHandle handle = nullptr;
  std::string device_json = "";
};

class DnnPlan {
 public:
  // Unimplemented where the library has no such plan. It may load kernels, and the driver may wait then for all that
  // runs in the context.
  static absl::StatusOr<std::unique_ptr<DnnPlan>> Make(const Cudnn& library, const DnnTarget& target,
                                                       const DnnGraph& graph);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // The notes of its engine (dnn::NumericalNote).
  const std::vector<int>& notes() const { return notes_; }
  // On the handle's stream. The call is of the plan's graph.
  absl::Status Run(DnnHandle handle, const DnnCall& call, uint64_t workspace) const;

 private:
  explicit DnnPlan(const Cudnn& library) : library_(library), plan_(library) {}
  absl::StatusOr<void*> Own(DnnDescriptor descriptor);
  absl::Status DescribeTensors(const DnnGraph& graph);
  absl::StatusOr<void*> Describe(const DnnOperation& operation);
  absl::StatusOr<void*> DescribeConvolution(const DnnOperation& operation);
  absl::StatusOr<void*> DescribeTranspose(const DnnOperation& operation);
  absl::StatusOr<void*> DescribeGraph(const DnnTarget& target, const DnnGraph& graph);
  absl::Status Choose(const DnnTarget& target, const DnnGraph& graph, void* operation_graph, void* device);

  const Cudnn& library_;
  std::vector<DnnDescriptor> kept_;  // what the plan is made of
  std::vector<void*> tensors_;       // of kept_
  DnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
  std::vector<int> notes_;
};

}  // namespace tessera::cuda
