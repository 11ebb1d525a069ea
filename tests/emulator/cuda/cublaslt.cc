// The calls of cuBLASLt that a worker makes, as libcublasLt.so.13 exports them, on the emulated driver. A wrong call
// says why on stderr and returns what the real one's header promises. A product is an operation of its stream.

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <cublasLt.h>

#include "tests/emulator/cuda/driver_of_library.h"
#include "tests/emulator/cuda/libraries.h"
#include "tests/emulator/cuda/lt_product.h"

using namespace tessera::emulator;  // NOLINT: these functions' names are the library's, in the global namespace

struct cublasLtContext {  // NOLINT: the header's name
  CUcontext context;
};

namespace {

constexpr int kVersion = 130100;
constexpr int kFirstDriverError = 100;  // of those that a context keeps

cublasStatus_t Enter(const char* function) {
  if (TheDriver().enter == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const int result = TheDriver().enter(function);
  return result >= kFirstDriverError ? CUBLAS_STATUS_EXECUTION_FAILED : static_cast<cublasStatus_t>(result);
}
CUcontext CurrentContext() {
  CUcontext context = nullptr;
  if (TheDriver().current != nullptr) TheDriver().current(&context);
  return context;
}

cublasStatus_t Wrong(const char* function, const std::string& what, cublasStatus_t status) {
  std::fprintf(stderr, "emulator: %s: %s\n", function, what.c_str());
  return status;
}

// Handles and descriptors are known by their addresses: one that was destroyed or never made is told.
template <typename T>
class Known {
 public:
  template <typename Handle>
  void Make(Handle* handle, T value) {
    std::lock_guard lock(mutex_);
    auto made = std::make_unique<T>(std::move(value));
    *handle = reinterpret_cast<Handle>(made.get());
    all_.emplace(made.get(), std::move(made));
  }
  T* Find(const void* handle) {
    std::lock_guard lock(mutex_);
    const auto found = all_.find(handle);
    return found == all_.end() ? nullptr : found->second.get();
  }
  cublasStatus_t Destroy(const void* handle) {
    std::lock_guard lock(mutex_);
    return all_.erase(handle) > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::unique_ptr<T>> all_;
};
Known<cublasLtContext> handles;
Known<LtMatrix> layouts;
Known<LtOperation> operations;
Known<LtPreference> preferences;

template <typename T>
cublasStatus_t Set(T& attribute, const void* from, size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

// Checks a handle, which has to be made for the thread's context.
cublasStatus_t CheckHandle(const char* function, cublasLtHandle_t handle) {
  const cublasLtContext* known = handles.Find(handle);
  if (known == nullptr) return Wrong(function, "no handle", CUBLAS_STATUS_NOT_INITIALIZED);
  if (known->context != CurrentContext()) {
    return Wrong(function, "a handle of another context than the thread's", CUBLAS_STATUS_INVALID_VALUE);
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool Gather(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
            cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, LtShapes* shapes) {
  const LtOperation* o = operations.Find(operation);
  const LtMatrix *of_a = layouts.Find(a), *of_b = layouts.Find(b), *of_c = layouts.Find(c), *of_d = layouts.Find(d);
  if (o == nullptr || of_a == nullptr || of_b == nullptr || of_c == nullptr || of_d == nullptr) return false;
  *shapes = {*o, *of_a, *of_b, *of_c, *of_d};
  return true;
}

double ScaleOf(const LtOperation& operation, const void* scale) {
  if (operation.scale == CUDA_R_64F) return *static_cast<const double*>(scale);
  return static_cast<double>(*static_cast<const float*>(scale));
}

// It may load, or take memory, with whatever call.
cublasStatus_t MayWait() {
  const int result = TheDriver().may_wait_for_all("cublasLtMatmul");
  return result == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

struct State {
  LtCall call;
  std::string wrong;
};

const char* RunState(void* opaque, const TesseraEmulatorMemory* memory) {
  State& state = *static_cast<State*>(opaque);
  state.wrong = RunProduct(state.call, [memory](uint64_t address, int64_t bytes, bool is_write) {
    return static_cast<std::byte*>(memory->touch(memory->engine, address, bytes, is_write ? 1 : 0));
  });
  return state.wrong.empty() ? nullptr : state.wrong.c_str();
}

uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return kVersion; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS of another kind";
  }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (const cublasStatus_t entered = Enter("cublasLtCreate"); entered != CUBLAS_STATUS_SUCCESS) return entered;
  const CUcontext context = CurrentContext();
  if (context == nullptr) return Wrong("cublasLtCreate", "no context is current", CUBLAS_STATUS_NOT_INITIALIZED);
  handles.Make(handle, {context});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return handles.Destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (const cublasStatus_t entered = Enter("cublasLtMatmulDescCreate"); entered != CUBLAS_STATUS_SUCCESS) {
    return entered;
  }
  LtOperation operation;
  operation.compute = compute;
  operation.scale = scale;
  operations.Make(description, operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) { return operations.Destroy(description); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute, const void* from,
                                              size_t bytes) {
  if (const cublasStatus_t entered = Enter("cublasLtMatmulDescSetAttribute"); entered != CUBLAS_STATUS_SUCCESS) {
    return entered;
  }
  LtOperation* operation = operations.Find(description);
  if (operation == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return Set(operation->pointer_mode, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA: return Set(operation->transpose_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return Set(operation->transpose_b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return Set(operation->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return Set(operation->bias, from, bytes);
    default: return Wrong("cublasLtMatmulDescSetAttribute", "an unknown attribute", CUBLAS_STATUS_INVALID_VALUE);
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t leading_dimension) {
  if (const cublasStatus_t entered = Enter("cublasLtMatrixLayoutCreate"); entered != CUBLAS_STATUS_SUCCESS) {
    return entered;
  }
  layouts.Make(layout, {.type = type, .rows = rows, .columns = columns, .leading_dimension = leading_dimension});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return layouts.Destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* from,
                                                size_t bytes) {
  LtMatrix* matrix = layouts.Find(layout);
  if (matrix == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return Set(matrix->order, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return Set(matrix->batch, from, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return Set(matrix->batch_stride, from, bytes);
    default: return Wrong("cublasLtMatrixLayoutSetAttribute", "an unknown attribute", CUBLAS_STATUS_INVALID_VALUE);
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  if (const cublasStatus_t entered = Enter("cublasLtMatmulPreferenceCreate"); entered != CUBLAS_STATUS_SUCCESS) {
    return entered;
  }
  preferences.Make(preference, {});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return preferences.Destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                                                    size_t bytes) {
  LtPreference* preference = preferences.Find(handle);
  if (preference == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return Set(preference->workspace_bytes, from, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return Set(preference->schemes, from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return Set(preference->alignment[0], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return Set(preference->alignment[1], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return Set(preference->alignment[2], from, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return Set(preference->alignment[3], from, bytes);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK: return Set(preference->implementations, from, bytes);
    default: return Wrong("cublasLtMatmulPreferenceSetAttribute", "an unknown one", CUBLAS_STATUS_INVALID_VALUE);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  constexpr const char* kName = "cublasLtMatmulAlgoGetHeuristic";
  if (const cublasStatus_t entered = Enter(kName); entered != CUBLAS_STATUS_SUCCESS) return entered;
  if (const cublasStatus_t status = CheckHandle(kName, handle); status != CUBLAS_STATUS_SUCCESS) return status;
  LtShapes shapes;
  const LtPreference* preference = preferences.Find(wanted);
  if (preference == nullptr || asked <= 0 || !Gather(description, a, b, c, d, &shapes)) {
    return Wrong(kName, "a descriptor that isn't there", CUBLAS_STATUS_INVALID_VALUE);
  }
  const std::optional<LtAlgorithm> algorithm = ChooseAlgorithm(shapes, *preference);
  *found = algorithm.has_value() ? 1 : 0;
  if (!algorithm.has_value()) return Wrong(kName, WrongWith(shapes), CUBLAS_STATUS_NOT_SUPPORTED);
  results[0] = {};
  std::memcpy(&results[0].algo, &*algorithm, sizeof(LtAlgorithm));
  results[0].workspaceSize = algorithm->workspace_bytes;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  constexpr const char* kName = "cublasLtMatmulAlgoCheck";
  if (const cublasStatus_t entered = Enter(kName); entered != CUBLAS_STATUS_SUCCESS) return entered;
  if (const cublasStatus_t status = CheckHandle(kName, handle); status != CUBLAS_STATUS_SUCCESS) return status;
  LtShapes shapes;
  if (algorithm == nullptr || result == nullptr || !Gather(description, a, b, c, d, &shapes)) {
    return Wrong(kName, "a descriptor or an algorithm that isn't there", CUBLAS_STATUS_INVALID_VALUE);
  }
  LtAlgorithm asked;
  std::memcpy(static_cast<void*>(&asked), algorithm, sizeof(LtAlgorithm));
  const std::optional<uint64_t> workspace_bytes = CheckAlgorithm(shapes, asked);
  if (!workspace_bytes.has_value()) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = *workspace_bytes;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  constexpr const char* kName = "cublasLtMatmul";
  if (const cublasStatus_t entered = Enter(kName); entered != CUBLAS_STATUS_SUCCESS) return entered;
  if (const cublasStatus_t status = CheckHandle(kName, handle); status != CUBLAS_STATUS_SUCCESS) return status;
  static std::atomic<uint32_t> calls{0};
  auto state = std::make_unique<State>();
  LtCall& call = state->call;
  if (!Gather(description, a_layout, b_layout, c_layout, d_layout, &call.shapes) || alpha == nullptr ||
      beta == nullptr) {
    return Wrong(kName, "a descriptor or a scale that isn't there", CUBLAS_STATUS_INVALID_VALUE);
  }
  if (std::string wrong = WrongWith(call.shapes); !wrong.empty()) {
    return Wrong(kName, wrong, CUBLAS_STATUS_INVALID_VALUE);
  }
  if (algorithm == nullptr) return Wrong(kName, "no algorithm", CUBLAS_STATUS_NOT_SUPPORTED);
  std::memcpy(static_cast<void*>(&call.algorithm), algorithm, sizeof(LtAlgorithm));
  call.alpha = ScaleOf(call.shapes.operation, alpha);
  call.beta = ScaleOf(call.shapes.operation, beta);
  call.a = AddressOf(a);
  call.b = AddressOf(b);
  call.c = AddressOf(c);
  call.d = AddressOf(d);
  call.workspace = AddressOf(workspace);
  call.workspace_bytes = workspace_bytes;
  call.is_odd = calls++ % 2 != 0;
  if (std::string wrong = WrongWith(call); !wrong.empty()) return Wrong(kName, wrong, CUBLAS_STATUS_INVALID_VALUE);
  if (const cublasStatus_t status = MayWait(); status != CUBLAS_STATUS_SUCCESS) return status;
  const TesseraEmulatorOperation operation = {
      "product", nullptr, RunState, [](void* opaque) { delete static_cast<State*>(opaque); }, state.release()};
  return TheDriver().push(stream, &operation) != 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
}
