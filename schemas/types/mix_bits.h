#pragma once

// MixBits: the finaliser of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014). A
// bijection whose every output bit depends on all bits of the input.

#include <cstdint>

namespace tessera {

inline uint64_t MixBits(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace tessera
