#pragma once

// The law of random numbers. It rests on Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Pure: the same key and counter give the same four words
// everywhere.
//
//   Philox({0, 0}, {0, 0, 0, 0}) == {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}
//
// A random number has a seed, which is the key, a stream, which is the upper half of the counter, and a number: its
// element's index in the whole tensor, in row-major order. Neighbours share the lower half of the counter:
//
//   bf16, f16, f32, u32   number i is made of word i mod 4 of counter i / 4
//   f64, u64              number i is made of words 2 * (i mod 2) and 2 * (i mod 2) + 1 of counter i / 2
//
// So four neighbours cost one call of Philox (two of 64 bits), and an element doesn't depend on the shard it lies in.

#include <array>
#include <cstddef>
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

// How many neighbours of so many bytes share a counter.
constexpr uint64_t NumbersPerCounter(size_t bytes) { return bytes == 8 ? 2 : 4; }

// The words of a counter of a stream.
inline std::array<uint32_t, 4> CounterWords(uint64_t seed, uint64_t stream, uint64_t counter) {
  return Philox({static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), static_cast<uint32_t>(stream),
                 static_cast<uint32_t>(stream >> 32)});
}
inline uint32_t RandomBits32(uint64_t seed, uint64_t stream, uint64_t number) {
  return CounterWords(seed, stream, number / 4)[number % 4];
}
inline uint64_t RandomBits64(uint64_t seed, uint64_t stream, uint64_t number) {
  const std::array<uint32_t, 4> words = CounterWords(seed, stream, number / 2);
  const size_t first = number % 2 * 2;
  return uint64_t{words[first]} << 32 | words[first + 1];
}

// Uniform in [0, 1), as many bits as the dtype holds: 8 for bf16, 11 for f16, 24 for f32, 53 for f64.
inline BF16 ToUniformBF16(uint32_t bits) { return BF16(static_cast<float>(bits >> 24) * 0x1.0p-8f); }
inline F16 ToUniformF16(uint32_t bits) { return F16(static_cast<float>(bits >> 21) * 0x1.0p-11f); }
inline float ToUniformF32(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-24f; }
inline double ToUniformF64(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace tessera
