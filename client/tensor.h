#pragma once

// Tensor: a handle on a global tensor that lives in shards on the workers of a mesh. Copies are the same
// handle; the last one that goes away lets the tensor go. Its spec is known at once, but for results whose shape
// depends on values; its values exist when the ops before it have run.
//
//   absl::StatusOr<Tensor> c = Matmul(a, b);              // returns at once
//   absl::StatusOr<Tensor> d = c->Redistribute({Placement::Replicate(), Placement::Shard(0)});
//   absl::StatusOr<HostArray> all = d->FullTensor();      // blocks
//
// Nothing here blocks but Wait, WaitAll, FullTensor, ToLocal and ExplainRedistribute, and what needs a pending spec.
// Any thread may call; session.h says what threads may do, completion.h how to be called back.

#include "client/require_cxx20.h"

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/host_memory.h"
#include "client/report.h"
#include "schemas/ops/op.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

struct HandleState;
class SessionImpl;

// Where the workers stand: as the mesh says, or in the order that moves least (the result's mesh tells).
enum class WorkerOrder : uint8_t { kAsGiven = 0, kMovesLeast = 1 };

struct RedistributeOptions {
  std::optional<DType> dtype{};  // converted on the way, on the side with fewer bytes; absent: the tensor's own
  WorkerOrder workers = WorkerOrder::kAsGiven;
};

class Tensor {
 public:
  explicit Tensor(std::shared_ptr<HandleState> state) : state_(std::move(state)) {}

  // The spec of a result whose shape depends on values (found.h) is pending until these are there. dtype and rank are
  // known at once; other questions about the spec wait for it. Where that fails there is a stand-in, whose extents mean
  // nothing; AwaitSpec tells the cause.
  bool spec_pending() const;
  absl::Status AwaitSpec(std::optional<double> timeout_s = std::nullopt) const;
  const TensorSpec& spec() const;
  DType dtype() const;
  int rank() const;
  const Shape& shape() const { return spec().shape; }
  const Mesh& device_mesh() const { return spec().mesh; }
  const Placements& placements() const { return spec().placements; }
  // The number in its session.
  uint64_t handle() const;

  // By which a client that comes back finds it; the session keeps a tensor that has one. "": it has none.
  absl::Status SetName(const std::string& name) const;
  std::string name() const;

  // Other placements, another mesh, or both. InvalidArgument where the specs do not allow it.
  absl::StatusOr<Tensor> Redistribute(const Placements& placements, const RedistributeOptions& options = {}) const;
  absl::StatusOr<Tensor> Redistribute(const Mesh& mesh, const Placements& placements,
                                      const RedistributeOptions& options = {}) const;
  // The plan of that; blocks for the coordinator's answer and runs nothing.
  absl::StatusOr<PlanReport> ExplainRedistribute(const Mesh& mesh, const Placements& placements,
                                                 const RedistributeOptions& options = {}) const;

  // The indices that the position holds. IndexOutOfRange for a position outside the mesh.
  absl::StatusOr<Box> BoxAt(absl::Span<const int64_t> position) const;

  // Until all that led here has run. The first cause when something failed.
  absl::Status Wait(std::optional<double> timeout_s = std::nullopt) const;
  bool IsReady() const;
  // The whole tensor; pending terms are reduced first.
  absl::StatusOr<HostArray> FullTensor() const;
  // The shard at a position, or its term of a Partial.
  absl::StatusOr<HostArray> ToLocal(absl::Span<const int64_t> position) const;
  // The same, or some rows of dim 0 of the whole, into memory of the caller, of the same dtype and shape. Where it lies
  // in shared memory (HostMemory::MakeShared) workers write it themselves. Its bytes after a failure are left open.
  absl::Status FullTensorTo(const HostTarget& out, std::optional<Interval> rows = std::nullopt) const;
  absl::Status ToLocalTo(absl::Span<const int64_t> position, const HostTarget& out) const;

  const std::shared_ptr<HandleState>& state() const { return state_; }
  const std::shared_ptr<SessionImpl>& session() const;

 private:
  std::shared_ptr<HandleState> state_;
};

// Until all of them are there: one message asks for all, where a Wait for each takes as many round trips. `timeout_s`
// is for all together. The first cause, in this order, when something failed.
absl::Status WaitAll(absl::Span<const Tensor> tensors, std::optional<double> timeout_s = std::nullopt);

// The placements without pending terms that FullTensor reduces to: a Partial one is sharded over
// the largest dim that is left, or replicated.
Placements ReducedPlacements(const TensorSpec& spec);

}  // namespace tessera
