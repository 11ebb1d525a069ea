#pragma once

// Divisors as kernels take them (parameters.h, nest.cuh): pure. Why the quotient is right: with s the shift and d the
// value, factor * d = 2^(63 + s) + e where 0 < e <= d <= 2^s. So number * factor / 2^(63 + s) is number / d and an
// excess of number * e / (d * 2^(63 + s)), which is below 1 / d for every number below 2^63.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cuda/parameters.h"

namespace tessera::cuda {

// A value below 1 has the divisor of 1: nothing is divided by it.
inline Divisor DivisorOf(int64_t value) {
  const uint64_t at_least_one = static_cast<uint64_t>(std::max<int64_t>(value, 1));
  Divisor divisor;
  divisor.value = value;
  divisor.shift = std::bit_width(at_least_one - 1);
  divisor.factor =
      static_cast<uint64_t>((static_cast<unsigned __int128>(1) << (63 + divisor.shift)) / at_least_one + 1);
  return divisor;
}

}  // namespace tessera::cuda
