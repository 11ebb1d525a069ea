#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

TEST(Reduction, ShardedDimsLeavePendingValues) {
  const std::vector<std::string> x = {"f32[4,6] @ mesh(2) [S(0)]"};
  EXPECT_EQ(Output(OpId::kSum, x, Dims({0})), "f32[6] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Output(OpId::kMean, x, Dims({0})), "f32[6] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Output(OpId::kMax, x, Dims({0})), "f32[6] @ mesh(2) [P(max)]");
  EXPECT_EQ(Output(OpId::kMin, x, Dims({0, 1})), "f32[] @ mesh(2) [P(min)]");
  EXPECT_EQ(Output(OpId::kSum, x, KeepDims({0})), "f32[1,6] @ mesh(2) [P(sum)]");
}

TEST(Reduction, OtherShardsAreRenumbered) {
  EXPECT_EQ(Output(OpId::kSum, {"f32[4,6,5] @ mesh(2,2) [S(1), S(2)]"}, Dims({0})),
            "f32[6,5] @ mesh(2,2) [S(0), S(1)]");
  EXPECT_EQ(Output(OpId::kSum, {"f32[4,6,5] @ mesh(2,2) [S(1), S(2)]"}, KeepDims({0})),
            "f32[1,6,5] @ mesh(2,2) [S(1), S(2)]");
  EXPECT_EQ(Output(OpId::kSum, {"f32[4,6,5] @ mesh(2,2) [S(0), S(2)]"}, Dims({0, 1})),
            "f32[5] @ mesh(2,2) [P(sum), S(0)]");
}

TEST(Reduction, DTypes) {
  EXPECT_EQ(Output(OpId::kSum, {"bool[4] @ mesh(2) [R]"}, Dims({0})), "i64[] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kSum, {"i32[4] @ mesh(2) [R]"}, Dims({0})), "i64[] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kMean, {"i32[4] @ mesh(2) [R]"}, Dims({0})), "f64[] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kMax, {"i32[4] @ mesh(2) [R]"}, Dims({0})), "i32[] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kArgMax, {"f32[4] @ mesh(2) [R]"}, Dims({0})), "i64[] @ mesh(2) [R]");
  Attributes attributes = Dims({0});
  attributes.Set(attribute::dtype, DType::kF64);
  EXPECT_EQ(Output(OpId::kSum, {"f32[4] @ mesh(2) [R]"}, attributes), "f64[] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kMax, {"f32[4] @ mesh(2) [R]"}, attributes), "max: dtype= can't be f64 here: x is f32[4]");
  EXPECT_EQ(Output(OpId::kMax, {"bool[4] @ mesh(2) [R]"}, Dims({0})), "max: needs a numeric dtype: x is bool[4]");
}

TEST(Reduction, MeanDividesByTheGlobalCount) {
  const OpResolution mean = *Resolve(OpId::kMean, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({0, 1}));
  EXPECT_EQ(ToText(*mean.local), "reduce(sum; dims=[0,1])");
  EXPECT_EQ(ToText(*mean.epilogue), "map(div:f32(in0:f32, arg0:f32))");
  EXPECT_EQ(ToText(mean.epilogue_scalars[0]), "24.0:f32");
  EXPECT_FALSE(Resolve(OpId::kSum, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({0}))->epilogue.has_value());
}

TEST(Reduction, PendingOperands) {
  EXPECT_EQ(OperandPlacements(OpId::kSum, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({0})), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMean, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({0})), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kSum, {"f32[4,6] @ mesh(2) [P(avg)]"}, Dims({0})), "[P(avg)]");
  EXPECT_EQ(OutputPlacements(OpId::kMax, {"f32[4,6] @ mesh(2) [P(max)]"}, Dims({0})), "[P(max)]");
  EXPECT_EQ(OperandPlacements(OpId::kMax, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({0})), "[S(1)]");
  EXPECT_EQ(OutputPlacements(OpId::kMax, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({0})), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kMax, {"f32[4,6] @ mesh(2) [P(min)]"}, Dims({0, 1})), "[R]");
  EXPECT_EQ(OutputPlacements(OpId::kSum, {"f32[4,6] @ mesh(2,2) [P(avg), S(0)]"}, Dims({0})), "[S(0), P(sum)]")
      << "an average can't stay pending beside a sum";
  EXPECT_EQ(OutputPlacements(OpId::kSum, {"f32[4,6] @ mesh(2,2) [P(sum), S(0)]"}, Dims({0})), "[P(sum), P(sum)]");
}

TEST(Reduction, EmptyExtremesAreErrors) {
  EXPECT_EQ(Output(OpId::kMax, {"f32[0,3] @ mesh(2) [S(0)]"}, Dims({0})),
            "max: dim 0 has no elements, so it has no max: x is f32[0,3]");
  EXPECT_EQ(Output(OpId::kMax, {"f32[0,3] @ mesh(2) [R]"}, Dims({1})), "f32[0] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kSum, {"f32[0,3] @ mesh(2) [S(0)]"}, Dims({0})), "f32[3] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Output(OpId::kArgMin, {"f32[0,3] @ mesh(2) [R]"}, Dims({0})),
            "argmin: dim 0 has no elements, so it has no argmin: x is f32[0,3]");
}

TEST(ArgReduction, ACutDimStaysCut) {
  EXPECT_EQ(OperandPlacements(OpId::kArgMin, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({0})), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kArgMin, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({0})), "[R]");
  EXPECT_EQ(OutputPlacements(OpId::kArgMin, {"f32[4,6] @ mesh(2) [S(0)]"}, KeepDims({0})), "[R]");
  EXPECT_EQ(OperandPlacements(OpId::kArgMin, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({1})), "[S(0)]");
  EXPECT_EQ(OperandPlacements(OpId::kArgMax, {"f32[8] @ mesh(2) [P(sum)]"}, Dims({0})), "[S(0)]");
  EXPECT_EQ(OperandPlacements(OpId::kArgMax, {"f32[8] @ mesh(2) [S(0)]"}, Dims({0})), "[S(0)]");
  EXPECT_EQ(LocalText(OpId::kArgMax, {"f32[8] @ mesh(2) [S(0)]"}, Dims({0})), "argreduce(max; dim=0; whole=[8])");
  EXPECT_EQ(OperandPlacements(OpId::kArgMax, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({0})), "[S(1)]");
  EXPECT_EQ(LocalText(OpId::kArgMax, {"f32[4,6] @ mesh(2) [R]"}, Dims({1})), "argreduce(max; dim=1)");
  EXPECT_EQ(Output(OpId::kArgMax, {"f32[4,6] @ mesh(2) [S(1)]"}, Dims({0, 1})), "i64[] @ mesh(2) [R]");
}

}  // namespace
}  // namespace tessera
