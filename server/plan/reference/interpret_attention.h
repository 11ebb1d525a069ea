#pragma once

// The meaning of an attention's gradients, in doubles. Private to interpret_local.cc.

#include <vector>

#include "schemas/ops/local_op.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera {

void InterpretAttentionGradients(const AttentionGradientsOp& op, const std::vector<StridedNumbers>& inputs,
                                 double scale, const StridedNumbers& output);

}  // namespace tessera
