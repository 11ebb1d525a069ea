#pragma once

// The naive meaning of convolutions and pooling, for Interpret.

#include <vector>

#include "server/plan/reference/interpret_local.h"

namespace tessera {

void InterpretConv(const ConvOp& op, const std::vector<StridedNumbers>& inputs, const StridedNumbers& output);
void InterpretConvGradient(const ConvGradientOp& op, const std::vector<StridedNumbers>& inputs,
                           const StridedNumbers& output);
void InterpretPool(const PoolOp& op, const StridedNumbers& input, const StridedNumbers& output);

}  // namespace tessera
