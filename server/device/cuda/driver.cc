#include "server/device/cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "schemas/types/library_functions.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/gpu_use.h"

namespace tessera::cuda {
namespace {

constexpr int kVersion = 12040;  // of the functions' signatures that are asked for
constexpr const char* kLibrary = "libcuda.so.1";

absl::StatusOr<Driver> Find() {
  void* library = dlopen(kLibrary, RTLD_NOW);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::FailedPreconditionError(
        StrCat("cuda: no driver: ", why == nullptr ? StrCat(kLibrary, " can't be opened") : std::string(why)));
  }
  using GetAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto get = reinterpret_cast<GetAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("cuda: ", kLibrary, " has no cuGetProcAddress_v2: a driver for CUDA 12.4 or newer is needed"));
  }
  Driver driver;
  const auto find = [get](const char* name) {
    void* found = nullptr;
    return get(name, &found, kVersion, 0, nullptr) == CUDA_SUCCESS ? found : nullptr;
  };
  LibraryFunctions take(find), take_of_graphs(find);
#define TESSERA_CUDA_TAKE(Name) take("cu" #Name, driver.Name);
  TESSERA_CUDA_FUNCTIONS(TESSERA_CUDA_TAKE)
#undef TESSERA_CUDA_TAKE
#define TESSERA_CUDA_TAKE(Name) take_of_graphs("cu" #Name, driver.Name);
  TESSERA_CUDA_GRAPH_FUNCTIONS(TESSERA_CUDA_TAKE)
#undef TESSERA_CUDA_TAKE
  if (!take.missing().empty()) {
    return absl::FailedPreconditionError(
        StrCat("cuda: ", kLibrary, " has no ", take.missing(), ": a driver for CUDA 12.4 or newer is needed"));
  }
  // Read as the driver starts (gpu_use.h).
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", StrCat(kConnections).c_str(), /*overwrite=*/0);
  if (absl::Status status = driver.Check("cuInit", driver.Init(0)); !status.ok()) {
    return absl::FailedPreconditionError(StrCat(StdView(status.message()), " (", kLibrary, ")"));
  }
  return driver;
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Load() {
  static const absl::StatusOr<Driver>& driver = *new absl::StatusOr<Driver>(Find());
  if (!driver.ok()) return driver.status();
  return &*driver;
}

bool Driver::HasGraphs() const {
  bool has_all = true;
#define TESSERA_CUDA_IS_THERE(Name) has_all = has_all && Name != nullptr;
  TESSERA_CUDA_GRAPH_FUNCTIONS(TESSERA_CUDA_IS_THERE)
#undef TESSERA_CUDA_IS_THERE
  return has_all;
}

absl::Status Driver::Check(std::string_view call, CUresult result) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  GetErrorName(result, &name);
  const std::string message =
      StrCat("cuda: ", call, ": ", name == nullptr ? "an error" : name, " (", static_cast<int>(result), ")");
  return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

}  // namespace tessera::cuda
