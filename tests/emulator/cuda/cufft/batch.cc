#include "tests/emulator/cuda/cufft/batch.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

namespace tessera::emulator {
namespace {

using Complex = std::complex<double>;

constexpr int64_t kWorkspaceEnd = 1 << 20;

// sum of x[j] exp(sign 2 pi i j k / n)
std::vector<Complex> Transform(const std::vector<Complex>& x, double sign) {
  const size_t n = x.size();
  std::vector<Complex> result(n);
  if (n % 2 != 0) {
    for (size_t k = 0; k < n; ++k) {
      for (size_t j = 0; j < n; ++j) {
        const double turn = static_cast<double>(j * k % n) / static_cast<double>(n);
        result[k] += n == 1 ? x[j] : x[j] * std::polar(1.0, sign * 2 * std::numbers::pi * turn);
      }
    }
    return result;
  }
  std::vector<Complex> even, odd;
  for (size_t j = 0; j < n; j += 2) {
    even.push_back(x[j]);
    odd.push_back(x[j + 1]);
  }
  even = Transform(even, sign);
  odd = Transform(odd, sign);
  for (size_t k = 0; k < n / 2; ++k) {
    const double turn = static_cast<double>(k) / static_cast<double>(n);
    const Complex other = odd[k] * std::polar(1.0, sign * 2 * std::numbers::pi * turn);
    result[k] = even[k] + other;
    result[k + n / 2] = even[k] - other;
  }
  return result;
}

template <typename T>
std::string Run(const FftBatch& b, const FftMemory& memory) {
  const auto size = static_cast<int64_t>(sizeof(T));
  const int64_t of_input = b.kind == FftKind::kFromReal ? 1 : 2, of_output = b.kind == FftKind::kToReal ? 1 : 2;
  const int64_t half = b.length / 2 + 1;
  const int64_t taken = b.kind == FftKind::kToReal ? half : b.length;
  const int64_t given = b.kind == FftKind::kFromReal ? half : b.length;
  // All lines are read before any is written: the library is free to do so.
  std::vector<std::vector<Complex>> lines(static_cast<size_t>(b.batch));
  for (int64_t k = 0; k < b.batch; ++k) {
    for (int64_t j = 0; j < taken; ++j) {
      const int64_t place = (k * b.input_distance + j * b.input_stride) * of_input * size;
      const std::byte* at = memory(b.input + static_cast<uint64_t>(place), of_input * size, false);
      if (at == nullptr) return "element " + std::to_string(j) + " of line " + std::to_string(k) + " is in no memory";
      T parts[2] = {};
      std::memcpy(parts, at, static_cast<size_t>(of_input * size));
      lines[static_cast<size_t>(k)].emplace_back(parts[0], parts[1]);
    }
  }
  if (b.kind == FftKind::kToReal) {
    const T junk[2] = {std::numeric_limits<T>::quiet_NaN(), 3};
    for (int64_t k = 0; k < b.batch; ++k) {
      for (int64_t j = 0; j < taken; ++j) {
        const int64_t place = (k * b.input_distance + j * b.input_stride) * 2 * size;
        std::memcpy(memory(b.input + static_cast<uint64_t>(place), 2 * size, true), junk, sizeof(junk));
      }
    }
  }
  for (int64_t k = 0; k < b.batch; ++k) {
    std::vector<Complex>& line = lines[static_cast<size_t>(k)];
    if (b.kind == FftKind::kToReal) {
      // Parts that can't be there of a real signal come into the result in some way.
      const double wrong = line[0].imag() + (b.length % 2 == 0 ? line.back().imag() : 0);
      for (int64_t j = half; j < b.length; ++j) line.push_back(std::conj(line[static_cast<size_t>(b.length - j)]));
      line[0] += wrong;
    }
    const bool is_backward = b.kind == FftKind::kToReal || (b.kind == FftKind::kComplex && b.is_backward);
    const std::vector<Complex> result = Transform(line, is_backward ? 1 : -1);
    for (int64_t j = 0; j < given; ++j) {
      const int64_t place = (k * b.output_distance + j * b.output_stride) * of_output * size;
      std::byte* at = memory(b.output + static_cast<uint64_t>(place), of_output * size, true);
      if (at == nullptr) return "result " + std::to_string(j) + " of line " + std::to_string(k) + " is in no memory";
      const Complex value = result[static_cast<size_t>(j)];
      const T parts[2] = {static_cast<T>(value.real()), static_cast<T>(value.imag())};
      std::memcpy(at, parts, static_cast<size_t>(of_output * size));
    }
  }
  return "";
}

}  // namespace

std::string RunBatch(const FftBatch& batch, const FftMemory& memory) {
  // Both ends of a large one: each byte that is written is remembered.
  const int64_t end = std::min(batch.workspace_bytes, kWorkspaceEnd);
  for (const int64_t first : {int64_t{0}, batch.workspace_bytes - end}) {
    if (end == 0) break;
    std::byte* place = memory(batch.workspace + static_cast<uint64_t>(first), end, true);
    if (place == nullptr) return "a workspace of " + std::to_string(batch.workspace_bytes) + " bytes is in no memory";
    std::memset(place, 0xA5, static_cast<size_t>(end));
  }
  return batch.is_double ? Run<double>(batch, memory) : Run<float>(batch, memory);
}

}  // namespace tessera::emulator
