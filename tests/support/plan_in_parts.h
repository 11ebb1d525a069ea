#pragma once

// Matmuls whose inner letter is cut, in parts: a part's product is written where the one before was.

#include <algorithm>
#include <cstddef>
#include <variant>
#include <vector>

#include "server/plan/plan.h"
#include "server/plan/reference/interpret.h"

namespace tessera::testing {

// Two workers, two parts of the output's columns.
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

// Four workers; the output's columns are cut too. All multiply each part, and those who get its columns reduce it.
inline constexpr const char* kPlanOfCutColumns = R"(plan {
  b0 : input 32 bytes on mesh(2,2)
  b1 : input 64 bytes on mesh(2,2)
  b2 : output 32 bytes on mesh(2,2)
  b3 : temporary 32 bytes on mesh(2,2)
  in  %0 : f64[4,4] @ mesh(2,2) [S(0), S(1)] in b0
  in  %1 : f64[4,4] @ mesh(2,2) [R, S(0)] in b1
  out %2 : f64[4,4] @ mesh(2,2) [S(0), S(1)] in b2
  tmp %3 : f64[4,2] @ mesh(2,2) [R, S(0)] in b1 strides [4,1]
  tmp %4 : f64[4,2] @ mesh(2,2) [S(0), P(sum)] in b3
  tmp %5 : f64[4,2] @ mesh(2,1; workers=0,2) [S(0), R] in b2
  tmp %6 : f64[4,2] @ mesh(2,2) [R, S(0)] in b1 offset 2 strides [4,1]
  tmp %7 : f64[4,2] @ mesh(2,2) [S(0), P(sum)] in b3
  tmp %8 : f64[4,2] @ mesh(2,1; workers=1,3) [S(0), R] in b2
  local matmul() %0, %3 -> %4
  reduce_scatter %4 -> %5 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 1+0
    dim 1: [0:2) 0+0 -> 0+0
  local matmul() %0, %6 -> %7
  reduce_scatter %7 -> %8 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 1+0
    dim 1: [0:2) 0+0 -> 0+0
}
)";

// Four workers; grid and output cut the rows alike: those of workers 0 and 1 and those of workers 2 and 3 are parts of
// their own, two of each.
inline constexpr const char* kPlanOfCutRows = R"(plan {
  b0 : input 32 bytes on mesh(2,2)
  b1 : input 16 bytes on mesh(2,2)
  b2 : output 16 bytes on mesh(2,2)
  b3 : temporary 8 bytes on mesh(2,2)
  in  %0 : f64[4,4] @ mesh(2,2) [S(0), S(1)] in b0
  in  %1 : f64[4,1] @ mesh(2,2) [R, S(0)] in b1
  out %2 : f64[4,1] @ mesh(2,2) [S(0), R] in b2
  tmp %3 : f64[1,4] @ mesh(1,2) [R, S(1)] in b0
  tmp %4 : f64[4,1] @ mesh(1,2) [R, S(0)] in b1
  tmp %5 : f64[1,1] @ mesh(1,2) [R, P(sum)] in b3
  tmp %6 : f64[1,1] @ mesh(1,2) [R, R] in b2
  tmp %7 : f64[1,4] @ mesh(1,2) [R, S(1)] in b0 offset 2
  tmp %8 : f64[1,1] @ mesh(1,2) [R, P(sum)] in b3
  tmp %9 : f64[1,1] @ mesh(1,2) [R, R] in b2 offset 1
  tmp %10 : f64[1,4] @ mesh(1,2; workers=2,3) [R, S(1)] in b0
  tmp %11 : f64[4,1] @ mesh(1,2; workers=2,3) [R, S(0)] in b1
  tmp %12 : f64[1,1] @ mesh(1,2; workers=2,3) [R, P(sum)] in b3
  tmp %13 : f64[1,1] @ mesh(1,2; workers=2,3) [R, R] in b2
  tmp %14 : f64[1,4] @ mesh(1,2; workers=2,3) [R, S(1)] in b0 offset 2
  tmp %15 : f64[1,1] @ mesh(1,2; workers=2,3) [R, P(sum)] in b3
  tmp %16 : f64[1,1] @ mesh(1,2; workers=2,3) [R, R] in b2 offset 1
  local matmul() %3, %4 -> %5
  reduce_scatter %5 -> %6 reduce(sum)
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  all_gather %6 -> %6 spread pushed of f64[1,1] @ mesh(1,2) [R, P(sum)]
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  local matmul() %7, %4 -> %8
  reduce_scatter %8 -> %9 reduce(sum)
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  all_gather %9 -> %9 spread pushed of f64[1,1] @ mesh(1,2) [R, P(sum)]
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  local matmul() %10, %11 -> %12
  reduce_scatter %12 -> %13 reduce(sum)
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  all_gather %13 -> %13 spread pushed of f64[1,1] @ mesh(1,2; workers=2,3) [R, P(sum)]
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  local matmul() %14, %11 -> %15
  reduce_scatter %15 -> %16 reduce(sum)
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
  all_gather %16 -> %16 spread pushed of f64[1,1] @ mesh(1,2; workers=2,3) [R, P(sum)]
    dim 0: [0:1) 0+0 -> 0+0
    dim 1: [0:1) 0+0 -> 0+0
}
)";

// Two workers, two panels of the inner letter: the second product is added to the first, and reduced with it.
inline constexpr const char* kPlanInPanels = R"(plan {
  b0 : input 64 bytes on mesh(2)
  b1 : input 96 bytes on mesh(2)
  b2 : output 96 bytes on mesh(2)
  b3 : temporary 192 bytes on mesh(2)
  in  %0 : f64[4,4] @ mesh(2) [S(1)] in b0
  in  %1 : f64[4,6] @ mesh(2) [S(0)] in b1
  out %2 : f64[4,6] @ mesh(2) [S(0)] in b2
  tmp %3 : f64[4,2] @ mesh(2) [S(1)] in b0 strides [2,1]
  tmp %4 : f64[2,6] @ mesh(2) [S(0)] in b1
  tmp %5 : f64[4,2] @ mesh(2) [S(1)] in b0 offset 1 strides [2,1]
  tmp %6 : f64[2,6] @ mesh(2) [S(0)] in b1 offset 6
  tmp %7 : f64[4,6] @ mesh(2) [P(sum)] in b3
  local matmul() %3, %4 -> %7
  local matmul() %5, %6 +-> %7
  reduce_scatter %7 -> %2 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0
    dim 1: [0:6) 0+0 -> 0+0
}
)";

inline Plan PlanInParts() { return *ParsePlan(kPlanInParts); }
inline Plan PlanOfCutColumns() { return *ParsePlan(kPlanOfCutColumns); }
inline Plan PlanOfCutRows() { return *ParsePlan(kPlanOfCutRows); }
inline Plan PlanInPanels() { return *ParsePlan(kPlanInPanels); }

// The same with the parts of both halves in turns, so that workers 2 and 3 write the temporary between two writes of 0
// and 1. Workers 0 and 2 alone get the sums, in parts of two steps; nothing else makes 1 and 3 wait for them.
inline Plan PlanOfCutRowsInTurns() {
  Plan plan = PlanOfCutRows();
  const auto narrow = [](TensorSpec& spec) { spec.placements[1] = Placement::Shard(1); };
  for (const size_t value : {2, 6, 9, 13, 16}) narrow(plan.values[value].spec);
  std::erase_if(plan.steps, [&](Step& step) {
    auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange != nullptr) narrow(exchange->exchange.destination);
    return exchange != nullptr && exchange->exchange.role == ExchangeRole::kGatherReduced;
  });
  std::rotate(plan.steps.begin() + 2, plan.steps.begin() + 4, plan.steps.begin() + 6);
  return plan;
}

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
