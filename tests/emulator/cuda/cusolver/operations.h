#pragma once

// The emulated cuSOLVER and cuBLAS have in common: calls that begin, and operations on matrices of the device.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda.h>

#include "tests/emulator/cuda/cusolver/matrices.h"

namespace tessera::emulator {

// The driver's answer to a call that begins: 0, an injected status of the library, or below 0 what a context keeps.
int BeginCall(const char* function);
// Whether the call may be made: it may load kernels.
bool MayLoad(const char* function);
CUcontext CurrentContext();
int Wrong(const char* function, const std::string& what, int status);

// Memory of the device while an operation runs; what is wrong is kept.
class DeviceSide {
 public:
  DeviceSide(void* engine, void* (*touch)(void*, uint64_t, int64_t, int)) : engine_(engine), touch_(touch) {}
  const std::string& wrong() const { return wrong_; }

  Matrix Read(const void* at, bool is_double, int64_t rows, int64_t columns, int64_t leading);
  void Write(void* at, bool is_double, const Matrix& matrix, int64_t leading);
  std::vector<int64_t> ReadPivots(const void* at, int64_t count);
  void WritePivots(void* at, const std::vector<int64_t>& pivots);
  void WriteInfo(int* at, int info);
  // All of it is written.
  void Spoil(void* workspace, size_t bytes);

 private:
  std::byte* Touch(const void* at, int64_t bytes, bool is_write);
  void* engine_;
  void* (*touch_)(void*, uint64_t, int64_t, int);
  std::string wrong_;
};
// Whether it was enqueued.
bool Push(CUstream stream, const char* name, std::function<void(DeviceSide&)> run);

}  // namespace tessera::emulator
