#pragma once

// Operands and calls of ops. Programs take ops by their names in tessera::ops (catalog_ops.h), which has all of them;
// the few functions here, in tessera, are for the library's own code. Each returns at once; shape, dtype and placement
// errors are the catalog's and come from the call that made them.

#include "client/require_cxx20.h"

#include <complex>
#include <initializer_list>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "client/tensor.h"

namespace tessera {

// A tensor, or a number beside one. Plain numbers are weak: they take the tensor's dtype.
class Operand {
 public:
  Operand(const Tensor& tensor) : value_(&tensor) {}       // NOLINT: implicit; the tensor outlives the call
  Operand(double value) : value_(Scalar::Float(value)) {}  // NOLINT
  Operand(std::complex<double> value) : value_(Scalar::Complex(value)) {}  // NOLINT
  Operand(int value) : value_(Scalar::Int(value)) {}                       // NOLINT
  Operand(int64_t value) : value_(Scalar::Int(value)) {}                   // NOLINT
  Operand(Scalar value) : value_(value) {}                                 // NOLINT
  const std::variant<const Tensor*, Scalar>& value() const { return value_; }

 private:
  std::variant<const Tensor*, Scalar> value_;
};

// Any op. At least one operand is a tensor.
absl::StatusOr<Tensor> CallOp(const OpCall& call, absl::Span<const Operand> operands);
// The same, of any number of results.
absl::StatusOr<std::vector<Tensor>> CallOpAll(const OpCall& call, absl::Span<const Operand> operands);
// An op without operands: full, arange, rand, eye. attributes.mesh is set.
absl::StatusOr<Tensor> CreateOp(const Session& session, const OpCall& call);
// The plan of a call; blocks for the answer and runs nothing.
absl::StatusOr<PlanReport> ExplainOp(const OpCall& call, absl::Span<const Operand> operands);

// Several tensors of one session in one plan: at most one message for each pair of workers and phase, and fewer waits
// than one redistribution after the other. Result i is tensors[i] with other placements; `placements` has one list
// for all, or one for each tensor. One op: where it fails, all results fail. The tensors may be on different meshes;
// with `mesh` all are brought there. options.workers is for one tensor alone.
//
//   absl::StatusOr<std::vector<Tensor>> moved = Redistribute({x, y}, {Placements{Placement::Shard(1)}});
absl::StatusOr<std::vector<Tensor>> Redistribute(absl::Span<const Tensor> tensors,
                                                 absl::Span<const Placements> placements,
                                                 const RedistributeOptions& options = {});
absl::StatusOr<std::vector<Tensor>> Redistribute(absl::Span<const Tensor> tensors, const Mesh& mesh,
                                                 absl::Span<const Placements> placements,
                                                 const RedistributeOptions& options = {});

#define TESSERA_BINARY_OPS(APPLY) \
  APPLY(Add, kAdd)                \
  APPLY(Subtract, kSub)           \
  APPLY(Multiply, kMul)           \
  APPLY(Divide, kDiv)             \
  APPLY(Maximum, kMaximum)        \
  APPLY(Minimum, kMinimum)        \
  APPLY(Equal, kEqual)            \
  APPLY(NotEqual, kNotEqual)      \
  APPLY(Less, kLess)              \
  APPLY(LessEqual, kLessEqual) APPLY(Greater, kGreater) APPLY(GreaterEqual, kGreaterEqual) APPLY(Matmul, kMatmul)
#define TESSERA_UNARY_OPS(APPLY) \
  APPLY(Negative, kNeg)          \
  APPLY(Exp, kExp)               \
  APPLY(Sqrt, kSqrt)             \
  APPLY(Relu, kRelu)             \
  APPLY(Abs, kAbs) APPLY(Real, kReal) APPLY(Imag, kImag) APPLY(Conj, kConj) APPLY(Angle, kAngle)
#define TESSERA_REDUCTIONS(APPLY) \
  APPLY(Sum, kSum) APPLY(Mean, kMean) APPLY(Max, kMax) APPLY(Min, kMin) APPLY(ArgMin, kArgMin) APPLY(ArgMax, kArgMax)

#define TESSERA_DECLARE_BINARY(Name, id) absl::StatusOr<Tensor> Name(const Operand& a, const Operand& b);
#define TESSERA_DECLARE_UNARY(Name, id) absl::StatusOr<Tensor> Name(const Tensor& x);
#define TESSERA_DECLARE_REDUCTION(Name, id) \
  absl::StatusOr<Tensor> Name(const Tensor& x, absl::Span<const int64_t> dims, KeepDims keepdims = KeepDims::kNo);

enum class KeepDims : uint8_t { kNo = 0, kYes = 1 };
TESSERA_BINARY_OPS(TESSERA_DECLARE_BINARY)
TESSERA_UNARY_OPS(TESSERA_DECLARE_UNARY)
// Dims may be negative; none means all (one for ArgMin and ArgMax).
TESSERA_REDUCTIONS(TESSERA_DECLARE_REDUCTION)
absl::StatusOr<Tensor> Where(const Operand& condition, const Operand& x1, const Operand& x2);
absl::StatusOr<Tensor> AsType(const Tensor& x, DType dtype);
absl::StatusOr<Tensor> PermuteDims(const Tensor& x, absl::Span<const int64_t> axes);
// One extent may be -1: as many as there are elements for.
absl::StatusOr<Tensor> Reshape(const Tensor& x, absl::Span<const int64_t> shape);

#undef TESSERA_DECLARE_BINARY
#undef TESSERA_DECLARE_UNARY
#undef TESSERA_DECLARE_REDUCTION

}  // namespace tessera
