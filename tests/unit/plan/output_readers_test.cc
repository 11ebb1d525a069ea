// Which temporaries are local steps' alone.

#include "server/plan/lower/output_readers.h"

#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/lower/program.h"
#include "server/plan/verify.h"

namespace tessera::testing {
namespace {

// x's exponentials in b1, and what `steps` make of them in b2 and b3; of the first step.
std::vector<int> ReadersIn(const std::string& values, const std::string& steps, int out_bytes = 32) {
  const std::string text =
      "plan {\n"
      "  b0 : input 32 bytes on mesh(2)\n"
      "  b1 : temporary 32 bytes on mesh(2)\n"
      "  b2 : temporary 32 bytes on mesh(2)\n"
      "  b3 : output " +
      std::to_string(out_bytes) +
      " bytes on mesh(2)\n"
      "  in  %0 : f32[4,4] @ mesh(2) [S(0)] in b0\n"
      "  tmp %1 : f32[4,4] @ mesh(2) [S(0)] in b1\n" +
      values + "  local map(exp:f32(in0:f32)) %0 -> %1\n" + steps + "}\n";
  const absl::StatusOr<Plan> plan = ParsePlan(text);
  EXPECT_TRUE(plan.ok()) << plan.status() << text;
  if (!plan.ok()) return {};
  EXPECT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan) << text;
  std::vector<int> counts;
  for (size_t s = 0; s < plan->steps.size(); ++s) {
    if (std::holds_alternative<LocalStep>(plan->steps[s])) counts.push_back(CountOutputReaders(*plan, s));
  }
  // As the workers' kernels have them.
  const absl::StatusOr<Program> program = LowerPlan(*plan, WorkerIndex{0}, MessageLists::kBuild);
  EXPECT_TRUE(program.ok()) << program.status();
  size_t next = 0;
  for (const Phase& phase : program->phases) {
    for (const Instruction& instruction : phase.instructions) {
      const auto* kernel = std::get_if<KernelInstruction>(&instruction);
      if (kernel == nullptr) continue;
      EXPECT_EQ(kernel->output_readers, counts[next++]);
    }
  }
  EXPECT_EQ(next, counts.size());
  return counts;
}

const std::string kSum = "  tmp %2 : f32[4,1] @ mesh(2) [S(0)] in b2\n";
const std::string kSums = "  local reduce(sum; dims=[1]) %1 -> %2\n";
const std::string kOut = "  out %3 : f32[4,4] @ mesh(2) [S(0)] in b3\n";

TEST(OutputReaders, EachInputOfALocalStepIsOne) {
  EXPECT_EQ(ReadersIn(kSum + kOut, kSums + "  local map(div:f32(in0:f32, in1:f32)) %1, %2 -> %3\n"),
            (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(ReadersIn("  out %2 : f32[4,4] @ mesh(2) [S(0)] in b3\n",
                      "  local map(mul:f32(in0:f32, in1:f32)) %1, %1 -> %2\n"),
            (std::vector<int>{2, 0}));
}

// As a sum with its bias: what a GPU's library computes as one with it (kernels/cuda/lt_epilogue.h).
TEST(OutputReaders, OfAProductIsTheMapBehindIt) {
  EXPECT_EQ(ReadersIn("  tmp %2 : f32[4] @ mesh(2) [S(0)] in b2\n  out %3 : f32[4] @ mesh(2) [S(0)] in b3\n",
                      "  local matmul(bk,bk->b) %1, %1 -> %2\n  local map(sqrt:f32(in0:f32)) %2 -> %3\n", 8),
            (std::vector<int>{2, 1, 0}));
}

TEST(OutputReaders, WhatWorkersReadOfEachOtherIsNot) {
  EXPECT_EQ(ReadersIn(kSum + "  out %3 : f32[4,4] @ mesh(2) [R] in b3\n",
                      kSums + "  all_gather %1 -> %3 move\n"
                              "    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2\n"
                              "    dim 1: [0:4) 0+0 -> 0+0\n",
                      64),
            (std::vector<int>{0, 0}));
}

TEST(OutputReaders, AnotherViewOfItsMemoryIsNot) {
  EXPECT_EQ(ReadersIn(kSum + "  tmp %3 : f32[4] @ mesh(2) [S(0)] in b2\n  out %4 : f32[4] @ mesh(2) [S(0)] in b3\n",
                      kSums + "  local map(sqrt:f32(in0:f32)) %3 -> %4\n", 8),
            (std::vector<int>{1, 0, 0}));
}

TEST(OutputReaders, WhatIsWrittenAgainIsAnother) {
  EXPECT_EQ(ReadersIn("  tmp %2 : f32[4,4] @ mesh(2) [S(0)] in b2\n  tmp %3 : f32[4,4] @ mesh(2) [S(0)] in b1\n"
                      "  out %4 : f32[4,4] @ mesh(2) [S(0)] in b3\n",
                      "  local map(log:f32(in0:f32)) %1 -> %2\n  local map(log:f32(in0:f32)) %2 -> %3\n"
                      "  local map(mul:f32(in0:f32, in1:f32)) %3, %2 -> %4\n"),
            (std::vector<int>{1, 2, 1, 0}));
}

}  // namespace
}  // namespace tessera::testing
