#include "schemas/ops/catalog.h"

#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"

namespace tessera {
namespace {

// The fewest and the most that a row of the family takes.
std::pair<int, int> OperandsOf(const OpRow& row) {
  switch (row.family) {
    case OpFamily::kCreation: return {0, 0};
    case OpFamily::kElementwise: return {Arity(row.scalar_op.value()), Arity(row.scalar_op.value())};
    case OpFamily::kReduction:
    case OpFamily::kArgReduction:
    case OpFamily::kFourier:
    case OpFamily::kAlong:
    case OpFamily::kView: return {1, 1};
    case OpFamily::kContraction: return {2, 2};
    case OpFamily::kIndexed:
      if (row.id == OpId::kCheckRange) return {1, 1};
      if (row.id == OpId::kFilter || row.id == OpId::kShardCounts) return {1, 2};
      return row.id == OpId::kScatter ? std::pair(3, 3) : std::pair(2, 2);
    case OpFamily::kAttention:
      if (row.id == OpId::kAttentionLogarithms) return {2, 3};
      if (row.id == OpId::kAttentionGradientsOfResult) return {6, 7};
      return row.id == OpId::kAttention ? std::pair(3, 4) : std::pair(4, 5);
    case OpFamily::kGrouped: return {3, 3};
    case OpFamily::kMatrices: return {1, 2};
    case OpFamily::kWindows:
      return row.id == OpId::kMaxPoolWindows || row.id == OpId::kAvgPoolWindows ? std::pair(1, 1) : std::pair(2, 2);
    case OpFamily::kComposite: return {row.min_operands, row.max_operands};  // as its graph takes them
    case OpFamily::kPlace:
    case OpFamily::kRedistribute: return {1, kMaxOperands};
  }
  return {-1, -1};
}

TEST(Catalog, RowsAreFoundByIdAndByName) {
  std::set<OpId> ids;
  for (const OpRow& row : Catalog()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.name << " shares its id";
    EXPECT_EQ(*FindOp(row.id), &row);
    EXPECT_EQ(*FindOpByName(row.name), &row);
    EXPECT_FALSE(row.signature.empty());
    EXPECT_FALSE(row.doc.empty());
    EXPECT_LE(row.min_operands, row.max_operands);
    EXPECT_EQ(row.family == OpFamily::kElementwise, row.scalar_op.has_value()) << row.name;
    EXPECT_EQ(row.family == OpFamily::kReduction, row.reduce_op.has_value()) << row.name;
    // An einsum's notation is its call's.
    const bool has_notation = row.family == OpFamily::kContraction && row.id != OpId::kEinsum;
    EXPECT_EQ(has_notation, !row.notation.empty()) << row.name;
    EXPECT_EQ(row.family == OpFamily::kComposite, row.composite != nullptr) << row.name;
    EXPECT_EQ(OperandsOf(row), std::pair(row.min_operands, row.max_operands)) << row.name;
  }
  EXPECT_FALSE(FindOp(static_cast<OpId>(99)).ok());
  EXPECT_FALSE(FindOp(static_cast<OpId>(65535)).ok());
  EXPECT_FALSE(FindOpByName("frobnicate").ok());
}

TEST(CallText, SaysWhatShapesTheResult) {
  OpCall call{OpId::kSum, {}, {}};
  call.attributes.Set(attribute::dims, {0});
  call.attributes.Set(attribute::keepdims, true);
  EXPECT_EQ(ToText(call), "sum(dims=[0], keepdims=true)");
  call = {OpId::kRedistribute, {}, {}};
  call.attributes.Set(attribute::placements, Placements{Placement::Shard(0), Placement::Replicate()});
  EXPECT_EQ(ToText(call), "redistribute([S(0), R])");
  call.attributes.Clear(attribute::placements);
  call.attributes.Set(attribute::placements_each,
                      {{Placement::Shard(0)}, {Placement::Replicate(), Placement::Shard(1)}});
  EXPECT_EQ(ToText(call), "redistribute([[S(0)], [R, S(1)]])");
  call = {OpId::kFull, {}, {Scalar::Float(3.5)}};
  call.attributes.Set(attribute::shape, Shape{2, 3});
  call.attributes.Set(attribute::dtype, DType::kF32);
  EXPECT_EQ(ToText(call), "full([2,3], dtype=f32, 3.5)");
  call = {OpId::kSlice, {}, {}};
  call.attributes.Set(attribute::index, {{IndexItem::Kind::kSlice, 4, 3, -1},
                                         {IndexItem::Kind::kNewAxis, 0, 0, 1},
                                         {IndexItem::Kind::kInteger, 2, 0, 1},
                                         {IndexItem::Kind::kSlice, 0, 5, 1}});
  EXPECT_EQ(ToText(call), "slice([4+3*-1, None, 2, 0+5])");
  EXPECT_EQ(ToText(OpCall{OpId::kMatmul, {}, {}}), "matmul()");
}

}  // namespace
}  // namespace tessera
