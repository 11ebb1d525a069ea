// A libnvrtc of which every program fails to compile.

#include <cstddef>
#include <cstring>

namespace {
constexpr char kLog[] = "this NVRTC compiles nothing";
}  // namespace

extern "C" {
int nvrtcVersion(int* major, int* minor) {
  *major = *minor = 0;
  return 0;
}
const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
  *program = nullptr;
  return 0;
}
int nvrtcDestroyProgram(void**) { return 0; }
int nvrtcCompileProgram(void*, int, const char* const*) { return 6; }
int nvrtcGetProgramLogSize(void*, size_t* bytes) {
  *bytes = sizeof(kLog);
  return 0;
}
int nvrtcGetProgramLog(void*, char* log) {
  std::memcpy(log, kLog, sizeof(kLog));
  return 0;
}
int nvrtcGetPTXSize(void*, size_t*) { return 1; }
int nvrtcGetPTX(void*, char*) { return 1; }
int nvrtcGetCUBINSize(void*, size_t*) { return 1; }
int nvrtcGetCUBIN(void*, char*) { return 1; }
}
