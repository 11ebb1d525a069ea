#include "server/device/cuda/launcher.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/cuda/lt_epilogue.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kZeroBytes = 256;                       // at the start of a workspace, for what counts as zeros
constexpr int64_t kMinWorkspaceBytes = int64_t{2} << 20;  // docs/limits.md: gpu_workspace_bytes

// Both sides in one piece: the driver's own copy is the fastest.
bool IsContiguous(const CopyWork& copy) {
  const Strides row_major = RowMajorStrides(copy.extents);
  for (size_t d = 0; d < copy.extents.size(); ++d) {
    if (copy.extents[d] == 1) continue;
    if (copy.source_strides[d] != row_major[d] || copy.destination_strides[d] != row_major[d]) return false;
  }
  return true;
}

int64_t WantedWorkspaceBytes(int64_t bytes) { return std::max(kMinWorkspaceBytes, kZeroBytes + bytes); }

// NVRTC's target: the image's newest that the GPU is sure to run, as a cubin; else PTX.
absl::StatusOr<std::string> ArchitectureOf(const Gpu& gpu) {
  int major = 0, minor = 0;
  for (const auto& [value, attribute] : {std::pair(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                                         std::pair(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)}) {
    TESSERA_RETURN_IF_ERROR(
        gpu.driver->Check("cuDeviceGetAttribute", gpu.driver->DeviceGetAttribute(value, attribute, gpu.device)));
  }
  switch (major * 10 + minor) {
    case 80: return "sm_80";
    case 90: return "sm_90a";
    case 100: return "sm_100";
    default: return "compute_80";
  }
}

// The folder of compiled maps, shared by the workers of a user; empty where there is no home.
std::string CacheFolder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr) return StrCat(cache, "/tessera/maps");
  if (const char* home = std::getenv("HOME"); home != nullptr) return StrCat(home, "/.cache/tessera/maps");
  return "";
}

void Count(const CopyWork& copy) {
  if (copy.received_bytes != nullptr) *copy.received_bytes += NumElements(copy.extents) * copy.element_bytes;
}
void Count(const ReduceWork& reduce) {
  const int64_t elements = NumElements(reduce.extents);
  for (int64_t* received : reduce.received_bytes) {
    if (received != nullptr) *received += elements * SizeBytes(reduce.dtype);
  }
  for (int64_t* pushed : reduce.pushed_bytes) {
    if (pushed != nullptr) *pushed += elements * SizeBytes(reduce.destination_dtype);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Make(const Gpu& gpu) {
  std::unique_ptr<Launcher> launcher(new Launcher(gpu));
  TESSERA_RETURN_IF_ERROR(launcher->LoadImage());
  TESSERA_ASSIGN_OR_RETURN(std::string architecture, ArchitectureOf(gpu));
  MapCacheOptions maps = {.folder = CacheFolder()};
  if (const char* nvrtc = std::getenv("TESSERA_NVRTC"); nvrtc != nullptr) maps.libraries = {nvrtc};
  launcher->programs_.emplace(std::move(maps), std::move(architecture));
  if (gpu.driver->HasGraphs()) launcher->graphs_.emplace(gpu);
  launcher->products_ = Products::Open(gpu, CublasLtLibraries());
  if (const char* least = std::getenv("TESSERA_CUDNN_LEAST"); least != nullptr) {
    launcher->least_dnn_multiplications_ = std::atof(least);
  }
  if (const char* least = std::getenv("TESSERA_CUSOLVER_LEAST"); least != nullptr) {
    launcher->least_solver_extent_ = std::atoll(least);
  }
  return launcher;
}

Launcher::~Launcher() {
  gpu_.Enter().IgnoreError();
  graphs_.reset();
  for (CUlibrary library : image_) gpu_.driver->LibraryUnload(library);
  for (CUlibrary library : libraries_) gpu_.driver->LibraryUnload(library);
}

absl::Status Launcher::Enqueue(CUstream stream, const DeviceWork& work, Turn& turn) {
  if (const auto* copy = std::get_if<CopyWork>(&work)) return Copy(stream, *copy, turn);
  if (const auto* reduce = std::get_if<ReduceWork>(&work)) return Reduce(stream, *reduce, turn);
  return Kernel(stream, std::get<KernelWork>(work), turn);
}

absl::Status Launcher::Copy(CUstream stream, const CopyWork& copy, Turn& turn) {
  const int64_t bytes = NumElements(copy.extents) * copy.element_bytes;
  if (bytes == 0) return absl::OkStatus();
  const bool has_device_side =
      gpu_.use->IsDeviceMemory(AddressOf(copy.source)) || gpu_.use->IsDeviceMemory(AddressOf(copy.destination));
  if (IsContiguous(copy) && has_device_side) {
    turn.operations = 1;
    TESSERA_RETURN_IF_ERROR(gpu_.driver->Check(
        "cuMemcpyAsync", gpu_.driver->MemcpyAsync(AddressOf(copy.destination), AddressOf(copy.source),
                                                  static_cast<size_t>(bytes), stream)));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps,
                             LaunchCopy(copy.extents, copy.element_bytes, copy.source, copy.source_strides,
                                        copy.destination, copy.destination_strides));
    TESSERA_ASSIGN_OR_RETURN(const bool may_run, Admit(steps, turn));
    if (!may_run) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(Run(stream, steps, turn));
  }
  Count(copy);
  return absl::OkStatus();
}

bool Launcher::MayReserve(int64_t bytes, Turn& turn) {
  const std::shared_ptr<DeviceMemory>& memory = turn.workspace.memory;
  const bool is_there = memory != nullptr && memory->bytes() >= WantedWorkspaceBytes(bytes);
  if (!is_there && !turn.is_clear) turn.wants = Wants::kClear;
  return is_there || turn.is_clear;
}

absl::StatusOr<Workspace> Launcher::Reserve(CUstream stream, int64_t bytes, Turn& turn) {
  StreamWorkspace& workspace = turn.workspace;
  const int64_t wanted = WantedWorkspaceBytes(bytes);
  if (workspace.memory == nullptr || workspace.memory->bytes() < wanted) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> larger, MakeMemory(gpu_, wanted, Sharing::kPrivate));
    TESSERA_RETURN_IF_ERROR(gpu_.driver->Check(
        "cuMemsetD8Async", gpu_.driver->MemsetD8Async(AddressOf(larger->data()), 0, kZeroBytes, stream)));
    turn.replaced = std::exchange(workspace.memory, std::move(larger));
  }
  const CUdeviceptr base = AddressOf(workspace.memory->data());
  return Workspace{
      .address = base + kZeroBytes, .bytes = workspace.memory->bytes() - kZeroBytes, .fault_word = 0, .zeros = base};
}

absl::Status Launcher::Reduce(CUstream stream, const ReduceWork& reduce, Turn& turn) {
  const int64_t bytes = ReduceTermsWorkspaceBytes(reduce.dtype, reduce.extents, reduce.terms, reduce.destinations);
  if (!MayReserve(bytes, turn)) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Workspace reserved, Reserve(stream, bytes, turn));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps,
                           LaunchReduceTerms(reduce.op, reduce.dtype, reduce.extents, reduce.terms, reduce.term_count,
                                             reduce.destination_dtype, reduce.destinations, reserved));
  TESSERA_ASSIGN_OR_RETURN(const bool may_run, Admit(steps, turn));
  if (!may_run) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(Run(stream, steps, turn));
  Count(reduce);
  return absl::OkStatus();
}

absl::Status Launcher::Kernel(CUstream stream, const KernelWork& kernel, Turn& turn) {
  PreparedCall* const prepared = prepared_calls_.Find(kernel);
  const int64_t bytes = prepared != nullptr ? prepared->workspace_bytes() : WorkspaceBytes(kernel.call);
  if (!MayReserve(bytes, turn)) return absl::OkStatus();
  const bool may_fault = MayFault(*kernel.call.op);
  if (may_fault && !words_.has_free() && !turn.is_clear) {
    turn.wants = Wants::kClear;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(Workspace reserved, Reserve(stream, bytes, turn));
  if (may_fault) {
    TESSERA_ASSIGN_OR_RETURN(std::byte * word, words_.Take());
    reserved.fault_word = AddressOf(word);
    turn.faults.push_back({.word = reinterpret_cast<int64_t*>(word), .call = kernel.call});
  }
  bool has_run = false;
  if (prepared != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(has_run, RunPrepared(stream, kernel.call, *prepared, reserved, turn));
  } else {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps, LaunchKernel(kernel.call, reserved));
    TESSERA_ASSIGN_OR_RETURN(has_run, RunAdmitted(stream, steps, turn));
  }
  if (!has_run && may_fault) {
    absl::Status none = Finish(turn.faults.back());
    turn.faults.pop_back();
    return none;
  }
  if (has_run) CountReceived(kernel);
  return absl::OkStatus();
}

absl::StatusOr<bool> Launcher::RunAdmitted(CUstream stream, const std::vector<Step>& steps, Turn& turn) {
  TESSERA_ASSIGN_OR_RETURN(const bool may_run, Admit(steps, turn));
  if (!may_run) return false;
  TESSERA_RETURN_IF_ERROR(Run(stream, steps, turn));
  return true;
}

absl::StatusOr<bool> Launcher::RunPrepared(CUstream stream, const KernelCall& call, PreparedCall& prepared,
                                           const Workspace& workspace, Turn& turn) {
  const std::vector<Step>& steps = prepared.StepsOf(call, workspace);
  if (prepared.launches().empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool has_run, RunAdmitted(stream, steps, turn));
    if (has_run) prepared.Resolve([this](const Launch& launch) { return KernelOf(launch); });
    return has_run;
  }
  turn.operations = prepared.launches().size();
  if (turn.operations > turn.room) {
    turn.wants = Wants::kRoom;
    return false;
  }
  for (const PreparedCall::Enqueued& one : prepared.launches()) TESSERA_RETURN_IF_ERROR(Run(stream, one));
  return true;
}

absl::StatusOr<bool> Launcher::EnqueueWithBias(CUstream stream, const KernelWork& product, const KernelWork& next,
                                               Turn& turn) {
  if (!products_.ok()) return false;
  const std::optional<BiasedProduct> biased = JoinBias(product.call, next.call);
  if (!biased.has_value()) return false;
  if (!turn.is_clear) {
    turn.wants = Wants::kClear;
    return false;
  }
  // As much as either needs: the workspace isn't replaced again where the product is enqueued by itself.
  const int64_t bytes = std::max(WorkspaceBytes(product.call), WorkspaceBytes(biased->product));
  TESSERA_ASSIGN_OR_RETURN(const Workspace reserved, Reserve(stream, bytes, turn));
  absl::StatusOr<std::vector<Step>> steps = LaunchKernel(biased->product, reserved);
  const MatmulProblem* problem = steps.ok() ? AddBias(*biased, *steps) : nullptr;
  if (problem == nullptr || !(*products_)->AddsBias(LtProblemsOf(*problem)[0].shape)) return false;
  TESSERA_ASSIGN_OR_RETURN(const bool may_run, Admit(*steps, turn));
  if (!may_run) return false;
  absl::Status status = Run(stream, *steps, turn);
  if (absl::IsUnimplemented(status)) return false;
  TESSERA_RETURN_IF_ERROR(status);
  CountReceived(product);
  CountReceived(next);
  return true;
}

absl::StatusOr<bool> Launcher::EnqueueWithLogarithms(CUstream stream, const KernelWork& attention,
                                                     const KernelWork& next, Turn& turn) {
  const std::optional<std::vector<Step>> steps = LaunchAttentionAndLogarithms(attention.call, next.call);
  if (!steps.has_value()) return false;
  TESSERA_ASSIGN_OR_RETURN(const bool has_run, RunAdmitted(stream, *steps, turn));
  if (!has_run) return false;
  CountReceived(attention);
  CountReceived(next);
  return true;
}

absl::StatusOr<bool> Launcher::EnqueueRows(CUstream stream, absl::Span<const KernelWork* const> kernels, Turn& turn) {
  if (!programs_->has_compiler()) return false;
  std::vector<const KernelCall*> calls;
  for (const KernelWork* kernel : kernels) calls.push_back(&kernel->call);
  const std::optional<RowProgram> program = MakeRowProgram(calls);
  if (!program.has_value()) return false;
  const absl::StatusOr<Launch> launch = row_launches_.LaunchOf(*program);
  if (!launch.ok()) return false;
  TESSERA_ASSIGN_OR_RETURN(const bool may_run, Admit({*launch}, turn));
  // One by one they may have kernels of the image alone.
  if (!may_run || !LoadedProgram(*launch->program).ok()) return false;
  turn.joined = program->steps.size() - 1;
  TESSERA_RETURN_IF_ERROR(Run(stream, *launch));
  return true;
}

absl::Status Launcher::Finish(Fault& fault) {
  if (fault.word == nullptr) return absl::OkStatus();
  const int64_t value = *fault.word;
  words_.Give(reinterpret_cast<std::byte*>(std::exchange(fault.word, nullptr)));
  return FaultOf(fault.call, value);
}

absl::Status Launcher::Run(CUstream stream, const std::vector<Step>& steps, Turn& turn) {
  struct Runner {
    Launcher& launcher;
    CUstream stream;
    Turn& turn;
    absl::Status operator()(const Launch& launch) const { return launcher.Run(stream, launch); }
    absl::Status operator()(const MatmulProblem& problem) const {
      return launcher.Run(stream, problem, turn.workspace);
    }
    absl::Status operator()(const Fill& fill) const { return launcher.Run(stream, fill); }
    absl::Status operator()(const DnnProblem& problem) const { return launcher.Run(stream, problem, turn); }
    absl::Status operator()(const FourierProblem& problem) const { return launcher.Run(stream, problem, turn); }
    absl::Status operator()(const SolverProblem& problem) const { return launcher.Run(stream, problem, turn); }
  };
  for (size_t s = 0; s < steps.size(); ++s) {
    TESSERA_RETURN_IF_ERROR(std::visit(Runner{*this, stream, turn}, steps[s]));
    if (turn.beside == nullptr) continue;
    turn.rest.assign(steps.begin() + static_cast<std::ptrdiff_t>(s) + 1, steps.end());
    break;
  }
  return absl::OkStatus();
}

absl::Status Launcher::EnqueueRest(CUstream stream, const Making& beside, const std::vector<Step>& rest, Turn& turn) {
  TESSERA_RETURN_IF_ERROR(StatusOfSolver(beside.status));
  return RunAdmitted(stream, rest, turn).status();
}

absl::StatusOr<CUkernel> Launcher::LoadedProgram(const MapProgram& source) {
  Program& program = programs_->Find(source, Lane::kBatch);
  if (!program.kernel.has_value()) {
    program.is_compiled().wait(false);  // it is, but for steps that nobody admitted
    absl::StatusOr<std::string>& code = program.code();
    program.kernel = code.ok() ? Load(*code, source.entry) : absl::StatusOr<CUkernel>(code.status());
    if (code.ok()) code = std::string();
  }
  return *program.kernel;
}

absl::StatusOr<CUkernel> Launcher::KernelOf(const Launch& launch) {
  // A program may be there, too: its entry is named by all of its text.
  if (const auto known = kernels_.find(launch.entry); known != kernels_.end()) return known->second;
  if (launch.program != nullptr) {
    absl::StatusOr<CUkernel> kernel = LoadedProgram(*launch.program);
    if (program_error_.ok()) program_error_ = kernel.status();
    return kernel;
  }
  return absl::InternalError(StrCat("cuda: the image has no kernel ", launch.entry));
}

absl::Status Launcher::Run(CUstream stream, const Launch& launch) {
  const absl::StatusOr<CUkernel> kernel = KernelOf(launch);
  if (!kernel.ok()) {
    if (launch.otherwise.empty() && launch.program == nullptr) return kernel.status();
    // Launches before a program write to the workspace alone, so all of the call can still be computed elsewhere.
    if (launch.otherwise.empty()) return absl::UnimplementedError(kernel.status().message());
    for (const Launch& other : launch.otherwise) TESSERA_RETURN_IF_ERROR(Run(stream, other));
    return absl::OkStatus();
  }
  return Run(stream, launch, *kernel);
}

absl::Status Launcher::Run(CUstream stream, const Launch& launch, CUkernel kernel) {
  const Driver& driver = *gpu_.driver;
  if (launch.shared_bytes > kDefaultSharedBytes && shared_bytes_[kernel] < launch.shared_bytes) {
    TESSERA_RETURN_IF_ERROR(driver.Check(
        "cuKernelSetAttribute", driver.KernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                          static_cast<int>(launch.shared_bytes), kernel, gpu_.device)));
    shared_bytes_[kernel] = launch.shared_bytes;
  }
  void* parameters[] = {const_cast<std::byte*>(launch.parameters.data())};
  const CUresult result = driver.LaunchKernel(reinterpret_cast<CUfunction>(kernel), launch.grid[0], launch.grid[1],
                                              launch.grid[2], launch.block[0], launch.block[1], launch.block[2],
                                              launch.shared_bytes, stream, parameters, nullptr);
  return result == CUDA_SUCCESS ? absl::OkStatus() : driver.Check(StrCat("cuLaunchKernel ", launch.entry), result);
}

absl::Status Launcher::ReserveForProducts(StreamWorkspace& workspace) {
  if (!products_.ok() || workspace.products != nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(workspace.products, MakeMemory(gpu_, kProductWorkspaceBytes, Sharing::kPrivate));
  return absl::OkStatus();
}

absl::Status Launcher::Run(CUstream stream, const MatmulProblem& problem, StreamWorkspace& workspace) {
  absl::Status refused = products_.status();
  if (products_.ok()) {
    const std::vector<LtProblem> problems = LtProblemsOf(problem);
    TESSERA_ASSIGN_OR_RETURN(const bool has_algorithms, (*products_)->HasAlgorithms(problems));
    if (has_algorithms) TESSERA_RETURN_IF_ERROR(ReserveForProducts(workspace));
    const CUdeviceptr memory = has_algorithms ? AddressOf(workspace.products->data()) : 0;
    refused = (*products_)->Enqueue(stream, problems, memory);
    if (!absl::IsUnimplemented(refused)) return refused;
  }
  if (problem.bias != 0) return refused;
  if (product_error_.ok()) product_error_ = refused;
  for (const Launch& launch : problem.otherwise) TESSERA_RETURN_IF_ERROR(Run(stream, launch));
  return absl::OkStatus();
}

absl::Status Launcher::Run(CUstream stream, const DnnProblem& problem, Turn& turn) {
  if (IsForDnn(problem)) {
    const absl::StatusOr<DnnPlans::Parts> parts = PrepareByDnn(problem);
    if (parts.ok()) {
      TESSERA_RETURN_IF_ERROR(ReserveForLibrary(parts->workspace_bytes, turn));
      const std::shared_ptr<DeviceMemory>& memory = turn.workspace.library;
      return (**dnn_)->Enqueue(stream, *parts, memory == nullptr ? 0 : AddressOf(memory->data()));
    }
    if (!absl::IsUnimplemented(parts.status())) return parts.status();
    if (dnn_error_.ok()) dnn_error_ = parts.status();
  }
  for (const Launch& launch : problem.otherwise) TESSERA_RETURN_IF_ERROR(Run(stream, launch));
  if (problem.make_otherwise == nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const std::vector<Step> steps, problem.make_otherwise().steps);
  return Run(stream, steps, turn);
}

absl::Status Launcher::ReserveForLibrary(int64_t bytes, Turn& turn) {
  std::shared_ptr<DeviceMemory>& memory = turn.workspace.library;
  if (bytes <= (memory == nullptr ? 0 : memory->bytes())) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<DeviceMemory> larger, MakeMemory(gpu_, bytes, Sharing::kPrivate));
  if (memory != nullptr) turn.replaced_of_library.push_back(std::move(memory));
  memory = std::move(larger);
  return absl::OkStatus();
}

absl::Status Launcher::Run(CUstream stream, const FourierProblem& problem, Turn& turn) {
  TESSERA_ASSIGN_OR_RETURN(const Transforms::Parts parts, PrepareTransforms(problem));
  absl::Status status = ReserveForLibrary(parts.workspace_bytes, turn);
  const std::shared_ptr<DeviceMemory>& memory = turn.workspace.library;
  if (status.ok()) status = (**transforms_)->Enqueue(stream, parts, memory == nullptr ? 0 : AddressOf(memory->data()));
  // The host needs none of that memory.
  if (absl::IsResourceExhausted(status)) status = absl::UnimplementedError(status.message());
  if (transform_error_.ok()) transform_error_ = status;
  return status;
}

absl::Status Launcher::Run(CUstream stream, const SolverProblem& problem, Turn& turn) {
  TESSERA_ASSIGN_OR_RETURN(const Solvers::Room room, RoomOfSolver(problem));
  absl::Status status = ReserveForLibrary(room.device, turn);
  const std::shared_ptr<DeviceMemory>& memory = turn.workspace.library;
  std::byte* host = nullptr;
  if (room.host > 0) {
    turn.of_host.push_back(std::make_shared<std::byte[]>(static_cast<size_t>(room.host)));
    host = turn.of_host.back().get();
  }
  if (!status.ok()) return StatusOfSolver(status);
  const auto enqueue = [this, stream, problem, room, host, at = memory == nullptr ? 0 : AddressOf(memory->data())] {
    return (**solvers_)->Enqueue(stream, problem, room, at, host);
  };
  if (!Solvers::TakesLong(problem)) return StatusOfSolver(enqueue());
  turn.beside = library_thread_.Begin(enqueue);
  return absl::OkStatus();
}

absl::Status Launcher::StatusOfSolver(absl::Status status) {
  if (absl::IsResourceExhausted(status)) status = absl::UnimplementedError(status.message());
  if (solver_error_.ok()) solver_error_ = status;
  return status;
}

absl::Status Launcher::Run(CUstream stream, const Fill& fill) {
  if (fill.bytes == 0) return absl::OkStatus();
  return gpu_.driver->Check(
      "cuMemsetD8Async", gpu_.driver->MemsetD8Async(fill.address, fill.value, static_cast<size_t>(fill.bytes), stream));
}

}  // namespace tessera::cuda
