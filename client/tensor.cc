#include "client/tensor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "client/session_calls.h"
#include "client/session_impl.h"
#include "client/session_transfers.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

OpCall RedistributeCall(const Mesh& mesh, const Placements& placements, const RedistributeOptions& options) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::mesh, mesh);
  call.attributes.Set(attribute::placements, placements);
  if (options.dtype.has_value()) call.attributes.Set(attribute::dtype, *options.dtype);
  call.attributes.Set(attribute::relabel, options.workers == WorkerOrder::kMovesLeast);
  return call;
}

absl::StatusOr<int64_t> FlatPositionOf(std::string_view op, const TensorSpec& spec,
                                       absl::Span<const int64_t> position) {
  const std::vector<int64_t>& shape = spec.mesh.shape();
  bool inside = position.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) inside = position[d] >= 0 && position[d] < shape[d];
  if (!inside) {
    return IndexOutOfRangeError(
        StrCat(op, ": position ", ToText(position), " is not in ", ToText(spec.mesh), " of ", ToText(spec)));
  }
  return spec.mesh.FlatPosition(position);
}

}  // namespace

bool Tensor::spec_pending() const { return !state_->spec_known; }
absl::Status Tensor::AwaitSpec(std::optional<double> timeout_s) const {
  return state_->session->AwaitSpec(*state_, timeout_s);
}
const TensorSpec& Tensor::spec() const {
  if (spec_pending()) AwaitSpec().IgnoreError();
  return *state_->KnownOrStandIn();
}
DType Tensor::dtype() const { return state_->KnownOrStandIn()->dtype; }
int Tensor::rank() const { return state_->KnownOrStandIn()->rank(); }
uint64_t Tensor::handle() const { return spec_pending() && !AwaitSpec().ok() ? 0 : state_->id; }
const std::shared_ptr<SessionImpl>& Tensor::session() const { return state_->session; }

absl::Status Tensor::SetName(const std::string& name) const { return session()->SetName(*state_, name); }
std::string Tensor::name() const { return session()->NameOfTensor(*state_); }

absl::StatusOr<Tensor> Tensor::Redistribute(const Placements& placements, const RedistributeOptions& options) const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  return Redistribute(device_mesh(), placements, options);
}

absl::StatusOr<Tensor> Tensor::Redistribute(const Mesh& mesh, const Placements& placements,
                                            const RedistributeOptions& options) const {
  const CallOperand operand{&state_, Scalar()};
  TESSERA_ASSIGN_OR_RETURN(HandlePtr result,
                           state_->session->calls().Call(RedistributeCall(mesh, placements, options), {&operand, 1}));
  return Tensor(std::move(result));
}

absl::StatusOr<PlanReport> Tensor::ExplainRedistribute(const Mesh& mesh, const Placements& placements,
                                                       const RedistributeOptions& options) const {
  const CallOperand operand{&state_, Scalar()};
  return state_->session->calls().Explain(RedistributeCall(mesh, placements, options), {&operand, 1});
}

absl::StatusOr<Box> Tensor::BoxAt(absl::Span<const int64_t> position) const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  TESSERA_RETURN_IF_ERROR(FlatPositionOf("box", spec(), position).status());
  return LocalBox(spec(), position);
}

absl::Status Tensor::Wait(std::optional<double> timeout_s) const { return state_->session->Wait(*state_, timeout_s); }

absl::Status WaitAll(absl::Span<const Tensor> tensors, std::optional<double> timeout_s) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (const Tensor& tensor : tensors) TESSERA_RETURN_IF_ERROR(tensor.session()->Watch(*tensor.state()));
  for (const Tensor& tensor : tensors) {
    const auto left_s = [&] {
      return std::max(0.0, *timeout_s - std::chrono::duration<double>(Clock::now() - start).count());
    };
    const absl::Status status = tensor.Wait(timeout_s.has_value() ? std::optional(left_s()) : std::nullopt);
    if (timeout_s.has_value() && absl::IsDeadlineExceeded(status) && left_s() == 0) {
      return absl::DeadlineExceededError(StrCat("wait for ", ToText(tensor.spec()), ", one of ", tensors.size(),
                                                " tensors: not done after ", *timeout_s, " s"));
    }
    TESSERA_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

bool Tensor::IsReady() const { return state_->session->IsReady(*state_); }

absl::StatusOr<HostArray> Tensor::FullTensor() const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  if (!spec().has_partial()) return state_->session->transfers().Download(state_, std::nullopt);
  TESSERA_ASSIGN_OR_RETURN(Tensor reduced, Redistribute(ReducedPlacements(spec())));
  return state_->session->transfers().Download(reduced.state_, std::nullopt);
}

absl::StatusOr<HostArray> Tensor::ToLocal(absl::Span<const int64_t> position) const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  TESSERA_ASSIGN_OR_RETURN(int64_t flat, FlatPositionOf("to_local", spec(), position));
  return state_->session->transfers().Download(state_, flat);
}

absl::Status Tensor::FullTensorTo(const HostTarget& out, std::optional<Interval> rows) const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  if (rows.has_value() &&
      (spec().rank() == 0 || rows->start < 0 || rows->stop < rows->start || rows->stop > spec().shape[0])) {
    return IndexOutOfRangeError(
        StrCat("full_tensor: rows ", rows->start, " to ", rows->stop, " are not in ", ToText(spec())));
  }
  const DownloadPart part{std::nullopt, rows};
  if (!spec().has_partial()) return state_->session->transfers().DownloadTo("full_tensor", state_, part, out);
  TESSERA_ASSIGN_OR_RETURN(Tensor reduced, Redistribute(ReducedPlacements(spec())));
  return state_->session->transfers().DownloadTo("full_tensor", reduced.state_, part, out);
}

absl::Status Tensor::ToLocalTo(absl::Span<const int64_t> position, const HostTarget& out) const {
  TESSERA_RETURN_IF_ERROR(AwaitSpec());
  TESSERA_ASSIGN_OR_RETURN(int64_t flat, FlatPositionOf("to_local", spec(), position));
  return state_->session->transfers().DownloadTo("to_local", state_, {flat, std::nullopt}, out);
}

Placements ReducedPlacements(const TensorSpec& spec) {
  TensorSpec reduced = spec;
  for (Placement& placement : reduced.placements) {
    if (placement.is_partial()) placement = Placement::Replicate();
  }
  for (size_t m = 0; m < spec.placements.size(); ++m) {
    if (!spec.placements[m].is_partial()) continue;
    const Shape remaining = MaxShardShape(reduced);
    int largest = -1;
    for (int d = 0; d < spec.rank(); ++d) {
      if (remaining[d] >= spec.mesh.shape()[m] && (largest < 0 || remaining[d] > remaining[largest])) largest = d;
    }
    if (largest >= 0) reduced.placements[m] = Placement::Shard(largest);
  }
  return reduced.placements;
}

}  // namespace tessera
