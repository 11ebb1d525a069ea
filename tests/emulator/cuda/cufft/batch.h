#pragma once

// A batch of Fourier transforms along lines, as the emulated cuFFT computes it: in doubles, by the definition for odd
// lengths and by halves for even ones. The worst that the library's documentation allows: the input of a transform to
// real numbers is written over, and the workspace is, to its ends.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::emulator {

enum class FftKind : uint8_t { kComplex, kFromReal, kToReal };

struct FftBatch {
  FftKind kind = FftKind::kComplex;
  bool is_double = false, is_backward = false;
  int64_t length = 1, batch = 1;
  int64_t input_stride = 1, input_distance = 1, output_stride = 1, output_distance = 1;  // in elements
  uint64_t input = 0, output = 0, workspace = 0;                                         // addresses
  int64_t workspace_bytes = 0;
};

// Where [address, address + bytes) is, which is read or written; null where it is nobody's.
using FftMemory = std::function<std::byte*(uint64_t address, int64_t bytes, bool is_write)>;
// Says what is wrong with it, else empty.
std::string RunBatch(const FftBatch& batch, const FftMemory& memory);

}  // namespace tessera::emulator
