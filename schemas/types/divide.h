#pragma once

// CeilDivide: how many parts of a size it takes. CeilDivide(9, 4) == 3.

#include <cstdint>

namespace tessera {

// The quotient rounded up. The divisor is positive.
inline int64_t CeilDivide(int64_t value, int64_t divisor) { return value / divisor + (value % divisor > 0 ? 1 : 0); }

}  // namespace tessera
