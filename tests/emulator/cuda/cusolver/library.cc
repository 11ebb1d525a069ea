// The calls of cuSOLVER that a worker makes, as libcusolver.so.12 exports them, on the emulated driver. A wrong call
// says why on stderr and returns what the real one's documentation promises. A computation is an operation of its
// stream, which writes over its workspaces, that of the host, too.
//
//   TESSERA_EMULATOR_CUSOLVER_VERSION=11700     what cusolverGetVersion says

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include <cusolverDn.h>

#include "tests/emulator/cuda/cusolver/operations.h"

using namespace tessera::emulator;  // NOLINT: these functions' names are the library's, in the global namespace

struct cusolverDnContext {  // NOLINT: the header's name
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  bool is_deterministic = false;
};
struct cusolverDnParams {  // NOLINT: the header's name
  int nothing = 0;
};

namespace {

constexpr size_t kHostBytes = 48;

cusolverStatus_t Enter(const char* function) {
  const int result = BeginCall(function);
  return result < 0 ? CUSOLVER_STATUS_INTERNAL_ERROR : static_cast<cusolverStatus_t>(result);
}
cusolverStatus_t Refused(const char* function, const char* what) {
  return static_cast<cusolverStatus_t>(Wrong(function, what, CUSOLVER_STATUS_INVALID_VALUE));
}

struct Rooms {
  void* device;
  size_t device_bytes;
  void* host;
  size_t host_bytes;
};
size_t DeviceBytes(int64_t m, int64_t n) { return static_cast<size_t>((m + 3) * (n + 5) * 8); }

// Looks at what all computations are given, and enqueues this one.
cusolverStatus_t Compute(cusolverDnHandle_t handle, const char* name, const Rooms& rooms, size_t device_bytes,
                         size_t host_bytes, int* info, std::function<int(DeviceSide&)> run) {
  if (const cusolverStatus_t entered = Enter(name); entered != CUSOLVER_STATUS_SUCCESS) return entered;
  if (handle == nullptr || handle->context != CurrentContext()) return Refused(name, "a handle of another context");
  if (handle->stream == nullptr) return Refused(name, "the handle has no stream");
  if (!handle->is_deterministic) return Refused(name, "the handle isn't deterministic");
  const bool has_room = rooms.device_bytes >= device_bytes && rooms.host_bytes >= host_bytes &&
                        (device_bytes == 0 || rooms.device != nullptr) && (host_bytes == 0 || rooms.host != nullptr);
  if (!has_room || info == nullptr) return Refused(name, "too small a workspace, or no info");
  if (!MayLoad(name)) return CUSOLVER_STATUS_INTERNAL_ERROR;
  const bool is_pushed = Push(handle->stream, "cusolver", [=, run = std::move(run)](DeviceSide& side) {
    side.Spoil(rooms.device, device_bytes);
    if (host_bytes > 0) std::memset(rooms.host, 0xA5, host_bytes);
    side.WriteInfo(info, run(side));
  });
  return is_pushed ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_EXECUTION_FAILED;
}
cusolverStatus_t GiveRoom(const char* name, int64_t m, int64_t n, size_t* device, size_t* host) {
  if (const cusolverStatus_t entered = Enter(name); entered != CUSOLVER_STATUS_SUCCESS) return entered;
  *device = DeviceBytes(m, n);
  *host = kHostBytes;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t GiveElements(const char* name, int64_t m, int64_t n, size_t element_bytes, int* elements) {
  if (const cusolverStatus_t entered = Enter(name); entered != CUSOLVER_STATUS_SUCCESS) return entered;
  *elements = static_cast<int>(DeviceBytes(m, n) / element_bytes);
  return CUSOLVER_STATUS_SUCCESS;
}

template <typename T>
cusolverStatus_t RunOrgqr(cusolverDnHandle_t handle, const char* name, int m, int n, int k, T* a, int lda, const T* tau,
                          T* work, int lwork, int* info) {
  constexpr bool kIsDouble = sizeof(T) == 8;
  if (m < n || n < k || lda < m) return Refused(name, "extents");
  const size_t bytes = static_cast<size_t>(m) * static_cast<size_t>(n) * sizeof(T);
  const Rooms rooms = {work, static_cast<size_t>(lwork) * sizeof(T), nullptr, 0};
  return Compute(handle, name, rooms, bytes, 0, info, [=](DeviceSide& side) {
    Matrix q = side.Read(a, kIsDouble, m, k, lda);
    const Matrix scales = side.Read(tau, kIsDouble, k, 1, k);
    q.data.resize(static_cast<size_t>(m) * static_cast<size_t>(n));
    q.columns = n;
    Orgqr(q, scales.data);
    side.Write(a, kIsDouble, q, lda);
    return 0;
  });
}

template <typename T>
cusolverStatus_t RunGesvdj(cusolverDnHandle_t handle, const char* name, cusolverEigMode_t mode, int econ, int m, int n,
                           T* a, int lda, T* values, T* u, int ldu, T* v, int ldv, T* work, int lwork, int* info,
                           gesvdjInfo_t params) {
  constexpr bool kIsDouble = sizeof(T) == 8;
  if (lda < m || ldu < m || ldv < n || params == nullptr) return Refused(name, "extents, or no parameters");
  const bool has_vectors = mode == CUSOLVER_EIG_MODE_VECTOR;
  const int least = std::min(m, n), left = !has_vectors ? 0 : econ != 0 ? least : m;
  const int right = !has_vectors ? 0 : econ != 0 ? least : n;
  const Rooms rooms = {work, static_cast<size_t>(lwork) * sizeof(T), nullptr, 0};
  return Compute(handle, name, rooms, DeviceBytes(m, n), 0, info, [=](DeviceSide& side) {
    Matrix matrix = side.Read(a, kIsDouble, m, n, lda), of_u(m, left), of_v(n, right), of(least, 1);
    const int failed = Gesvdj(matrix, of_u, of.data, of_v);
    of.data.resize(static_cast<size_t>(least));
    matrix.data.assign(matrix.data.size(), 777);
    side.Write(a, kIsDouble, matrix, lda);
    side.Write(values, kIsDouble, of, least);
    side.Write(u, kIsDouble, of_u, ldu);
    side.Write(v, kIsDouble, of_v, ldv);
    return failed;
  });
}

}  // namespace

struct gesvdjInfo {  // NOLINT: the header's name
  int nothing = 0;
};

extern "C" {

cusolverStatus_t cusolverGetVersion(int* version) {
  const char* wanted = std::getenv("TESSERA_EMULATOR_CUSOLVER_VERSION");
  *version = wanted == nullptr ? CUSOLVER_VERSION : std::atoi(wanted);
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* handle) {
  if (const cusolverStatus_t entered = Enter("cusolverDnCreate"); entered != CUSOLVER_STATUS_SUCCESS) return entered;
  if (CurrentContext() == nullptr) return Refused("cusolverDnCreate", "no context is current");
  *handle = new cusolverDnContext{.context = CurrentContext()};
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroy(cusolverDnHandle_t handle) {
  delete handle;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t* params) {
  *params = new struct cusolverDnParams();
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t params) {
  delete params;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t handle, cudaStream_t stream) {
  if (const cusolverStatus_t entered = Enter("cusolverDnSetStream"); entered != CUSOLVER_STATUS_SUCCESS) return entered;
  handle->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetDeterministicMode(cusolverDnHandle_t handle, cusolverDeterministicMode_t mode) {
  handle->is_deterministic = mode == CUSOLVER_DETERMINISTIC_RESULTS;
  return CUSOLVER_STATUS_SUCCESS;
}

cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cublasFillMode_t, int64_t n,
                                             cudaDataType, const void*, int64_t, cudaDataType, size_t* device,
                                             size_t* host) {
  return GiveRoom("cusolverDnXpotrf_bufferSize", n, n, device, host);
}
cusolverStatus_t cusolverDnXpotrf(cusolverDnHandle_t handle, cusolverDnParams_t, cublasFillMode_t uplo, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, cudaDataType, void* device,
                                  size_t device_bytes, void* host, size_t host_bytes, int* info) {
  return Compute(handle, "cusolverDnXpotrf", {device, device_bytes, host, host_bytes}, DeviceBytes(n, n), kHostBytes,
                 info, [=](DeviceSide& side) {
                   const bool is_double = type == CUDA_R_64F;
                   Matrix matrix = side.Read(a, is_double, n, n, lda);
                   const int failed = Potrf(matrix, uplo == CUBLAS_FILL_MODE_UPPER);
                   side.Write(a, is_double, matrix, lda);
                   return failed;
                 });
}

cusolverStatus_t cusolverDnXgetrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m, int64_t n, cudaDataType,
                                             const void*, int64_t, cudaDataType, size_t* device, size_t* host) {
  return GiveRoom("cusolverDnXgetrf_bufferSize", m, n, device, host);
}
cusolverStatus_t cusolverDnXgetrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, int64_t* pivots, cudaDataType, void* device,
                                  size_t device_bytes, void* host, size_t host_bytes, int* info) {
  return Compute(handle, "cusolverDnXgetrf", {device, device_bytes, host, host_bytes}, DeviceBytes(m, n), kHostBytes,
                 info, [=](DeviceSide& side) {
                   const bool is_double = type == CUDA_R_64F;
                   Matrix matrix = side.Read(a, is_double, m, n, lda);
                   std::vector<int64_t> changed;
                   const int failed = Getrf(matrix, changed);
                   side.Write(a, is_double, matrix, lda);
                   side.WritePivots(pivots, changed);
                   return failed;
                 });
}
cusolverStatus_t cusolverDnXgetrs(cusolverDnHandle_t handle, cusolverDnParams_t, cublasOperation_t trans, int64_t n,
                                  int64_t nrhs, cudaDataType type, const void* a, int64_t lda, const int64_t* pivots,
                                  cudaDataType, void* b, int64_t ldb, int* info) {
  return Compute(handle, "cusolverDnXgetrs", {}, 0, 0, info, [=](DeviceSide& side) {
    const bool is_double = type == CUDA_R_64F;
    Matrix lu = side.Read(a, is_double, n, n, lda), x = side.Read(b, is_double, n, nrhs, ldb);
    Getrs(lu, side.ReadPivots(pivots, n), trans == CUBLAS_OP_T, x);
    side.Write(b, is_double, x, ldb);
    return 0;
  });
}

cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, int64_t m, int64_t n, cudaDataType,
                                             const void*, int64_t, cudaDataType, const void*, cudaDataType,
                                             size_t* device, size_t* host) {
  return GiveRoom("cusolverDnXgeqrf_bufferSize", m, n, device, host);
}
cusolverStatus_t cusolverDnXgeqrf(cusolverDnHandle_t handle, cusolverDnParams_t, int64_t m, int64_t n,
                                  cudaDataType type, void* a, int64_t lda, cudaDataType, void* tau, cudaDataType,
                                  void* device, size_t device_bytes, void* host, size_t host_bytes, int* info) {
  return Compute(handle, "cusolverDnXgeqrf", {device, device_bytes, host, host_bytes}, DeviceBytes(m, n), kHostBytes,
                 info, [=](DeviceSide& side) {
                   const bool is_double = type == CUDA_R_64F;
                   Matrix matrix = side.Read(a, is_double, m, n, lda), scales(std::min(m, n), 1);
                   Geqrf(matrix, scales.data);
                   side.Write(a, is_double, matrix, lda);
                   side.Write(tau, is_double, scales, scales.rows);
                   return 0;
                 });
}
cusolverStatus_t cusolverDnSorgqr_bufferSize(cusolverDnHandle_t, int m, int n, int, const float*, int, const float*,
                                             int* elements) {
  *elements = m * n;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDorgqr_bufferSize(cusolverDnHandle_t, int m, int n, int, const double*, int, const double*,
                                             int* elements) {
  *elements = m * n;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSorgqr(cusolverDnHandle_t handle, int m, int n, int k, float* a, int lda, const float* tau,
                                  float* work, int lwork, int* info) {
  return RunOrgqr(handle, "cusolverDnSorgqr", m, n, k, a, lda, tau, work, lwork, info);
}
cusolverStatus_t cusolverDnDorgqr(cusolverDnHandle_t handle, int m, int n, int k, double* a, int lda, const double* tau,
                                  double* work, int lwork, int* info) {
  return RunOrgqr(handle, "cusolverDnDorgqr", m, n, k, a, lda, tau, work, lwork, info);
}

cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t, cusolverDnParams_t, cusolverEigMode_t,
                                             cublasFillMode_t, int64_t n, cudaDataType, const void*, int64_t,
                                             cudaDataType, const void*, cudaDataType, size_t* device, size_t* host) {
  return GiveRoom("cusolverDnXsyevd_bufferSize", n, n, device, host);
}
cusolverStatus_t cusolverDnXsyevd(cusolverDnHandle_t handle, cusolverDnParams_t, cusolverEigMode_t mode,
                                  cublasFillMode_t uplo, int64_t n, cudaDataType type, void* a, int64_t lda,
                                  cudaDataType, void* values, cudaDataType, void* device, size_t device_bytes,
                                  void* host, size_t host_bytes, int* info) {
  return Compute(handle, "cusolverDnXsyevd", {device, device_bytes, host, host_bytes}, DeviceBytes(n, n), kHostBytes,
                 info, [=](DeviceSide& side) {
                   const bool is_double = type == CUDA_R_64F;
                   Matrix matrix = side.Read(a, is_double, n, n, lda), of(n, 1);
                   const int failed = Syevd(matrix, uplo == CUBLAS_FILL_MODE_UPPER, of.data);
                   // Without vectors what is left of the matrix is anything.
                   if (mode != CUSOLVER_EIG_MODE_VECTOR) matrix.data.assign(matrix.data.size(), 777);
                   side.Write(a, is_double, matrix, lda);
                   side.Write(values, is_double, of, n);
                   return failed;
                 });
}

cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) {
  *info = new struct gesvdjInfo();
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyGesvdjInfo(gesvdjInfo_t info) {
  delete info;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSgesvdj_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int, int m, int n, const float*,
                                              int, const float*, const float*, int, const float*, int, int* elements,
                                              gesvdjInfo_t) {
  return GiveElements("cusolverDnSgesvdj_bufferSize", m, n, sizeof(float), elements);
}
cusolverStatus_t cusolverDnSgesvdj(cusolverDnHandle_t handle, cusolverEigMode_t mode, int econ, int m, int n, float* a,
                                   int lda, float* values, float* u, int ldu, float* v, int ldv, float* work, int lwork,
                                   int* info, gesvdjInfo_t params) {
  return RunGesvdj(handle, "cusolverDnSgesvdj", mode, econ, m, n, a, lda, values, u, ldu, v, ldv, work, lwork, info,
                   params);
}
cusolverStatus_t cusolverDnDgesvdj_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int, int m, int n, const double*,
                                              int, const double*, const double*, int, const double*, int, int* elements,
                                              gesvdjInfo_t) {
  return GiveElements("cusolverDnDgesvdj_bufferSize", m, n, sizeof(double), elements);
}
cusolverStatus_t cusolverDnDgesvdj(cusolverDnHandle_t handle, cusolverEigMode_t mode, int econ, int m, int n, double* a,
                                   int lda, double* values, double* u, int ldu, double* v, int ldv, double* work,
                                   int lwork, int* info, gesvdjInfo_t params) {
  return RunGesvdj(handle, "cusolverDnDgesvdj", mode, econ, m, n, a, lda, values, u, ldu, v, ldv, work, lwork, info,
                   params);
}
}
