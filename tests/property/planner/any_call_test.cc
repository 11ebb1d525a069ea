// Whatever a client may call: a call that resolves has a plan that is proven, or an error; nothing ends the process.

#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "tests/support/any_call.h"

namespace tessera {
namespace {

int PlanOnce(const OpRow& row, AnyCalls& calls) {
  const AnyCall any = calls.Draw(row);
  const absl::StatusOr<OpResolution> resolution = ResolveOp(any.call, any.operands);
  if (!resolution.ok()) return 0;
  std::vector<PlanOperand> operands;
  for (const OperandSpec& operand : any.operands) {
    if (const auto* spec = std::get_if<TensorSpec>(&operand)) {
      operands.emplace_back(OperandLayout{*spec, {}});
    } else {
      operands.emplace_back(std::get<Scalar>(operand));
    }
  }
  const absl::StatusOr<OpPlan> planned = PlanOp(any.call, operands, Topology());
  if (!planned.ok()) {
    EXPECT_NE(planned.status().code(), absl::StatusCode::kInternal) << planned.status();
    return 0;
  }
  const absl::Status proof = VerifyPlan(planned->plan);
  EXPECT_TRUE(proof.ok()) << proof << "\n" << ToText(any.call.attributes);
  return 1;
}

TEST(PlanAnyCall, IsAnErrorOrProven) {
  int planned = 0;
  for (const OpRow& row : Catalog()) {
    SCOPED_TRACE(row.name);
    if (std::getenv("TESSERA_VERBOSE") != nullptr) std::cerr << row.name << std::endl;
    AnyCalls calls(SeedOfCalls() * 1000 + static_cast<uint64_t>(row.id));
    for (int i = RoundsOfCalls(300); i > 0; --i) planned += PlanOnce(row, calls);
  }
  EXPECT_GT(planned, 1000);
}

}  // namespace
}  // namespace tessera
