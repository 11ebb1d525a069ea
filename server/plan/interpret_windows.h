#pragma once

// The naive meaning of convolutions and pooling, for Interpret.

#include <vector>

#include "server/plan/interpret_local.h"

namespace tessera {

void InterpretConv(const ConvOp& op, const std::vector<StridedDoubles>& inputs, const StridedDoubles& output);
void InterpretPool(const PoolOp& op, const StridedDoubles& input, const StridedDoubles& output);

}  // namespace tessera
