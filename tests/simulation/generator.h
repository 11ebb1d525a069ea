#pragma once

// Random numbers of a simulation: the same on every machine for one seed.

#include <cstdint>
#include <random>

namespace tessera {

class Generator {
 public:
  explicit Generator(uint64_t seed) : engine_(seed) {}
  // 0 to n - 1.
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }
  bool OneIn(int64_t n) { return Below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tessera
