#pragma once

// Segment: calls that are planned as one: they are a client's, on each other's results, with relative numbers, and
// which of the results stay. A result that nobody keeps takes no handle, no message and, where it is fused (fusion.h),
// no memory.
//
//   t = x * 2;  y = t + b;  t is dropped
//   inputs x, b (values 0, 1);  multiply(0, 2), add(2, 1);  kept 3
//
// Values are numbered: the inputs first, then the results of the calls in order. A call of one op is a segment, too. A
// value.

#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/graph.h"
#include "server/planner/builder.h"
#include "server/planner/scalar_recipes.h"

namespace tessera {

struct SegmentCall {
  OpCall call;
  std::vector<GraphOperand> operands;
};

struct Segment {
  std::vector<OperandLayout> inputs;
  std::vector<SegmentCall> calls;
  std::vector<int> kept;  // values, in the order of the plan's outputs; none: all results of the last call
};

// The numbers of its calls, one call after the other: each call's own scalars, then its scalar operands.
std::vector<Scalar> NumbersOf(const Segment& segment);

// A segment's ops, resolved, with the ops of composites in their place.
struct SegmentGraph {
  Graph graph;
  std::vector<ScalarRecipes> recipes;  // by node, of the segment's numbers
  std::vector<int> first_results;      // by call, of the graph's values
};

// Which part a call may have in a segment of several: an op on each element, also a composite of such; a reduction; a
// contraction, at which a segment begins. Others are planned alone.
enum class SegmentRole : uint8_t { kAlone = 0, kMap = 1, kReduction = 2, kContraction = 3 };
SegmentRole SegmentRoleOf(OpId op);

// Errors are ResolveOp's of the call that is refused, and open with its name.
absl::StatusOr<SegmentGraph> ResolveSegment(const Segment& segment);

}  // namespace tessera
