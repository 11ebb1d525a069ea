#include "server/device/cuda/solvers.h"

#include <algorithm>

#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// The workspace that cuBLAS's documentation advises for an H100.
constexpr int64_t kBlasWorkspaceBytes = int64_t{32} << 20;
// Answers about rooms that are kept; docs/limits.md: max_cusolver_sizes
constexpr size_t kMaxRooms = 1024;

cudaDataType TypeOf(const SolverProblem& p) { return p.is_double ? CUDA_R_64F : CUDA_R_32F; }
cublasFillMode_t FillOf(const SolverProblem& p) { return p.is_upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER; }
cusolverEigMode_t ModeOf(const SolverProblem& p) {
  return p.has_vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
}
template <typename T>
T* At(uint64_t address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}
void* At(uint64_t address) { return At<void>(address); }
// Room of calls that count it in elements.
int64_t BytesOf(const SolverProblem& p, int elements) { return int64_t{elements} * (p.is_double ? 8 : 4); }

}  // namespace

absl::StatusOr<std::unique_ptr<Solvers>> Solvers::Open(const Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cusolver> library, Cusolver::Open());
  std::unique_ptr<Solvers> solvers(new Solvers(std::move(library)));
  const Cusolver& of = *solvers->library_;
  TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnCreate", of.DnCreate(&solvers->handle_)));
  TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnCreateParams", of.DnCreateParams(&solvers->params_)));
  TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnCreateGesvdjInfo", of.DnCreateGesvdjInfo(&solvers->svd_)));
  TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnSetDeterministicMode",
                                          of.DnSetDeterministicMode(solvers->handle_, CUSOLVER_DETERMINISTIC_RESULTS)));
  TESSERA_RETURN_IF_ERROR(Cusolver::Check("cublasCreate", of.BlasCreate_v2(&solvers->blas_)));
  return solvers;
}

Solvers::~Solvers() {
  if (svd_ != nullptr) library_->DnDestroyGesvdjInfo(svd_);
  if (params_ != nullptr) library_->DnDestroyParams(params_);
  if (handle_ != nullptr) library_->DnDestroy(handle_);
  if (blas_ != nullptr) library_->BlasDestroy_v2(blas_);
}

absl::StatusOr<Solvers::Room> Solvers::RoomFor(const SolverProblem& problem) {
  const Key key = {problem.call,    problem.is_double, problem.is_upper, problem.has_vectors,
                   problem.is_full, problem.m,         problem.n,        problem.k};
  if (const auto known = rooms_.find(key); known != rooms_.end()) return known->second;
  Room room;
  TESSERA_RETURN_IF_ERROR(AskRoom(problem, &room));
  if (rooms_.size() >= kMaxRooms) rooms_.clear();
  rooms_.emplace(key, room);
  return room;
}

absl::Status Solvers::AskRoom(const SolverProblem& p, Room* room) {
  size_t device = 0, host = 0;
  int elements = 0;
  const cudaDataType type = TypeOf(p);
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  absl::Status status = absl::OkStatus();
  switch (p.call) {
    case SolverCall::kPotrf:
      status = Cusolver::Check("cusolverDnXpotrf_bufferSize",
                               library_->DnXpotrf_bufferSize(handle_, params_, FillOf(p), p.n, type, At(p.matrix), p.n,
                                                             type, &device, &host));
      break;
    case SolverCall::kGetrf:
      status = Cusolver::Check(
          "cusolverDnXgetrf_bufferSize",
          library_->DnXgetrf_bufferSize(handle_, params_, p.m, p.n, type, At(p.matrix), p.m, type, &device, &host));
      break;
    case SolverCall::kGetrs: break;
    case SolverCall::kTrsm: device = static_cast<size_t>(kBlasWorkspaceBytes); break;
    case SolverCall::kGeqrf:
      status = Cusolver::Check("cusolverDnXgeqrf_bufferSize",
                               library_->DnXgeqrf_bufferSize(handle_, params_, p.m, p.n, type, At(p.matrix), p.m, type,
                                                             At(p.vector), type, &device, &host));
      break;
    case SolverCall::kOrgqr:
      status = Cusolver::Check("cusolverDnorgqr_bufferSize",
                               p.is_double ? library_->DnDorgqr_bufferSize(handle_, m, k, n, At<double>(p.matrix), m,
                                                                           At<double>(p.vector), &elements)
                                           : library_->DnSorgqr_bufferSize(handle_, m, k, n, At<float>(p.matrix), m,
                                                                           At<float>(p.vector), &elements));
      device = static_cast<size_t>(BytesOf(p, elements));
      break;
    case SolverCall::kSyevd:
      status =
          Cusolver::Check("cusolverDnXsyevd_bufferSize",
                          library_->DnXsyevd_bufferSize(handle_, params_, ModeOf(p), FillOf(p), p.n, type, At(p.matrix),
                                                        p.n, type, At(p.vector), type, &device, &host));
      break;
    case SolverCall::kGesvdj:
      status = AskSvdRoom(p, &elements);
      device = static_cast<size_t>(BytesOf(p, elements));
      break;
  }
  *room = {.device = static_cast<int64_t>(device), .host = static_cast<int64_t>(host)};
  return status;
}

absl::Status Solvers::SetStream(CUstream stream, CUdeviceptr workspace, int64_t bytes) {
  if (stream_ != stream) {
    TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnSetStream", library_->DnSetStream(handle_, stream)));
    TESSERA_RETURN_IF_ERROR(Cusolver::Check("cublasSetStream", library_->BlasSetStream_v2(blas_, stream)));
    stream_ = stream;
    workspace_ = 0;  // the call has set that of cuBLAS back to its own
  }
  if (bytes < kBlasWorkspaceBytes || workspace_ == workspace) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      Cusolver::Check("cublasSetWorkspace", library_->BlasSetWorkspace_v2(blas_, At(workspace), kBlasWorkspaceBytes)));
  workspace_ = workspace;
  return absl::OkStatus();
}

absl::Status Solvers::Enqueue(CUstream stream, const SolverProblem& problem, const Room& room, CUdeviceptr workspace,
                              std::byte* host) {
  TESSERA_RETURN_IF_ERROR(SetStream(stream, workspace, problem.call == SolverCall::kTrsm ? room.device : int64_t{0}));
  const uint64_t bytes = problem.is_double ? 8 : 4;
  const uint64_t of_vector = problem.call == SolverCall::kGetrf || problem.call == SolverCall::kGetrs ? 8 : bytes;
  SolverProblem one = problem;
  for (int64_t i = 0; i < problem.batch; ++i) {
    TESSERA_RETURN_IF_ERROR(RunOne(one, room, workspace, host));
    one.matrix += static_cast<uint64_t>(problem.matrix_distance) * bytes;
    one.vector += static_cast<uint64_t>(problem.vector_distance) * of_vector;
    one.right += static_cast<uint64_t>(problem.right_distance) * bytes;
    one.other += static_cast<uint64_t>(problem.other_distance) * bytes;
    one.info += sizeof(int);
  }
  return absl::OkStatus();
}

absl::Status Solvers::SolveTriangle(const SolverProblem& p) {
  const cublasOperation_t op = p.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasDiagType_t diagonal = p.has_unit_diagonal ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
  if (p.is_double) {
    const double one = 1;
    return Cusolver::Check("cublasDtrsm",
                           library_->BlasDtrsm_v2_64(blas_, CUBLAS_SIDE_RIGHT, FillOf(p), op, diagonal, p.k, p.n, &one,
                                                     At<double>(p.matrix), p.n, At<double>(p.right), p.k));
  }
  const float one = 1;
  return Cusolver::Check("cublasStrsm",
                         library_->BlasStrsm_v2_64(blas_, CUBLAS_SIDE_RIGHT, FillOf(p), op, diagonal, p.k, p.n, &one,
                                                   At<float>(p.matrix), p.n, At<float>(p.right), p.k));
}

absl::Status Solvers::AskSvdRoom(const SolverProblem& p, int* elements) {
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), is_economic = p.is_full ? 0 : 1;
  const cusolverStatus_t asked =
      p.is_double ? library_->DnDgesvdj_bufferSize(handle_, ModeOf(p), is_economic, m, n, At<double>(p.matrix), m,
                                                   At<double>(p.vector), At<double>(p.right), m, At<double>(p.other), n,
                                                   elements, svd_)
                  : library_->DnSgesvdj_bufferSize(handle_, ModeOf(p), is_economic, m, n, At<float>(p.matrix), m,
                                                   At<float>(p.vector), At<float>(p.right), m, At<float>(p.other), n,
                                                   elements, svd_);
  return Cusolver::Check("cusolverDngesvdj_bufferSize", asked);
}

absl::Status Solvers::FindSvd(const SolverProblem& p, CUdeviceptr workspace, int elements) {
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), is_economic = p.is_full ? 0 : 1;
  const cusolverStatus_t found =
      p.is_double ? library_->DnDgesvdj(handle_, ModeOf(p), is_economic, m, n, At<double>(p.matrix), m,
                                        At<double>(p.vector), At<double>(p.right), m, At<double>(p.other), n,
                                        At<double>(workspace), elements, At<int>(p.info), svd_)
                  : library_->DnSgesvdj(handle_, ModeOf(p), is_economic, m, n, At<float>(p.matrix), m,
                                        At<float>(p.vector), At<float>(p.right), m, At<float>(p.other), n,
                                        At<float>(workspace), elements, At<int>(p.info), svd_);
  return Cusolver::Check("cusolverDngesvdj", found);
}

absl::Status Solvers::RunOne(const SolverProblem& p, const Room& room, CUdeviceptr workspace, std::byte* host) {
  const cudaDataType type = TypeOf(p);
  int* info = At<int>(p.info);
  void* device = At(workspace);
  const auto device_bytes = static_cast<size_t>(room.device), host_bytes = static_cast<size_t>(room.host);
  const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
  const int elements = static_cast<int>(room.device / (p.is_double ? 8 : 4));
  switch (p.call) {
    case SolverCall::kPotrf:
      return Cusolver::Check("cusolverDnXpotrf",
                             library_->DnXpotrf(handle_, params_, FillOf(p), p.n, type, At(p.matrix), p.n, type, device,
                                                device_bytes, host, host_bytes, info));
    case SolverCall::kGetrf:
      return Cusolver::Check("cusolverDnXgetrf", library_->DnXgetrf(handle_, params_, p.m, p.n, type, At(p.matrix), p.m,
                                                                    At<int64_t>(p.vector), type, device, device_bytes,
                                                                    host, host_bytes, info));
    case SolverCall::kGetrs:
      return Cusolver::Check(
          "cusolverDnXgetrs",
          library_->DnXgetrs(handle_, params_, p.is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, p.n, p.k, type,
                             At(p.matrix), p.n, At<int64_t>(p.vector), type, At(p.right), p.n, info));
    case SolverCall::kTrsm: return SolveTriangle(p);
    case SolverCall::kGeqrf:
      return Cusolver::Check("cusolverDnXgeqrf",
                             library_->DnXgeqrf(handle_, params_, p.m, p.n, type, At(p.matrix), p.m, type, At(p.vector),
                                                type, device, device_bytes, host, host_bytes, info));
    case SolverCall::kOrgqr:
      return Cusolver::Check("cusolverDnorgqr",
                             p.is_double
                                 ? library_->DnDorgqr(handle_, m, k, n, At<double>(p.matrix), m, At<double>(p.vector),
                                                      At<double>(workspace), elements, info)
                                 : library_->DnSorgqr(handle_, m, k, n, At<float>(p.matrix), m, At<float>(p.vector),
                                                      At<float>(workspace), elements, info));
    case SolverCall::kSyevd:
      return Cusolver::Check("cusolverDnXsyevd", library_->DnXsyevd(handle_, params_, ModeOf(p), FillOf(p), p.n, type,
                                                                    At(p.matrix), p.n, type, At(p.vector), type, device,
                                                                    device_bytes, host, host_bytes, info));
    case SolverCall::kGesvdj: return FindSvd(p, workspace, elements);
  }
  return absl::InternalError("cuda: an unknown call of cuSOLVER");
}

}  // namespace tessera::cuda
