#pragma once

// Forms of ops that are shorter than their rows'. catalog_ops.h includes it; a program names that one.
//
// One naming: every op is in tessera::ops, under its Python name in PascalCase: ts.matmul is ops::Matmul, ts.argmax is
// ops::Argmax, ts.permute_dims is ops::PermuteDims. Keywords are the fields of the options: ops::Sum(x, {.axis =
// {{0}}}).
//
//   ops::Zeros(session, {1000, 16}, {.dtype = DType::kF32, .placements = {{Placement::Shard(0)}}})
//   ops::Sum(x, {0})            ops::Sum(x, {0, 1}, KeepDims::kYes)            ops::Reshape(x, {-1, 8})

#include <optional>

#include "client/require_cxx20.h"

#include "absl/status/statusor.h"
#include "client/ops.h"

namespace tessera::ops {

struct CreationOptions {
  DType dtype = DType::kF64;
  std::optional<Mesh> mesh{};              // absent: Session::DefaultMesh
  std::optional<Placements> placements{};  // one for each dim of the mesh; absent: small tensors whole on each worker,
                                           // large ones in shards of their largest dim
};

// Tensors from nothing. InvalidArgument, DTypeError: as the op says, with both values. Each returns at once.
absl::StatusOr<Tensor> Zeros(const Session& session, const Shape& shape, const CreationOptions& options = {});
absl::StatusOr<Tensor> Ones(const Session& session, const Shape& shape, const CreationOptions& options = {});
absl::StatusOr<Tensor> Full(const Session& session, const Shape& shape, const Scalar& value,
                            const CreationOptions& options = {});
// start, start + step, ...: `count` numbers of a real dtype.
absl::StatusOr<Tensor> Arange(const Session& session, int64_t count, const Scalar& start, const Scalar& step,
                              const CreationOptions& options = {});
// Ones on the diagonal that lies `k` right of the main one, zeros elsewhere.
absl::StatusOr<Tensor> Eye(const Session& session, int64_t rows, int64_t columns, int64_t k = 0,
                           const CreationOptions& options = {});
// Uniform in [0, 1), of a float dtype: the same numbers for the same seed and stream on every mesh and placement.
absl::StatusOr<Tensor> Rand(const Session& session, const Shape& shape, int64_t seed, int64_t stream = 0,
                            const CreationOptions& options = {});

// Reductions over these dims, which may be negative; an empty span: over all, as ops::Sum(x) is. Templates, so that
// {.axis = {{1}}} is the options of the other form.
#define TESSERA_AXIS_FORMS(APPLY) \
  APPLY(Sum) APPLY(Prod) APPLY(Mean) APPLY(Max) APPLY(Min) APPLY(All) APPLY(Any) APPLY(Argmax) APPLY(Argmin)
#define TESSERA_DECLARE_AXIS_FORM(Name) \
  template <typename = void>            \
  absl::StatusOr<Tensor> Name(const Operand& x, absl::Span<const int64_t> axis, KeepDims keepdims = KeepDims::kNo);
TESSERA_AXIS_FORMS(TESSERA_DECLARE_AXIS_FORM)
#undef TESSERA_DECLARE_AXIS_FORM

}  // namespace tessera::ops
