#include "server/coordinator/layout_table.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TensorSpec SpecOf(int64_t extent) {
  return *TensorSpec::Make("t", DType::kF32, {extent}, *Mesh::Make({2}, {}, {}), {Placement::Shard(0)});
}

TEST(LayoutTableTest, EqualLayoutsAreOne) {
  LayoutTable layouts;
  const SharedLayout layout = layouts.Of(SpecOf(8), {1});
  EXPECT_EQ(layouts.Of(SpecOf(8), {1}), layout);
  EXPECT_NE(layouts.Of(SpecOf(9), {1}), layout);
  EXPECT_NE(layouts.Of(SpecOf(8), {2}), layout);
  EXPECT_EQ(layouts.size(), 3u);
}

TEST(LayoutTableTest, KeepsToItsLimitAndEqualsStayEqual) {
  LayoutTable layouts;
  const SharedLayout first = layouts.Of(SpecOf(1), {1});
  for (int64_t extent = 2; extent < static_cast<int64_t>(kMaxKeptLayouts) + 10; ++extent) {
    layouts.Of(SpecOf(extent), {1});
    ASSERT_LE(layouts.size(), kMaxKeptLayouts);
  }
  const SharedLayout again = layouts.Of(SpecOf(1), {1});
  EXPECT_NE(again, first) << "it was forgotten";
  EXPECT_EQ(*again, *first);
  EXPECT_EQ(first->spec.shape[0], 1) << "and its holder has it";
}

}  // namespace
}  // namespace tessera
