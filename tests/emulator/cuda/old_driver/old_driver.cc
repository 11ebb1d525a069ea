// A libcuda.so.1 of a driver that is too old: it has all functions but one that came later.

#include <cstdint>
#include <cstring>

extern "C" {
int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, void*) {
  constexpr int kNotFound = 500;
  const bool is_there = std::strcmp(name, "cuLibraryLoadData") != 0;
  *function = is_there ? reinterpret_cast<void*>(&cuGetProcAddress_v2) : nullptr;  // never called
  return is_there ? 0 : kNotFound;
}
}
