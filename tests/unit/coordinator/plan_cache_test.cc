#include "server/coordinator/plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

PlanKey KeyOf(int64_t extent, size_t operands = 1) {
  LayoutTable layouts;
  PlanKey key;
  PlanKeyCall& call = key.calls.emplace_back();
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
  call.operands.resize(operands);
  key.inputs.resize(operands);
  for (size_t i = 0; i < operands; ++i) {
    call.operands[i].value = static_cast<int32_t>(i);
    key.inputs[i].layout =
        layouts.Of(*TensorSpec::Make("t", DType::kF32, {extent}, *Mesh::Make({2}, {}, {}), {Placement::Shard(0)}), {1});
  }
  return key;
}

PlanTemplate TemplateOf(uint64_t id, size_t values = 1) {
  Plan plan;
  plan.values.resize(values);
  PlanTemplate made;
  made.id = TemplateId(id);
  made.plan = std::make_shared<const Plan>(std::move(plan));
  made.workers = std::make_shared<const std::vector<WorkerIndex>>(2);
  return made;
}

std::vector<uint64_t> Ids(const std::vector<PlanTemplate>& templates) {
  std::vector<uint64_t> ids;
  for (const PlanTemplate& each : templates) ids.push_back(each.id.value);
  return ids;
}

TEST(PlanCacheTest, KeepsToItsBytesAndLetsTheLeastRecentlyUsedGo) {
  const int64_t each = MemoryBytes(KeyOf(1)) + MemoryBytes(TemplateOf(1));
  PlanCache cache(100, 3 * each);
  std::vector<PlanTemplate> evicted;
  for (uint64_t i = 1; i <= 3; ++i) cache.Insert(KeyOf(static_cast<int64_t>(i)), TemplateOf(i), evicted);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(cache.bytes(), 3 * each);
  ASSERT_NE(cache.Find(KeyOf(1)), nullptr);
  cache.Insert(KeyOf(4), TemplateOf(4), evicted);
  EXPECT_THAT(Ids(evicted), ::testing::ElementsAre(2));
  EXPECT_EQ(cache.Find(KeyOf(2)), nullptr);
  EXPECT_EQ(cache.bytes(), 3 * each);
}

TEST(PlanCacheTest, ALargeOneTakesThePlaceOfManyAndStaysHoweverLargeItIs) {
  const int64_t each = MemoryBytes(KeyOf(1)) + MemoryBytes(TemplateOf(1));
  PlanCache cache(100, 3 * each);
  std::vector<PlanTemplate> evicted;
  for (uint64_t i = 1; i <= 3; ++i) cache.Insert(KeyOf(static_cast<int64_t>(i)), TemplateOf(i), evicted);
  EXPECT_EQ(cache.Insert(KeyOf(9), TemplateOf(9, 1000), evicted)->id, TemplateId(9));
  EXPECT_THAT(Ids(evicted), ::testing::ElementsAre(1, 2, 3));
  EXPECT_GT(cache.bytes(), 3 * each);
  evicted.clear();
  cache.Insert(KeyOf(1), TemplateOf(10), evicted);
  EXPECT_THAT(Ids(evicted), ::testing::ElementsAre(9));
  EXPECT_EQ(cache.bytes(), each);
}

TEST(PlanCacheTest, AKeyWithANaNIsFoundAndEvictedAsAnyOther) {
  const auto with_eps = [](double eps) {
    PlanKey key = KeyOf(1);
    key.calls[0].attributes.Set(attribute::eps, eps);
    return key;
  };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  PlanCache cache(2, int64_t{1} << 30);
  std::vector<PlanTemplate> evicted;
  cache.Insert(with_eps(kNaN), TemplateOf(1), evicted);
  ASSERT_NE(cache.Find(with_eps(kNaN)), nullptr);
  EXPECT_EQ(cache.Find(with_eps(-kNaN)), nullptr);
  cache.Insert(with_eps(0.0), TemplateOf(2), evicted);
  EXPECT_EQ(cache.Find(with_eps(-0.0)), nullptr);
  cache.Insert(with_eps(-0.0), TemplateOf(3), evicted);
  EXPECT_THAT(Ids(evicted), ::testing::ElementsAre(1));
  EXPECT_EQ(cache.Find(with_eps(kNaN)), nullptr);
  EXPECT_EQ(cache.size(), 2);
}

TEST(PlanCacheTest, AKeyCountsByItsOperands) {
  EXPECT_GE(MemoryBytes(KeyOf(1, 64)),
            MemoryBytes(KeyOf(1)) + int64_t{63 * (sizeof(PlanKeyOperand) + sizeof(PlanKeyInput))});
}

TEST(PlanCacheTest, KeepsToItsNumberOfPlans) {
  PlanCache cache(2, int64_t{1} << 30);
  std::vector<PlanTemplate> evicted;
  for (uint64_t i = 1; i <= 3; ++i) cache.Insert(KeyOf(static_cast<int64_t>(i)), TemplateOf(i), evicted);
  EXPECT_THAT(Ids(evicted), ::testing::ElementsAre(1));
  EXPECT_EQ(cache.size(), 2u);
}

// A session that redistributes 64 tensors of ever other shapes: the cache stays bounded, and workers forget the rest.
TEST(PlanCacheTest, WorkersForgetWhatWentForItsBytes) {
  CoordinatorConfig config;
  config.max_cached_plan_bytes = 1 << 20;
  SimulatedCluster cluster(2, 1 << 20, config);
  const SessionId session = cluster.Open();
  const Mesh mesh = *Mesh::Make({2}, {}, {});
  for (int64_t extent = 1; extent <= 40; ++extent) {
    CallRecord move;
    move.call.op = OpId::kRedistribute;
    move.call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
    cluster.Submit(session, {FullRecord(mesh, {extent, 2}, {Placement::Shard(0)}, 1)});
    for (uint64_t i = 0; i < 64; ++i) {
      move.operands.push_back({HandleId(1)});
      move.results.emplace_back(100 + i);
    }
    cluster.Submit(session, {move, DropRecord{{move.results.begin(), move.results.end()}}, DropRecord{{HandleId(1)}}});
    cluster.CompleteAll();
    ASSERT_LE(cluster.machine().plans().bytes(), config.max_cached_plan_bytes);
  }
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
  EXPECT_LT(cluster.machine().plans().size(), 80u);
  const auto forgets = [](const std::string& line) { return line.find("forget") != std::string::npos; };
  EXPECT_TRUE(std::any_of(cluster.log().begin(), cluster.log().end(), forgets));
}

}  // namespace
}  // namespace tessera
