#pragma once

// A batch of Fourier transforms of one length as cuFFT takes it: pure, no library, no device.
//
//   element j of line k is at input + k * input_distance + j * input_stride, and so in the output; in elements

#include <compare>
#include <cstdint>
#include <optional>
#include <utility>

namespace tessera::cuda {

// Memory of the GPU, beside the arena, that transforms of a call may take: once for what is brought to dense memory
// (launch_fourier.cc), once for the library. docs/limits.md: max_gpu_fourier_workspace_bytes
inline constexpr int64_t kMaxFourierWorkspaceBytes = int64_t{512} << 20;

// kFromReal gives, and kToReal takes, length / 2 + 1 elements of a line.
enum class FourierNumbers : uint8_t { kComplex, kFromReal, kToReal };

// The library makes a plan for one of these.
struct FourierShape {
  FourierNumbers numbers = FourierNumbers::kComplex;
  bool is_double = false;
  int64_t length = 1, batch = 1;
  int64_t input_stride = 1, input_distance = 1, output_stride = 1, output_distance = 1;
  auto operator<=>(const FourierShape&) const = default;
};

// Unscaled sums. The input of kToReal may be written over. Both are aligned to a complex number.
struct FourierProblem {
  FourierShape shape;
  bool is_backward = false;        // of kComplex; the others say it themselves
  uint64_t input = 0, output = 0;  // addresses
};

// Bytes of an element.
int64_t InputBytes(const FourierShape& shape);
int64_t OutputBytes(const FourierShape& shape);
// The first half of the batch and the rest; nothing where there is one line, or two that can't be apart.
std::optional<std::pair<FourierProblem, FourierProblem>> HalvesOf(const FourierProblem& problem);

}  // namespace tessera::cuda
