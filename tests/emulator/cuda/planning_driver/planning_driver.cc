// A libcuda.so.1 without a device: kernels can be loaded and asked for, and everything else fails. cuDNN plans on it
// for a device that is described to it. Names are those that the library exports, which headers hide; handles are
// pointers.

#include <dlfcn.h>

#include <string>

using CUresult = int;

namespace {

constexpr CUresult kSuccess = 0, kNotInitialized = 3;
constexpr int kVersion = 13000;
char something;  // what handles point at

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
CUresult cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = &something;
  return kSuccess;
}
CUresult cuLibraryUnload(void*) { return kSuccess; }
CUresult cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &something;
  return kSuccess;
}
CUresult cuLibraryGetKernelCount(unsigned* count, void*) {
  *count = 1;
  return kSuccess;
}
CUresult cuKernelGetFunction(void** function, void*) {
  *function = &something;
  return kSuccess;
}
CUresult cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return kSuccess;
}
CUresult cuKernelSetAttribute(int, int, void*, int) { return kSuccess; }
CUresult cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return kSuccess;
}
CUresult cuFuncSetAttribute(void*, int, int) { return kSuccess; }

#define X(name) \
  CUresult name() { return kNotInitialized; }
#include "tests/emulator/cuda/planning_driver/failing_functions.inc"
#undef X

static CUresult Find(const char* name, void** function, int* found) {
  Dl_info info;
  void* self =
      dladdr(reinterpret_cast<void*>(&Find), &info) == 0 ? nullptr : dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (*function == nullptr && self != nullptr) *function = dlsym(self, (std::string(name) + suffix).c_str());
  }
  if (found != nullptr) *found = *function == nullptr ? 1 : 0;
  return kSuccess;
}
CUresult cuGetProcAddress(const char* name, void** function, int, unsigned long long) {
  return Find(name, function, nullptr);
}
CUresult cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* found) {
  return Find(name, function, found);
}
}
