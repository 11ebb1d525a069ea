#include "schemas/types/shape.h"

#include <limits>

#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(Shape, ValidationStopsAtTheEdgesOf64Bits) {
  EXPECT_TRUE(ValidateShape("full", Shape{kMax}, 1).ok());
  EXPECT_FALSE(ValidateShape("full", Shape{kMax}, 2).ok());
  EXPECT_TRUE(ValidateShape("full", Shape{int64_t{1} << 31, int64_t{1} << 31}, 1).ok());
  EXPECT_FALSE(ValidateShape("full", Shape{int64_t{1} << 31, int64_t{1} << 31, 2}, 1).ok());
  EXPECT_TRUE(ValidateShape("full", Shape{int64_t{1} << 31, int64_t{1} << 31, 2, 0}, 1).ok() == false)
      << "strides of an empty shape must not overflow either";
  EXPECT_TRUE(ValidateShape("full", Shape{0, 5}, 8).ok());
  EXPECT_EQ(ValidateShape("full", Shape{2, -1}, 8).message(), "full: negative extent -1 in shape [2,-1]");
  EXPECT_TRUE(ValidateShape("full", Shape(kMaxRank, 1), 8).ok());
  EXPECT_FALSE(ValidateShape("full", Shape(kMaxRank + 1, 1), 8).ok());
}

TEST(Shape, RowMajorStridesOfEmptyShapesAreStrides) {
  EXPECT_EQ(RowMajorStrides(Shape{2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(RowMajorStrides(Shape{2, 0, 4}), (Strides{4, 4, 1}));
  EXPECT_EQ(RowMajorStrides(Shape{}), Strides{});
}

TEST(Shape, Boxes) {
  const Box a{{0, 5}, {2, 8}};
  const Box b{{3, 9}, {0, 4}};
  EXPECT_EQ(ToText(Intersect(a, b)), "[3:5,2:4]");
  EXPECT_EQ(NumElements(Intersect(a, b)), 4);
  EXPECT_TRUE(IsEmpty(Intersect(a, Box{{5, 9}, {0, 4}})));
  EXPECT_EQ(NumElements(Intersect(a, Box{{7, 9}, {0, 4}})), 0);
  EXPECT_EQ(BoxShape(a), (Shape{5, 6}));
  EXPECT_EQ(NumElements(Box{}), 1);
  EXPECT_FALSE(IsEmpty(Box{}));
}

TEST(Shape, BroadcastingIsNumPys) {
  EXPECT_EQ(*BroadcastShapes(Shape{2, 1, 4}, Shape{3, 1}), (Shape{2, 3, 4}));
  EXPECT_EQ(*BroadcastShapes(Shape{}, Shape{3}), (Shape{3}));
  EXPECT_EQ(*BroadcastShapes(Shape{1}, Shape{0}), (Shape{0}));
  EXPECT_EQ(BroadcastShapes(Shape{2, 3}, Shape{4}).status().message(), "broadcast: [2,3] and [4]");
  EXPECT_FALSE(BroadcastShapes(Shape{2}, Shape{0}).ok());
}

TEST(Shape, DimsOutOfRange) {
  EXPECT_EQ(*NormalizeDim("sum", -1, 2), 1);
  EXPECT_EQ(*NormalizeDim("sum", -2, 2), 0);
  EXPECT_EQ(NormalizeDim("sum", 3, 2).status().message(), "sum: dim 3 is out of range for rank 2");
  EXPECT_FALSE(NormalizeDim("sum", 0, 0).ok());
  EXPECT_FALSE(NormalizeDim("sum", std::numeric_limits<int64_t>::min(), 2).ok());
}

TEST(Shape, TextRoundTrips) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1797, 64}, Shape{kMax}}) {
    EXPECT_EQ(*ParseShape(ToText(shape)), shape);
  }
  EXPECT_FALSE(ParseShape("[1,]").ok());
  EXPECT_FALSE(ParseShape("[4294967296,4294967296]").ok());
}

}  // namespace
}  // namespace tessera
