// Plans with a local step of each kind: verified, and what they give.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
#include "server/plan/reference/interpret.h"
#include "server/plan/verify.h"

namespace tessera::testing {
namespace {

struct Operand {
  std::string text;  // "f32[4,6]"
  int64_t bytes;
};

// One worker's step of the inputs to the output.
Plan PlanOf(const std::string& step, const std::vector<Operand>& inputs, const Operand& output) {
  std::string buffers, values, operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    StrAppend(&buffers, "  b", i, " : input ", inputs[i].bytes, " bytes on mesh(1)\n");
    StrAppend(&values, "  in  %", i, " : ", inputs[i].text, " @ mesh(1) [R] in b", i, "\n");
    StrAppend(&operands, i > 0 ? ", %" : "%", i);
  }
  const size_t last = inputs.size();
  StrAppend(&buffers, "  b", last, " : output ", output.bytes, " bytes on mesh(1)\n");
  StrAppend(&values, "  out %", last, " : ", output.text, " @ mesh(1) [R] in b", last, "\n");
  const std::string text = StrCat("plan {\n", buffers, values, "  local ", step, " ", operands, " -> %", last, "\n}\n");
  const absl::StatusOr<Plan> plan = ParsePlan(text);
  EXPECT_TRUE(plan.ok()) << plan.status() << text;
  if (!plan.ok()) return {};
  EXPECT_EQ(ToText(*plan), text);
  return *plan;
}

std::vector<Number> Given(const Plan& plan, const std::vector<std::vector<double>>& inputs) {
  EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan) << ToText(plan);
  std::vector<ShardedArray> sharded;
  for (const std::vector<double>& input : inputs) sharded.push_back({std::vector<Number>(input.begin(), input.end())});
  const auto result = Interpret(plan, sharded, {});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->outputs[0][0] : std::vector<Number>{};
}

void ExpectRefused(const Plan& plan) {
  EXPECT_EQ(VerifyPlan(plan).code(), absl::StatusCode::kInternal) << VerifyPlan(plan) << ToText(plan);
}

TEST(LocalSteps, AMappedReductionReadsItsInputsOnce) {
  const std::string step = "reduce(sum; dims=[1]; map=mul:f32(in0:f32, in1:f32))";
  EXPECT_EQ(
      Given(PlanOf(step, {{"f32[2,3]", 24}, {"f32[3]", 12}}, {"f32[2,1]", 8}), {{1, 2, 3, 4, 5, 6}, {1, 10, 100}}),
      (std::vector<Number>{321, 654}));
  ExpectRefused(PlanOf(step, {{"f32[2,3]", 24}, {"f32[2]", 8}}, {"f32[2,1]", 8}));
  ExpectRefused(PlanOf(step, {{"f32[2,3]", 24}, {"f64[3]", 24}}, {"f32[2,1]", 8}));
  ExpectRefused(PlanOf(step, {{"f32[2,3]", 24}, {"f32[3]", 12}}, {"f32[1,3]", 12}));
}

TEST(LocalSteps, AMapReadsOnlyIndexesThatThereAre) {
  EXPECT_EQ(Given(PlanOf("map(add:i64(in0:i64, idx1:i64))", {{"i64[2,2]", 32}}, {"i64[2,2]", 32}), {{5, 5, 7, 7}}),
            (std::vector<Number>{5, 6, 7, 8}));
  ExpectRefused(PlanOf("map(add:i64(in0:i64, idx2:i64))", {{"i64[2,2]", 32}}, {"i64[2,2]", 32}));
}

TEST(LocalSteps, WinnersOfPartsHaveTheLowestNumber) {
  const std::string step = "argreduce(max; dims=[0,1])";
  EXPECT_EQ(Given(PlanOf(step, {{"f32[2,2]", 16}}, {"i64[1,1]", 8}), {{1, 4, 4, 2}}), (std::vector<Number>{1}));
  EXPECT_EQ(Given(PlanOf(step, {{"f32[2,2]", 16}, {"i64[2,2]", 32}}, {"i64[1,1]", 8}), {{1, 4, 4, 2}, {9, 8, 7, 6}}),
            (std::vector<Number>{7}));
  ExpectRefused(PlanOf(step, {{"f32[2,2]", 16}, {"i64[2,1]", 16}}, {"i64[1,1]", 8}));
}

TEST(LocalSteps, ScansAndSortsKeepTheExtents) {
  EXPECT_EQ(Given(PlanOf("scan(sum; dim=1; exclusive)", {{"f32[2,3]", 24}}, {"f64[2,3]", 48}), {{1, 2, 3, 4, 5, 6}}),
            (std::vector<Number>{0, 1, 3, 0, 4, 9}));
  EXPECT_EQ(Given(PlanOf("argsort(dim=0; descending)", {{"i32[3]", 12}}, {"i64[3]", 24}), {{4, 9, 4}}),
            (std::vector<Number>{1, 0, 2}));
  EXPECT_EQ(Given(PlanOf("searchsorted(right)", {{"f32[3]", 12}, {"f32[2]", 8}}, {"i64[2]", 16}), {{1, 2, 2}, {2, 0}}),
            (std::vector<Number>{3, 0}));
  ExpectRefused(PlanOf("scan(sum; dim=1)", {{"f32[2,3]", 24}}, {"f32[2,1]", 8}));
  ExpectRefused(PlanOf("scan(sum; dim=2)", {{"f32[2,3]", 24}}, {"f32[2,3]", 24}));
  ExpectRefused(PlanOf("sort(dim=0)", {{"f32[3]", 12}}, {"i64[3]", 24}));
  ExpectRefused(PlanOf("argsort(dim=0)", {{"f32[3]", 12}}, {"f32[3]", 12}));
  EXPECT_EQ(Given(PlanOf("argsort(dim=0; descending; first=2)", {{"i32[3]", 12}}, {"i64[2]", 16}), {{4, 9, 4}}),
            (std::vector<Number>{1, 0}));
  ExpectRefused(PlanOf("argsort(dim=0; first=2)", {{"f32[3]", 12}}, {"i64[3]", 24}));
  ExpectRefused(PlanOf("argsort(dim=0; first=4)", {{"f32[3]", 12}}, {"i64[4]", 32}));
  ExpectRefused(PlanOf("searchsorted(left)", {{"f32[3]", 12}, {"f64[2]", 16}}, {"i64[2]", 16}));
}

TEST(LocalSteps, IndicesFitWhatTheyMove) {
  EXPECT_EQ(Given(PlanOf("gather(dim=1)", {{"f32[2,3]", 24}, {"i64[2]", 16}}, {"f32[2,2]", 16}),
                  {{1, 2, 3, 4, 5, 6}, {-1, 0}}),
            (std::vector<Number>{3, 1, 6, 4}));
  EXPECT_EQ(Given(PlanOf("scatter(add; dim=0)", {{"f32[3]", 12}, {"i64[4]", 32}, {"f32[4]", 16}}, {"f32[3]", 12}),
                  {{10, 20, 30}, {0, 2, 0, -1}, {1, 2, 3, 4}}),
            (std::vector<Number>{14, 20, 36}));
  ExpectRefused(PlanOf("gather(dim=1)", {{"f32[2,3]", 24}, {"i64[3]", 24}}, {"f32[2,2]", 16}));
  ExpectRefused(PlanOf("gather(dim=1)", {{"f32[2,3]", 24}, {"i32[2]", 8}}, {"f32[2,2]", 16}));
  ExpectRefused(PlanOf("gather(dim=0)", {{"f32[2,3]", 24}, {"i64[2]", 16}}, {"f32[2,2]", 16}));
  ExpectRefused(PlanOf("scatter(set; dim=0)", {{"f32[3]", 12}, {"i64[4]", 32}, {"f64[4]", 32}}, {"f32[3]", 12}));
  ExpectRefused(PlanOf("scatter(set; dim=0)", {{"f32[3]", 12}, {"i64[4]", 32}, {"f32[4]", 16}}, {"f32[4]", 16}));
}

TEST(LocalSteps, AnIndexOutsideIsTheCallsError) {
  const Plan plan = PlanOf("gather(dim=0)", {{"f32[3]", 12}, {"i64[1]", 8}}, {"f32[1]", 4});
  const auto result = Interpret(plan, {{{1, 2, 3}}, {{3}}}, {});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(std::string(result.status().message()).find("index 3 is out of range for dim 0 of extent 3"),
            std::string::npos)
      << result.status();
}

}  // namespace
}  // namespace tessera::testing
