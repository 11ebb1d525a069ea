#pragma once

// Launcher: work as launches on a stream. It has the kernels of the image, loaded all at the start.
//
// Common maps are in the image (kernels/cuda/common_maps.h; TESSERA_COMMON_MAPS=none leaves them out). Other maps, and
// rows of maps and reductions (kernels/cuda/row_program.h), are generated and compiled by NVRTC when they are first
// used (programs.h), and kept on disk. TESSERA_NVRTC=PATH says where NVRTC is. Products of matrices are
// cuBLASLt's where it is there (products.h; TESSERA_CUBLASLT=PATH), else the image's. Attentions and convolutions of
// some size are cuDNN's where it is there and takes them (dnn_plans.h; TESSERA_CUDNN=PATH), else the image's; it is
// opened when the first comes. So are Fourier transforms cuFFT's (transforms.h; TESSERA_CUFFT=PATH) and functions of
// large matrices cuSOLVER's (solvers.h; TESSERA_CUSOLVER=PATH, TESSERA_CUBLAS=PATH), else nobody's here.
//
// Law: nothing here waits for the device. An error in the data (a bad index) is written to a fault word and found when
// the work has run. The image's kernels are loaded at the start. Calls that may wait for all that was enqueued in the
// context are made in a turn that is clear (device_loop.h): to load a compiled map, all of the libraries',
// and those that take memory. In another turn there are launches of what is loaded, fills, and copies with the
// GPU's memory on one side: a copy from host memory to host memory returns when it is done, so a kernel copies there.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/image.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_source.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/dnn_plans.h"
#include "server/device/cuda/graphs.h"
#include "server/device/cuda/library_thread.h"
#include "server/device/cuda/prepared.h"
#include "server/device/cuda/products.h"
#include "server/device/cuda/programs.h"
#include "server/device/cuda/solvers.h"
#include "server/device/cuda/transforms.h"
#include "server/device/device.h"

namespace tessera::cuda {

// Workspaces of one stream: its work runs in order, and uses one after the other the same memory.
struct StreamWorkspace {
  std::shared_ptr<DeviceMemory> memory;
  std::shared_ptr<DeviceMemory> products;  // of kProductWorkspaceBytes
  std::shared_ptr<DeviceMemory> library;   // as much as a call of cuDNN or cuFFT wanted so far
};

// Fewer products of two numbers than these are computed by the image's kernels: to make a plan takes the library up to
// a second, once for each shape. TESSERA_CUDNN_LEAST sets another number. docs/limits.md: min_cudnn_multiplications
inline constexpr double kLeastDnnMultiplications = 1 << 24;

// Matrices with an extent below that are the host's: a library takes longer to begin. TESSERA_CUSOLVER_LEAST sets
// another number. docs/limits.md: min_cusolver_extent
inline constexpr int64_t kLeastSolverExtent = 128;

class Launcher {
 public:
  static absl::StatusOr<std::unique_ptr<Launcher>> Make(const Gpu& gpu);
  ~Launcher();

  // A launch's fault word, to be looked at when it has run: null where nothing can be wrong.
  struct Fault {
    int64_t* word = nullptr;
    KernelCall call = {};  // that it is of
  };
  // The other thread that calls libraries gets its turns so; else it takes them. It ends with StopThread.
  void SetInTurn(LibraryThread::InTurn in_turn) { library_thread_.SetInTurn(std::move(in_turn)); }
  void StopThread() { library_thread_.Stop(); }
  // Takes the memory that products on the stream will want, before it is given to others.
  absl::Status ReserveForProducts(StreamWorkspace& workspace);
  // Arguments of a call of Enqueue, and its results.
  enum class Wants : uint8_t { kNothing, kClear, kRoom, kMade };
  struct Turn {
    StreamWorkspace& workspace;
    bool is_clear = false;  // no stream of the device stands still
    uint64_t room = 0;      // for so many operations
    Lane lane = Lane::kBatch;
    // Not kNothing: the work was not enqueued, and wants a turn that is clear, has room for `operations`, or comes when
    // `made` is true: another thread makes something.
    Wants wants = Wants::kNothing;
    const std::atomic<bool>* made = nullptr;
    std::shared_ptr<Making> making = nullptr;  // for this work; that of the turn before, if it was the same work's
    uint64_t operations = 0;                   // that were enqueued
    size_t joined = 0;  // works behind the first one that were enqueued with it, or failed with it
    // Workspaces that were too small, to be let go of behind the work.
    std::shared_ptr<DeviceMemory> replaced = nullptr;
    std::vector<std::shared_ptr<DeviceMemory>> replaced_of_library = {};
    std::vector<std::shared_ptr<std::byte[]>> of_host = {};  // that libraries use until the work has run
    std::vector<Fault> faults = {};
    // Not null: the libraries' thread enqueues one of the steps, and `rest` comes behind it, by EnqueueRest, when it is
    // made.
    std::shared_ptr<Making> beside = nullptr;
    std::vector<Step> rest = {};
  };
  // Enqueues the work. Unimplemented where there is no kernel for it: nothing but the workspace and the outputs was
  // written then, and nobody counted.
  absl::Status Enqueue(CUstream stream, const DeviceWork& work, Turn& turn);
  // Enqueues the rest of work of which the libraries' thread has enqueued a step. The turn may want something, or have
  // a rest, as that of Enqueue. Unimplemented likewise.
  absl::Status EnqueueRest(CUstream stream, const Making& beside, const std::vector<Step>& rest, Turn& turn);
  // Enqueues a product of matrices and the sum with a bias that follows it as one call of cuBLASLt, where both are that
  // (kernels/cuda/lt_epilogue.h) and the product's algorithm adds a bias: the bits are those of one after the other.
  // False where not: each is to be enqueued by itself, unless the turn wants something. Neither of the two leaves a
  // fault.
  absl::StatusOr<bool> EnqueueWithBias(CUstream stream, const KernelWork& product, const KernelWork& next, Turn& turn);
  // Likewise of an attention and its logarithms.
  absl::StatusOr<bool> EnqueueWithLogarithms(CUstream stream, const KernelWork& attention, const KernelWork& next,
                                             Turn& turn);
  // Enqueues as many of the kernels as are one row program (kernels/cuda/row_program.h), from the first one on:
  // turn.joined says how many follow it. False where it is none, or can't be compiled: the first is to be enqueued by
  // itself, unless the turn wants something. None of them leaves a fault.
  absl::StatusOr<bool> EnqueueRows(CUstream stream, absl::Span<const KernelWork* const> kernels, Turn& turn);
  // Enqueues as many of the kernels as are prepared launches, from the first one on, at least kMinGraphLaunches of
  // them: by one call of the driver where the same kernels have come with the same addresses before (graphs.h), else
  // one by one. turn.joined says how many follow the first. False where they are fewer, or the turn isn't clear.
  absl::StatusOr<bool> EnqueuePrepared(CUstream stream, absl::Span<const KernelWork* const> kernels, Turn& turn);
  // Whether the kernel may be the first of these, as far as it alone says.
  bool MayBeginPrepared(const KernelWork& kernel) {
    return graphs_.has_value() && prepared_calls_.FindKernels(kernel) != nullptr;
  }
  // Takes the fault's word back. OK where nothing was wrong.
  absl::Status Finish(Fault& fault);
  // Why the first program that has no kernel has none.
  const absl::Status& program_error() const { return program_error_; }
  // Why the first product that the image's kernels had to compute was none of cuBLASLt's.
  const absl::Status& product_error() const { return product_error_; }
  // Likewise for attentions and convolutions, and cuDNN.
  const absl::Status& dnn_error() const { return dnn_error_; }
  // Why the first Fourier transform that cuFFT didn't compute was none of its.
  const absl::Status& transform_error() const { return transform_error_; }
  // Likewise of functions of matrices, and cuSOLVER.
  const absl::Status& solver_error() const { return solver_error_; }

 private:
  static constexpr uint32_t kDefaultSharedBytes = 48 << 10;  // more is asked for by an attribute of the kernel

  explicit Launcher(const Gpu& gpu) : gpu_(gpu), words_(gpu, 64), library_thread_(gpu) {}
  absl::Status LoadImage();
  absl::Status LoadImage(const ImagePart& part);
  absl::Status Copy(CUstream stream, const CopyWork& copy, Turn& turn);
  absl::Status Reduce(CUstream stream, const ReduceWork& reduce, Turn& turn);
  absl::Status Kernel(CUstream stream, const KernelWork& kernel, Turn& turn);
  // Whether the workspace is there, or may be taken now.
  static bool MayReserve(int64_t bytes, Turn& turn);
  absl::StatusOr<Workspace> Reserve(CUstream stream, int64_t bytes, Turn& turn);
  absl::Status Run(CUstream stream, const std::vector<Step>& steps, Turn& turn);
  absl::Status Run(CUstream stream, const Launch& launch);
  absl::Status Run(CUstream stream, const Launch& launch, CUkernel kernel);
  // Enqueues the steps of a call, if the turn takes them; else false.
  absl::StatusOr<bool> RunPrepared(CUstream stream, const KernelCall& call, PreparedCall& prepared,
                                   const Workspace& workspace, Turn& turn);
  static void CountReceived(const KernelWork& kernel) {
    for (const ReceivedCount& count : kernel.received) *count.received_bytes += count.bytes;
  }
  absl::Status Run(CUstream stream, const PreparedCall::Enqueued& one) {
    return one.fill != nullptr ? Run(stream, *one.fill) : Run(stream, *one.launch, one.kernel);
  }
  // Gives the call's steps these addresses. False where a fault word was wanted that there is no memory for.
  bool SetSteps(const KernelWork& kernel, PreparedCall& prepared, const Workspace& workspace, Turn& turn);
  absl::StatusOr<bool> RunAdmitted(CUstream stream, const std::vector<Step>& steps, Turn& turn);
  // Whether the turn takes the steps; else it says what they want. Kernels that they launch are compiled now, if they
  // aren't yet.
  absl::StatusOr<bool> Admit(const std::vector<Step>& steps, Turn& turn);
  struct Wanted {
    uint64_t operations = 0;
    bool needs_clear = false;
  };
  // Adds what the steps want in such a turn.
  absl::Status Add(const std::vector<Step>& steps, Turn& turn, Wanted& wanted);
  // Likewise, but for the operations, which they return, where they are known before.
  absl::StatusOr<uint64_t> AddOfDnn(const DnnProblem& dnn, Turn& turn, Wanted& wanted);
  absl::StatusOr<uint64_t> AddOfTransform(const FourierProblem& transform, Turn& turn, Wanted& wanted);
  absl::StatusOr<uint64_t> AddOfSolver(const SolverProblem& solver, Turn& turn, Wanted& wanted);
  // Whether the turn waits for the libraries' thread: it makes something, or has begun to make what is missing.
  struct Missing {
    absl::FunctionRef<bool()> is_made;
    absl::FunctionRef<absl::AnyInvocable<absl::Status()>()> making;
  };
  absl::StatusOr<bool> AwaitsLibrary(const Missing& missing, Turn& turn);
  // Likewise: nothing where the launch, and what stands in for it, call nothing but cuLaunchKernel.
  void AddLoads(const Launch& launch, Turn& turn, Wanted& wanted);
  absl::StatusOr<CUkernel> KernelOf(const Launch& launch);
  // The same for a program that may fail to load without anybody being told.
  absl::StatusOr<CUkernel> LoadedProgram(const MapProgram& source);
  absl::StatusOr<CUkernel> Load(const std::string& compiled, const std::string& entry);
  absl::Status Run(CUstream stream, const MatmulProblem& problem, StreamWorkspace& workspace);
  absl::Status Run(CUstream stream, const Fill& fill);
  absl::Status Run(CUstream stream, const DnnProblem& problem, Turn& turn);
  // Whether cuDNN is asked for it.
  bool IsForDnn(const DnnProblem& problem);
  // In a turn that is clear, as all of these.
  absl::StatusOr<DnnPlans::Parts> PrepareByDnn(const DnnProblem& problem);
  // The same by the libraries' thread. PrepareByDnn and PrepareTransforms say afterwards what went wrong.
  absl::StatusOr<DnnPlans::Parts> MakeDnnPlans(const DnnProblem& problem);
  absl::StatusOr<Transforms::Parts> MakeTransforms(const FourierProblem& problem);
  absl::Status Run(CUstream stream, const FourierProblem& problem, Turn& turn);
  // Unimplemented where cuFFT isn't there, or doesn't take it.
  absl::StatusOr<Transforms::Parts> PrepareTransforms(const FourierProblem& problem);
  absl::Status Run(CUstream stream, const SolverProblem& problem, Turn& turn);
  // Unimplemented where the host is to compute it.
  absl::Status StatusOfSolver(absl::Status status);
  // Unimplemented where cuSOLVER isn't there, or says so.
  absl::StatusOr<Solvers::Room> RoomOfSolver(const SolverProblem& problem);
  // That the stream's memory for libraries has so many bytes.
  absl::Status ReserveForLibrary(int64_t bytes, Turn& turn);

  const Gpu gpu_;
  PinnedSlots words_;
  std::vector<CUlibrary> image_, libraries_;              // the second of programs
  std::map<std::string, CUkernel, std::less<>> kernels_;  // of the image, by entry
  std::map<CUkernel, uint32_t> shared_bytes_;             // that a kernel may have, where they are more than by default
  std::optional<Programs> programs_;                      // from Make on
  RowLaunches row_launches_;
  PreparedCalls prepared_calls_;
  std::optional<LaunchGraphs> graphs_;     // none: the driver has no graphs
  std::vector<PreparedCall*> run_;         // at hand
  std::vector<LaunchGraphs::Call> calls_;  // likewise
  absl::Status program_error_;
  absl::StatusOr<std::unique_ptr<Products>> products_ = absl::UnavailableError("");
  absl::Status product_error_;
  // Nothing: it wasn't asked for yet.
  std::optional<absl::StatusOr<std::unique_ptr<DnnPlans>>> dnn_;
  double least_dnn_multiplications_ = kLeastDnnMultiplications;
  absl::Status dnn_error_;
  // Likewise.
  std::optional<absl::StatusOr<std::unique_ptr<Transforms>>> transforms_;
  absl::Status transform_error_;
  std::optional<absl::StatusOr<std::unique_ptr<Solvers>>> solvers_;
  int64_t least_solver_extent_ = kLeastSolverExtent;
  absl::Status solver_error_;
  LibraryThread library_thread_;  // for dnn_, transforms_ and solvers_, which are its own until it is free
};

}  // namespace tessera::cuda
