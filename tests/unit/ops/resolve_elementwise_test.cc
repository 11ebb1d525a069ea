#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

TEST(Promotion, NumbersFollowTensors) {
  const auto dtype = [](const char* tensor, const char* number, OpId op = OpId::kAdd) {
    const std::string text = Output(op, {std::string(tensor) + "[4] @ mesh(2) [R]", number});
    return text.substr(0, text.find('['));
  };
  EXPECT_EQ(dtype("i32", "2"), "i32");
  EXPECT_EQ(dtype("i32", "2.5"), "f64");
  EXPECT_EQ(dtype("f32", "2.5"), "f32");
  EXPECT_EQ(dtype("f32", "2"), "f32");
  EXPECT_EQ(dtype("bool", "2"), "i64");
  EXPECT_EQ(dtype("bool", "2.5"), "f64");
  EXPECT_EQ(dtype("i32", "true"), "i32");
  EXPECT_EQ(dtype("i32", "2:i64"), "i64");
  EXPECT_EQ(dtype("f32", "2.5:f64"), "f64");
  EXPECT_EQ(dtype("f32", "2:i32"), "f64");
  EXPECT_EQ(dtype("i32", "2", OpId::kDiv), "f64");
  EXPECT_EQ(dtype("i32", "2", OpId::kLess), "bool");
  EXPECT_EQ(dtype("i32", "2.5", OpId::kEqual), "bool");
}

TEST(Promotion, ExpressionsConvertWhatTheyRead) {
  EXPECT_EQ(LocalText(OpId::kAdd, {"i32[4] @ mesh(2) [R]", "f64[4] @ mesh(2) [R]"}),
            "map(add:f64(cast:f64(in0:i32), in1:f64))");
  EXPECT_EQ(LocalText(OpId::kSub, {"2", "f32[4] @ mesh(2) [R]"}), "map(sub:f32(arg0:f32, in0:f32))");
  EXPECT_EQ(LocalText(OpId::kLess, {"i32[4] @ mesh(2) [R]", "f32[4] @ mesh(2) [R]"}),
            "map(less:bool(cast:f64(in0:i32), cast:f64(in1:f32)))");
  EXPECT_EQ(LocalText(OpId::kWhere, {"bool[4] @ mesh(2) [R]", "f32[4] @ mesh(2) [R]", "0"}),
            "map(where:f32(in0:bool, in1:f32, arg0:f32))");
  Attributes to_i32;
  to_i32.Set(attribute::dtype, DType::kI32);
  EXPECT_EQ(LocalText(OpId::kAsType, {"f32[4] @ mesh(2) [R]"}, to_i32), "map(cast:i32(in0:f32))");
  EXPECT_EQ(LocalText(OpId::kAsType, {"i32[4] @ mesh(2) [R]"}, to_i32), "map(in0:i32)");
  const OpResolution scaled = *Resolve(OpId::kMul, {"f32[4] @ mesh(2) [R]", "0.1"});
  EXPECT_EQ(ToText(scaled.scalars[0]), "0.1:f32");
}

TEST(Placement, OperandsThatAgreeAreKept) {
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2,2) [S(0), S(1)]", "f32[4,6] @ mesh(2,2) [S(0), S(1)]"}),
            "[S(0), S(1)] [S(0), S(1)]");
  EXPECT_EQ(OutputPlacements(OpId::kExp, {"f32[4,6] @ mesh(2,2) [S(1), S(1)]"}), "[S(1), S(1)]");
  EXPECT_EQ(OutputPlacements(OpId::kMul, {"f32[4] @ mesh(2) [S(0)]", "2"}), "[S(0)]");
}

TEST(Placement, TiesGoToTheEarlierOperand) {
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"}), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[4,4] @ mesh(2) [S(1)]", "f32[4,4] @ mesh(2) [S(0)]"}), "[S(1)]");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,4] @ mesh(2) [S(0)]", "f32[4,4] @ mesh(2) [S(1)]"}), "[S(0)] [S(0)]");
}

TEST(Placement, AReplicaBesideAShardIsSliced) {
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,4] @ mesh(2) [R]", "f32[4,4] @ mesh(2) [S(1)]"}), "[S(1)] [S(1)]");
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[5] @ mesh(2,2) [R, S(0)]", "f32[5] @ mesh(2,2) [R, R]"}), "[R, S(0)]");
  // [R, S(0)] is not a prefix of [S(0), S(0)]: the shards must move, the smaller way.
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[8] @ mesh(2,2) [R, S(0)]", "f32[8] @ mesh(2,2) [S(0), S(0)]"}),
            "[S(0), S(0)]");
}

TEST(Placement, BroadcastDimsAreReplicated) {
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2) [S(0)]", "f32[6] @ mesh(2) [R]"}), "[S(0)] [R]");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2) [S(1)]", "f32[6] @ mesh(2) [R]"}), "[S(1)] [S(0)]");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2) [S(0)]", "f32[6] @ mesh(2) [S(0)]"}), "[S(0)] [R]");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2) [S(0)]", "f32[1,6] @ mesh(2) [S(0)]"}), "[S(0)] [R]");
  EXPECT_EQ(Output(OpId::kAdd, {"f32[4,1] @ mesh(2) [S(0)]", "f32[1,6] @ mesh(2) [R]"}), "f32[4,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(Output(OpId::kAdd, {"f32[6] @ mesh(2) [S(0)]", "f32[3,4,1] @ mesh(2) [R]"}), "f32[3,4,6] @ mesh(2) [S(2)]");
}

TEST(Placement, OtherMeshesOverTheSameWorkers) {
  EXPECT_EQ(Output(OpId::kAdd, {"f32[8,8] @ mesh(4) [S(0)]", "f32[8,8] @ mesh(2,2) [S(0), R]"}),
            "f32[8,8] @ mesh(4) [S(0)]");
  const OpResolution resolution =
      *Resolve(OpId::kAdd, {"f32[8,8] @ mesh(x:2) [S(0)]", "f32[8,8] @ mesh(2; workers=1,0) [S(0)]"});
  EXPECT_EQ(ToText(resolution.operands[1].spec), "f32[8,8] @ mesh(x:2) [S(0)]");
  EXPECT_TRUE(resolution.operands[1].redistributed);
  EXPECT_FALSE(resolution.operands[0].redistributed);
  EXPECT_EQ(Output(OpId::kAdd, {"f32[8] @ mesh(2) [S(0)]", "f32[8] @ mesh(2; workers=2,3) [S(0)]"}),
            "add: operands live on different workers, mesh(2) and mesh(2; workers=2,3); bring one over with "
            "to_device: a is f32[8], b is f32[8]");
}

TEST(Placement, OfSeveralMeshesTheOneWithTheFewestBytes) {
  const std::string bias = "f64[512] @ mesh(4) [R]";
  const std::string product = "f64[512,512] @ mesh(2,2) [S(0), S(1)]";
  const std::string result = "f64[512,512] @ mesh(2,2) [S(0), S(1)]";
  EXPECT_EQ(Output(OpId::kAdd, {bias, product}), result);
  EXPECT_EQ(Output(OpId::kAdd, {product, bias}), result);
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {bias, product}), "[R, S(0)] [S(0), S(1)]");
  // A number of 0 dims, whatever it is on.
  EXPECT_EQ(Output(OpId::kMul, {"f64[] @ mesh(4) [R]", product}), result);
  EXPECT_EQ(Output(OpId::kMul, {"f64[] @ mesh(4) [P(sum)]", product}), result);
  EXPECT_EQ(Output(OpId::kLess, {bias, product}), "bool[512,512] @ mesh(2,2) [S(0), S(1)]");
  // Three operands, of which the last is large.
  EXPECT_EQ(Output(OpId::kWhere, {"bool[512] @ mesh(4) [S(0)]", "2", product}), result);
  EXPECT_EQ(Output(OpId::kWhere, {"bool[512] @ mesh(4) [S(0)]", "f64[1,1] @ mesh(4) [R]", product}), result);
  // If two meshes cost the same, the first operand's is taken.
  EXPECT_EQ(Output(OpId::kAdd, {"f32[8,8] @ mesh(2,2) [S(0), S(1)]", "f32[8,8] @ mesh(4) [S(0)]"}),
            "f32[8,8] @ mesh(2,2) [S(0), S(1)]");
  EXPECT_EQ(Output(OpId::kAdd, {"f32[8,8] @ mesh(4) [S(0)]", "f32[8,8] @ mesh(2,2) [S(0), S(1)]"}),
            "f32[8,8] @ mesh(4) [S(0)]");
  // A pending sum stays pending where the other operand is there already.
  EXPECT_EQ(Output(OpId::kAdd, {"f32[8] @ mesh(4) [R]", "f32[8,8] @ mesh(2,2) [P(sum), R]"}),
            "f32[8,8] @ mesh(2,2) [P(sum), R]");
}

int64_t OperandBytes(OpId op, const std::vector<std::string>& operands) {
  const absl::StatusOr<OpResolution> resolution = Resolve(op, operands);
  EXPECT_TRUE(resolution.ok()) << resolution.status();
  int64_t bytes = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    bytes += BoundRedistribute(*ParseTensorSpec(operands[i]), resolution->operands[i].spec)->total_bytes;
  }
  return bytes;
}

TEST(Placement, OperandsOnTwoMeshesReceiveAsMuchInEitherOrder) {
  const std::vector<std::string> flat = {"mesh(4) [R]", "mesh(4) [S(0)]", "mesh(4; workers=2,0,3,1) [S(0)]",
                                         "mesh(4) [P(sum)]", "mesh(4) [P(max)]"};
  const std::vector<std::string> folded = {
      "mesh(2,2) [R, R]",      "mesh(2,2) [S(0), R]",      "mesh(2,2) [R, S(0)]",       "mesh(2,2) [S(0), S(0)]",
      "mesh(2,2) [P(sum), R]", "mesh(2,2) [P(sum), S(0)]", "mesh(2,2) [P(min), P(min)]"};
  for (const char* shape : {"f32[6]", "f32[1]", "f64[5,6]", "f64[6,1]"}) {
    for (const std::string& a : flat) {
      for (const std::string& b : folded) {
        const std::string first = "f32[6] @ " + a, second = std::string(shape) + " @ " + b;
        for (OpId op : {OpId::kAdd, OpId::kMaximum, OpId::kMul, OpId::kLess}) {
          EXPECT_EQ(OperandBytes(op, {first, second}), OperandBytes(op, {second, first})) << first << ", " << second;
        }
      }
    }
  }
}

TEST(Placement, TheResultIsWhereTheCallSays) {
  Attributes there;
  there.Set(attribute::mesh, *ParseMesh("mesh(4)"));
  there.Set(attribute::placements, Placements{Placement::Replicate()});
  const std::vector<std::string> operands = {"f32[8,8] @ mesh(4) [R]", "f32[8] @ mesh(2,2) [S(0), R]"};
  EXPECT_EQ(Output(OpId::kAdd, operands), "f32[8,8] @ mesh(2,2) [S(1), R]");
  EXPECT_EQ(Output(OpId::kAdd, operands, there), "f32[8,8] @ mesh(4) [R]");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, operands, there), "[R] [R]");
  there.Set(attribute::placements, Placements{Placement::Shard(1)});
  EXPECT_EQ(OperandPlacements(OpId::kAdd, operands, there), "[S(1)] [S(0)]");
  there.Clear(attribute::placements);
  EXPECT_EQ(Output(OpId::kAdd, operands, there), "f32[8,8] @ mesh(4) [R]");

  there.Set(attribute::placements, Placements{Placement::Partial(ReduceOp::kSum)});
  EXPECT_EQ(Output(OpId::kAdd, operands, there),
            "add: the result can't be asked to be [P(sum)]: a is f32[8,8], b is f32[8]");
  for (const Placements& wrong : {Placements{Placement::Shard(2)}, Placements{Placement::Shard(-1)}, Placements{},
                                  Placements{Placement::Replicate(), Placement::Replicate()}}) {
    there.Set(attribute::placements, wrong);
    EXPECT_FALSE(Resolve(OpId::kAdd, operands, there).ok()) << ToText(wrong);
  }
  there.Set(attribute::mesh, *ParseMesh("mesh(2)"));
  there.Clear(attribute::placements);
  EXPECT_EQ(Output(OpId::kAdd, operands, there),
            "add: the result can't be on mesh(2), the operands live on other workers: a is f32[8,8], b is f32[8]");
}

struct PartialCase {
  OpId op;
  const char* a;  // placement on a 1-D mesh, or a number
  const char* b;  // "" for unary
  const char* output;
  const char* operands;
};

TEST(Partial, AlgebraTable) {
  const PartialCase cases[] = {
      {OpId::kNeg, "P(sum)", "", "[P(sum)]", "[P(sum)]"},
      {OpId::kNeg, "P(avg)", "", "[P(avg)]", "[P(avg)]"},
      {OpId::kNeg, "P(max)", "", "[P(min)]", "[P(max)]"},
      {OpId::kNeg, "P(min)", "", "[P(max)]", "[P(min)]"},
      {OpId::kNeg, "P(product)", "", "[S(0)]", "[S(0)]"},
      {OpId::kAdd, "P(sum)", "P(sum)", "[P(sum)]", "[P(sum)] [P(sum)]"},
      {OpId::kAdd, "P(avg)", "P(avg)", "[P(avg)]", "[P(avg)] [P(avg)]"},
      {OpId::kAdd, "P(max)", "P(max)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(sum)", "P(max)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(sum)", "P(avg)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(sum)", "R", "[P(sum)]", "[P(sum)] [R]once0"},
      {OpId::kAdd, "R", "P(sum)", "[P(sum)]", "[R]once0 [P(sum)]"},
      {OpId::kSub, "R", "P(sum)", "[P(sum)]", "[R]once0 [P(sum)]"},
      {OpId::kAdd, "P(avg)", "R", "[P(avg)]", "[P(avg)] [R]"},
      {OpId::kAdd, "P(max)", "R", "[S(0)]", "[S(0)] [S(0)]"},  // a term of -inf plus inf would be NaN
      {OpId::kSub, "P(min)", "R", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kSub, "R", "P(max)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(max)", "2.0", "[P(max)]", "[P(max)]"},
      {OpId::kAdd, "P(max)", "inf", "[S(0)]", "[S(0)]"},
      {OpId::kSub, "P(min)", "-inf", "[S(0)]", "[S(0)]"},
      {OpId::kAdd, "P(product)", "R", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(sum)", "S(0)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kAdd, "P(sum)", "S(1)", "[S(1)]", "[S(1)] [S(1)]"},
      {OpId::kMul, "P(sum)", "R", "[S(0)]", "[S(0)] [S(0)]"},  // a term of 0 times inf would be NaN
      {OpId::kMul, "P(sum)", "P(sum)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kMul, "P(product)", "P(product)", "[P(product)]", "[P(product)] [P(product)]"},
      {OpId::kMul, "P(product)", "R", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kMul, "P(sum)", "2.0", "[P(sum)]", "[P(sum)]"},
      {OpId::kMul, "2.0", "P(avg)", "[P(avg)]", "[P(avg)]"},
      {OpId::kMul, "P(max)", "2.0", "[P(max)]", "[P(max)]"},
      {OpId::kMul, "-2", "P(max)", "[P(min)]", "[P(max)]"},
      {OpId::kDiv, "P(min)", "-2.0", "[P(max)]", "[P(min)]"},
      {OpId::kDiv, "2.0", "P(min)", "[S(0)]", "[S(0)]"},
      {OpId::kMul, "P(max)", "0.0", "[S(0)]", "[S(0)]"},  // a term of -inf times 0 would be NaN
      {OpId::kMul, "P(max)", "-inf", "[S(0)]", "[S(0)]"},
      {OpId::kMul, "P(max)", "R", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kSub, "2.0", "P(max)", "[P(min)]", "[P(max)]"},
      {OpId::kSub, "inf", "P(max)", "[S(0)]", "[S(0)]"},
      {OpId::kDiv, "P(sum)", "R", "[S(0)]", "[S(0)] [S(0)]"},  // terms of both signs by 0 would be NaN
      {OpId::kDiv, "P(sum)", "2.0", "[P(sum)]", "[P(sum)]"},
      {OpId::kMul, "P(sum)", "1e300", "[S(0)]", "[S(0)]"},  // inf of f32
      {OpId::kDiv, "P(sum)", "1e-60", "[S(0)]", "[S(0)]"},  // 0 of f32
      {OpId::kDiv, "R", "P(sum)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kDiv, "2.0", "P(sum)", "[S(0)]", "[S(0)]"},
      {OpId::kMaximum, "P(max)", "P(max)", "[P(max)]", "[P(max)] [P(max)]"},
      {OpId::kMaximum, "P(max)", "R", "[P(max)]", "[P(max)] [R]"},
      {OpId::kMaximum, "P(min)", "P(min)", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kMinimum, "P(min)", "2.0", "[P(min)]", "[P(min)]"},
      {OpId::kMaximum, "P(sum)", "R", "[S(0)]", "[S(0)] [S(0)]"},
      {OpId::kExp, "P(max)", "", "[P(max)]", "[P(max)]"},
      {OpId::kRelu, "P(min)", "", "[P(min)]", "[P(min)]"},
      {OpId::kExp, "P(sum)", "", "[S(0)]", "[S(0)]"},
      {OpId::kSqrt, "P(max)", "", "[S(0)]", "[S(0)]"},
      {OpId::kLess, "P(sum)", "R", "[S(0)]", "[S(0)] [S(0)]"},
  };
  for (const PartialCase& c : cases) {
    std::vector<std::string> operands;
    for (const std::string text : {c.a, c.b}) {
      if (text.empty()) continue;
      const bool is_number = ParseScalar(text).ok();
      operands.push_back(is_number ? text : "f32[4,6] @ mesh(2) [" + text + "]");
    }
    EXPECT_EQ(OutputPlacements(c.op, operands), c.output) << c.a << " " << c.b << " op " << static_cast<int>(c.op);
    EXPECT_EQ(OperandPlacements(c.op, operands), c.operands) << c.a << " " << c.b << " op " << static_cast<int>(c.op);
  }
}

TEST(Partial, BesideIntegersTermsOfFloatsStayPending) {
  const auto placed = [](OpId op, const char* a, const char* b) {
    return OutputPlacements(op, {std::string(a) + "]", std::string(b) + "]"});
  };
  EXPECT_EQ(placed(OpId::kMul, "f64[4,6] @ mesh(2) [P(sum)", "i32[4,6] @ mesh(2) [R"), "[P(sum)]");
  EXPECT_EQ(placed(OpId::kAdd, "i32[4,6] @ mesh(2) [R", "f64[4,6] @ mesh(2) [P(max)"), "[P(max)]");
  EXPECT_EQ(placed(OpId::kDiv, "f64[4,6] @ mesh(2) [P(sum)", "i32[4,6] @ mesh(2) [R"), "[S(0)]");  // it may have zeros
}

TEST(Partial, ExtremesOfIntegersWrapAndAreReducedBeforeTheyAreScaled) {
  EXPECT_EQ(OutputPlacements(OpId::kMul, {"i32[4,6] @ mesh(2) [P(max)]", "-2"}), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kNeg, {"i32[4,6] @ mesh(2) [P(max)]"}), "[S(0)]");
}

TEST(Partial, PendingSumsOfIntegersAreScaledByAnyTensor) {
  EXPECT_EQ(OutputPlacements(OpId::kMul, {"i64[4,6] @ mesh(2) [P(sum)]", "i64[4,6] @ mesh(2) [R]"}), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMul, {"0", "i64[4,6] @ mesh(2) [P(sum)]"}), "[P(sum)]");
}

TEST(Partial, ANumberBesideAPendingSumCountsOnce) {
  const OpResolution added = *Resolve(OpId::kAdd, {"i64[] @ mesh(2,2) [P(sum), P(sum)]", "10"});
  EXPECT_EQ(ToText(added.outputs[0].placements), "[P(sum), P(sum)]");
  ASSERT_TRUE(added.filled_scalar.has_value());
  EXPECT_EQ(ToText(added.filled_scalar->spec), "i64[] @ mesh(2,2) [R, R]");
  EXPECT_EQ(added.filled_scalar->counted_once, (std::vector<int>{0, 1}));
  EXPECT_EQ(ToText(*added.local), "map(add:i64(in0:i64, in1:i64))");
  EXPECT_EQ(ToText(added.scalars[0]), "10:i64");
  EXPECT_FALSE(Resolve(OpId::kAdd, {"f32[4] @ mesh(2) [P(avg)]", "10"})->filled_scalar.has_value());
  EXPECT_FALSE(Resolve(OpId::kMul, {"f32[4] @ mesh(2) [P(sum)]", "10"})->filled_scalar.has_value());
}

TEST(Partial, SeveralMeshDims) {
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2,2) [P(sum), R]", "f32[4,6] @ mesh(2,2) [R, P(sum)]"}),
            "[P(sum), R]once1 [R, P(sum)]once0");
  EXPECT_EQ(OperandPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2,2) [P(sum), S(0)]", "f32[4,6] @ mesh(2,2) [R, S(0)]"}),
            "[P(sum), S(0)] [R, S(0)]once0");
  // One tensor has one kind of Partial.
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[4,6] @ mesh(2,2) [P(sum), R]", "f32[4,6] @ mesh(2,2) [R, P(avg)]"}),
            "[S(0), S(1)]");
}

TEST(Partial, OnlyWideningCastsPass) {
  Attributes attributes;
  attributes.Set(attribute::dtype, DType::kF64);
  EXPECT_EQ(OutputPlacements(OpId::kAsType, {"f32[4] @ mesh(2) [P(sum)]"}, attributes), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kAsType, {"i32[4] @ mesh(2) [P(max)]"}, attributes), "[P(max)]");
  attributes.Set(attribute::dtype, DType::kI32);
  EXPECT_EQ(OutputPlacements(OpId::kAsType, {"f32[4] @ mesh(2) [P(sum)]"}, attributes), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kAsType, {"i64[4] @ mesh(2) [P(sum)]"}, attributes), "[S(0)]");
  EXPECT_EQ(OutputPlacements(OpId::kAdd, {"f32[4] @ mesh(2) [P(sum)]", "f64[4] @ mesh(2) [R]"}), "[P(sum)]");
}

TEST(Partial, TooSmallToScatterIsReplicated) {
  EXPECT_EQ(OutputPlacements(OpId::kExp, {"f32[] @ mesh(2) [P(sum)]"}), "[R]");
  EXPECT_EQ(OutputPlacements(OpId::kExp, {"f32[3,2] @ mesh(4) [P(sum)]"}), "[R]");
  EXPECT_EQ(OutputPlacements(OpId::kExp, {"f32[3,8] @ mesh(4) [P(sum)]"}), "[S(1)]");
}

}  // namespace
}  // namespace tessera
