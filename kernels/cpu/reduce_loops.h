#pragma once

// Dense memory reduced by the fixed tree of reduce.cc, compiled once per instruction set (Highway) and chosen at run
// time. The tree of a row: blocks of 128 elements; in a block lane i of 16 takes elements i, i+16, ...; lanes 0..7 take
// lanes 8..15, and so on; blocks are combined pairwise, as a binary counter carries. The types are those that are
// accumulated in themselves, bool among them.

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cpu/element_types.h"
#include "schemas/types/dtype.h"
#include "schemas/types/placement.h"

namespace tessera::cpu {

inline constexpr int64_t kTreeBlock = 128;
inline constexpr int64_t kReduceLanes = 16;

// The results of a row's blocks so far: levels[k] has that of 2^k of them where bit k of `blocks` is set.
struct RowTree {
  uint64_t blocks = 0;
  AnyElement levels[64];  // an element in the first bytes of each
};
// Takes the next elements of a row: whole blocks, save at the row's end.
void PushRow(ReduceOp op, DType dtype, const void* row, int64_t count, RowTree* tree);
// As PushRow takes the squares of row[i] - *from for a sum, of f32 or f64: rounded as one by one.
void PushSquaredDifferences(DType dtype, const void* row, int64_t count, const void* from, RowTree* tree);
// Writes one element. At least one was pushed.
void FinishRow(ReduceOp op, DType dtype, const RowTree& tree, void* result);
// As both for each of several rows of an array: `rows` of `count` elements, `row_stride` elements apart, to as many
// results.
void ReduceRows(ReduceOp op, DType dtype, const void* first, int64_t rows, int64_t row_stride, int64_t count,
                void* results);

// result[c] = rows[0][c] op rows[1][c] op ..., from the left. `result` may be one of the rows.
void CombineRows(ReduceOp op, DType dtype, absl::Span<const void* const> rows, int64_t count, void* result);

// The position of the first extreme of a dense row that is not empty; the first NaN wins. f16 and bf16, too.
int64_t FirstMinimum(DType dtype, const void* row, int64_t count);
int64_t FirstMaximum(DType dtype, const void* row, int64_t count);

}  // namespace tessera::cpu
