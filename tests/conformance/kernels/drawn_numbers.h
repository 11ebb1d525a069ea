#pragma once

// Numbers that show in which order they were added: of many sizes, with awkward ones among them.

#include <cmath>
#include <limits>
#include <random>

#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  int64_t Below(int64_t bound) { return static_cast<int64_t>(bits_() % static_cast<uint64_t>(bound)); }
  // A number of one of many sizes; one in `rarity` is NaN, an infinity, or a zero. Near 1 for products.
  double Number(bool is_near_one, int64_t rarity) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (rarity > 0 && Below(rarity) == 0) {
      const double numbers[] = {std::nan(""), kInfinity, -kInfinity, 0.0, -0.0, -0.0};
      return numbers[Below(6)];
    }
    const double unit = static_cast<double>(Below(1 << 20)) / (1 << 20);
    if (is_near_one) return (Below(2) == 0 ? -1 : 1) * (1 + 0.02 * (unit - 0.5));
    return std::ldexp(unit - 0.5, static_cast<int>(Below(12)) - 6);
  }

 private:
  std::mt19937 bits_;
};

inline ScalarValue Drawn(Random& random, DType dtype, ReduceOp op, int64_t rarity) {
  if (dtype == DType::kBool) {
    const bool is_rare = random.Below(rarity > 0 ? rarity : 1000) == 0;
    return {.dtype = dtype, .i = (op == ReduceOp::kMin || op == ReduceOp::kProduct) != is_rare};
  }
  if (Kind(dtype) == DTypeKind::kFloat) return ValueOf(dtype, random.Number(op == ReduceOp::kProduct, rarity));
  return {.dtype = dtype, .i = random.Below(int64_t{1} << 31) - (int64_t{1} << 30)};
}

inline bool HasSameBits(const ScalarValue& a, const ScalarValue& b) {
  return SameValue(a, b) && (std::isnan(a.f) || std::signbit(a.f) == std::signbit(b.f));
}

}  // namespace tessera::testing
