// Sums that become narrower: the parts that are reduced each where it is nearest. (That the fewest bytes move:
// sweep_test.)

#include "server/planner/parts_to_narrow.h"

#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {
namespace {

std::vector<NarrowedPart> PartsOf(std::string_view source, std::string_view destination) {
  return PartsToNarrow(*ParseTensorSpec(source), *ParseTensorSpec(destination));
}

TEST(PartsToNarrow, OnePartWhereAllIsAlike) {
  const auto near = PartsOf("f64[8,8] @ mesh(2) [P(sum)]", "f32[8,8] @ mesh(2) [S(0)]");
  ASSERT_EQ(near.size(), 1u);
  EXPECT_FALSE(near[0].place.has_value());
  const auto far = PartsOf("f64[8,8] @ mesh(2) [P(sum)]", "f32[8,8] @ mesh(2; workers=2,3) [S(0)]");
  ASSERT_EQ(far.size(), 1u);
  EXPECT_EQ(*far[0].place, *ParseTensorSpec("f32[8,8] @ mesh(2) [S(0)]"));
}

// Worker 1 has a term of the rows that it wants, worker 3 has none.
TEST(PartsToNarrow, AShardOfTheDestinationEach) {
  const auto parts = PartsOf("f64[8,8] @ mesh(2) [P(sum)]", "f32[8,8] @ mesh(2; workers=1,3) [S(0)]");
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].source, *ParseTensorSpec("f64[4,8] @ mesh(2) [P(sum)]"));
  EXPECT_EQ(parts[0].destination, *ParseTensorSpec("f32[4,8] @ mesh(1; workers=1) [R]"));
  EXPECT_FALSE(parts[0].place.has_value());
  EXPECT_EQ(parts[1].source_start, (Shape{4, 0}));
  EXPECT_EQ(parts[1].destination_start, (Shape{0, 0}));
  EXPECT_TRUE(parts[1].place.has_value());
}

// Workers 0 and 1 have the terms of rows 0 to 3, 2 and 3 those of the others. Worker 1 wants a quarter that it has a
// term of, and so does worker 2; neither rows nor columns alone tell that.
TEST(PartsToNarrow, ABoxForEachPairOfShards) {
  const auto parts =
      PartsOf("f64[8,8] @ mesh(2,2) [S(0), P(sum)]", "f32[8,8] @ mesh(2,2; workers=1,4,5,2) [S(0), S(1)]");
  ASSERT_EQ(parts.size(), 4u);
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].source.shape, (Shape{4, 4}));
    EXPECT_EQ(parts[i].source_start, (Shape{0, i % 2 == 0 ? 0 : 4}));
    EXPECT_EQ(parts[i].destination_start, (Shape{0, 0}));
    EXPECT_EQ(parts[i].place.has_value(), i == 1 || i == 2) << i;
  }
}

// Rows 0 to 2, 3 and 4 to 5: the first are worker 1's in both, and so are the last worker 0's.
TEST(PartsToNarrow, ShardsThatEndElsewhereAreCutThere) {
  const auto parts = PartsOf("f64[6] @ mesh(2,2) [S(0), P(sum)]", "f32[6] @ mesh(3; workers=1,4,2) [S(0)]");
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[2].source, *ParseTensorSpec("f64[1] @ mesh(1,2; workers=2,3) [R, P(sum)]"));
  EXPECT_EQ(parts[2].source_start, (Shape{0}));
  EXPECT_EQ(parts[2].destination_start, (Shape{1}));
  for (size_t i = 0; i < parts.size(); ++i) EXPECT_EQ(parts[i].place.has_value(), i == 1 || i == 2) << i;
}

TEST(PartsToNarrow, NoMoreThanTheLimit) {
  const auto some = PartsOf("f64[64,64] @ mesh(2) [P(sum)]",
                            "f32[64,64] @ mesh(64; workers=1,0,2,3,4,5,6,7,8,9,10,11,12,"
                            "13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,"
                            "43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63) [S(0)]");
  EXPECT_EQ(static_cast<int64_t>(some.size()), kMaxNarrowedParts);
  const auto one = PartsOf("f64[65,64] @ mesh(2) [P(sum)]", "f32[65,64] @ mesh(65) [S(0)]");
  EXPECT_EQ(one.size(), 1u);
}

}  // namespace
}  // namespace tessera
