#pragma once

// The factor of a Fourier transform's results, which kernels of every device apply.

#include <cmath>

#include "schemas/ops/fourier_op.h"

namespace tessera {

// 1, 1 / sqrt(length) or 1 / length.
inline double ScaleOf(const FourierOp& op) {
  const double n = static_cast<double>(op.length);
  switch (op.scale) {
    case FourierScale::kNone: return 1;
    case FourierScale::kByRoot: return 1 / std::sqrt(n);
    case FourierScale::kByLength: return 1 / n;
  }
  return 1;
}

}  // namespace tessera
