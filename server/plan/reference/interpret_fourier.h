#pragma once

// The naive meaning of Fourier transforms, for Interpret: sums of all terms, in f64.

#include "server/plan/reference/interpret_local.h"

namespace tessera {

void InterpretFourier(const FourierOp& op, const StridedNumbers& input, const StridedNumbers& output);

}  // namespace tessera
