#include "client/ops.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "client/session_calls.h"
#include "client/session_impl.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::StatusOr<OpCall> ReductionCall(OpId id, const Tensor& x, absl::Span<const int64_t> dims, KeepDims keepdims) {
  OpCall call;
  call.op = id;
  call.attributes.Set(attribute::keepdims, keepdims == KeepDims::kYes);
  std::vector<int64_t> normal;
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(id));
  for (int64_t dim : dims) {
    TESSERA_ASSIGN_OR_RETURN(int normalised, NormalizeDim(row->name, dim, x.rank()));
    normal.push_back(normalised);
  }
  if (dims.empty()) {
    for (int d = 0; d < x.rank(); ++d) normal.push_back(d);
  }
  std::sort(normal.begin(), normal.end());
  call.attributes.Set(attribute::dims, std::move(normal));
  return call;
}

struct Prepared {
  std::shared_ptr<SessionImpl> session;
  absl::InlinedVector<CallOperand, 3> operands;
};

absl::StatusOr<Prepared> Prepare(absl::Span<const Operand> operands) {
  Prepared out;
  for (const Operand& operand : operands) {
    if (const auto* tensor = std::get_if<const Tensor*>(&operand.value())) {
      if (out.session == nullptr) out.session = (*tensor)->session();
      out.operands.push_back({&(*tensor)->state(), Scalar()});
    } else {
      out.operands.push_back({nullptr, std::get<Scalar>(operand.value())});
    }
  }
  if (out.session == nullptr) return absl::InvalidArgumentError("an op needs a tensor among its operands");
  return out;
}

absl::StatusOr<std::vector<Tensor>> RedistributeAll(absl::Span<const Tensor> tensors, const std::optional<Mesh>& mesh,
                                                    absl::Span<const Placements> placements,
                                                    const RedistributeOptions& options) {
  if (tensors.empty()) return absl::InvalidArgumentError("redistribute: needs a tensor among its operands");
  OpCall call;
  call.op = OpId::kRedistribute;
  if (mesh.has_value()) call.attributes.Set(attribute::mesh, *mesh);
  if (options.dtype.has_value()) call.attributes.Set(attribute::dtype, *options.dtype);
  call.attributes.Set(attribute::relabel, options.workers == WorkerOrder::kMovesLeast);
  if (placements.size() == 1) {
    call.attributes.Set(attribute::placements, placements[0]);
  } else {
    call.attributes.Set(attribute::placements_each, {placements.begin(), placements.end()});
  }
  std::vector<CallOperand> operands;
  for (const Tensor& tensor : tensors) operands.push_back({&tensor.state(), Scalar()});
  TESSERA_ASSIGN_OR_RETURN(SessionCalls::Results results, tensors[0].session()->calls().CallAll(call, operands));
  std::vector<Tensor> moved;
  for (HandlePtr& result : results) moved.emplace_back(std::move(result));
  return moved;
}

enum class Counted : uint8_t { kNow, kNotYet };

absl::StatusOr<OpCall> ReshapeCall(const TensorSpec& x, Shape shape, Counted counted) {
  const auto unknown = std::find(shape.begin(), shape.end(), -1);
  const int64_t count = NumElements(x.shape);
  if (counted == Counted::kNotYet) {
    std::fill(shape.begin(), shape.end(), 1);
    if (!shape.empty()) shape[0] = count;
  } else if (unknown != shape.end()) {
    Shape others = shape;
    others[static_cast<size_t>(unknown - shape.begin())] = 1;
    const int64_t rest = NumElements(others);
    if (rest <= 0 || count % rest != 0) {
      return absl::InvalidArgumentError(
          StrCat("reshape: ", ToText(x), " with ", count, " elements does not fit ", ToText(shape)));
    }
    *unknown = count / rest;
  }
  OpCall call;
  call.op = OpId::kReshape;
  call.attributes.Set(attribute::shape, std::move(shape));
  return call;
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> Redistribute(absl::Span<const Tensor> tensors,
                                                 absl::Span<const Placements> placements,
                                                 const RedistributeOptions& options) {
  return RedistributeAll(tensors, std::nullopt, placements, options);
}

absl::StatusOr<std::vector<Tensor>> Redistribute(absl::Span<const Tensor> tensors, const Mesh& mesh,
                                                 absl::Span<const Placements> placements,
                                                 const RedistributeOptions& options) {
  return RedistributeAll(tensors, mesh, placements, options);
}

absl::StatusOr<Tensor> CallOp(const OpCall& call, absl::Span<const Operand> operands) {
  TESSERA_ASSIGN_OR_RETURN(Prepared prepared, Prepare(operands));
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, prepared.session->calls().Call(call, prepared.operands));
  return Tensor(std::move(handle));
}

absl::StatusOr<std::vector<Tensor>> CallOpAll(const OpCall& call, absl::Span<const Operand> operands) {
  TESSERA_ASSIGN_OR_RETURN(Prepared prepared, Prepare(operands));
  TESSERA_ASSIGN_OR_RETURN(SessionCalls::Results results, prepared.session->calls().CallAll(call, prepared.operands));
  std::vector<Tensor> out;
  for (HandlePtr& result : results) out.emplace_back(std::move(result));
  return out;
}

absl::StatusOr<Tensor> CreateOp(const Session& session, const OpCall& call) {
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, session.impl()->calls().Call(call, {}));
  return Tensor(std::move(handle));
}

absl::StatusOr<PlanReport> ExplainOp(const OpCall& call, absl::Span<const Operand> operands) {
  TESSERA_ASSIGN_OR_RETURN(Prepared prepared, Prepare(operands));
  return prepared.session->calls().Explain(call, prepared.operands);
}

#define TESSERA_DEFINE_BINARY(Name, id)                             \
  absl::StatusOr<Tensor> Name(const Operand& a, const Operand& b) { \
    const Operand operands[] = {a, b};                              \
    return CallOp(OpCall{OpId::id, {}, {}}, operands);              \
  }
#define TESSERA_DEFINE_UNARY(Name, id)                 \
  absl::StatusOr<Tensor> Name(const Tensor& x) {       \
    const Operand operands[] = {x};                    \
    return CallOp(OpCall{OpId::id, {}, {}}, operands); \
  }
#define TESSERA_DEFINE_REDUCTION(Name, id)                                                          \
  absl::StatusOr<Tensor> Name(const Tensor& x, absl::Span<const int64_t> dims, KeepDims keepdims) { \
    TESSERA_ASSIGN_OR_RETURN(OpCall call, ReductionCall(OpId::id, x, dims, keepdims));              \
    const Operand operands[] = {x};                                                                 \
    return CallOp(call, operands);                                                                  \
  }
TESSERA_BINARY_OPS(TESSERA_DEFINE_BINARY)
TESSERA_UNARY_OPS(TESSERA_DEFINE_UNARY)
TESSERA_REDUCTIONS(TESSERA_DEFINE_REDUCTION)

absl::StatusOr<Tensor> Where(const Operand& condition, const Operand& x1, const Operand& x2) {
  const Operand operands[] = {condition, x1, x2};
  return CallOp(OpCall{OpId::kWhere, {}, {}}, operands);
}

absl::StatusOr<Tensor> AsType(const Tensor& x, DType dtype) {
  OpCall call;
  call.op = OpId::kAsType;
  call.attributes.Set(attribute::dtype, dtype);
  const Operand operands[] = {x};
  return CallOp(call, operands);
}

absl::StatusOr<Tensor> PermuteDims(const Tensor& x, absl::Span<const int64_t> axes) {
  OpCall call;
  call.op = OpId::kTranspose;
  std::vector<int64_t> dims;
  for (int64_t axis : axes) {
    TESSERA_ASSIGN_OR_RETURN(int dim, NormalizeDim("permute_dims", axis, x.rank()));
    dims.push_back(dim);
  }
  call.attributes.Set(attribute::dims, std::move(dims));
  const Operand operands[] = {x};
  return CallOp(call, operands);
}

absl::StatusOr<Tensor> Reshape(const Tensor& x, absl::Span<const int64_t> shape) {
  Shape wanted(shape.begin(), shape.end());
  // While its elements can't be counted, a stand-in of the same rank holds those of x's stand-in.
  const auto complete = [x, wanted](absl::Span<const SpecPtr> specs) {
    return ReshapeCall(*specs[0], wanted, x.spec_pending() ? Counted::kNotYet : Counted::kNow);
  };
  const CallOperand operand{&x.state(), Scalar(), false};
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, x.session()->calls().CallLater(complete, {&operand, 1}));
  return Tensor(std::move(handle));
}

}  // namespace tessera
