// In place of cuda_platform.cc where the CUDA toolkit wasn't there when this was built: no kernel for a GPU was
// compiled.

#include "server/device/cuda/cuda_platform.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<Platform>> MakeCudaPlatform(const CudaPlatformOptions&) {
  return absl::FailedPreconditionError(
      "cuda: this program was built without the CUDA toolkit (nvcc) and has no kernels for a GPU, whether there is a "
      "libcuda.so.1 or not");
}

}  // namespace tessera
