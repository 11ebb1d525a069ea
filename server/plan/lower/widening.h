#pragma once

// Widening in place: a value that becomes one of a wider dtype in its own memory. A value that moves in the narrow
// dtype, and is passed on in it, needs no temporary then. The narrow value lies at the end of the wide one's memory:
//
//   b1 : output 48 bytes on mesh(2)
//   out %1 : f64[6] @ mesh(2) [R] in b1
//   tmp %2 : f32[6] @ mesh(2) [R] in b1 offset 6      bytes 24 to 47
//   local map(cast:f64(in0:f32)) %2 -> %1
//
// Law: with N elements in memory, of W bytes in the wide value and of n in the narrow one, element i is written to
// [i W, i W + W), and element j is read from N (W - n) + j n on. Front to back nothing is written over that is still to
// be read. Both have the strides of the largest shard, so that holds of smaller ones, too.

#include "schemas/types/dtype.h"
#include "server/plan/plan.h"

namespace tessera {

// The value of a dtype of fewer bytes that is widened to `wide` in its place. `wide` has the default strides and begins
// where its buffer does.
PlanValue NarrowAtEndOf(const PlanValue& wide, DType narrow);

// Whether `narrow` is that of `wide`, of values that lie in their buffers.
bool LiesAtEndOf(const PlanValue& narrow, const PlanValue& wide);

// Whether the step does nothing but cast such a value to the wide one. It refers to values that lie in their buffers.
bool WidensInPlace(const Plan& plan, const LocalStep& step);

}  // namespace tessera
