#pragma once

// Solvers: functions of matrices by cuSOLVER and cuBLAS, on streams.
//
//   auto solvers = Solvers::Open(gpu);
//   TESSERA_ASSIGN_OR_RETURN(Solvers::Room room, (*solvers)->RoomFor(problem));
//   status = (*solvers)->Enqueue(stream, problem, room, workspace, host);
//
// Law: the same bits each time, on one kind of GPU and with one version of the library. cuSOLVER is in its mode of
// deterministic results; a triangle is solved for with a workspace of the stream's own, which cuBLAS asks for where
// several streams have the same bits.
//
// Every call may load kernels, or wait for the stream (eigenvalues do). Where a library says no, or fails, the status
// is Unimplemented: nothing but the workspace may have been written.

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/solver_problem.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/cusolver.h"

namespace tessera::cuda {

// Matrices whose calls one thread enqueues with all else: each is some tens of kernels, and a driver's queue has room
// for about a thousand. docs/limits.md: max_gpu_solver_batch
inline constexpr int64_t kMaxSolverBatch = 8;

class Solvers {
 public:
  // With the GPU's context current, as for every call. As Cusolver::Open says it where there is no library.
  static absl::StatusOr<std::unique_ptr<Solvers>> Open(const Gpu& gpu);
  ~Solvers();
  Solvers(const Solvers&) = delete;
  Solvers& operator=(const Solvers&) = delete;

  // Bytes that a call takes, on the device and on the host.
  struct Room {
    int64_t device = 0, host = 0;
  };
  absl::StatusOr<Room> RoomFor(const SolverProblem& problem);
  // Whether Enqueue takes as long as what it computes: it waits for the stream, or for room in its queue.
  static bool TakesLong(const SolverProblem& problem) {
    return problem.call == SolverCall::kSyevd || problem.call == SolverCall::kGesvdj || problem.batch > kMaxSolverBatch;
  }
  // `host` stays until the stream has run it.
  absl::Status Enqueue(CUstream stream, const SolverProblem& problem, const Room& room, CUdeviceptr workspace,
                       std::byte* host);

 private:
  explicit Solvers(std::unique_ptr<const Cusolver> library) : library_(std::move(library)) {}
  absl::Status SetStream(CUstream stream, CUdeviceptr workspace, int64_t bytes);
  absl::Status RunOne(const SolverProblem& problem, const Room& room, CUdeviceptr workspace, std::byte* host);
  absl::Status AskRoom(const SolverProblem& problem, Room* room);
  absl::Status SolveTriangle(const SolverProblem& problem);
  absl::Status AskSvdRoom(const SolverProblem& problem, int* elements);
  absl::Status FindSvd(const SolverProblem& problem, CUdeviceptr workspace, int elements);

  const std::unique_ptr<const Cusolver> library_;
  cusolverDnHandle_t handle_ = nullptr;
  cusolverDnParams_t params_ = nullptr;
  gesvdjInfo_t svd_ = nullptr;  // the library's own tolerance and number of sweeps
  cublasHandle_t blas_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr workspace_ = 0;
  // Rooms by all that decides their size.
  using Key = std::tuple<SolverCall, bool, bool, bool, bool, int64_t, int64_t, int64_t>;
  std::map<Key, Room> rooms_;
};

}  // namespace tessera::cuda
