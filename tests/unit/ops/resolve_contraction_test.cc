#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

struct MatmulCase {
  const char* a;
  const char* b;
  const char* output;
  const char* operands;
};

std::vector<std::string> Operands(const char* a, const char* b) {
  return {std::string("f32[8,6] @ mesh(2) [") + a + "]", std::string("f32[6,8] @ mesh(2) [") + b + "]"};
}

TEST(Matmul, OperandsThatFitARuleAreKept) {
  const MatmulCase cases[] = {
      {"S(0)", "R", "[S(0)]", "[S(0)] [R]"},
      {"R", "S(1)", "[S(1)]", "[R] [S(1)]"},
      {"S(1)", "S(0)", "[P(sum)]", "[S(1)] [S(0)]"},
      {"R", "R", "[R]", "[R] [R]"},
  };
  for (const MatmulCase& c : cases) {
    EXPECT_EQ(OutputPlacements(OpId::kMatmul, Operands(c.a, c.b)), c.output) << c.a << " " << c.b;
    EXPECT_EQ(OperandPlacements(OpId::kMatmul, Operands(c.a, c.b)), c.operands) << c.a << " " << c.b;
  }
}

TEST(Matmul, OtherOperandsTakeTheFewestBytes) {
  // Words in brackets: what each candidate S(m), S(n), R, P(k) must move with m = n = 8, k = 6.
  const MatmulCase cases[] = {
      {"S(0)", "S(1)", "[S(0)]", "[S(0)] [R]"},  // 48, 48, 96, 24+24+128
      {"S(0)", "S(0)", "[S(0)]", "[S(0)] [R]"},  // 48, 48+24, 96, 24+128
      {"S(1)", "S(1)", "[S(1)]", "[R] [S(1)]"},  // 24+48, 48, 96, 24+128
      {"S(1)", "R", "[S(0)]", "[S(0)] [R]"},     // 24, 48, 48, 128
      {"R", "S(0)", "[S(1)]", "[R] [S(1)]"},     // 48, 24, 48, 128
      {"P(max)", "R", "[S(0)]", "[S(0)] [R]"},   // 48, 96, 96, 48+128
      {"P(sum)", "P(sum)", "[S(0)]", "[S(0)] [R]"},
      {"P(sum)", "R", "[S(0)]", "[S(0)] [R]"},  // a term of floats times an infinity may be NaN
      {"R", "P(sum)", "[S(1)]", "[R] [S(1)]"},
      {"P(avg)", "R", "[S(0)]", "[S(0)] [R]"},
      {"P(sum)", "S(1)", "[S(0)]", "[S(0)] [R]"},  // 48+48, 96, ...: the tie goes to S(m)
  };
  for (const MatmulCase& c : cases) {
    EXPECT_EQ(OutputPlacements(OpId::kMatmul, Operands(c.a, c.b)), c.output) << c.a << " " << c.b;
    EXPECT_EQ(OperandPlacements(OpId::kMatmul, Operands(c.a, c.b)), c.operands) << c.a << " " << c.b;
  }
}

TEST(Matmul, PendingSumsOfIntegersStayPending) {
  const auto integers = [](const char* a, const char* b) -> std::vector<std::string> {
    return {std::string("i32[8,6] @ mesh(2) [") + a + "]", std::string("i32[6,8] @ mesh(2) [") + b + "]"};
  };
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, integers("P(sum)", "R")), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, integers("R", "P(sum)")), "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, integers("P(max)", "R")), "[S(0)]");
}

TEST(Matmul, ALargeInnerDimIsSplit) {
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, {"f32[4,4096] @ mesh(2) [S(1)]", "f32[4096,4] @ mesh(2) [S(1)]"}),
            "[P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, {"f32[4,4096] @ mesh(2) [S(1)]", "f32[4096,4] @ mesh(2) [R]"}), "[P(sum)]");
}

TEST(Matmul, TheDigitsGramMatrix) {
  const std::vector<std::string> operands = {"f32[1797,64] @ mesh(4) [S(0)]", "f32[64,1797] @ mesh(4) [S(1)]"};
  EXPECT_EQ(Output(OpId::kMatmul, operands), "f32[1797,1797] @ mesh(4) [S(0)]");
  const OpResolution resolution = *Resolve(OpId::kMatmul, operands);
  EXPECT_FALSE(resolution.operands[0].redistributed);
  EXPECT_TRUE(resolution.operands[1].redistributed);
  EXPECT_EQ(resolution.flops, 2.0 * 1797 * 1797 * 64);
}

TEST(Matmul, TwoMeshDims) {
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, {"f32[8,6] @ mesh(2,2) [S(0), R]", "f32[6,8] @ mesh(2,2) [R, S(1)]"}),
            "[S(0), S(1)]");
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, {"f32[8,6] @ mesh(2,2) [S(0), S(1)]", "f32[6,8] @ mesh(2,2) [R, S(0)]"}),
            "[S(0), P(sum)]");
  EXPECT_EQ(OutputPlacements(OpId::kMatmul, {"f32[8,6] @ mesh(2,2) [P(avg), S(1)]", "f32[6,8] @ mesh(2,2) [R, S(0)]"}),
            "[S(0), P(sum)]")
      << "an average and a sum can't be pending together";
}

TEST(Matmul, AnotherMeshOverTheSameWorkers) {
  const OpResolution resolution =
      *Resolve(OpId::kMatmul, {"f32[8,6] @ mesh(4) [S(0)]", "f32[6,8] @ mesh(2,2) [S(0), S(1)]"});
  EXPECT_EQ(ToText(resolution.outputs[0]), "f32[8,8] @ mesh(4) [S(0)]");
  EXPECT_EQ(ToText(resolution.operands[1].spec), "f32[6,8] @ mesh(4) [R]");
}

TEST(Matmul, EmptyExtents) {
  EXPECT_EQ(Output(OpId::kMatmul, {"f32[0,6] @ mesh(2) [S(0)]", "f32[6,8] @ mesh(2) [S(0)]"}),
            "f32[0,8] @ mesh(2) [P(sum)]")
      << "b stays, a and the product have no bytes";
  EXPECT_EQ(Output(OpId::kMatmul, {"f32[4,0] @ mesh(2) [S(1)]", "f32[0,8] @ mesh(2) [S(0)]"}),
            "f32[4,8] @ mesh(2) [P(sum)]");
}

TEST(Matmul, Tf32IsOfF32AndWhereItIsAskedFor) {
  const auto local_of = [](const char* dtype, const char* precision) {
    Attributes attributes;
    attributes.Set(attribute::precision, precision);
    const std::string text = std::string(dtype) + "[8,8] @ mesh(2) [S(0)]";
    return LocalText(OpId::kMatmul, {text, text}, attributes);
  };
  EXPECT_EQ(local_of("f32", ""), "matmul()");
  EXPECT_EQ(local_of("f32", "full"), "matmul()");
  EXPECT_EQ(local_of("f32", "tf32"), "matmul(mk,kn->mn; tf32)");
  EXPECT_EQ(*ParseLocalOp("matmul(mk,kn->mn; tf32)"), LocalOp(MatmulOp{{.precision = ProductPrecision::kTf32}}));
  for (const char* dtype : {"f64", "bf16", "i32"}) EXPECT_EQ(local_of(dtype, "tf32"), "matmul()") << dtype;
  Attributes other;
  other.Set(attribute::precision, "half");
  EXPECT_EQ(
      Output(OpId::kMatmul, Operands("R", "R"), other).find("matmul: precision is 'half', not 'full' or 'tf32': "), 0u);
}

TEST(ContractionWords, ClosedForms) {
  EXPECT_DOUBLE_EQ(GridReceivedWords(8, 8, 8, 1, 1, 1), 0);
  EXPECT_DOUBLE_EQ(GridReceivedWords(8, 8, 8, 2, 1, 1), 32);
  EXPECT_DOUBLE_EQ(GridReceivedWords(8, 4, 2, 2, 2, 2), 8 * 2 / 4.0 / 2 + 4 * 2 / 4.0 / 2 + 8 * 4 / 4.0 / 2);
  EXPECT_DOUBLE_EQ(MatmulLowerBoundWords(64, 4, 2, 4), (64.0 * 4 + 64 * 2) / 4 + 4 * 2);
  EXPECT_DOUBLE_EQ(MatmulLowerBoundWords(2, 64, 4, 4), MatmulLowerBoundWords(64, 4, 2, 4)) << "extents are sorted";
  EXPECT_DOUBLE_EQ(MatmulLowerBoundWords(64, 64, 4, 16), 2 * 64.0 * 4 / 4 + 64.0 * 64 / 16);
  EXPECT_NEAR(MatmulLowerBoundWords(8, 8, 8, 8), 3 * 16, 1e-9);
  EXPECT_EQ(MatmulLowerBoundWords(8, 8, 0, 8), 0);
}

}  // namespace
}  // namespace tessera
