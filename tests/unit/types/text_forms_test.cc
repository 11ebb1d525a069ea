#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/tensor_spec.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

TEST(SpecText, RoundTripsTheSharedNotation) {
  for (const char* text : {
           "f32[8192,1024] @ mesh(dp:2,tp:4) [S(0), R]",
           "f64[] @ mesh(2) [R]",
           "i32[0,3] @ mesh(2,2) [S(1), S(1)]",
           "bool[5] @ mesh(x:2; workers=3,1) [P(max)]",
           "c128[1] @ mesh(1,1,1) [R, R, S(0)]",
           "f32[4] @ mesh(a:2,b:2; workers=5,4,7,6) [P(sum), P(sum)]",
           "f32[4] @ mesh(2) [P(product)]",
           "f32[4] @ mesh(2) [P(avg)]",
           "bool[9223372036854775807,0] @ mesh(3) [S(0)]",
       }) {
    const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(text);
    ASSERT_TRUE(spec.ok()) << text << ": " << spec.status();
    EXPECT_EQ(ToText(*spec), text);
  }
}

TEST(SpecText, WhiteSpaceIsFree) {
  const absl::StatusOr<TensorSpec> loose =
      ParseTensorSpec("  f32 [ 4 ,\t6 ]@mesh( dp : 2 , tp:2 ;workers = 3,1 ,\n0,2 )[S( 0 ),R ]  ");
  ASSERT_TRUE(loose.ok()) << loose.status();
  EXPECT_EQ(ToText(*loose), "f32[4,6] @ mesh(dp:2,tp:2; workers=3,1,0,2) [S(0), R]");
}

TEST(SpecText, NegativeShardDimsAreNormalised) {
  EXPECT_EQ(ToText(*ParseTensorSpec("f32[4,6] @ mesh(2) [S(-1)]")), "f32[4,6] @ mesh(2) [S(1)]");
}

TEST(SpecText, ExplicitShardSizesRoundTrip) {
  const char* const text = "f32[9] @ mesh(3) [S(0;3,1,5)]";
  EXPECT_EQ(ToText(*ParseTensorSpec(text)), text);
  EXPECT_EQ(ToText(*ParseTensorSpec("f32[9] @ mesh(3) [S(0;3,3,3)]")), "f32[9] @ mesh(3) [S(0)]");
  for (const char* wrong :
       {"f32[9] @ mesh(3) [S(0;3,1)]", "f32[9] @ mesh(3) [S(0;3,1,4)]", "f32[9] @ mesh(3) [S(0;-1,1,9)]"}) {
    EXPECT_EQ(ParseTensorSpec(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

TEST(SpecText, DefaultWorkersAreNotPrinted) { EXPECT_EQ(ToText(*ParseMesh("mesh(3; workers=0,1,2)")), "mesh(3)"); }

TEST(SpecText, ShortTextHasNoMesh) {
  EXPECT_EQ(ToShortText(*ParseTensorSpec("f32[128,64] @ mesh(2) [R]")), "f32[128,64]");
}

TEST(SpecText, HostileTextsAreErrors) {
  std::vector<std::string> texts = {
      "",
      "f32",
      "f32[",
      "f32[4",
      "f32[4]",
      "f32[4] @",
      "f32[4] @ mesh",
      "f32[4] @ mesh()",
      "f32[4] @ mesh() []",
      "f32[4] @ mesh(0) [R]",
      "f32[4] @ mesh(-2) [R]",
      "f32[4] @ mesh(2)",
      "f32[4] @ mesh(2) [",
      "f32[4] @ mesh(2) []",
      "f32[4] @ mesh(2) [R, R]",
      "f32[4] @ mesh(2) [R] x",
      "f32[4] @ mesh(2) [Q]",
      "f32[4] @ mesh(2) [S]",
      "f32[4] @ mesh(2) [S(1)]",
      "f32[4] @ mesh(2) [S(-2)]",
      "f32[] @ mesh(2) [S(0)]",
      "f32[4] @ mesh(2) [S(99999999999)]",
      "f32[4] @ mesh(2) [P(median)]",
      "i32[4] @ mesh(2) [P(avg)]",
      "bool[4] @ mesh(2) [P(avg)]",
      "f32[4] @ mesh(2,2) [P(sum), P(max)]",
      "f33[4] @ mesh(2) [R]",
      "f32[-1] @ mesh(2) [R]",
      "f32[9223372036854775808] @ mesh(2) [R]",
      "f32[9223372036854775807] @ mesh(2) [R]",
      "f32[4294967296,4294967296] @ mesh(2) [R]",
      "f32[0,4294967296,4294967296] @ mesh(2) [R]",
      "f32[4] @ mesh(1099511627776) [R]",
      "f32[4] @ mesh(65536,65536,65536,65536) [R,R,R,R]",
      "f32[4] @ mesh(65537) [R]",
      "f32[4] @ mesh(a:2,2) [R,R]",
      "f32[4] @ mesh(2,a:2) [R,R]",
      "f32[4] @ mesh(a:2,a:2) [R,R]",
      "f32[4] @ mesh(2; workers=0) [R]",
      "f32[4] @ mesh(2; workers=0,0) [R]",
      "f32[4] @ mesh(2; workers=1,1) [R]",
      "f32[4] @ mesh(2; workers=0,-1) [R]",
      "f32[4] @ mesh(2; workers=0,2147483648) [R]",
      "f32[4] @ mesh(1,1,1,1,1,1,1,1,1) [R,R,R,R,R,R,R,R,R]",
      "f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1] @ mesh(1) [R]",
      std::string("f32[4]\0@ mesh(2) [R]", 20),
      "\xff\xff\xff\xff",
  };
  texts.push_back("f32[" + std::string(1 << 20, '[') + "4] @ mesh(2) [R]");
  texts.push_back(std::string(1 << 20, ' '));
  texts.push_back("f32[4] @ mesh(2; workers=" + std::string(1 << 20, '1') + ") [R]");
  for (const std::string& text : texts) {
    const absl::Status status = ParseTensorSpec(text).status();
    EXPECT_FALSE(status.ok()) << text.substr(0, 80);
    EXPECT_LT(status.message().size(), 2000u) << "messages stay short";
  }
}

TEST(Scanner, ErrorsSayWhatWasExpectedAndWhere) {
  Scanner scanner("abc 12");
  ASSERT_TRUE(scanner.TryTake("abc"));
  const absl::Status status = scanner.Take("(");
  EXPECT_EQ(status.message(), "expected \"(\" at 4 in \"abc 12\"");
}

TEST(Scanner, IntegersAreCheckedForOverflow) {
  EXPECT_EQ(*Scanner("9223372036854775807").TakeInteger(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*Scanner("-9223372036854775808").TakeInteger(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(*Scanner(" +7").TakeInteger(), 7);
  for (const char* text :
       {"9223372036854775808", "-9223372036854775809", "99999999999999999999", "", "-", "+-1", "x"}) {
    EXPECT_FALSE(Scanner(text).TakeInteger().ok()) << text;
  }
}

TEST(SpecMake, MessagesCarryOpAndValues) {
  const Mesh mesh = *ParseMesh("mesh(2,2)");
  const absl::Status status =
      TensorSpec::Make("distribute_tensor", DType::kF32, {4, 6}, mesh, {Placement::Shard(0)}).status();
  EXPECT_EQ(status.message(), "distribute_tensor: 1 placements for a mesh of 2 dims: [S(0)] on mesh(2,2)");
}

}  // namespace
}  // namespace tessera
