#include "server/transport/nccl/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "schemas/types/library_functions.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Non-blocking communicators, and the configuration that this is compiled for, are newer NCCLs'.
constexpr int kLeastVersion = 21800;

absl::StatusOr<Nccl> Find() {
  const char* named = std::getenv("TESSERA_NCCL");
  const std::string path = named != nullptr ? named : "libnccl.so.2";
  void* library = dlopen(path.c_str(), RTLD_NOW);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::FailedPreconditionError(
        StrCat("nccl: no library: ", why == nullptr ? StrCat(path, " can't be opened") : std::string(why),
               " (TESSERA_NCCL=PATH says where it is)"));
  }
  Nccl nccl;
  LibraryFunctions take([library](const char* name) { return dlsym(library, name); });
#define TESSERA_NCCL_TAKE(Name) take("nccl" #Name, nccl.Name);
  TESSERA_NCCL_FUNCTIONS(TESSERA_NCCL_TAKE)
#undef TESSERA_NCCL_TAKE
  if (!take.missing().empty()) {
    return absl::FailedPreconditionError(StrCat("nccl: ", path, " has no ", take.missing()));
  }
  int version = 0;
  nccl.GetVersion(&version);
  if (version < kLeastVersion) {
    return absl::FailedPreconditionError(
        StrCat("nccl: ", path, " is version ", version, "; ", kLeastVersion, " or newer is needed"));
  }
  return nccl;
}

}  // namespace

absl::StatusOr<const Nccl*> Nccl::Load() {
  static const absl::StatusOr<Nccl>& nccl = *new absl::StatusOr<Nccl>(Find());
  if (!nccl.ok()) return nccl.status();
  return &*nccl;
}

absl::Status Nccl::Check(std::string_view call, ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return absl::UnavailableError(StrCat("nccl: ", call, ": ", std::string_view(GetErrorString(result)), " (",
                                       static_cast<int>(result), "): ", std::string_view(GetLastError(nullptr))));
}

absl::StatusOr<bool> Nccl::IsBusy(ncclComm_t comm) const {
  ncclResult_t result = ncclSuccess;
  if (absl::Status s = Check("ncclCommGetAsyncError", CommGetAsyncError(comm, &result)); !s.ok()) return s;
  if (absl::Status s = Check("the communicator", result); !s.ok()) return s;
  return result == ncclInProgress;
}

}  // namespace tessera
