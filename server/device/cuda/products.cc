#include "server/device/cuda/products.h"

#include <optional>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

cudaDataType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF64: return CUDA_R_64F;
    case DType::kF8E4M3: return CUDA_R_8F_E4M3;
    case DType::kF8E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t ComputeTypeOf(const LtShape& shape) {
  if (shape.computed_in == DType::kF64) return CUBLAS_COMPUTE_64F;
  return shape.precision == ProductPrecision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Implementations that read f32 with fewer bits than was asked for, or add up in f16, have no place; COMPUTE_32F alone
// asks for none.
uint64_t ImplementationsFor(const LtShape& shape) {
  uint64_t refused = CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F;
  if (shape.dtype == DType::kF32 && !IsFloat8(shape.a.dtype)) {
    refused |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF;
    if (shape.precision == ProductPrecision::kFull) refused |= CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32;
  }
  return ~refused;
}

// Whether the library says that there is no algorithm, which stays so; another error (memory that
// is short) is no answer.
bool IsRefusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

void* At(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

std::string TextOf(const LtShape& shape) {
  const std::string factors =
      IsFloat8(shape.a.dtype) ? StrCat(ToText(shape.a.dtype), " and ", ToText(shape.b.dtype), " to ") : "";
  return StrCat(factors, ToText(shape.dtype), " ", shape.rows, " x ", shape.inner, " by ", shape.inner, " x ",
                shape.columns, ", batch ", shape.batch);
}

}  // namespace

struct Products::Prepared {
  explicit Prepared(const CublasLt& library) : library(library) {}
  ~Prepared() {
    for (cublasLtMatrixLayout_t layout : layouts) {
      if (layout != nullptr) library.MatrixLayoutDestroy(layout);
    }
    for (cublasLtMatmulDesc_t operation : {description, with_bias}) {
      if (operation != nullptr) library.MatmulDescDestroy(operation);
    }
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  absl::Status Describe(const LtShape& shape) {
    TESSERA_RETURN_IF_ERROR(DescribeOperation(shape, &description));
    for (const auto& [layout, from] :
         {std::pair(&layouts[0], &shape.a), std::pair(&layouts[1], &shape.b), std::pair(&layouts[2], &shape.d)}) {
      TESSERA_RETURN_IF_ERROR(
          library.Check("cublasLtMatrixLayoutCreate",
                        library.MatrixLayoutCreate(layout, TypeOf(from->dtype), static_cast<uint64_t>(from->rows),
                                                   static_cast<uint64_t>(from->columns), from->rows)));
      if (shape.batch == 1) continue;
      TESSERA_RETURN_IF_ERROR(Set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, shape.batch));
      TESSERA_RETURN_IF_ERROR(Set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, from->batch_stride));
    }
    return absl::OkStatus();
  }
  absl::Status DescribeWithBias(const LtShape& shape) {
    if (with_bias == nullptr) TESSERA_RETURN_IF_ERROR(DescribeOperation(shape, &with_bias));
    return Set(with_bias, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  }
  // Queries of the description are answered for a bias of this alignment.
  absl::Status SetBias(uint64_t address) { return Set(with_bias, CUBLASLT_MATMUL_DESC_BIAS_POINTER, At(address)); }

  const CublasLt& library;
  cublasLtMatmulDesc_t description = nullptr, with_bias = nullptr;
  cublasLtMatrixLayout_t layouts[3] = {};  // a, b, d
  cublasLtMatmulAlgo_t algorithm = {};
  std::optional<bool> adds_bias;  // nothing: wasn't asked

 private:
  absl::Status DescribeOperation(const LtShape& shape, cublasLtMatmulDesc_t* operation) const {
    TESSERA_RETURN_IF_ERROR(
        library.Check("cublasLtMatmulDescCreate",
                      library.MatmulDescCreate(operation, ComputeTypeOf(shape), TypeOf(shape.computed_in))));
    if (!shape.is_a_transposed) return absl::OkStatus();
    return Set(*operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  }
  template <typename T>
  absl::Status Set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) const {
    return library.Check("cublasLtMatrixLayoutSetAttribute",
                         library.MatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)));
  }
  template <typename T>
  absl::Status Set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) const {
    return library.Check("cublasLtMatmulDescSetAttribute",
                         library.MatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  }
};

namespace {

// The heuristic's preferences, beside the matrices.
class Preference {
 public:
  explicit Preference(const CublasLt& library) : library_(library) {}
  ~Preference() {
    if (preference_ != nullptr) library_.MatmulPreferenceDestroy(preference_);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get() const { return preference_; }

  absl::Status Describe(const LtShape& shape) {
    TESSERA_RETURN_IF_ERROR(
        library_.Check("cublasLtMatmulPreferenceCreate", library_.MatmulPreferenceCreate(&preference_)));
    TESSERA_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kProductWorkspaceBytes)));
    TESSERA_RETURN_IF_ERROR(
        Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
    TESSERA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_PREF_IMPL_MASK, ImplementationsFor(shape)));
    TESSERA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.a.alignment_bytes));
    TESSERA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.b.alignment_bytes));
    TESSERA_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.d.alignment_bytes));
    return Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.d.alignment_bytes);
  }

 private:
  template <typename T>
  absl::Status Set(cublasLtMatmulPreferenceAttributes_t attribute, T value) const {
    return library_.Check("cublasLtMatmulPreferenceSetAttribute",
                          library_.MatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof(value)));
  }
  const CublasLt& library_;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace

Products::Products(std::unique_ptr<const CublasLt> library, cublasLtHandle_t handle)
    : library_(std::move(library)), handle_(handle) {}

Products::~Products() {
  prepared_.clear();
  library_->Destroy(handle_);
}

absl::StatusOr<std::unique_ptr<Products>> Products::Open(const Gpu& gpu, const std::vector<std::string>& libraries) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const CublasLt> library, CublasLt::Open(libraries));
  cublasLtHandle_t handle = nullptr;
  TESSERA_RETURN_IF_ERROR(library->Check("cublasLtCreate", library->Create(&handle)));
  return std::unique_ptr<Products>(new Products(std::move(library), handle));
}

absl::StatusOr<std::shared_ptr<Products::Prepared>> Products::Ask(const LtShape& shape) {
  auto prepared = std::make_shared<Prepared>(*library_);
  TESSERA_RETURN_IF_ERROR(prepared->Describe(shape));
  Preference preference(*library_);
  TESSERA_RETURN_IF_ERROR(preference.Describe(shape));
  cublasLtMatmulHeuristicResult_t first = {};
  int found = 0;
  const cublasStatus_t answer =
      library_->MatmulAlgoGetHeuristic(handle_, prepared->description, prepared->layouts[0], prepared->layouts[1],
                                       prepared->layouts[2], prepared->layouts[2], preference.get(), 1, &first, &found);
  ++asked_;
  if (answer == CUBLAS_STATUS_SUCCESS && found > 0 && first.state == CUBLAS_STATUS_SUCCESS) {
    prepared->algorithm = first.algo;
    return prepared;
  }
  cublasStatus_t why = answer;
  if (answer == CUBLAS_STATUS_SUCCESS) why = found > 0 ? first.state : CUBLAS_STATUS_NOT_SUPPORTED;
  absl::Status status = library_->Check("cublasLtMatmulAlgoGetHeuristic", why);
  if (!IsRefusal(why)) return status;
  return absl::UnimplementedError(
      StrCat("cuBLASLt has no algorithm for ", TextOf(shape), ": ", StdView(status.message())));
}

absl::StatusOr<std::shared_ptr<Products::Prepared>> Products::Prepare(const LtShape& shape) {
  if (const auto known = prepared_.find(shape); known != prepared_.end()) return known->second;
  if (prepared_.size() >= kMaxPreparedProducts) prepared_.clear();
  absl::StatusOr<std::shared_ptr<Prepared>> answer = Ask(shape);
  if (answer.ok() || absl::IsUnimplemented(answer.status())) prepared_.emplace(shape, answer);
  return answer;
}

absl::StatusOr<bool> Products::HasAlgorithms(absl::Span<const LtProblem> problems) {
  for (const LtProblem& problem : problems) {
    const absl::Status status = Prepare(problem.shape).status();
    if (absl::IsUnimplemented(status)) return false;
    TESSERA_RETURN_IF_ERROR(status);
  }
  return true;
}

bool Products::AddsBias(const LtShape& shape) {
  const absl::StatusOr<std::shared_ptr<Prepared>> prepared = Prepare(shape);
  return prepared.ok() && AddsBias(shape, **prepared);
}

bool Products::AddsBias(const LtShape& shape, Prepared& prepared) {
  if (prepared.adds_bias.has_value()) return *prepared.adds_bias;
  const absl::StatusOr<bool> answer = AskForBias(shape, prepared);
  if (answer.ok()) prepared.adds_bias = *answer;  // what else goes wrong is no answer
  return answer.value_or(false);
}

absl::StatusOr<bool> Products::AskForBias(const LtShape& shape, Prepared& prepared) {
  TESSERA_RETURN_IF_ERROR(prepared.DescribeWithBias(shape));
  TESSERA_RETURN_IF_ERROR(prepared.SetBias(kProductAlignment));
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t answer =
      library_->MatmulAlgoCheck(handle_, prepared.with_bias, prepared.layouts[0], prepared.layouts[1],
                                prepared.layouts[2], prepared.layouts[2], &prepared.algorithm, &result);
  if (IsRefusal(answer)) return false;
  TESSERA_RETURN_IF_ERROR(library_->Check("cublasLtMatmulAlgoCheck", answer));
  return result.workspaceSize <= static_cast<size_t>(kProductWorkspaceBytes);
}

absl::Status Products::Multiply(CUstream stream, const LtProblem& problem, Prepared& with, CUdeviceptr workspace) {
  const bool has_bias = problem.bias != 0;
  if (has_bias && !AddsBias(problem.shape, with)) {
    return absl::UnimplementedError(StrCat("cuBLASLt adds no bias by its algorithm for ", TextOf(problem.shape)));
  }
  if (has_bias) TESSERA_RETURN_IF_ERROR(with.SetBias(problem.bias));
  const bool is_double = problem.shape.computed_in == DType::kF64;
  const double added = problem.store == KernelStore::kAdd ? 1 : 0;
  const double wide[] = {1, added};
  const float narrow[] = {1, static_cast<float>(added)};
  const void* alpha = is_double ? static_cast<const void*>(&wide[0]) : &narrow[0];
  const void* beta = is_double ? static_cast<const void*>(&wide[1]) : &narrow[1];
  const cublasStatus_t answer = library_->Matmul(
      handle_, has_bias ? with.with_bias : with.description, alpha, At(problem.a), with.layouts[0], At(problem.b),
      with.layouts[1], beta, At(problem.d), with.layouts[2], At(problem.d), with.layouts[2], &with.algorithm,
      At(workspace), static_cast<size_t>(kProductWorkspaceBytes), stream);
  if (answer == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  absl::Status status = library_->Check(StrCat("cublasLtMatmul of ", TextOf(problem.shape)), answer);
  // The check doesn't promise that the algorithm runs.
  if (has_bias && IsRefusal(answer)) {
    with.adds_bias = false;
    return absl::UnimplementedError(status.message());
  }
  return status;
}

absl::Status Products::Enqueue(CUstream stream, absl::Span<const LtProblem> problems, CUdeviceptr workspace) {
  std::vector<std::shared_ptr<Prepared>> prepared;
  for (const LtProblem& problem : problems) {
    TESSERA_ASSIGN_OR_RETURN(prepared.emplace_back(), Prepare(problem.shape));
  }
  for (size_t i = 0; i < problems.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(Multiply(stream, problems[i], *prepared[i], workspace));
  }
  return absl::OkStatus();
}

}  // namespace tessera::cuda
