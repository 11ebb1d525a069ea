// The text that a scrape reads, and which workers make a cluster unready.

#include "server/coordinator/rpc/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const WorkerIndex kWorker(0);
const Placements kEverywhere = {Placement::Replicate()};

Mesh OneWorker() { return *Mesh::Make({1}, {}, {}); }

TEST(MetricsTextTest, CountsOpsFailuresAndDeviceTimeOfATenant) {
  SimulatedCluster cluster(1);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(OneWorker(), {8}, kEverywhere, 1), OpRecord(OpId::kNeg, {1}, 2),
                           OpRecord(OpId::kNeg, {99}, 3)});  // of a handle that isn't there
  const auto instances = cluster.InstancesAt(kWorker);
  ASSERT_EQ(instances.size(), 2u);
  CompletionReport filled, failed;
  filled.ordinal = instances[0].ordinal;
  filled.times = {1, 3'000'001, 3'000'000, 2'000'000};
  failed.ordinal = instances[1].ordinal;
  failed.status = absl::InternalError("broken");
  cluster.Apply(WorkerReportEvent{kWorker, 1, {filled, failed}, {}});
  const std::string text = MetricsText(SnapshotOf(cluster.machine()));
  EXPECT_THAT(text, HasSubstr("# TYPE tessera_ops_total counter"));
  EXPECT_THAT(text, HasSubstr("tessera_ops_total{tenant=\"tenant\",op=\"full\"} 1"));
  EXPECT_THAT(text, HasSubstr("tessera_failed_total{tenant=\"tenant\",code=\"INTERNAL\"} 1"));
  EXPECT_THAT(text, HasSubstr("tessera_refused_total{tenant=\"tenant\",why=\"NOT_FOUND\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("tessera_tenant_device_seconds_total{tenant=\"tenant\",worker=\"0\",lane=\"light\"} 0.002"));
  EXPECT_THAT(text, HasSubstr("tessera_op_seconds_count{tenant=\"tenant\"} 2"));
  EXPECT_THAT(text, HasSubstr("tessera_sessions{tenant=\"tenant\",connected=\"true\"} 1"));
  EXPECT_THAT(text, HasSubstr("tessera_worker_state{worker=\"0\",state=\"alive\"} 1"));
}

TEST(MetricsTextTest, LabelsAreEscaped) {
  MetricsSnapshot snapshot;
  snapshot.tenants["a\"b\\c\nd"].AddOp("neg", absl::OkStatus(), 0.5);
  EXPECT_THAT(MetricsText(snapshot), HasSubstr("{tenant=\"a\\\"b\\\\c\\nd\",op=\"neg\"} 1"));
}

TEST(MetricsTextTest, BucketsOfAHistogramAddUp) {
  MetricsSnapshot snapshot;
  for (const double seconds : {0.00005, 0.002, 100.0}) snapshot.tenants["t"].op_seconds.Add(seconds);
  const std::string text = MetricsText(snapshot);
  EXPECT_THAT(text, HasSubstr("tessera_op_seconds_bucket{tenant=\"t\",le=\"0.001\"} 1"));
  EXPECT_THAT(text, HasSubstr("tessera_op_seconds_bucket{tenant=\"t\",le=\"30\"} 2"));
  EXPECT_THAT(text, HasSubstr("tessera_op_seconds_bucket{tenant=\"t\",le=\"+Inf\"} 3"));
}

TEST(MetricsTextTest, TenantsBeyondTheLimitAreOne) {
  Metrics metrics;
  for (size_t t = 0; t < kMaxMetricTenants + 50; ++t) metrics.Of("tenant " + std::to_string(t)).uploaded_bytes += 1;
  EXPECT_EQ(metrics.tenants().size(), kMaxMetricTenants + 1);
  EXPECT_EQ(metrics.tenants().at("other").uploaded_bytes, 50);
}

TEST(ReadinessTest, AWorkerThatIsAskedAndAnswersIsReadyAndASilentOneIsNamed) {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.idle_check_us = 4'000'000;
  config.worker_timeout_us = 1'000'000'000;
  SimulatedCluster cluster(2, 1 << 20, config);
  EXPECT_TRUE(IsReady(SnapshotOf(cluster.machine())));
  cluster.Advance(3'000'000);
  EXPECT_TRUE(cluster.MessagesAt(kWorker).empty() ||
              !std::holds_alternative<InlineRead>(cluster.MessagesAt(kWorker).back()));
  for (int seconds = 0; seconds < 12; ++seconds) {
    for (const auto& [index, worker] : cluster.machine().workers()) {
      cluster.Apply(WorkerHeardEvent{index});
    }
    cluster.Advance(1'000'000);
    cluster.CompleteOn(kWorker);  // the other one says nothing
  }
  const MetricsSnapshot snapshot = SnapshotOf(cluster.machine());
  EXPECT_FALSE(IsReady(snapshot));
  EXPECT_THAT(ReadinessJson(snapshot), HasSubstr("\"worker\":1"));
  EXPECT_THAT(ReadinessJson(snapshot), Not(HasSubstr("\"worker\":0")));
  const auto asked = cluster.MessagesAt(WorkerIndex(1));
  ASSERT_FALSE(asked.empty());
  const auto* read = std::get_if<InlineRead>(&asked.back());
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->stream, NumberOf(StreamId::kIoLight));
}

TEST(ReadinessTest, AClusterWithoutWorkersOrWithALostOneIsNotReady) {
  SimulatedCluster none(0);
  EXPECT_FALSE(IsReady(SnapshotOf(none.machine())));
  SimulatedCluster cluster(2);
  cluster.Kill(WorkerIndex(1));
  EXPECT_THAT(ReadinessJson(SnapshotOf(cluster.machine())), HasSubstr("\"state\":\"lost\",\"worker\":1"));
}

}  // namespace
}  // namespace tessera
