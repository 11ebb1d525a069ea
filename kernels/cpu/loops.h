#pragma once

// The inner loops, on dense blocks, compiled once per instruction set (Highway) and chosen at run
// time. Elements of bool are bytes: anything but 0 is true, results are 0 or 1.

#include <cstdint>

#include "schemas/ops/expression.h"
#include "schemas/types/placement.h"

namespace tessera::cpu {

// One node of an expression: out[i] = op(a[i], b[i], c[i]) for i < count. `operand` is the dtype of
// the operands (of the branches, for where). `out` may be one of the operands. False when the op has
// no meaning for the dtype.
struct NodeBlock {
  ScalarOp op{};
  DType dtype = DType::kF32;
  DType operand = DType::kF32;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* out = nullptr;
  int64_t count = 0;
};
bool RunNodeBlock(const NodeBlock& block);
// The same of a cast, whatever `op` says.
bool RunCastBlock(const NodeBlock& block);
// converted[i] = values[i] as another dtype.
void CastBlock(DType from, DType to, const void* values, int64_t count, void* converted);

// result[i] = op(a[i], b[i]); kAvg adds. `result` may be `a` or `b`.
void CombineBlock(ReduceOp op, DType dtype, void* result, const void* a, const void* b, int64_t count);
inline void AccumulateBlock(ReduceOp op, DType dtype, void* accumulator, const void* term, int64_t count) {
  CombineBlock(op, dtype, accumulator, accumulator, term, count);
}
// values[i] = values[i] / divisor, for f32, f64 and complex numbers of them.
void DivideBlock(DType dtype, void* values, int64_t divisor, int64_t count);

}  // namespace tessera::cpu
