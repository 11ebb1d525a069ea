#include <limits>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "tests/unit/ops/resolve_testing.h"

namespace tessera {
namespace {

IndexItem Slice(int64_t start, int64_t size, int64_t step = 1) { return {IndexItem::Kind::kSlice, start, size, step}; }
IndexItem Integer(int64_t at) { return {IndexItem::Kind::kInteger, at, 0, 1}; }
IndexItem NewAxis() { return {IndexItem::Kind::kNewAxis, 0, 0, 1}; }

Attributes Index(std::vector<IndexItem> items) {
  Attributes attributes;
  attributes.Set(attribute::index, std::move(items));
  return attributes;
}

// "offset [strides]" from the default layout of the operand, or the message.
std::string Layout(OpId op, const char* operand, const Attributes& attributes, Strides strides = {}) {
  const TensorSpec spec = *ParseTensorSpec(operand);
  if (strides.empty()) strides = RowMajorStrides(MaxShardShape(spec));
  const absl::StatusOr<ViewLayout> layout = ResolveView({op, attributes, {}}, spec, strides);
  if (!layout.ok()) return std::string(absl::StatusCodeToString(layout.status().code()));
  return std::to_string(layout->offset) + " " + ToText(layout->strides);
}

Attributes Relabelled(Shape shape, std::string_view placements) {
  Attributes attributes;
  attributes.Set(attribute::shape, std::move(shape));
  attributes.Set(attribute::placements, *ParsePlacements(placements));
  return attributes;
}

TEST(Transpose, PermutesPlacements) {
  EXPECT_EQ(Output(OpId::kTranspose, {"f32[4,6,8] @ mesh(2,2) [S(0), S(2)]"}, Dims({2, 0, 1})),
            "f32[8,4,6] @ mesh(2,2) [S(1), S(0)]");
  EXPECT_EQ(Output(OpId::kTranspose, {"f32[4,6] @ mesh(2) [P(sum)]"}, Dims({1, 0})), "f32[6,4] @ mesh(2) [P(sum)]");
  EXPECT_EQ(LocalText(OpId::kTranspose, {"f32[4,6] @ mesh(2) [S(0)]"}, Dims({1, 0})), "none");
  EXPECT_EQ(Layout(OpId::kTranspose, "f32[5,6] @ mesh(2) [S(0)]", Dims({1, 0})), "0 [1,6]");
  EXPECT_EQ(Output(OpId::kTranspose, {"f32[4,6] @ mesh(2) [R]"}, Dims({1, 1})),
            "permute_dims: [1,1] is no permutation of 2 dims: x is f32[4,6]");
}

TEST(Slicing, ShapesAndPlacements) {
  EXPECT_EQ(Output(OpId::kSlice, {"f32[8,6] @ mesh(2) [S(0)]"}, Index({Slice(1, 3), Slice(0, 6)})),
            "f32[3,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(Output(OpId::kSlice, {"f32[8,6] @ mesh(2) [S(0)]"}, Index({Integer(3), Slice(0, 6)})),
            "f32[6] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kSlice, {"f32[8,6] @ mesh(2) [S(1)]"}, Index({Integer(3), NewAxis(), Slice(5, 6, -1)})),
            "f32[1,6] @ mesh(2) [S(1)]");
  EXPECT_EQ(Output(OpId::kSlice, {"f32[8] @ mesh(2) [P(max)]"}, Index({Slice(6, 3, -3)})), "f32[3] @ mesh(2) [P(max)]");
}

TEST(Slicing, WhatIsNotCutIsAView) {
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [S(0)]", Index({Slice(0, 8), Slice(1, 2, 3)})), "1 [6,3]");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [S(0)]", Index({Slice(0, 8), Slice(5, 6, -1)})), "5 [6,-1]");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [R]", Index({Integer(2), NewAxis(), Slice(4, 2)})), "16 [0,1]");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [R]", Index({Slice(8, 0), Slice(0, 6)})), "0 [6,1]");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [S(0)]", Index({Slice(0, 4), Slice(0, 6)})),
            "FAILED_PRECONDITION");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [S(0)]", Index({Integer(0), Slice(0, 6)})), "FAILED_PRECONDITION");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(2) [S(0)]", Index({Slice(7, 8, -1), Slice(0, 6)})),
            "FAILED_PRECONDITION");
  EXPECT_EQ(Layout(OpId::kSlice, "f32[8,6] @ mesh(1) [S(0)]", Index({Slice(2, 4), Slice(0, 6)})), "12 [6,1]");
}

TEST(Slicing, OutOfRangeItems) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const IndexItem& item : {Slice(0, 9), Slice(-1, 2), Slice(8, 1), Slice(0, 2, 0), Slice(0, -1),
                                Slice(0, kMax, kMax), Slice(7, 9, -1), Slice(3, 3, kMax), Integer(8), Integer(-1)}) {
    const absl::Status status = Resolve(OpId::kSlice, {"f32[8] @ mesh(2) [R]"}, Index({item})).status();
    EXPECT_TRUE(status.GetPayload(kIndexErrorPayload).has_value()) << status;
  }
  EXPECT_FALSE(Resolve(OpId::kSlice, {"f32[8] @ mesh(2) [R]"}, Index({})).ok());
  EXPECT_FALSE(Resolve(OpId::kSlice, {"f32[8] @ mesh(2) [R]"}, Index({Slice(0, 8), Slice(0, 8)})).ok());
  EXPECT_FALSE(Resolve(OpId::kSlice, {"f32[8] @ mesh(2) [R]"}, Index(std::vector<IndexItem>(100, NewAxis()))).ok());
}

TEST(Reshape, ShardsThatLeadTheirGroupSurvive) {
  const auto reshape = [](const char* operand, Shape shape) {
    return Output(OpId::kReshape, {operand}, ToShape(shape));
  };
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [S(0)]", {48}), "f32[48] @ mesh(2) [S(0)]");
  EXPECT_EQ(reshape("f32[48] @ mesh(2) [S(0)]", {8, 6}), "f32[8,6] @ mesh(2) [S(0)]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [S(1)]", {2, 4, 6}), "f32[2,4,6] @ mesh(2) [S(2)]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [S(1)]", {8, 6, 1}), "f32[8,6,1] @ mesh(2) [S(1)]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [S(1)]", {1, 8, 1, 2, 3}), "f32[1,8,1,2,3] @ mesh(2) [S(3)]");
  EXPECT_EQ(reshape("f32[9,4] @ mesh(4) [S(0)]", {3, 3, 4}), "f32[3,3,4] @ mesh(4) [S(0)]") << "3,3,3,0 both ways";
  EXPECT_EQ(reshape("f32[9,2] @ mesh(2,2) [S(0), S(0)]", {9, 2, 1}), "f32[9,2,1] @ mesh(2,2) [S(0), S(0)]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [P(sum)]", {4, 12}), "f32[4,12] @ mesh(2) [P(sum)]");
  EXPECT_EQ(reshape("f32[0,6] @ mesh(2) [R]", {3, 0}), "f32[3,0] @ mesh(2) [R]");
  EXPECT_EQ(reshape("f32[] @ mesh(2) [R]", {1, 1}), "f32[1,1] @ mesh(2) [R]");
}

TEST(Reshape, WhatCutsNothingStandsInNobodysWay) {
  const auto reshape = [](const char* operand, Shape shape) {
    return Output(OpId::kReshape, {operand}, ToShape(shape));
  };
  EXPECT_EQ(reshape("f64[5,1] @ mesh(1) [S(1)]", {5}), "f64[5] @ mesh(1) [R]");
  EXPECT_EQ(reshape("f64[8,6] @ mesh(1) [S(1)]", {48}), "f64[48] @ mesh(1) [R]");
  EXPECT_EQ(reshape("f64[8,6] @ mesh(1) [S(0)]", {48}), "f64[48] @ mesh(1) [S(0)]");
  EXPECT_EQ(reshape("f64[8,6] @ mesh(1,2) [S(1), S(0)]", {48}), "f64[48] @ mesh(1,2) [R, S(0)]");
  EXPECT_EQ(reshape("f64[5,1] @ mesh(2) [S(1)]", {1, 5}), "f64[1,5] @ mesh(2) [S(0)]") << "all of it at position 0";
  EXPECT_EQ(reshape("f64[4,1,5] @ mesh(2) [S(1)]", {1, 4, 1, 5}), "f64[1,4,1,5] @ mesh(2) [S(2)]");
  EXPECT_EQ(reshape("f64[2,6] @ mesh(2,3) [S(0), S(1)]", {12}), "f64[12] @ mesh(2,3) [S(0), S(0)]");
  EXPECT_EQ(reshape("f64[12] @ mesh(2,3) [S(0), S(0)]", {2, 6}), "f64[2,6] @ mesh(2,3) [S(0), S(1)]");
  EXPECT_EQ(reshape("f64[0,3] @ mesh(2) [S(1)]", {0}), "f64[0] @ mesh(2) [S(0)]");
}

TEST(Reshape, KeepsElementsWhereTheyAreByExplicitSizes) {
  const auto reshape = [](const char* operand, Shape shape) {
    return Output(OpId::kReshape, {operand}, ToShape(shape));
  };
  EXPECT_EQ(reshape("f32[9,4] @ mesh(4) [S(0)]", {36}), "f32[36] @ mesh(4) [S(0;12,12,12,0)]");
  EXPECT_EQ(reshape("f32[9,4] @ mesh(2) [S(0)]", {36}), "f32[36] @ mesh(2) [S(0;20,16)]");
  EXPECT_EQ(reshape("f32[36] @ mesh(2) [S(0;20,16)]", {9, 4}), "f32[9,4] @ mesh(2) [S(0)]");
}

TEST(Reshape, GathersTheShardsThatCantStay) {
  const auto reshape = [](const char* operand, Shape shape) {
    return Output(OpId::kReshape, {operand}, ToShape(shape));
  };
  EXPECT_EQ(reshape("f64[7,13] @ mesh(2,3) [S(1), S(0)]", {91}), "f64[91] @ mesh(2,3) [R, S(0;39,39,13)]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [S(1)]", {48}), "f32[48] @ mesh(2) [R]");
  EXPECT_EQ(reshape("f32[8,6] @ mesh(2) [R]", {7, 7}),
            "reshape: the new shape [7,7] has 49 elements, not 48: x is f32[8,6]");
  EXPECT_EQ(reshape("f32[8] @ mesh(2) [R]", {-1}), "reshape: negative extent -1 in shape [-1]");
  EXPECT_FALSE(
      Resolve(OpId::kReshape, {"f32[8] @ mesh(2) [R]"}, ToShape({int64_t{1} << 32, int64_t{1} << 32, 8})).ok());
}

TEST(Reshape, Layouts) {
  EXPECT_EQ(Layout(OpId::kReshape, "f32[8,6] @ mesh(2) [S(0)]", ToShape({48})), "0 [1]");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[9,4] @ mesh(4) [S(0)]", ToShape({3, 3, 4})), "0 [12,4,1]");
  // Columns of a default layout are 6/2 apart: the rows can be split, not merged with them.
  EXPECT_EQ(Layout(OpId::kReshape, "f32[8,6] @ mesh(2) [S(1)]", ToShape({2, 4, 6})), "0 [12,3,1]");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[2,6] @ mesh(2,3) [S(0), S(1)]", ToShape({12})), "0 [1]");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[2,6] @ mesh(2,3) [S(0), S(1)]", ToShape({12}), {7, 3}), "0 [3]");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[8,6] @ mesh(2) [R]", ToShape({48}), {1, 8}), "FAILED_PRECONDITION");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[8,6] @ mesh(2) [R]", ToShape({2, 4, 6}), {1, 8}), "0 [4,1,8]");
  EXPECT_EQ(Layout(OpId::kReshape, "f32[8,6] @ mesh(2) [R]", ToShape({8, 6}), {1, 8}), "0 [1,8]");
}

TEST(Relabel, ReadsPartsAsPartsOfAnotherTensor) {
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[8,4] @ mesh(2) [S(0)]"}, Relabelled({4, 4}, "[P(sum)]")),
            "f32[4,4] @ mesh(2) [P(sum)]");
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[4,4] @ mesh(2) [R]"}, Relabelled({4, 8}, "[S(1)]")),
            "f32[4,8] @ mesh(2) [S(1)]");
  EXPECT_EQ(LocalText(OpId::kRelabel, {"f32[8,4] @ mesh(2) [S(0)]"}, Relabelled({4, 4}, "[P(max)]")), "none");
  EXPECT_EQ(Layout(OpId::kRelabel, "f32[8,4] @ mesh(2) [S(0)]", Relabelled({2, 4, 4}, "[S(0)]")), "0 [16,4,1]");
  // Dims are merged and cut where the parts are alike everywhere.
  EXPECT_EQ(Layout(OpId::kRelabel, "f32[8,4] @ mesh(2) [S(0)]", Relabelled({2, 16}, "[S(0)]")), "0 [16,1]");
  EXPECT_EQ(Layout(OpId::kRelabel, "f32[8,4] @ mesh(2) [S(0)]", Relabelled({2, 2, 8}, "[P(sum)]")), "INVALID_ARGUMENT");
  EXPECT_EQ(Layout(OpId::kRelabel, "f32[8,4] @ mesh(2) [S(0)]", Relabelled({2, 8}, "[P(sum)]")), "0 [8,1]");
  // A transposed part can't be read with fewer dims: it is copied first.
  EXPECT_EQ(Layout(OpId::kRelabel, "f32[8,4] @ mesh(2) [S(0)]", Relabelled({32}, "[S(0)]"), {1, 4}),
            "FAILED_PRECONDITION");
}

TEST(Relabel, UnevenPartsStayAsTheyAre) {
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[5,4] @ mesh(2) [S(0)]"}, Relabelled({5, 1, 4}, "[S(0)]")),
            "f32[5,1,4] @ mesh(2) [S(0)]");
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[5,4] @ mesh(2) [S(0)]"}, Relabelled({20}, "[S(0;12,8)]")),
            "relabel: position [1] holds [2,4] of it, which can't be [8], the part that it has of f32[20] @ mesh(2) "
            "[S(0;12,8)]: x is f32[5,4]");
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[5,4] @ mesh(2) [S(0)]"}, Relabelled({3, 4}, "[P(sum)]")),
            "relabel: position [1] holds [2,4] of it, which can't be [3,4], the part that it has of f32[3,4] @ mesh(2) "
            "[P(sum)]: x is f32[5,4]");
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[0,4] @ mesh(2) [S(0)]"}, Relabelled({4, 0}, "[R]")), "f32[4,0] @ mesh(2) [R]");
  EXPECT_EQ(Output(OpId::kRelabel, {"i32[4] @ mesh(2) [S(0)]"}, Relabelled({2}, "[P(bxor)]")),
            "i32[2] @ mesh(2) [P(bxor)]");
  EXPECT_EQ(Output(OpId::kRelabel, {"f32[4] @ mesh(2) [S(0)]"}, Relabelled({2}, "[P(band)]")).substr(0, 57),
            "relabel: P(band) is of the bits of integers, or of bools:");
}

}  // namespace
}  // namespace tessera
