#include "schemas/types/layout.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace tessera {
namespace {

TensorSpec Spec(std::string_view text) { return *ParseTensorSpec(text); }

std::vector<int64_t> Sizes(const TensorSpec& spec, int dim) {
  std::vector<int64_t> sizes;
  for (const Interval& interval : DimIntervals(spec, dim)) sizes.push_back(interval.size());
  return sizes;
}

TEST(Layout, ChunksAreThoseOfTorch) {
  EXPECT_EQ(ChunkInterval({0, 9}, 2, 0), (Interval{0, 5}));
  EXPECT_EQ(ChunkInterval({0, 9}, 2, 1), (Interval{5, 9}));
  EXPECT_EQ(ChunkInterval({0, 5}, 4, 2), (Interval{4, 5}));
  EXPECT_EQ(ChunkInterval({0, 5}, 4, 3), (Interval{5, 5}));
  EXPECT_EQ(ChunkInterval({0, 0}, 4, 1), (Interval{0, 0}));
  EXPECT_EQ(Sizes(Spec("f32[1797,64] @ mesh(4) [S(0)]"), 0), (std::vector<int64_t>{450, 450, 450, 447}));
}

TEST(Layout, ChunksOfHugeDimsDontOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t at = 0;
  for (int64_t c = 0; c < 65536; ++c) {
    const Interval chunk = ChunkInterval({0, kMax}, 65536, c);
    ASSERT_EQ(chunk.start, at);
    ASSERT_LE(chunk.start, chunk.stop);
    at = chunk.stop;
  }
  EXPECT_EQ(at, kMax);
}

TEST(Layout, NestedShardsApplyLeftToRight) {
  EXPECT_EQ(Sizes(Spec("f32[9] @ mesh(2,2) [S(0), S(0)]"), 0), (std::vector<int64_t>{3, 2, 2, 2}));
  EXPECT_EQ(Sizes(Spec("f32[5] @ mesh(2,2) [S(0), S(0)]"), 0), (std::vector<int64_t>{2, 1, 1, 1}));
  EXPECT_EQ(Sizes(Spec("f32[5] @ mesh(4) [S(0)]"), 0), (std::vector<int64_t>{2, 2, 1, 0}));
}

TEST(Layout, EmptyShardsStartAtTheDimsSize) {
  EXPECT_EQ(ToText(LocalBox(Spec("f32[5,2] @ mesh(4) [S(0)]"), {3})), "[5:5,0:2]");
  // Nested: coordinate (0, 3) has nothing of rows [0:3).
  const TensorSpec nested = Spec("f32[5] @ mesh(2,4) [S(0), S(0)]");
  EXPECT_EQ(ToText(LocalBox(nested, {0, 3})), "[5:5]");
  EXPECT_EQ(DimIntervals(nested, 0)[3], (Interval{3, 3}));
}

TEST(Layout, LargestShardIsWhatABufferHolds) {
  EXPECT_EQ(MaxShardShape(Spec("f32[9,7] @ mesh(2,2) [S(0), S(0)]")), (Shape{3, 7}));
  EXPECT_EQ(MaxShardElements(Spec("f32[9,7] @ mesh(2,2) [S(0), S(1)]")), 20);
  EXPECT_EQ(MaxShardElements(Spec("f32[] @ mesh(2) [R]")), 1);
}

TEST(Layout, AutoPlacements) {
  const Mesh mesh = *ParseMesh("mesh(2,4)");
  EXPECT_EQ(ToText(AutoPlacements(DType::kF32, Shape{512, 511}, mesh)), "[R, R]") << "under 1 MiB";
  EXPECT_EQ(ToText(AutoPlacements(DType::kF32, Shape{512, 512}, mesh)), "[S(0), S(1)]") << "1 MiB, ties lowest";
  EXPECT_EQ(ToText(AutoPlacements(DType::kF32, Shape{64, 65536}, mesh)), "[S(1), S(1)]");
  EXPECT_EQ(ToText(AutoPlacements(DType::kF64, Shape{1, 1, 1 << 20}, *ParseMesh("mesh(4)"))), "[S(2)]");
  EXPECT_EQ(ToText(AutoPlacements(DType::kF32, Shape{0, 1 << 30}, mesh)), "[R, R]");
}

}  // namespace
}  // namespace tessera
