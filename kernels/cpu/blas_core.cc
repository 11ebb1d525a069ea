#include "kernels/cpu/blas_core.h"

#include <cblas.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace tessera {
namespace {

// OpenBLAS falls back to these on x86-64.
bool IsFallback(std::string_view core) { return core == "Prescott" || core == "Generic" || core == "Core2"; }

const char* CoreByCapability() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Kernels of one generation back: sure to exist in the release and fast with AVX-512.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? "SAPPHIRERAPIDS" : "SKYLAKEX";
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "HASWELL";
#endif
  return nullptr;
}

}  // namespace

std::string BlasCoreName() { return openblas_get_corename(); }

void RestartWithKnownBlasCore(char** argv) {
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !IsFallback(BlasCoreName())) return;
  const char* core = CoreByCapability();
  if (core == nullptr || setenv("OPENBLAS_CORETYPE", core, 0) != 0) return;
  execv("/proc/self/exe", argv);
}

}  // namespace tessera
