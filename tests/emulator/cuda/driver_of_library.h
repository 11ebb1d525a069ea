#pragma once

// The emulated driver's functions for an emulated library (libraries.h), which is loaded beside it: cuBLASLt, cuDNN,
// cuFFT.

#include <dlfcn.h>

#include <type_traits>

#include <cuda.h>

#include "tests/emulator/cuda/libraries.h"

namespace tessera::emulator {

// All null where the driver in the process is a real one, or none.
struct DriverOfLibrary {
  decltype(&::tessera_emulator_enter) enter = nullptr;
  decltype(&::tessera_emulator_push) push = nullptr;
  decltype(&::tessera_emulator_may_wait_for_all) may_wait_for_all = nullptr;
  decltype(&::cuCtxGetCurrent) current = nullptr;
};
inline const DriverOfLibrary& TheDriver() {
  static const DriverOfLibrary driver = [] {
    DriverOfLibrary found;
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return found;
    const auto take = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    take("tessera_emulator_enter", found.enter);
    take("tessera_emulator_push", found.push);
    take("tessera_emulator_may_wait_for_all", found.may_wait_for_all);
    take("cuCtxGetCurrent", found.current);
    return found;
  }();
  return driver;
}

}  // namespace tessera::emulator
