#pragma once

// A matmul whose inner letter is cut over two workers, in two parts of the output's columns: the second part's
// product is written where the first one's was.

#include <vector>

#include "server/plan/interpret.h"
#include "server/plan/plan.h"

namespace tessera::testing {

inline constexpr const char* kPlanInParts = R"(plan {
  b0 : input 64 bytes on mesh(2)
  b1 : input 96 bytes on mesh(2)
  b2 : output 96 bytes on mesh(2)
  b3 : temporary 128 bytes on mesh(2)
  in  %0 : f64[4,4] @ mesh(2) [S(1)] in b0
  in  %1 : f64[4,6] @ mesh(2) [S(0)] in b1
  out %2 : f64[4,6] @ mesh(2) [S(0)] in b2
  tmp %3 : f64[4,4] @ mesh(2) [S(0)] in b1 strides [6,1]
  tmp %4 : f64[4,4] @ mesh(2) [P(sum)] in b3
  tmp %5 : f64[4,4] @ mesh(2) [S(0)] in b2 strides [6,1]
  tmp %6 : f64[4,2] @ mesh(2) [S(0)] in b1 offset 4 strides [6,1]
  tmp %7 : f64[4,2] @ mesh(2) [P(sum)] in b3
  tmp %8 : f64[4,2] @ mesh(2) [S(0)] in b2 offset 4 strides [6,1]
  local matmul() %0, %3 -> %4
  reduce_scatter %4 -> %5 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0
    dim 1: [0:4) 0+0 -> 0+0
  local matmul() %0, %6 -> %7
  reduce_scatter %7 -> %8 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0
    dim 1: [0:2) 0+0 -> 0+0
}
)";

inline Plan PlanInParts() { return *ParsePlan(kPlanInParts); }

// Small whole numbers for each input.
inline std::vector<ShardedArray> Operands(const Plan& plan) {
  std::vector<ShardedArray> operands;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    std::vector<double> dense;
    for (int64_t i = 0; i < NumElements(spec.shape); ++i) dense.push_back(static_cast<double>((i * 5 + input) % 7 - 3));
    operands.push_back(SplitDense(spec, dense));
  }
  return operands;
}

}  // namespace tessera::testing
