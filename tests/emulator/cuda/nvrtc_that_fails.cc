// A libnvrtc of which every program fails to compile; the next one takes as long as a test wants it to.

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <mutex>

namespace {
constexpr char kLog[] = "this NVRTC compiles nothing";

enum class Next { kFails, kIsHeld, kIsBeingHeld };
std::mutex mutex;
std::condition_variable changed;
Next next = Next::kFails;  // guarded by mutex
}  // namespace

extern "C" {
// The next program isn't done until the release.
void tessera_nvrtc_hold() {
  const std::lock_guard lock(mutex);
  next = Next::kIsHeld;
}
// Until a program is held.
void tessera_nvrtc_await() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return next == Next::kIsBeingHeld; });
}
void tessera_nvrtc_release() {
  const std::lock_guard lock(mutex);
  next = Next::kFails;
  changed.notify_all();
}

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
int nvrtcCompileProgram(void*, int, const char* const*) {
  std::unique_lock lock(mutex);
  if (next == Next::kIsHeld) {
    next = Next::kIsBeingHeld;
    changed.notify_all();
    changed.wait(lock, [] { return next != Next::kIsBeingHeld; });
  }
  return 6;
}
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
