// The calls of cuFFT that a worker makes, as libcufft.so.12 exports them, on the emulated driver. A wrong call says why
// on stderr and returns what the real one's documentation promises. An execution is an operation of its stream.
//
//   TESSERA_EMULATOR_CUFFT_VERSION=11303     what cufftGetVersion says
//   TESSERA_EMULATOR_CUFFT_WORKSPACE=1000    bytes of workspace for each line of a plan; else as many as it has

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <cufft.h>
#include <cufftXt.h>

#include "tests/emulator/cuda/cufft/batch.h"
#include "tests/emulator/cuda/driver_of_library.h"
#include "tests/emulator/cuda/libraries.h"

using namespace tessera::emulator;  // NOLINT: these functions' names are the library's, in the global namespace

namespace {

constexpr int kFirstDriverError = 100;  // of those that a context keeps

struct Plan {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  bool allocates = true, is_made = false;
  uint64_t workspace = 0;
  FftBatch batch;
};

std::mutex mutex;
std::map<cufftHandle, std::unique_ptr<Plan>> plans;
cufftHandle next_handle = 1;

cufftResult Enter(const char* function) {
  if (TheDriver().enter == nullptr) return CUFFT_SETUP_FAILED;
  const int result = TheDriver().enter(function);
  return result >= kFirstDriverError ? CUFFT_INTERNAL_ERROR : static_cast<cufftResult>(result);
}
cufftResult Wrong(const char* function, const std::string& what, cufftResult result) {
  std::fprintf(stderr, "emulator: %s: %s\n", function, what.c_str());
  return result;
}
CUcontext CurrentContext() {
  CUcontext context = nullptr;
  if (TheDriver().current != nullptr) TheDriver().current(&context);
  return context;
}
Plan* Find(cufftHandle handle) {
  std::lock_guard lock(mutex);
  const auto found = plans.find(handle);
  return found == plans.end() ? nullptr : found->second.get();
}
// It may load kernels.
bool MayWait(const char* function) { return TheDriver().may_wait_for_all(function) == 0; }

// The numbers that a plan takes and gives, of those of a worker.
bool TakeNumbers(cudaDataType input, cudaDataType output, cudaDataType computed, FftBatch* batch) {
  batch->is_double = computed == CUDA_C_64F;
  const cudaDataType real = batch->is_double ? CUDA_R_64F : CUDA_R_32F;
  const cudaDataType complex = batch->is_double ? CUDA_C_64F : CUDA_C_32F;
  if (computed != complex) return false;
  if (input == complex && output == complex) {
    batch->kind = FftKind::kComplex;
  } else if (input == real && output == complex) {
    batch->kind = FftKind::kFromReal;
  } else if (input == complex && output == real) {
    batch->kind = FftKind::kToReal;
  } else {
    return false;
  }
  return true;
}

struct State {
  FftBatch batch;
  std::string wrong;
};
const char* RunState(void* opaque, const TesseraEmulatorMemory* memory) {
  State& state = *static_cast<State*>(opaque);
  state.wrong = RunBatch(state.batch, [memory](uint64_t address, int64_t bytes, bool is_write) {
    return static_cast<std::byte*>(memory->touch(memory->engine, address, bytes, is_write ? 1 : 0));
  });
  return state.wrong.empty() ? nullptr : state.wrong.c_str();
}

}  // namespace

extern "C" {

cufftResult cufftGetVersion(int* version) {
  const char* wanted = std::getenv("TESSERA_EMULATOR_CUFFT_VERSION");
  *version = wanted == nullptr ? CUFFT_VERSION : std::atoi(wanted);
  return CUFFT_SUCCESS;
}

cufftResult cufftCreate(cufftHandle* handle) {
  if (const cufftResult entered = Enter("cufftCreate"); entered != CUFFT_SUCCESS) return entered;
  auto plan = std::make_unique<Plan>();
  plan->context = CurrentContext();
  if (plan->context == nullptr) return Wrong("cufftCreate", "no context is current", CUFFT_SETUP_FAILED);
  std::lock_guard lock(mutex);
  *handle = next_handle++;
  plans.emplace(*handle, std::move(plan));
  return CUFFT_SUCCESS;
}

// It frees memory of the device.
cufftResult cufftDestroy(cufftHandle handle) {
  if (Find(handle) == nullptr) return Wrong("cufftDestroy", "no such plan", CUFFT_INVALID_PLAN);
  if (!MayWait("cufftDestroy")) return CUFFT_INTERNAL_ERROR;
  std::lock_guard lock(mutex);
  plans.erase(handle);
  return CUFFT_SUCCESS;
}

cufftResult cufftSetAutoAllocation(cufftHandle handle, int allocates) {
  if (const cufftResult entered = Enter("cufftSetAutoAllocation"); entered != CUFFT_SUCCESS) return entered;
  Plan* plan = Find(handle);
  if (plan == nullptr || plan->is_made) return Wrong("cufftSetAutoAllocation", "no new plan", CUFFT_INVALID_PLAN);
  plan->allocates = allocates != 0;
  return CUFFT_SUCCESS;
}

cufftResult cufftSetStream(cufftHandle handle, cudaStream_t stream) {
  if (const cufftResult entered = Enter("cufftSetStream"); entered != CUFFT_SUCCESS) return entered;
  Plan* plan = Find(handle);
  if (plan == nullptr) return Wrong("cufftSetStream", "no such plan", CUFFT_INVALID_PLAN);
  plan->stream = stream;
  return CUFFT_SUCCESS;
}

cufftResult cufftSetWorkArea(cufftHandle handle, void* workspace) {
  if (const cufftResult entered = Enter("cufftSetWorkArea"); entered != CUFFT_SUCCESS) return entered;
  Plan* plan = Find(handle);
  if (plan == nullptr || !plan->is_made) return Wrong("cufftSetWorkArea", "no plan that is made", CUFFT_INVALID_PLAN);
  plan->workspace = reinterpret_cast<uint64_t>(workspace);
  return CUFFT_SUCCESS;
}

cufftResult cufftXtMakePlanMany(cufftHandle handle, int rank, long long int* n, long long int* inembed,
                                long long int istride, long long int idist, cudaDataType inputtype,
                                long long int* onembed, long long int ostride, long long int odist,
                                cudaDataType outputtype, long long int batch, size_t* workSize,
                                cudaDataType executiontype) {
  constexpr const char* kName = "cufftXtMakePlanMany";
  if (const cufftResult entered = Enter(kName); entered != CUFFT_SUCCESS) return entered;
  Plan* plan = Find(handle);
  if (plan == nullptr || plan->is_made) return Wrong(kName, "no new plan", CUFFT_INVALID_PLAN);
  if (plan->context != CurrentContext()) return Wrong(kName, "a plan of another context", CUFFT_INVALID_PLAN);
  if (rank != 1 || n == nullptr || n[0] < 1 || batch < 1) return Wrong(kName, "extents", CUFFT_INVALID_SIZE);
  FftBatch made{.length = n[0], .batch = batch};
  if (!TakeNumbers(inputtype, outputtype, executiontype, &made)) return Wrong(kName, "types", CUFFT_INVALID_TYPE);
  // Where these are null, strides and distances count for nothing.
  if (inembed == nullptr || onembed == nullptr) return Wrong(kName, "lines that are dense", CUFFT_INVALID_VALUE);
  if (istride < 1 || idist < 1 || ostride < 1 || odist < 1) return Wrong(kName, "strides", CUFFT_INVALID_VALUE);
  if (plan->allocates) return Wrong(kName, "a plan that takes memory of its own", CUFFT_ALLOC_FAILED);
  if (!MayWait(kName)) return CUFFT_INTERNAL_ERROR;
  made.input_stride = istride;
  made.input_distance = idist;
  made.output_stride = ostride;
  made.output_distance = odist;
  const char* of_line = std::getenv("TESSERA_EMULATOR_CUFFT_WORKSPACE");
  made.workspace_bytes = batch * (of_line == nullptr ? n[0] * (made.is_double ? 16 : 8) : std::atoll(of_line));
  *workSize = static_cast<size_t>(made.workspace_bytes);
  plan->batch = made;
  plan->is_made = true;
  return CUFFT_SUCCESS;
}

cufftResult cufftXtExec(cufftHandle handle, void* input, void* output, int direction) {
  constexpr const char* kName = "cufftXtExec";
  if (const cufftResult entered = Enter(kName); entered != CUFFT_SUCCESS) return entered;
  Plan* plan = Find(handle);
  if (plan == nullptr || !plan->is_made) return Wrong(kName, "no plan that is made", CUFFT_INVALID_PLAN);
  if (plan->context != CurrentContext()) return Wrong(kName, "a plan of another context", CUFFT_INVALID_PLAN);
  if (plan->stream == nullptr) return Wrong(kName, "the plan has no stream", CUFFT_EXEC_FAILED);
  if (plan->batch.workspace_bytes > 0 && plan->workspace == 0) return Wrong(kName, "no work area", CUFFT_NO_WORKSPACE);
  if (direction != CUFFT_FORWARD && direction != CUFFT_INVERSE) return Wrong(kName, "direction", CUFFT_INVALID_VALUE);
  auto state = std::make_unique<State>();
  state->batch = plan->batch;
  state->batch.is_backward = direction == CUFFT_INVERSE;
  state->batch.input = reinterpret_cast<uint64_t>(input);
  state->batch.output = reinterpret_cast<uint64_t>(output);
  state->batch.workspace = plan->workspace;
  const uint64_t alignment = plan->batch.is_double ? 16 : 8;
  if (state->batch.input % alignment != 0 || state->batch.output % alignment != 0) {
    return Wrong(kName, "numbers that aren't aligned to a complex one", CUFFT_UNALIGNED_DATA);
  }
  if (!MayWait(kName)) return CUFFT_INTERNAL_ERROR;
  const TesseraEmulatorOperation operation = {
      "cufft", nullptr, RunState, [](void* opaque) { delete static_cast<State*>(opaque); }, state.release()};
  return TheDriver().push(plan->stream, &operation) != 0 ? CUFFT_SUCCESS : CUFFT_EXEC_FAILED;
}
}
