#include "server/device/cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>

#include "schemas/types/library_functions.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
absl::StatusOr<std::unique_ptr<const CublasLt>> CublasLt::Open(const std::vector<std::string>& libraries) {
  std::string tried;
  for (const std::string& name : libraries) {
    std::string why;
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL); library == nullptr) {
      why = dlerror();
    } else {
      auto table = std::make_unique<CublasLt>();
      LibraryFunctions take([library](const char* function) { return dlsym(library, function); });
#define TESSERA_CUBLASLT_TAKE(Name) take("cublasLt" #Name, table->Name);
      TESSERA_CUBLASLT_FUNCTIONS(TESSERA_CUBLASLT_TAKE)
#undef TESSERA_CUBLASLT_TAKE
      if (take.missing().empty()) return table;
      why = StrCat(name, " has no ", take.missing());
    }
    tried += StrCat(tried.empty() ? "" : "; ", why);
  }
  return absl::NotFoundError(StrCat("no cuBLASLt: ", tried));
}

absl::Status CublasLt::Check(std::string_view call, cublasStatus_t result) const {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const char* name = GetStatusName(result);
  return absl::InternalError(
      StrCat("cuda: ", call, ": ", name == nullptr ? "an error" : name, " (", static_cast<int>(result), ")"));
}

std::vector<std::string> CublasLtLibraries() {
  if (const char* path = std::getenv("TESSERA_CUBLASLT"); path != nullptr) return {path};
  return {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"};
}

}  // namespace tessera::cuda
