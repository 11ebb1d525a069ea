#include "server/device/cuda/cusolver.h"

#include <dlfcn.h>

#include "schemas/types/library_functions.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/library.h"

namespace tessera::cuda {
namespace {

constexpr int kVersionsOfAMajor = 1000;

}  // namespace

absl::StatusOr<std::unique_ptr<const Cusolver>> Cusolver::Open() {
  TESSERA_ASSIGN_OR_RETURN(void* solver, OpenLibrary({.variable = "TESSERA_CUSOLVER", .file = "libcusolver.so.12"}));
  TESSERA_ASSIGN_OR_RETURN(void* blas, OpenLibrary({.variable = "TESSERA_CUBLAS", .file = "libcublas.so.13"}));
  auto table = std::make_unique<Cusolver>();
  LibraryFunctions take([solver](const char* name) { return dlsym(solver, name); });
#define TESSERA_CUSOLVER_TAKE(Name) take("cusolver" #Name, table->Name);
  TESSERA_CUSOLVER_FUNCTIONS(TESSERA_CUSOLVER_TAKE)
#undef TESSERA_CUSOLVER_TAKE
  if (!take.missing().empty()) return absl::FailedPreconditionError(StrCat("cuSOLVER has no ", take.missing()));
  LibraryFunctions take_of_blas([blas](const char* name) { return dlsym(blas, name); });
#define TESSERA_CUBLAS_TAKE(Name) take_of_blas("cublas" #Name, table->Blas##Name);
  TESSERA_CUBLAS_FUNCTIONS(TESSERA_CUBLAS_TAKE)
#undef TESSERA_CUBLAS_TAKE
  if (!take_of_blas.missing().empty()) {
    return absl::FailedPreconditionError(StrCat("cuBLAS has no ", take_of_blas.missing()));
  }
  int version = 0;
  TESSERA_RETURN_IF_ERROR(Check("cusolverGetVersion", table->GetVersion(&version)));
  if (version / kVersionsOfAMajor != CUSOLVER_VER_MAJOR) {
    return absl::FailedPreconditionError(
        StrCat("cuSOLVER is of version ", version, ", and one of ", CUSOLVER_VER_MAJOR, ".* is needed"));
  }
  return table;
}

absl::Status Cusolver::Check(std::string_view call, cusolverStatus_t result) {
  if (result == CUSOLVER_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnimplementedError(StrCat("cuda: ", call, ": error ", static_cast<int>(result), " of cuSOLVER"));
}
absl::Status Cusolver::Check(std::string_view call, cublasStatus_t result) {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnimplementedError(StrCat("cuda: ", call, ": error ", static_cast<int>(result), " of cuBLAS"));
}

}  // namespace tessera::cuda
