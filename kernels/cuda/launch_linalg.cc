// Functions of matrices by a library that has them in column-major order. A matrix in row-major order is its transpose
// in column-major order, so what is symmetric, or solved for from the other side, is left as it lies.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/matrix_parameters.h"
#include "kernels/cuda/pivot_parameters.h"
#include "kernels/cuda/solver_problem.h"
#include "kernels/cuda/steps.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/ops/linalg_op.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// Values that kernels leave in the fault word.
constexpr uint64_t kNoAnswer = 1, kNotFinite = 2;

Strides ColumnMajorStrides(const Shape& extents) {
  Strides strides = RowMajorStrides(extents);
  const size_t rank = extents.size();
  strides[rank - 1] = extents[rank - 2];
  strides[rank - 2] = 1;
  return strides;
}

// One call: its matrices, and the steps that are made one after the other.
class Linalg {
 public:
  Linalg(const LinalgOp& op, const KernelCall& call, const Workspace& workspace)
      : op_(op), call_(call), workspace_(workspace), pieces_(workspace), first_(call.inputs.front()) {
    const size_t rank = first_.extents.size();
    m_ = first_.extents[rank - 2];
    n_ = first_.extents[rank - 1];
    k_ = call.inputs.size() == 2 ? call.inputs.back().extents[rank - 1] : n_;
    head_.assign(first_.extents.begin(), first_.extents.end() - 2);
    batch_ = NumElements(head_);
    is_double_ = first_.dtype == DType::kF64;
    element_bytes_ = SizeBytes(first_.dtype);
  }

  absl::StatusOr<Steps> Make() {
    switch (op_.kind) {
      case LinalgKind::kCholesky: TESSERA_RETURN_IF_ERROR(Cholesky()); break;
      case LinalgKind::kTriangularSolve: TESSERA_RETURN_IF_ERROR(SolveTriangle()); break;
      case LinalgKind::kSolve:
      case LinalgKind::kInv: TESSERA_RETURN_IF_ERROR(Solve()); break;
      case LinalgKind::kQr: TESSERA_RETURN_IF_ERROR(Qr()); break;
      case LinalgKind::kSvd:
      case LinalgKind::kSvdVals: TESSERA_RETURN_IF_ERROR(Svd()); break;
      case LinalgKind::kLu: TESSERA_RETURN_IF_ERROR(Lu()); break;
      case LinalgKind::kSlogdet: TESSERA_RETURN_IF_ERROR(Slogdet()); break;
      default: TESSERA_RETURN_IF_ERROR(Eigh()); break;
    }
    return std::move(steps_);
  }
  // As many bytes as Make takes: its pieces, in the same order.
  int64_t Bytes() const {
    const int64_t least = std::min(m_, n_), wide = std::max(n_, op_.full ? m_ : least);
    int64_t elements[4] = {};
    switch (op_.kind) {
      case LinalgKind::kCholesky: elements[0] = n_ * n_; break;
      case LinalgKind::kTriangularSolve: elements[0] = n_ * n_, elements[1] = n_ * k_, elements[2] = n_; break;
      case LinalgKind::kSolve:
      case LinalgKind::kInv: elements[0] = n_ * n_, elements[1] = n_ * k_; break;
      case LinalgKind::kQr: elements[0] = m_ * wide, elements[1] = least; break;
      case LinalgKind::kSvd:
      case LinalgKind::kSvdVals:
        elements[0] = m_ * n_, elements[1] = least;
        elements[2] = m_ * (op_.full ? m_ : least), elements[3] = n_ * (op_.full ? n_ : least);
        break;
      case LinalgKind::kLu:
      case LinalgKind::kSlogdet: elements[0] = m_ * n_; break;
      default: elements[0] = n_ * n_, elements[1] = n_; break;
    }
    int64_t bytes = Pieces::Rounded(batch_ * 4) + Pieces::Rounded(batch_ * n_ * 8);  // infos, pivots
    for (const int64_t of : elements) bytes += Pieces::Rounded(batch_ * of * element_bytes_);
    return bytes;
  }

 private:
  Shape WithHead(int64_t rows, int64_t columns) const {
    Shape extents = head_;
    extents.push_back(rows);
    extents.push_back(columns);
    return extents;
  }
  absl::StatusOr<void*> Take(int64_t elements) { return pieces_.Take(batch_ * elements * element_bytes_); }
  void Copy(const Shape& extents, const void* source, const Strides& source_strides, void* destination,
            const Strides& strides) {
    AddCopy(extents, element_bytes_, source, source_strides, destination, strides, &steps_);
  }
  // The input as dense matrices of a workspace.
  absl::StatusOr<void*> Bring(const KernelInput& input, bool is_column_major) {
    const size_t rank = input.extents.size();
    TESSERA_ASSIGN_OR_RETURN(void* memory, Take(input.extents[rank - 2] * input.extents[rank - 1]));
    Copy(input.extents, DataOf(input, workspace_), StridesOf(input), memory,
         is_column_major ? ColumnMajorStrides(input.extents) : RowMajorStrides(input.extents));
    return memory;
  }
  SolverProblem Problem(SolverCall call, void* matrix) const {
    return {.call = call,
            .is_double = is_double_,
            .batch = batch_,
            .m = m_,
            .n = n_,
            .k = k_,
            .matrix = AddressOf(matrix),
            .matrix_distance = m_ * n_,
            .least_extent = std::min(m_, n_)};
  }
  // The call, and behind it a look at whether each matrix has an answer.
  absl::Status Call(const SolverProblem& problem) {
    TESSERA_RETURN_IF_ERROR(CallThatAnswers(problem));
    MatrixCheckParameters p = Check(kNoAnswer, batch_);
    p.info = static_cast<const int*>(infos_);
    steps_.push_back(MakeLaunch("matrix_info", p, GridOf(batch_)));
    return absl::OkStatus();
  }
  // One that has an answer of each matrix.
  absl::Status CallThatAnswers(SolverProblem problem) {
    if (infos_ == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(infos_, pieces_.Take(batch_ * 4));
    }
    problem.info = AddressOf(infos_);
    steps_.push_back(problem);
    return absl::OkStatus();
  }
  MatrixCheckParameters Check(uint64_t code, int64_t size) const {
    MatrixCheckParameters p;
    p.fault = reinterpret_cast<unsigned long long*>(static_cast<uintptr_t>(workspace_.fault_word));
    p.size = size;
    p.code = code;
    return p;
  }
  void CheckElements(const char* kernel, uint64_t code, const void* elements, int64_t size) {
    MatrixCheckParameters p = Check(code, size);
    p.elements = elements;
    steps_.push_back(MakeLaunch(absl::StrCat(kernel, NameOf(first_.dtype)), p, GridOf(size)));
  }
  // A part of matrices [rows, columns]; strides of whole batches.
  void Part(MatrixPart part, int64_t rows, int64_t columns, const void* source, const Strides& from, void* destination,
            const Strides& to) {
    const size_t dims = head_.size();
    MatrixPartParameters p;
    p.source = source;
    p.destination = destination;
    p.part = part;
    p.rows = DivisorOf(rows);
    p.columns = DivisorOf(columns);
    p.source_row = from[dims];
    p.source_column = from[dims + 1];
    p.destination_row = to[dims];
    p.destination_column = to[dims + 1];
    p.batch = MakeNest<2>(head_, {HeadOf(from), HeadOf(to)});
    steps_.push_back(
        MakeLaunch(absl::StrCat("matrix_part_", NameOf(first_.dtype)), p, GridOf(batch_ * rows * columns)));
  }
  Strides HeadOf(const Strides& strides) const {
    return Strides(strides.begin(), strides.begin() + static_cast<ptrdiff_t>(head_.size()));
  }
  // Strides of a matrix that is packed behind others in the output's last dim, from element `start` on.
  Strides Packed(int64_t columns) const {
    Strides strides = HeadOf(call_.output_strides);
    const int64_t step = call_.output_strides.back();
    strides.push_back(columns * step);
    strides.push_back(step);
    return strides;
  }
  void* OutputAt(int64_t start) const {
    return static_cast<std::byte*>(call_.output) + start * call_.output_strides.back() * element_bytes_;
  }

  // L of a in row-major order is U of it in column-major order.
  absl::Status Cholesky() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    SolverProblem problem = Problem(SolverCall::kPotrf, a);
    problem.is_upper = !op_.upper;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    Part(op_.upper ? kMatrixUpper : kMatrixLower, n_, n_, a, RowMajorStrides(first_.extents), call_.output,
         call_.output_strides);
    return absl::OkStatus();
  }

  // a x = b is x^T a^T = b^T, and these are a and b as they lie.
  absl::Status SolveTriangle() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    TESSERA_ASSIGN_OR_RETURN(void* x, Bring(call_.inputs.back(), false));
    if (!op_.unit_diagonal) {
      TESSERA_ASSIGN_OR_RETURN(void* diagonal, Take(n_));
      Strides strides = HeadOf(RowMajorStrides(first_.extents));
      Shape extents = head_;
      extents.push_back(n_);
      strides.push_back(n_ + 1);
      Copy(extents, a, strides, diagonal, RowMajorStrides(extents));
      CheckElements("matrix_nonzero_", kNoAnswer, diagonal, batch_ * n_);
    }
    SolverProblem problem = Problem(SolverCall::kTrsm, a);
    problem.is_upper = !op_.upper;
    problem.is_transposed = op_.transposed;
    problem.has_unit_diagonal = op_.unit_diagonal;
    problem.right = AddressOf(x);
    problem.right_distance = n_ * k_;
    steps_.push_back(problem);
    Copy(call_.output_extents, x, RowMajorStrides(call_.output_extents), call_.output, call_.output_strides);
    return absl::OkStatus();
  }

  absl::Status Solve() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    void* x = nullptr;
    const bool is_inverse = op_.kind == LinalgKind::kInv;
    if (is_inverse) {
      TESSERA_ASSIGN_OR_RETURN(x, Take(n_ * n_));
      const Strides dense = RowMajorStrides(first_.extents);
      Part(kMatrixIdentity, n_, n_, nullptr, dense, x, dense);
    } else {
      TESSERA_ASSIGN_OR_RETURN(x, Bring(call_.inputs.back(), true));
    }
    TESSERA_ASSIGN_OR_RETURN(void* pivots, pieces_.Take(batch_ * n_ * 8));
    SolverProblem problem = Problem(SolverCall::kGetrf, a);
    problem.vector = AddressOf(pivots);
    problem.vector_distance = n_;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    problem.call = SolverCall::kGetrs;
    // The inverse of a^T, read the other way round, is that of a.
    problem.is_transposed = !is_inverse;
    problem.right = AddressOf(x);
    problem.right_distance = n_ * k_;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    const Shape& extents = call_.output_extents;
    Copy(extents, x, is_inverse ? RowMajorStrides(extents) : ColumnMajorStrides(extents), call_.output,
         call_.output_strides);
    return absl::OkStatus();
  }

  // Q takes the reflections' place, beside which there is room for as many columns as it has.
  absl::Status Qr() {
    const int64_t least = std::min(m_, n_), columns = op_.full ? m_ : least, wide = std::max(n_, columns);
    TESSERA_ASSIGN_OR_RETURN(void* a, Take(m_ * wide));
    TESSERA_ASSIGN_OR_RETURN(void* scales, Take(least));
    const Strides strides = ColumnMajorStrides(WithHead(m_, wide));
    Copy(first_.extents, DataOf(first_, workspace_), StridesOf(first_), a, strides);
    SolverProblem problem = Problem(SolverCall::kGeqrf, a);
    problem.matrix_distance = m_ * wide;
    problem.vector = AddressOf(scales);
    problem.vector_distance = least;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    Part(kMatrixUpper, columns, n_, a, strides, OutputAt(m_ * columns), Packed(n_));
    problem.call = SolverCall::kOrgqr;
    problem.n = least;
    problem.k = columns;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    Copy(WithHead(m_, columns), a, strides, OutputAt(0), Packed(columns));
    return absl::OkStatus();
  }

  absl::Status Eigh() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    TESSERA_ASSIGN_OR_RETURN(void* values, Take(n_));
    CheckElements("matrix_finite_", kNotFinite, a, batch_ * n_ * n_);
    SolverProblem problem = Problem(SolverCall::kSyevd, a);
    problem.is_upper = true;
    problem.has_vectors = op_.kind == LinalgKind::kEigh;
    problem.vector = AddressOf(values);
    problem.vector_distance = n_;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    const Shape row = WithHead(1, n_);
    Copy(row, values, RowMajorStrides(row), OutputAt(0), Packed(n_));
    if (!problem.has_vectors) return absl::OkStatus();
    Copy(first_.extents, a, ColumnMajorStrides(first_.extents), OutputAt(n_), Packed(n_));
    return absl::OkStatus();
  }

  // a in row-major order is a^T, and of a^T = u s v^T are a = v s u^T: u is the op's Vh as it lies.
  absl::Status Svd() {
    const int64_t least = std::min(m_, n_), left = op_.full ? m_ : least, right = op_.full ? n_ : least;
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    TESSERA_ASSIGN_OR_RETURN(void* values, Take(least));
    TESSERA_ASSIGN_OR_RETURN(void* u, Take(n_ * right));
    TESSERA_ASSIGN_OR_RETURN(void* v, Take(m_ * left));
    CheckElements("matrix_finite_", kNotFinite, a, batch_ * m_ * n_);
    SolverProblem problem = Problem(SolverCall::kGesvdj, a);
    std::swap(problem.m, problem.n);
    problem.k = least;
    problem.has_vectors = op_.kind == LinalgKind::kSvd;
    problem.is_full = op_.full;
    problem.vector = AddressOf(values);
    problem.vector_distance = least;
    problem.right = AddressOf(u);
    problem.right_distance = n_ * right;
    problem.other = AddressOf(v);
    problem.other_distance = m_ * left;
    TESSERA_RETURN_IF_ERROR(Call(problem));
    const Shape row = WithHead(1, least), of_u = WithHead(m_, left), of_vh = WithHead(right, n_);
    const int64_t start = problem.has_vectors ? m_ * left : 0;
    Copy(row, values, RowMajorStrides(row), OutputAt(start), Packed(least));
    if (!problem.has_vectors) return absl::OkStatus();
    Copy(of_u, v, ColumnMajorStrides(of_u), OutputAt(0), Packed(left));
    Copy(of_vh, u, RowMajorStrides(of_vh), OutputAt(start + least), Packed(n_));
    return absl::OkStatus();
  }

  // Factors a matrix, or its transpose, which may be singular.
  absl::StatusOr<MatrixPivotParameters> Factor(void* a) {
    const int64_t least = std::min(m_, n_);
    TESSERA_ASSIGN_OR_RETURN(void* pivots, pieces_.Take(batch_ * least * 8));
    SolverProblem problem = Problem(SolverCall::kGetrf, a);
    problem.vector = AddressOf(pivots);
    problem.vector_distance = least;
    TESSERA_RETURN_IF_ERROR(CallThatAnswers(problem));
    MatrixPivotParameters p;
    p.pivots = static_cast<const long long*>(pivots);
    p.count = DivisorOf(least);
    p.step = call_.output_strides.back();
    p.batch = MakeNest<1>(head_, {HeadOf(call_.output_strides)});
    return p;
  }

  absl::Status Lu() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, true));
    TESSERA_ASSIGN_OR_RETURN(MatrixPivotParameters p, Factor(a));
    Copy(first_.extents, a, ColumnMajorStrides(first_.extents), OutputAt(0), Packed(n_));
    p.destination = OutputAt(m_ * n_);
    steps_.push_back(
        MakeLaunch(absl::StrCat("matrix_pivots_", NameOf(first_.dtype)), p, GridOf(batch_ * p.count.value)));
    return absl::OkStatus();
  }

  absl::Status Slogdet() {
    TESSERA_ASSIGN_OR_RETURN(void* a, Bring(first_, false));
    TESSERA_ASSIGN_OR_RETURN(MatrixPivotParameters p, Factor(a));
    p.diagonal = a;
    p.diagonal_step = n_ + 1;
    p.matrix_distance = n_ * n_;
    p.destination = call_.output;
    steps_.push_back(MakeLaunch(absl::StrCat("matrix_slogdet_", NameOf(first_.dtype)), p, GridOf(batch_, 1)));
    return absl::OkStatus();
  }

  const LinalgOp& op_;
  const KernelCall& call_;
  const Workspace& workspace_;
  Pieces pieces_;
  const KernelInput& first_;
  Shape head_;
  int64_t batch_ = 1, m_ = 0, n_ = 0, k_ = 0;  // a is [m, n], b is [n, k]
  bool is_double_ = false;
  int64_t element_bytes_ = 4;
  void* infos_ = nullptr;
  Steps steps_;
};

absl::Status Validate(const LinalgOp& op, const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  std::vector<Shape> extents;
  for (const KernelInput& input : call.inputs) extents.push_back(input.extents);
  TESSERA_ASSIGN_OR_RETURN(const Shape output, LinalgOutput(op, extents));
  const DType dtype = call.inputs.front().dtype;
  if (output == call.output_extents && LinalgDType(op.kind, dtype) == call.output_dtype &&
      call.inputs.back().dtype == dtype) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("linalg: ", ToText(output), " of ", NameOf(dtype), " to ", ToText(call.output_extents)));
}

}  // namespace

absl::StatusOr<Steps> LaunchLinalg(const LinalgOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(op, call.output_dtype));
  TESSERA_RETURN_IF_ERROR(Validate(op, call));
  if (NumElements(call.output_extents) == 0) return Steps();
  if (NumElements(call.inputs.front().extents) == 0) return absl::UnimplementedError("linalg: matrices of no element");
  return Linalg(op, call, workspace).Make();
}

int64_t LinalgWorkspaceBytes(const LinalgOp& op, const KernelCall& call) {
  if (!HasGpuKernel(op, call.output_dtype).ok() || !Validate(op, call).ok()) return 0;
  return Linalg(op, call, {}).Bytes();
}

absl::Status LinalgFaultOf(const LinalgOp& op, int64_t fault_word) {
  const char* why = "singular matrix";
  if (op.kind == LinalgKind::kCholesky) why = "not positive definite";
  const bool iterates = op.kind == LinalgKind::kEigh || op.kind == LinalgKind::kEigvalsh ||
                        op.kind == LinalgKind::kSvd || op.kind == LinalgKind::kSvdVals;
  if (iterates || op.kind == LinalgKind::kQr) {
    why = fault_word == static_cast<int64_t>(kNotFinite) ? "did not converge: not all elements are finite"
                                                         : "did not converge";
  }
  return LinalgError(absl::StrCat(std::string(NameOf(op.kind)), ": ", why));
}

}  // namespace tessera::cuda
