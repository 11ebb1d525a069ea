#include "schemas/ops/gpu_kernels.h"

#include <string>

#include "schemas/ops/scalar.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool HasComplexFunction(ScalarOp op) {
  switch (op) {
    case ScalarOp::kNeg:
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
    case ScalarOp::kMul:
    case ScalarOp::kDiv:
    case ScalarOp::kEqual:
    case ScalarOp::kNotEqual:
    case ScalarOp::kWhere:
    case ScalarOp::kAbs:
    case ScalarOp::kSign:
    case ScalarOp::kRound:
    case ScalarOp::kIsNan:
    case ScalarOp::kIsInf:
    case ScalarOp::kIsFinite:
    case ScalarOp::kReal:
    case ScalarOp::kImag:
    case ScalarOp::kConj:
    case ScalarOp::kComplex:
    case ScalarOp::kCast: return true;
    default: return false;
  }
}

bool TakesComplex(ScalarOp op) {
  return IsDefinedFor(op, DType::kC128, DType::kC128) || IsDefinedFor(op, DType::kC128, DType::kF64) ||
         IsDefinedFor(op, DType::kC128, DType::kBool);
}

struct Visitor {
  DType output;
  absl::Status None(const LocalOp& op) const {
    return absl::UnimplementedError(StrCat(ToText(op), ": no CUDA kernel"));
  }
  absl::Status Windows(std::string_view name) const {
    if (output != DType::kBool && Kind(output) != DTypeKind::kComplex) return absl::OkStatus();
    return absl::UnimplementedError(StrCat(name, ": no CUDA kernel for ", ToText(output)));
  }
  absl::Status operator()(const MapOp& op) const { return HasGpuKernel(op.expression); }
  absl::Status operator()(const ReduceLocalOp& op) const {
    return op.map.has_value() ? HasGpuKernel(*op.map) : absl::OkStatus();
  }
  // The planner makes them of kernels that there are.
  absl::Status operator()(const GatherOp& op) const {
    return op.from == GatherFrom::kOwn ? absl::OkStatus() : None(op);
  }
  absl::Status operator()(const FilterOp& op) const { return None(op); }
  // By a library, from some size on.
  absl::Status operator()(const LinalgOp& op) const {
    switch (op.kind) {
      case LinalgKind::kCholesky:
      case LinalgKind::kTriangularSolve:
      case LinalgKind::kSolve:
      case LinalgKind::kInv:
      case LinalgKind::kQr:
      case LinalgKind::kEigh:
      case LinalgKind::kEigvalsh:
      case LinalgKind::kSvd:
      case LinalgKind::kSvdVals:
      case LinalgKind::kLu:
      case LinalgKind::kSlogdet:
        if (output == DType::kF32 || output == DType::kF64) return absl::OkStatus();
        break;
      default: break;
    }
    return None(op);
  }
  absl::Status operator()(const GroupedMatmulOp& op) const { return None(op); }
  absl::Status operator()(const ConvOp&) const { return Windows("conv"); }
  absl::Status operator()(const ConvGradientOp&) const { return Windows("conv_gradient"); }
  absl::Status operator()(const PoolOp&) const { return Windows("pool"); }
  template <typename Op>
  absl::Status operator()(const Op&) const {
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status HasGpuKernel(const LocalOp& op, DType output) { return std::visit(Visitor{output}, op); }

absl::Status HasGpuKernel(const Expression& expression) {
  for (const ExpressionNode& node : expression.nodes) {
    if (Arity(node.op) == 0 || node.op == ScalarOp::kComplex) continue;
    const int32_t operand = node.op == ScalarOp::kWhere ? node.b : node.a;
    const DType dtype = expression.nodes[static_cast<size_t>(operand)].dtype;
    if (Kind(dtype) != DTypeKind::kComplex || HasComplexFunction(node.op)) continue;
    return absl::UnimplementedError(StrCat("map: no CUDA kernel for ", ToText(node.op), " of ", ToText(dtype)));
  }
  return absl::OkStatus();
}

std::string_view PlaceOnGpu(const OpRow& row) {
  switch (row.family) {
    case OpFamily::kComposite: return "as its rows";
    case OpFamily::kFourier: return "cuFFT where it is, else host";
    case OpFamily::kGrouped: return "host";
    case OpFamily::kMatrices: return "f32 and f64 by cuSOLVER where it has them, else host";
    case OpFamily::kContraction: return "kernel, floats by cuBLASLt where it is";
    case OpFamily::kAttention: return "kernel, f16 and bf16 by cuDNN where it is";
    case OpFamily::kWindows: return row.min_operands == 2 ? "kernel, f16, bf16 and f32 by cuDNN where it is" : "kernel";
    case OpFamily::kElementwise:
      return row.scalar_op.has_value() && TakesComplex(*row.scalar_op) && !HasComplexFunction(*row.scalar_op)
                 ? "kernel, complex numbers on the host"
                 : "kernel";
    case OpFamily::kCreation:
    case OpFamily::kReduction:
    case OpFamily::kArgReduction:
    case OpFamily::kView:
    case OpFamily::kPlace:
    case OpFamily::kAlong:
    case OpFamily::kIndexed:
    case OpFamily::kRedistribute: return "kernel";
  }
  return "kernel";
}

}  // namespace tessera
