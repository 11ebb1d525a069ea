// The driver's calls, as libcuda.so.1 exports them.

#include <dlfcn.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>

#include "tests/emulator/cuda/calls.h"
#include "tests/emulator/cuda/control.h"
#include "tests/emulator/cuda/engine.h"
#include "tests/emulator/cuda/libraries.h"

using tessera::emulator::Access;         // NOLINT: these functions' names are the driver's, in the global namespace
using tessera::emulator::Emulated;       // NOLINT
using tessera::emulator::Entered;        // NOLINT
using tessera::emulator::EnteredToWait;  // NOLINT
using tessera::emulator::TouchMemory;    // NOLINT

namespace {

constexpr int kHighestPriority = -5;  // of a stream

// The thread's context.
thread_local CUcontext current_context = nullptr;

CUresult PushOn(const char* function, CUstream stream, tessera::emulator::OperationKind what) {
  return Entered(function, [&] { return Emulated().Push(stream, std::move(what)); });
}

// A call of another emulated library that takes until it is let go of.
class HeldCall {
 public:
  void Hold(std::string function) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(function);
    is_held_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    next_.clear();
    is_held_ = false;
    changed_.notify_all();
  }
  void Pass(const char* function) {
    std::unique_lock lock(mutex_);
    if (next_ != function) return;
    next_.clear();
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_held_; });
  }
  // Until the call has come.
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return next_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string next_;
  bool is_held_ = false;
};
HeldCall held_call;

// For as long as `touch` lives.
TesseraEmulatorMemory MemoryBy(const TouchMemory& touch) {
  return {const_cast<TouchMemory*>(&touch), [](void* engine, uint64_t address, int64_t bytes, int is_write) -> void* {
            return (*static_cast<const TouchMemory*>(engine))(address, bytes,
                                                              is_write != 0 ? Access::kWrite : Access::kRead);
          }};
}

void* FindFunction(const std::string& name) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&FindFunction), &info) == 0) return nullptr;
  void* self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* found = dlsym(self, (name + suffix).c_str()); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace

extern "C" {

// ---- start

CUresult cuInit(unsigned) {
  return Entered("cuInit", [] { return CUDA_SUCCESS; });
}
CUresult cuDriverGetVersion(int* version) {
  const char* wanted = std::getenv("TESSERA_EMULATOR_VERSION");  // 12040: a driver for CUDA 12.4
  *version = wanted == nullptr ? CUDA_VERSION : std::atoi(wanted);
  return CUDA_SUCCESS;
}
CUresult cuGetProcAddress(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* found) {
  *function = FindFunction(name);
  const bool is_there = *function != nullptr;
  if (found != nullptr) *found = is_there ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return is_there ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
// NVRTC asks for one where there is a driver, and does without.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS: *text = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *text = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NO_DEVICE: *text = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_LAUNCH_TIMEOUT: *text = "CUDA_ERROR_LAUNCH_TIMEOUT"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_NO_BINARY_FOR_GPU: *text = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: *text = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"; break;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: *text = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
    default: *text = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  return Entered("cuDeviceGetCount", [&] {
    *count = 1;
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGet(CUdevice* device, int number) {
  return Entered("cuDeviceGet", [&] {
    *device = number;
    return number == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  });
}
CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
  return Entered("cuDeviceGetName", [&] {
    std::strncpy(name, "Emulated GPU", static_cast<size_t>(bytes));
    return CUDA_SUCCESS;
  });
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  return Entered("cuDeviceGetAttribute", [&] {
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 2; break;
      // One that nobody's image has: as with newer GPUs, the PTX is what runs.
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 99; break;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
      default: *value = 1;
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  return Entered("cuDevicePrimaryCtxRetain", [&] {
    *context = reinterpret_cast<CUcontext>(&Emulated());
    return CUDA_SUCCESS;
  });
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
  return Entered("cuCtxSetCurrent", [&] {
    current_context = context;
    return CUDA_SUCCESS;
  });
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = current_context;
  return CUDA_SUCCESS;
}

// ---- memory

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return Entered("cuMemGetInfo", [&] {
    *free_bytes = static_cast<size_t>(Emulated().memory().free_bytes());
    *total_bytes = static_cast<size_t>(Emulated().memory().device_bytes());
    return CUDA_SUCCESS;
  });
}
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  return Entered("cuMemGetAllocationGranularity", [&] {
    *bytes = static_cast<size_t>(tessera::emulator::Memory::kGranularity);
    return CUDA_SUCCESS;
  });
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long) {
  return EnteredToWait("cuMemCreate", [&] {
    const bool is_known = properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                          properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties->location.id == 0;
    return is_known ? Emulated().memory().Create(static_cast<int64_t>(bytes), handle) : CUDA_ERROR_INVALID_VALUE;
  });
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return EnteredToWait("cuMemRelease", [&] { return Emulated().memory().Release(handle); });
}
CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long) {
  return Entered("cuMemExportToShareableHandle", [&] {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return Emulated().memory().Export(handle, static_cast<int*>(out));
  });
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType type) {
  return EnteredToWait("cuMemImportFromShareableHandle", [&] {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    return Emulated().memory().Import(static_cast<int>(reinterpret_cast<intptr_t>(from)), handle);
  });
}
CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  return EnteredToWait("cuMemAddressReserve",
                       [&] { return Emulated().memory().Reserve(static_cast<int64_t>(bytes), address); });
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return EnteredToWait("cuMemAddressFree",
                       [&] { return Emulated().memory().Free(address, static_cast<int64_t>(bytes)); });
}
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  return EnteredToWait("cuMemMap", [&] {
    return Emulated().memory().Map(address, static_cast<int64_t>(bytes), static_cast<int64_t>(offset), handle);
  });
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  return EnteredToWait("cuMemUnmap", [&] { return Emulated().memory().Unmap(address, static_cast<int64_t>(bytes)); });
}
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t) {
  return EnteredToWait("cuMemSetAccess", [&] {
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
    return Emulated().memory().SetAccess(address, static_cast<int64_t>(bytes));
  });
}
CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  return EnteredToWait("cuMemHostAlloc",
                       [&] { return Emulated().memory().AllocateHost(static_cast<int64_t>(bytes), at); });
}
CUresult cuMemFreeHost(void* at) {
  return EnteredToWait("cuMemFreeHost", [&] {
    const CUresult forgotten = Emulated().ForgetHost(at);
    return forgotten == CUDA_SUCCESS ? Emulated().memory().FreeHost(at) : forgotten;
  });
}
CUresult cuMemHostRegister(void* at, size_t bytes, unsigned) {
  return EnteredToWait("cuMemHostRegister",
                       [&] { return Emulated().memory().Register(at, static_cast<int64_t>(bytes)); });
}
CUresult cuMemHostUnregister(void* at) {
  return EnteredToWait("cuMemHostUnregister", [&] {
    const CUresult forgotten = Emulated().ForgetHost(at);
    return forgotten == CUDA_SUCCESS ? Emulated().memory().Unregister(at) : forgotten;
  });
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* at, unsigned) {
  return Entered("cuMemHostGetDevicePointer", [&] {
    *address = reinterpret_cast<CUdeviceptr>(at);
    return Emulated().memory().IsHost(*address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

// ---- streams

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  return Entered("cuStreamCreate", [&] { return Emulated().MakeStream(stream); });
}
// Streams of all priorities take turns.
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int priority) {
  return Entered("cuStreamCreateWithPriority", [&] {
    return priority < kHighestPriority || priority > 0 ? CUDA_ERROR_INVALID_VALUE : Emulated().MakeStream(stream);
  });
}
CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  return Entered("cuCtxGetStreamPriorityRange", [&] {
    *lowest = 0;
    *highest = kHighestPriority;
    return CUDA_SUCCESS;
  });
}
CUresult cuStreamDestroy(CUstream stream) {
  return Entered("cuStreamDestroy", [&] { return Emulated().DestroyStream(stream); });
}
CUresult cuStreamQuery(CUstream stream) {
  return Entered("cuStreamQuery", [&] { return Emulated().Query(stream); });
}
CUresult cuStreamSynchronize(CUstream stream) {
  return Entered("cuStreamSynchronize", [&] { return Emulated().Synchronize(stream); });
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  const auto mapped = Emulated().memory().Mapped();
  if (flags != CU_STREAM_WAIT_VALUE_GEQ || address % 8 != 0 || mapped->Host(address, 8) == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return PushOn("cuStreamWaitValue64", stream, tessera::emulator::WaitOperation{address, value});
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  const auto mapped = Emulated().memory().Mapped();
  if (address % 8 != 0 || mapped->Host(address, 8) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return PushOn("cuStreamWriteValue64", stream, tessera::emulator::WriteOperation{address, value});
}
CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations, unsigned flags) {
  constexpr unsigned kMost = 255;
  if (count == 0 || count > kMost || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto mapped = Emulated().memory().Mapped();
  std::vector<tessera::emulator::OperationKind> kinds;
  for (unsigned i = 0; i < count; ++i) {
    const CUstreamBatchMemOpParams& one = operations[i];
    const bool is_wait = one.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    if (!is_wait && one.operation != CU_STREAM_MEM_OP_WRITE_VALUE_64) return CUDA_ERROR_INVALID_VALUE;
    const CUdeviceptr address = is_wait ? one.waitValue.address : one.writeValue.address;
    if (address % 8 != 0 || mapped->Host(address, 8) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (is_wait && one.waitValue.flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    if (is_wait) {
      kinds.push_back(tessera::emulator::WaitOperation{address, one.waitValue.value64});
    } else {
      kinds.push_back(tessera::emulator::WriteOperation{address, one.writeValue.value64});
    }
  }
  return Entered("cuStreamBatchMemOp", [&] {
    for (tessera::emulator::OperationKind& kind : kinds) {
      if (const CUresult result = Emulated().Push(stream, std::move(kind)); result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuEventCreate(CUevent* event, unsigned) {
  return Entered("cuEventCreate", [&] { return Emulated().MakeEvent(event); });
}
CUresult cuEventDestroy(CUevent event) {
  return Entered("cuEventDestroy", [&] { return Emulated().DestroyEvent(event); });
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return Entered("cuEventRecord", [&] { return Emulated().Record(event, stream); });
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return Entered("cuStreamWaitEvent", [&] { return Emulated().Await(stream, event); });
}
CUresult cuMemcpyAsync(CUdeviceptr destination, CUdeviceptr source, size_t bytes, CUstream stream) {
  return PushOn("cuMemcpyAsync", stream,
                tessera::emulator::CopyOperation{destination, source, static_cast<int64_t>(bytes)});
}
CUresult cuMemsetD8Async(CUdeviceptr destination, unsigned char value, size_t bytes, CUstream stream) {
  return PushOn("cuMemsetD8Async", stream,
                tessera::emulator::FillOperation{destination, static_cast<int64_t>(bytes), value});
}

// ---- kernels

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  return EnteredToWait("cuLibraryLoadData", [&] { return Emulated().Load(image, library); });
}
CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return Entered("cuLibraryGetKernel", [&] {
    const tessera::ptx::Kernel* found = Emulated().FindKernel(library, name);
    *kernel = reinterpret_cast<CUkernel>(const_cast<tessera::ptx::Kernel*>(found));
    return found == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
  });
}
CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  return Entered("cuLibraryGetKernelCount", [&] {
    *count = static_cast<unsigned>(Emulated().KernelsOf(library).size());
    return CUDA_SUCCESS;
  });
}
CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  return Entered("cuLibraryEnumerateKernels", [&] {
    const std::vector<const tessera::ptx::Kernel*> all = Emulated().KernelsOf(library);
    for (size_t k = 0; k < std::min<size_t>(count, all.size()); ++k) {
      kernels[k] = reinterpret_cast<CUkernel>(const_cast<tessera::ptx::Kernel*>(all[k]));
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return Entered("cuKernelGetName", [&] {
    *name = reinterpret_cast<const tessera::ptx::Kernel*>(kernel)->name.c_str();
    return CUDA_SUCCESS;
  });
}
// A kernel is its function here.
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return Entered("cuKernelGetFunction", [&] {
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
  });
}
CUresult cuFuncLoad(CUfunction function) {
  return Entered("cuFuncLoad",
                 [&] { return Emulated().LoadKernel(reinterpret_cast<const tessera::ptx::Kernel*>(function)); });
}
CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
  return EnteredToWait("cuKernelSetAttribute", [] { return CUDA_SUCCESS; });
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                        void**) {
  const std::array<uint32_t, 3> grid = {grid_x, grid_y, grid_z}, block = {block_x, block_y, block_z};
  if (!tessera::emulator::IsLaunchable(grid, block, shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto* kernel = reinterpret_cast<const tessera::ptx::Kernel*>(function);
  if (const CUresult result = Emulated().LoadKernel(kernel); result != CUDA_SUCCESS) return result;
  return PushOn("cuLaunchKernel", stream, tessera::emulator::LaunchOf(kernel, grid, block, shared_bytes, parameters));
}

// ---- for other emulated libraries

int tessera_emulator_enter(const char* function) {
  held_call.Pass(function);
  return Emulated().Enter(function);
}
int tessera_emulator_may_wait_for_all(const char* call) { return Emulated().MayWaitForAll(call); }
int tessera_emulator_push(CUstream stream, const TesseraEmulatorOperation* operation) {
  const std::shared_ptr<void> state(operation->state, operation->drop);
  tessera::emulator::LibraryOperation what;
  what.name = operation->name;
  what.run = [state, run = operation->run](const TouchMemory& touch) -> std::string {
    const TesseraEmulatorMemory memory = MemoryBy(touch);
    const char* wrong = run(state.get(), &memory);
    return wrong == nullptr ? "" : wrong;
  };
  if (operation->is_ready != nullptr) {
    what.is_ready = [state, is_ready = operation->is_ready](const TouchMemory& touch) {
      const TesseraEmulatorMemory memory = MemoryBy(touch);
      return is_ready(state.get(), &memory) != 0;
    };
  }
  return Emulated().Push(stream, std::move(what)) == CUDA_SUCCESS ? 1 : 0;
}

// ---- for tests

void tessera_emulator_hold() { Emulated().Hold(); }
void tessera_emulator_release() { Emulated().Release(); }
int tessera_emulator_queued() { return Emulated().Queued(); }
int tessera_emulator_hazards(char* text, int bytes) {
  const std::string all = Emulated().Hazards();
  if (bytes > 0) {
    const size_t shown = std::min(all.size(), static_cast<size_t>(bytes - 1));
    std::memcpy(text, all.data(), shown);
    text[shown] = 0;
  }
  return static_cast<int>(all.size());
}
void tessera_emulator_fail(const char* function, int nth, int result) {
  Emulated().Fail(function, nth, static_cast<CUresult>(result));
}
void tessera_emulator_hold_call(const char* function) { held_call.Hold(function); }
void tessera_emulator_await_call() { held_call.Await(); }
void tessera_emulator_release_call() { held_call.Release(); }
int tessera_emulator_calls(const char* function) { return Emulated().Calls(function); }
void tessera_emulator_seed(uint32_t seed) { Emulated().SetSeed(seed); }
}
