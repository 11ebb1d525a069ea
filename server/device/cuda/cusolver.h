#pragma once

// The functions of cuSOLVER, and of cuBLAS beside it, taken at run time from libcusolver.so.12 and libcublas.so.13: a
// worker without them starts, too.
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<const Cusolver> library, Cusolver::Open());
//   TESSERA_RETURN_IF_ERROR(Cusolver::Check("cusolverDnCreate", library->DnCreate(&handle)));

#include <memory>
#include <string_view>

#include <cublas_v2.h>
#include <cusolverDn.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::cuda {

// X(Name): cusolverName of the library, as Cusolver::Name.
#define TESSERA_CUSOLVER_FUNCTIONS(X) \
  X(GetVersion)                       \
  X(DnCreate)                         \
  X(DnCreateGesvdjInfo)               \
  X(DnCreateParams)                   \
  X(DnDestroy)                        \
  X(DnDestroyGesvdjInfo)              \
  X(DnDestroyParams)                  \
  X(DnDgesvdj)                        \
  X(DnDgesvdj_bufferSize)             \
  X(DnDorgqr)                         \
  X(DnDorgqr_bufferSize)              \
  X(DnSetDeterministicMode)           \
  X(DnSetStream)                      \
  X(DnSgesvdj)                        \
  X(DnSgesvdj_bufferSize)             \
  X(DnSorgqr)                         \
  X(DnSorgqr_bufferSize)              \
  X(DnXgeqrf)                         \
  X(DnXgeqrf_bufferSize)              \
  X(DnXgetrf)                         \
  X(DnXgetrf_bufferSize)              \
  X(DnXgetrs)                         \
  X(DnXpotrf)                         \
  X(DnXpotrf_bufferSize)              \
  X(DnXsyevd)                         \
  X(DnXsyevd_bufferSize)
// Likewise of cublasName, as Cusolver::BlasName.
#define TESSERA_CUBLAS_FUNCTIONS(X) \
  X(Create_v2)                      \
  X(Destroy_v2)                     \
  X(Dtrsm_v2_64)                    \
  X(SetStream_v2)                   \
  X(SetWorkspace_v2)                \
  X(Strsm_v2_64)

struct Cusolver {
  // NotFound where one isn't there (library.h; TESSERA_CUSOLVER=PATH and TESSERA_CUBLAS=PATH say where they are),
  // FailedPrecondition by both versions where cuSOLVER is of another major version, or by name of what they lack.
  static absl::StatusOr<std::unique_ptr<const Cusolver>> Open();

  // OK, or Unimplemented, which names the call and the library's number of the error.
  static absl::Status Check(std::string_view call, cusolverStatus_t result);
  static absl::Status Check(std::string_view call, cublasStatus_t result);

#define TESSERA_CUSOLVER_MEMBER(Name) decltype(&::cusolver##Name) Name = nullptr;
  TESSERA_CUSOLVER_FUNCTIONS(TESSERA_CUSOLVER_MEMBER)
#undef TESSERA_CUSOLVER_MEMBER
#define TESSERA_CUBLAS_MEMBER(Name) decltype(&::cublas##Name) Blas##Name = nullptr;
  TESSERA_CUBLAS_FUNCTIONS(TESSERA_CUBLAS_MEMBER)
#undef TESSERA_CUBLAS_MEMBER
};

}  // namespace tessera::cuda
