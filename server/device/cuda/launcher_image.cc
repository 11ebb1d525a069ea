// Kernels that ship, and those that were compiled: how they are loaded.

#include <cstdlib>
#include <string_view>
#include <vector>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/cuda/launcher.h"

namespace tessera::cuda {
namespace {

// A kernel that isn't loaded yet would be at its first launch.
absl::Status LoadNow(const Driver& driver, CUkernel kernel) {
  CUfunction function = nullptr;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuKernelGetFunction", driver.KernelGetFunction(&function, kernel)));
  return driver.Check("cuFuncLoad", driver.FuncLoad(function));
}

// 13020: 13.2.
std::string VersionText(int version) { return StrCat(version / 1000, ".", version % 1000 / 10); }

}  // namespace

absl::Status Launcher::LoadImage() {
  for (const ImagePart& part : Image()) TESSERA_RETURN_IF_ERROR(LoadImage(part));
  const char* maps = std::getenv("TESSERA_COMMON_MAPS");
  if (maps != nullptr && std::string_view(maps) == "none") return absl::OkStatus();
  return LoadImage(CommonMapsImage());
}

absl::Status Launcher::LoadImage(const ImagePart& part) {
  const Driver& driver = *gpu_.driver;
  CUlibrary library = nullptr;
  absl::Status loaded = driver.Check("cuLibraryLoadData", driver.LibraryLoadData(&library, part.fatbin.data(), nullptr,
                                                                                 nullptr, 0, nullptr, nullptr, 0));
  if (!loaded.ok()) {
    int version = 0;
    driver.DriverGetVersion(&version);
    return absl::Status(loaded.code(),
                        StrCat(StdView(loaded.message()), ", of the kernels \"", part.family, "\": they are of CUDA ",
                               VersionText(CUDA_VERSION), ", and the driver is for CUDA ", VersionText(version)));
  }
  image_.push_back(library);
  unsigned count = 0;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuLibraryGetKernelCount", driver.LibraryGetKernelCount(&count, library)));
  std::vector<CUkernel> kernels(count);
  TESSERA_RETURN_IF_ERROR(
      driver.Check("cuLibraryEnumerateKernels", driver.LibraryEnumerateKernels(kernels.data(), count, library)));
  for (CUkernel kernel : kernels) {
    const char* name = nullptr;
    TESSERA_RETURN_IF_ERROR(driver.Check("cuKernelGetName", driver.KernelGetName(&name, kernel)));
    TESSERA_RETURN_IF_ERROR(LoadNow(driver, kernel));
    kernels_.emplace(name, kernel);
  }
  return absl::OkStatus();
}

absl::StatusOr<CUkernel> Launcher::Load(const std::string& compiled, const std::string& entry) {
  const Driver& driver = *gpu_.driver;
  CUlibrary library = nullptr;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuLibraryLoadData", driver.LibraryLoadData(&library, compiled.c_str(), nullptr,
                                                                                   nullptr, 0, nullptr, nullptr, 0)));
  libraries_.push_back(library);
  CUkernel kernel = nullptr;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuLibraryGetKernel", driver.LibraryGetKernel(&kernel, library, entry.c_str())));
  TESSERA_RETURN_IF_ERROR(LoadNow(driver, kernel));
  return kernel;
}

}  // namespace tessera::cuda
