#include "client/catalog_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<int> CatalogCall::RankOfFirst() const {
  for (const Operand& operand : operands_) {
    if (const auto* tensor = std::get_if<const Tensor*>(&operand.value())) return (*tensor)->rank();
  }
  return absl::InvalidArgumentError(StrCat(NameOf(call_.op), ": needs a tensor among its operands"));
}

absl::Status CatalogCall::Normalize(const std::vector<int64_t>& axes, std::vector<int64_t>* out) const {
  TESSERA_ASSIGN_OR_RETURN(const int rank, RankOfFirst());
  // Dims are those of a stack's result, which has one more.
  const int dims = call_.op == OpId::kStack ? rank + 1 : rank;
  for (const int64_t axis : axes) {
    TESSERA_ASSIGN_OR_RETURN(const int dim, NormalizeDim(NameOf(call_.op), axis, dims));
    out->push_back(dim);
  }
  return absl::OkStatus();
}

void CatalogCall::SetAxes(const std::optional<std::vector<int64_t>>& axes, Absent absent) {
  std::vector<int64_t> dims;
  if (axes.has_value()) {
    failure_.Update(Normalize(*axes, &dims));
    std::sort(dims.begin(), dims.end());
  } else if (absent == Absent::kNone) {
    return;
  } else if (const absl::StatusOr<int> rank = RankOfFirst(); rank.ok()) {
    dims.resize(static_cast<size_t>(*rank));
    std::iota(dims.begin(), dims.end(), 0);
  } else {
    failure_.Update(rank.status());
  }
  call_.attributes.Set(attribute::dims, std::move(dims));
}

void CatalogCall::SetOrder(const std::vector<int64_t>& axes) {
  std::vector<int64_t> dims;
  failure_.Update(Normalize(axes, &dims));
  call_.attributes.Set(attribute::dims, std::move(dims));
}

void CatalogCall::Place(const Creation& creation) {
  call_.attributes.Set(attribute::dtype, creation.dtype);
  call_.attributes.Set(attribute::shape, creation.shape);
  call_.attributes.Set(attribute::mesh, creation.mesh);
  if (creation.placements.has_value()) call_.attributes.Set(attribute::placements, *creation.placements);
}

absl::StatusOr<Tensor> CatalogCall::One() const {
  TESSERA_RETURN_IF_ERROR(failure_);
  // One extent may be -1, and follows from x.
  if (call_.op == OpId::kReshape && operands_.size() == 1) {
    if (const auto* x = std::get_if<const Tensor*>(&operands_[0].value())) {
      return Reshape(**x, *call_.attributes.Get(attribute::shape));
    }
  }
  return CallOp(call_, operands_);
}

absl::StatusOr<std::vector<Tensor>> CatalogCall::All() const {
  TESSERA_RETURN_IF_ERROR(failure_);
  return CallOpAll(call_, operands_);
}

absl::StatusOr<Tensor> CatalogCall::Create(const Session& session) const { return CreateOp(session, call_); }

}  // namespace tessera
