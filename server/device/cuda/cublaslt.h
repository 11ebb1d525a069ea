#pragma once

// cuBLASLt's functions, taken at run time from libcublasLt.so.13: a worker without it starts, too.
//
//   auto library = CublasLt::Open({"libcublasLt.so.13"});
//   TESSERA_RETURN_IF_ERROR((*library)->Check("cublasLtCreate", (*library)->Create(&handle)));

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cublasLt.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::cuda {

// X(Name): cublasLtName of the library, as CublasLt::Name.
#define TESSERA_CUBLASLT_FUNCTIONS(X) \
  X(Create)                           \
  X(Destroy)                          \
  X(GetStatusName)                    \
  X(GetVersion)                       \
  X(Matmul)                           \
  X(MatmulAlgoCheck)                  \
  X(MatmulAlgoGetHeuristic)           \
  X(MatmulDescCreate)                 \
  X(MatmulDescDestroy)                \
  X(MatmulDescSetAttribute)           \
  X(MatmulPreferenceCreate)           \
  X(MatmulPreferenceDestroy)          \
  X(MatmulPreferenceSetAttribute)     \
  X(MatrixLayoutCreate)               \
  X(MatrixLayoutDestroy)              \
  X(MatrixLayoutSetAttribute)

struct CublasLt {
  // The first of them that can be opened. NotFound names them and says why none can. An opened library stays open.
  static absl::StatusOr<std::unique_ptr<const CublasLt>> Open(const std::vector<std::string>& libraries);

  // OK, or an error that names the call and what the library calls the error.
  absl::Status Check(std::string_view call, cublasStatus_t result) const;

#define TESSERA_CUBLASLT_MEMBER(Name) decltype(&::cublasLt##Name) Name = nullptr;
  TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_MEMBER)
#undef TESSERA_CUBLASLT_MEMBER
};

// TESSERA_CUBLASLT alone where it is set; else where the loader looks, and where the toolkit puts it.
std::vector<std::string> CublasLtLibraries();

}  // namespace tessera::cuda
