// The calls of cuBLAS that a worker makes, as libcublas.so.13 exports them, on the emulated driver: as library.cc has
// those of cuSOLVER.

#include <cublas_v2.h>

#include "tests/emulator/cuda/cusolver/operations.h"

using namespace tessera::emulator;  // NOLINT: these functions' names are the library's, in the global namespace

struct cublasContext {  // NOLINT: the header's name
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

namespace {

cublasStatus_t Enter(const char* function) {
  const int result = BeginCall(function);
  return result < 0 ? CUBLAS_STATUS_EXECUTION_FAILED : static_cast<cublasStatus_t>(result);
}
cublasStatus_t Refused(const char* function, const char* what) {
  return static_cast<cublasStatus_t>(Wrong(function, what, CUBLAS_STATUS_INVALID_VALUE));
}

template <typename T>
cublasStatus_t Trsm(const char* name, cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,
                    cublasOperation_t op, cublasDiagType_t diagonal, int64_t m, int64_t n, const T* alpha, const T* a,
                    int64_t lda, T* b, int64_t ldb) {
  constexpr bool kIsDouble = sizeof(T) == 8;
  if (const cublasStatus_t entered = Enter(name); entered != CUBLAS_STATUS_SUCCESS) return entered;
  if (handle == nullptr || handle->context != CurrentContext()) return Refused(name, "a handle of another context");
  // Several streams have the same bits with a workspace of their own alone.
  if (handle->stream == nullptr || handle->workspace == nullptr) return Refused(name, "no stream, or no workspace");
  if (side != CUBLAS_SIDE_RIGHT || *alpha != 1 || lda < n || ldb < m) return Refused(name, "what isn't emulated");
  if (!MayLoad(name)) return CUBLAS_STATUS_EXECUTION_FAILED;
  const bool is_pushed = Push(handle->stream, "cublas", [=, workspace = handle->workspace](DeviceSide& memory) {
    memory.Spoil(workspace, 4096);
    Matrix triangle = memory.Read(a, kIsDouble, n, n, lda), x = memory.Read(b, kIsDouble, m, n, ldb);
    TrsmRight(triangle, fill == CUBLAS_FILL_MODE_UPPER, op != CUBLAS_OP_N, diagonal == CUBLAS_DIAG_UNIT, x);
    memory.Write(b, kIsDouble, x, ldb);
  });
  return is_pushed ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : 0;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (const cublasStatus_t entered = Enter("cublasCreate_v2"); entered != CUBLAS_STATUS_SUCCESS) return entered;
  if (CurrentContext() == nullptr) return Refused("cublasCreate_v2", "no context is current");
  *handle = new cublasContext{.context = CurrentContext()};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
// It has the library's own workspace again.
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (const cublasStatus_t entered = Enter("cublasSetStream_v2"); entered != CUBLAS_STATUS_SUCCESS) return entered;
  handle->stream = stream;
  handle->workspace = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  if (const cublasStatus_t entered = Enter("cublasSetWorkspace_v2"); entered != CUBLAS_STATUS_SUCCESS) return entered;
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasStrsm_v2_64(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,
                                 cublasOperation_t op, cublasDiagType_t diagonal, int64_t m, int64_t n,
                                 const float* alpha, const float* a, int64_t lda, float* b, int64_t ldb) {
  return Trsm("cublasStrsm_v2_64", handle, side, fill, op, diagonal, m, n, alpha, a, lda, b, ldb);
}
cublasStatus_t cublasDtrsm_v2_64(cublasHandle_t handle, cublasSideMode_t side, cublasFillMode_t fill,
                                 cublasOperation_t op, cublasDiagType_t diagonal, int64_t m, int64_t n,
                                 const double* alpha, const double* a, int64_t lda, double* b, int64_t ldb) {
  return Trsm("cublasDtrsm_v2_64", handle, side, fill, op, diagonal, m, n, alpha, a, lda, b, ldb);
}
}
