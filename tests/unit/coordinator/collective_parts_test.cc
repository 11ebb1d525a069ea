// Collectives as redistributions: each kind against what its ranks give and take, elements by elements.

#include "server/coordinator/collective_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/types/layout.h"
#include "schemas/types/mesh.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements = 6;

// By giver, as many elements as its shard of the whole has, and by taker.
void ExpectSizes(CollectiveKind kind, int64_t ranks, int64_t given, int64_t taken) {
  const CollectiveParts parts = PartsOf({.kind = kind, .root = 1, .elements = kElements}, ranks);
  const auto shard = [&](const std::vector<int32_t>& members, const Placement& placement) {
    const Mesh mesh = *Mesh::Make({static_cast<int64_t>(members.size())}, {}, {});
    return MaxShardElements(*TensorSpec::Make("t", DType::kF32, parts.shape, mesh, {placement}));
  };
  EXPECT_EQ(shard(parts.givers, parts.from), given) << ToText(kind) << " of " << ranks;
  EXPECT_EQ(shard(parts.takers, parts.to), taken) << ToText(kind) << " of " << ranks;
}

TEST(CollectivePartsTest, ShardsHaveTheElementsThatRanksGiveAndTake) {
  for (const int64_t n : {2, 3, 7}) {
    const int64_t e = kElements;
    ExpectSizes(CollectiveKind::kAllReduce, n, e, e);
    ExpectSizes(CollectiveKind::kReduce, n, e, e);
    ExpectSizes(CollectiveKind::kBroadcast, n, e, e);
    ExpectSizes(CollectiveKind::kAllGather, n, e, n * e);
    ExpectSizes(CollectiveKind::kGather, n, e, n * e);
    ExpectSizes(CollectiveKind::kScatter, n, n * e, e);
    ExpectSizes(CollectiveKind::kReduceScatter, n, n * e, e);
    ExpectSizes(CollectiveKind::kAllToAll, n, n * e, n * e);
  }
}

TEST(CollectivePartsTest, WhoGivesAndTakes) {
  const auto parts = [](CollectiveKind kind) { return PartsOf({.kind = kind, .root = 1, .elements = kElements}, 3); };
  const std::vector<int32_t> all = {0, 1, 2}, root = {1}, others = {0, 2};
  EXPECT_EQ(parts(CollectiveKind::kReduce).takers, root);
  EXPECT_EQ(parts(CollectiveKind::kBroadcast).givers, root);
  EXPECT_EQ(parts(CollectiveKind::kBroadcast).takers, others);
  EXPECT_EQ(parts(CollectiveKind::kGather).takers, root);
  EXPECT_EQ(parts(CollectiveKind::kScatter).givers, root);
  EXPECT_EQ(parts(CollectiveKind::kAllToAll).givers, all);
  EXPECT_TRUE(parts(CollectiveKind::kBarrier).takers.empty());
  EXPECT_TRUE(PartsOf({.kind = CollectiveKind::kBroadcast, .elements = 1}, 1).takers.empty());
  const CollectiveParts message = PartsOfMessage({.kind = CollectiveKind::kSend, .elements = 4}, 2, 0);
  EXPECT_EQ(message.givers, std::vector<int32_t>{2});
  EXPECT_EQ(message.takers, std::vector<int32_t>{0});
}

TEST(CollectivePartsTest, ARanksOwnTensorsGoTogether) {
  const auto fill = [](CollectiveKind kind, int64_t operand, int64_t result, int64_t rank = 0) {
    CollectiveSignature signature{.kind = kind, .root = 1};
    const CollectiveTensors tensors{
        .has_operand = operand >= 0, .operand_elements = operand, .has_result = result >= 0, .result_elements = result};
    const absl::Status status = FillSignature(tensors, rank, 3, signature);
    return status.ok() ? std::to_string(signature.elements) : std::string(status.message());
  };
  EXPECT_EQ(fill(CollectiveKind::kAllReduce, 4, 4), "4");
  EXPECT_EQ(fill(CollectiveKind::kAllGather, 4, 12), "4");
  EXPECT_EQ(fill(CollectiveKind::kReduceScatter, 12, 4), "4");
  EXPECT_EQ(fill(CollectiveKind::kAllToAll, 12, 12), "4");
  EXPECT_EQ(fill(CollectiveKind::kAllGather, 0, 0), "0");
  EXPECT_EQ(fill(CollectiveKind::kBroadcast, -1, 5), "5");
  EXPECT_EQ(fill(CollectiveKind::kBroadcast, 5, -1, 1), "5");
  EXPECT_THAT(fill(CollectiveKind::kAllReduce, 4, 5), HasSubstr("all_reduce of 3 ranks: f32[4] to f32[5]"));
  EXPECT_THAT(fill(CollectiveKind::kAllToAll, 13, 13), HasSubstr("it takes 3 parts and gives 3"));
  EXPECT_EQ(fill(CollectiveKind::kBroadcast, 5, 5), "broadcast: this rank gives a tensor; it has none to give");
  EXPECT_EQ(fill(CollectiveKind::kSend, -1, -1), "send: this rank gives no tensor; it needs one");
  EXPECT_EQ(fill(CollectiveKind::kBarrier, -1, -1), "0");
}

TEST(CollectivePartsTest, ASignatureReadsAsItIsCalled) {
  CollectiveSignature signature{.kind = CollectiveKind::kReduce, .op = ReduceOp::kMax, .root = 2, .elements = 4};
  EXPECT_EQ(ToText(signature), "reduce f32[4] max to rank 2");
  signature.kind = CollectiveKind::kScatter;
  EXPECT_EQ(ToText(signature), "scatter f32[4] from rank 2");
  signature.kind = CollectiveKind::kAllGather;
  EXPECT_EQ(ToText(signature), "all_gather f32[4]");
  signature.on_devices = true;
  EXPECT_EQ(ToText(signature), "all_gather f32[4] on devices");
  EXPECT_EQ(ToText(CollectiveSignature{}), "barrier");
}

}  // namespace
}  // namespace tessera
