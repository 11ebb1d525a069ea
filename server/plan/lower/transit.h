#pragma once

// Transit: what is reduced for others alone, and stored to them as it is reduced.
//
//   b1 : transit 128 bytes on mesh(2)
//   b2 : output 128 bytes on mesh(2; workers=2,3)
//   tmp %1 : f32[8,8] @ mesh(2) [S(0)] in b1
//   reduce_scatter %0 -> %1 reduce sum          worker 0 adds up rows 0 to 3, as f32
//   exchange %1 -> %2 move pushed               and stores them to worker 2
//
// So a sum that becomes narrower takes c - 1 wide transfers and one narrow one an element, and no memory beside its
// input and output. Only where who wants it gets messages is the value somewhere in between: in host memory of the
// reducer, as other messages are.

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/plan.h"

namespace tessera {

// Internal unless every value of a kTransit buffer is alone there, is reduced once, each element at one worker, and is
// brought to an output by one pushed move of the next phase. `phases`: PhasesOf.
absl::Status VerifyTransit(const Plan& plan, absl::Span<const int> phases);

// A part of a transfer that lies in one cell of the exchange that brings it on.
struct PassedTransfer {
  Transfer transfer;
  Shape cell_start;  // of the cell's box
};
// Cuts what is taken under `reduction` where the cells of `onward` end; in row-major order, transfer by transfer.
std::vector<PassedTransfer> CutForTransit(const Exchange& reduction, const Exchange& onward,
                                          absl::Span<const Transfer> transfers);

}  // namespace tessera
