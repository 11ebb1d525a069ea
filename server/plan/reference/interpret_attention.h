#pragma once

// The meaning of an attention's logarithms and of its gradients, in doubles. Private to interpret_local.cc.

#include <vector>

#include "schemas/ops/local_op.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera {

void InterpretAttentionLogarithms(const AttentionLogarithmsOp& op, const std::vector<StridedNumbers>& inputs,
                                  double scale, int64_t first_row, const StridedNumbers& output);
void InterpretAttentionGradients(const AttentionGradientsOp& op, const std::vector<StridedNumbers>& inputs,
                                 double scale, const StridedNumbers& output);

}  // namespace tessera
