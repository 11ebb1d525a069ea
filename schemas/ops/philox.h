#pragma once

// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011). Pure: the same key and counter give the same four words
// everywhere.
//
//   Philox({0, 0}, {0, 0, 0, 0}) == {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}

#include <array>
#include <cstdint>

#include "schemas/types/half.h"

namespace tessera {

inline std::array<uint32_t, 4> Philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// The words of one element: the seed is the key; the counter is the element's global index and the
// stream.
inline std::array<uint32_t, 4> ElementWords(uint64_t seed, uint64_t stream, uint64_t index) {
  return Philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
                 static_cast<uint32_t>(stream >> 32)});
}

// Uniform in [0, 1), as many bits as the dtype holds: 8 for bf16, 11 for f16, 24 for f32, 53 for f64.
inline BF16 ToUniformBF16(const std::array<uint32_t, 4>& words) {
  return BF16(static_cast<float>(words[0] >> 24) * 0x1.0p-8f);
}
inline F16 ToUniformF16(const std::array<uint32_t, 4>& words) {
  return F16(static_cast<float>(words[0] >> 21) * 0x1.0p-11f);
}
inline float ToUniformF32(const std::array<uint32_t, 4>& words) {
  return static_cast<float>(words[0] >> 8) * 0x1.0p-24f;
}
inline uint64_t ToBits64(const std::array<uint32_t, 4>& words) { return uint64_t{words[0]} << 32 | words[1]; }
inline double ToUniformF64(const std::array<uint32_t, 4>& words) {
  return static_cast<double>(ToBits64(words) >> 11) * 0x1.0p-53;
}

}  // namespace tessera
