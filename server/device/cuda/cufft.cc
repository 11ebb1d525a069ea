#include "server/device/cuda/cufft.h"

#include <dlfcn.h>

#include "schemas/types/library_functions.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/library.h"

namespace tessera::cuda {
namespace {

constexpr int kVersionsOfAMajor = 1000;

const char* NameOf(cufftResult result) {
  switch (result) {
    case CUFFT_INVALID_PLAN: return "CUFFT_INVALID_PLAN";
    case CUFFT_ALLOC_FAILED: return "CUFFT_ALLOC_FAILED";
    case CUFFT_INVALID_TYPE: return "CUFFT_INVALID_TYPE";
    case CUFFT_INVALID_VALUE: return "CUFFT_INVALID_VALUE";
    case CUFFT_INTERNAL_ERROR: return "CUFFT_INTERNAL_ERROR";
    case CUFFT_EXEC_FAILED: return "CUFFT_EXEC_FAILED";
    case CUFFT_SETUP_FAILED: return "CUFFT_SETUP_FAILED";
    case CUFFT_INVALID_SIZE: return "CUFFT_INVALID_SIZE";
    case CUFFT_NO_WORKSPACE: return "CUFFT_NO_WORKSPACE";
    case CUFFT_NOT_IMPLEMENTED: return "CUFFT_NOT_IMPLEMENTED";
    case CUFFT_NOT_SUPPORTED: return "CUFFT_NOT_SUPPORTED";
    default: return "an error";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Cufft>> Cufft::Open() {
  TESSERA_ASSIGN_OR_RETURN(void* library, OpenLibrary({.variable = "TESSERA_CUFFT", .file = "libcufft.so.12"}));
  auto table = std::make_unique<Cufft>();
  LibraryFunctions take([library](const char* name) { return dlsym(library, name); });
#define TESSERA_CUFFT_TAKE(Name) take("cufft" #Name, table->Name);
  TESSERA_CUFFT_FUNCTIONS(TESSERA_CUFFT_TAKE)
#undef TESSERA_CUFFT_TAKE
  if (!take.missing().empty()) return absl::FailedPreconditionError(StrCat("cuFFT has no ", take.missing()));
  int version = 0;
  TESSERA_RETURN_IF_ERROR(Check("cufftGetVersion", table->GetVersion(&version)));
  if (version / kVersionsOfAMajor != CUFFT_VER_MAJOR) {
    return absl::FailedPreconditionError(
        StrCat("cuFFT is of version ", version, ", and one of ", CUFFT_VER_MAJOR, ".* is needed"));
  }
  return table;
}

absl::Status Cufft::Check(std::string_view call, cufftResult result) {
  if (result == CUFFT_SUCCESS) return absl::OkStatus();
  return absl::UnimplementedError(StrCat("cuda: ", call, ": ", NameOf(result), " (", static_cast<int>(result), ")"));
}

}  // namespace tessera::cuda
