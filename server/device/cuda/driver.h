#pragma once

// The driver's functions, taken at run time from libcuda.so.1: a worker without a GPU starts, too.
//
//   TESSERA_ASSIGN_OR_RETURN(const Driver* driver, Driver::Load());
//   TESSERA_RETURN_IF_ERROR(driver->Check("cuMemCreate", driver->MemCreate(&handle, bytes, &properties, 0)));

#include <string_view>

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::cuda {

// X(Name): cuName of the driver, as Driver::Name.
#define TESSERA_CUDA_FUNCTIONS(X) \
  X(Init)                         \
  X(DriverGetVersion)             \
  X(GetErrorName)                 \
  X(DeviceGetCount)               \
  X(DeviceGet)                    \
  X(DeviceGetName)                \
  X(DeviceGetAttribute)           \
  X(DevicePrimaryCtxRetain)       \
  X(DevicePrimaryCtxRelease)      \
  X(CtxSetCurrent)                \
  X(CtxGetStreamPriorityRange)    \
  X(MemGetInfo)                   \
  X(MemGetAllocationGranularity)  \
  X(MemCreate)                    \
  X(MemRelease)                   \
  X(MemExportToShareableHandle)   \
  X(MemImportFromShareableHandle) \
  X(MemAddressReserve)            \
  X(MemAddressFree)               \
  X(MemMap)                       \
  X(MemUnmap)                     \
  X(MemSetAccess)                 \
  X(MemHostAlloc)                 \
  X(MemFreeHost)                  \
  X(MemHostRegister)              \
  X(MemHostUnregister)            \
  X(MemHostGetDevicePointer)      \
  X(StreamCreate)                 \
  X(StreamCreateWithPriority)     \
  X(StreamDestroy)                \
  X(StreamQuery)                  \
  X(StreamSynchronize)            \
  X(StreamWaitValue64)            \
  X(StreamWriteValue64)           \
  X(StreamBatchMemOp)             \
  X(StreamWaitEvent)              \
  X(EventCreate)                  \
  X(EventDestroy)                 \
  X(EventRecord)                  \
  X(MemcpyAsync)                  \
  X(MemsetD8Async)                \
  X(LibraryLoadData)              \
  X(LibraryGetKernel)             \
  X(LibraryGetKernelCount)        \
  X(LibraryEnumerateKernels)      \
  X(LibraryUnload)                \
  X(KernelGetName)                \
  X(KernelGetFunction)            \
  X(FuncLoad)                     \
  X(KernelSetAttribute)           \
  X(LaunchKernel)

// Functions of graphs, likewise. A driver may have none of them.
#define TESSERA_CUDA_GRAPH_FUNCTIONS(X) \
  X(GraphCreate)                        \
  X(GraphDestroy)                       \
  X(GraphAddKernelNode)                 \
  X(GraphInstantiateWithFlags)          \
  X(GraphExecKernelNodeSetParams)       \
  X(GraphExecDestroy)                   \
  X(GraphLaunch)

struct Driver {
  // The process's one. FailedPrecondition says what of libcuda.so.1 is missing, or what it answers to cuInit.
  static absl::StatusOr<const Driver*> Load();

  // OK, or an error that names the call and what the driver calls the error; ResourceExhausted for memory.
  absl::Status Check(std::string_view call, CUresult result) const;

  // Whether all functions of graphs are there.
  bool HasGraphs() const;

#define TESSERA_CUDA_MEMBER(Name) decltype(&::cu##Name) Name = nullptr;
  TESSERA_CUDA_FUNCTIONS(TESSERA_CUDA_MEMBER)
  TESSERA_CUDA_GRAPH_FUNCTIONS(TESSERA_CUDA_MEMBER)
#undef TESSERA_CUDA_MEMBER
};

}  // namespace tessera::cuda
