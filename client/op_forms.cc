#include "client/op_forms.h"

#include <utility>
#include <vector>

#include "client/catalog_ops.h"
#include "schemas/types/status_macros.h"

namespace tessera::ops {
namespace {

absl::StatusOr<Creation> CreationOf(const Session& session, const Shape& shape, const CreationOptions& options) {
  Creation creation;
  creation.dtype = options.dtype;
  creation.shape = shape;
  creation.placements = options.placements;
  if (options.mesh.has_value()) {
    creation.mesh = *options.mesh;
  } else {
    TESSERA_ASSIGN_OR_RETURN(creation.mesh, session.DefaultMesh());
  }
  return creation;
}

template <typename Options>
Options AxisOptions(absl::Span<const int64_t> axis, KeepDims keepdims) {
  Options options;
  if (!axis.empty()) options.axis = std::vector<int64_t>(axis.begin(), axis.end());
  options.keepdims = keepdims == KeepDims::kYes;
  return options;
}

}  // namespace

absl::StatusOr<Tensor> Zeros(const Session& session, const Shape& shape, const CreationOptions& options) {
  return Full(session, shape, Scalar::Int(0), options);
}

absl::StatusOr<Tensor> Ones(const Session& session, const Shape& shape, const CreationOptions& options) {
  return Full(session, shape, Scalar::Int(1), options);
}

absl::StatusOr<Tensor> Full(const Session& session, const Shape& shape, const Scalar& value,
                            const CreationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Creation creation, CreationOf(session, shape, options));
  return Full(session, creation, {value});
}

absl::StatusOr<Tensor> Arange(const Session& session, int64_t count, const Scalar& start, const Scalar& step,
                              const CreationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Creation creation, CreationOf(session, {count}, options));
  return Arange(session, creation, {start, step});
}

absl::StatusOr<Tensor> Eye(const Session& session, int64_t rows, int64_t columns, int64_t k,
                           const CreationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Creation creation, CreationOf(session, {rows, columns}, options));
  return Eye(session, creation, {Scalar::Int(k)});
}

absl::StatusOr<Tensor> Rand(const Session& session, const Shape& shape, int64_t seed, int64_t stream,
                            const CreationOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const Creation creation, CreationOf(session, shape, options));
  return Rand(session, creation, {Scalar::Int(seed), Scalar::Int(stream)});
}

#define TESSERA_DEFINE_AXIS_FORM(Name)                                                               \
  template <typename>                                                                                \
  absl::StatusOr<Tensor> Name(const Operand& x, absl::Span<const int64_t> axis, KeepDims keepdims) { \
    return Name(x, AxisOptions<Name##Options>(axis, keepdims));                                      \
  }                                                                                                  \
  template absl::StatusOr<Tensor> Name<void>(const Operand&, absl::Span<const int64_t>, KeepDims);
TESSERA_AXIS_FORMS(TESSERA_DEFINE_AXIS_FORM)
#undef TESSERA_DEFINE_AXIS_FORM

}  // namespace tessera::ops
