// Tenants in the state machine: memory, sessions and records beyond what one may have, and limits that change.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const Placements kEverywhere = {Placement::Replicate()};
Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }

// Two workers with 64 KiB each. Tensors are of 1 KiB a piece.
struct Pool {
  SimulatedCluster cluster{2, 64 << 10};
  uint64_t sessions = 100;
  std::map<SessionId, uint64_t> batches;

  void Change(std::vector<TenantLimits> tenants) { cluster.Apply(TenantsChangedEvent{std::move(tenants)}); }
  SessionId Open(const std::string& tenant, const std::string& name = "") {
    const SessionId session(++sessions);
    SessionOpenedEvent event{session, 77, tenant, "test", 0};
    event.name = name;
    cluster.Apply(event);
    return session;
  }
  // Why the tensor was refused; empty: it is there.
  std::string Make(SessionId session, uint64_t handle, int64_t kib) {
    const size_t before = cluster.EventsOf<FailedHandleEvent>(session).size();
    Submit(session, {FullRecord(MeshOf(2), {256 * kib}, kEverywhere, handle)});
    const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
    return failed.size() == before ? "" : std::string(failed.back().status.message());
  }
  void Submit(SessionId session, std::vector<Record> records) {
    cluster.Apply(BatchEvent{session, ++batches[session], std::move(records)});
    cluster.CompleteAll();
  }
  void Drop(SessionId session, uint64_t handle) { Submit(session, {DropRecord{{HandleId(handle)}}}); }
  int64_t Used(const std::string& tenant) {
    for (const TenantEntry* entry : cluster.machine().tenants().all()) {
      if (entry->limits.name == tenant) return entry->UsedOn(WorkerIndex(1));
    }
    return -1;
  }
};

TEST(TenantsTest, MemoryIsChargedToWhoMadeItAndGivenBack) {
  Pool pool;
  const SessionId a = pool.Open("a"), b = pool.Open("b");
  EXPECT_EQ(pool.Make(a, 1, 4), "");
  EXPECT_EQ(pool.Make(b, 1, 8), "");
  EXPECT_EQ(pool.Used("a"), 4 << 10);
  EXPECT_EQ(pool.Used("b"), 8 << 10);
  // Its buffer goes on as that of the result.
  pool.Submit(a, {OpRecord(OpId::kNeg, {1}, 2, /*last_use=*/true)});
  EXPECT_EQ(pool.Used("a"), 4 << 10);
  pool.Drop(a, 2);
  EXPECT_EQ(pool.Used("a"), 0);
  pool.cluster.Apply(SessionClosedEvent{b});
  EXPECT_EQ(pool.Used("b"), 0);
}

TEST(TenantsTest, WhatIsAboveTheLimitIsRefusedWithItsOwnHoldersAlone) {
  Pool pool;
  pool.Change({{.name = "a", .max_bytes = 16 << 10}, {.name = "b"}});
  const SessionId train = pool.Open("a", "train"), serve = pool.Open("a"), other = pool.Open("b", "secret");
  EXPECT_EQ(pool.Make(train, 1, 10), "");
  EXPECT_EQ(pool.Make(serve, 1, 2), "");
  EXPECT_EQ(pool.Make(other, 1, 20), "");
  const std::string why = pool.Make(serve, 2, 5);
  EXPECT_THAT(why,
              HasSubstr("full: is above the tenant's memory.max: 5120 bytes wanted on each of 2 workers; tenant \"a\" "
                        "uses 12288 of worker 0, its memory.max is 16384; 32768 bytes are free there"));
  EXPECT_THAT(why, HasSubstr("most is held by session 101 \"train\" (10240 bytes), session 102 (2048 bytes)"));
  EXPECT_THAT(why, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("103")), Not(HasSubstr("\"b\""))));
  EXPECT_EQ(pool.Make(serve, 3, 4), "");
  pool.Drop(train, 1);
  EXPECT_EQ(pool.Make(serve, 4, 5), "");
}

TEST(TenantsTest, WhatIsGuaranteedToOthersIsNotTaken) {
  Pool pool;
  pool.Change({{.name = "a"}, {.name = "b", .guaranteed_bytes = 32 << 10}});
  const SessionId a = pool.Open("a"), b = pool.Open("b");
  EXPECT_EQ(pool.Make(a, 1, 32), "");
  const std::string why = pool.Make(a, 2, 1);
  EXPECT_THAT(why,
              HasSubstr("would take what is guaranteed to others: 1024 bytes wanted on each of 2 workers; tenant \"a\" "
                        "uses 32768 of worker 0, where 32768 bytes are free and 32768 of them are guaranteed to "
                        "other tenants"));
  EXPECT_THAT(why, Not(HasSubstr("\"b\"")));
  EXPECT_EQ(pool.Make(b, 1, 32), "");
  pool.Drop(a, 1);
  // Memory above its guarantee is taken as anybody's.
  EXPECT_EQ(pool.Make(b, 2, 30), "");
  EXPECT_EQ(pool.Make(a, 3, 2), "");
  pool.Drop(b, 1);
  EXPECT_THAT(pool.Make(a, 4, 31), HasSubstr("guaranteed"));
  EXPECT_EQ(pool.Make(a, 4, 28), "handle 4 is in use already") << "the refused one has its number";
}

TEST(TenantsTest, FullMemoryIsToldWithTheOwnUse) {
  Pool pool;
  const SessionId a = pool.Open("default"), b = pool.Open("default", "big");
  EXPECT_EQ(pool.Make(b, 1, 60), "");
  EXPECT_EQ(pool.Make(a, 1, 1), "");
  EXPECT_THAT(pool.Make(a, 2, 8),
              HasSubstr("3072 free of 65536; this session has 1024 bytes; most is held by session 102 \"big\" (61440 "
                        "bytes), session 101 (1024 bytes)"));
}

TEST(TenantsTest, ALimitBelowTheUseTakesNothingAwayAndLetsNothingIn) {
  Pool pool;
  const SessionId a = pool.Open("a");
  EXPECT_EQ(pool.Make(a, 1, 16), "");
  pool.Change({{.name = "a", .max_bytes = 4 << 10}});
  EXPECT_EQ(pool.Used("a"), 16 << 10);
  EXPECT_THAT(pool.Make(a, 2, 1), HasSubstr("memory.max"));
  pool.Submit(a, {OpRecord(OpId::kNeg, {1}, 3, /*last_use=*/true)});  // in place
  EXPECT_EQ(pool.Used("a"), 16 << 10);
  pool.Change({{.name = "a"}});
  EXPECT_EQ(pool.Make(a, 4, 1), "");
}

TEST(TenantsTest, ATenantThatIsRemovedGoesOnWithoutNewMemory) {
  Pool pool;
  pool.Change({{.name = "a"}, {.name = "default", .weight = 2}});
  const SessionId a = pool.Open("a"), other = pool.Open("default");
  EXPECT_EQ(pool.Make(a, 1, 1), "");
  pool.Change({});
  EXPECT_THAT(pool.Make(a, 2, 1), HasSubstr("tenant \"a\" is no more in the tenants file"));
  EXPECT_EQ(pool.Make(other, 1, 1), "") << "the default one is there without a file, too";
  pool.Change({{.name = "a"}});
  EXPECT_EQ(pool.Make(a, 3, 1), "");
}

TEST(TenantsTest, ALostWorkerTakesWhatWasChargedThere) {
  Pool pool;
  const SessionId a = pool.Open("a");
  EXPECT_EQ(pool.Make(a, 1, 4), "");
  pool.cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(pool.Used("a"), 0);
  pool.Drop(a, 1);
  for (const TenantEntry* entry : pool.cluster.machine().tenants().all()) {
    EXPECT_EQ(entry->UsedOn(WorkerIndex(0)), 0);
    EXPECT_EQ(entry->UsedOn(WorkerIndex(1)), 0);
  }
}

// Its memory on workers that live is of use to nobody, whoever still has its handle.
TEST(TenantsTest, ATensorThatIsLostGivesItsMemoryBackAtOnce) {
  Pool pool;
  const SessionId a = pool.Open("a");
  pool.Submit(a,
              {FullRecord(MeshOf(2), {4096}, {Placement::Shard(0)}, 1), FullRecord(MeshOf(2), {512}, kEverywhere, 2)});
  const auto used = [&] { return pool.cluster.machine().tenants().at(0).UsedOn(WorkerIndex(0)); };
  EXPECT_EQ(used(), (8 << 10) + (2 << 10));
  pool.cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(used(), 2 << 10) << "the replicated one lives";
  EXPECT_EQ(pool.cluster.machine().memory().UsedBytes(WorkerIndex(0)), 2 << 10);
  pool.Submit(a, {DropRecord{{HandleId(1), HandleId(2)}}});
  EXPECT_EQ(used(), 0) << "and the lost one gave back once";
  EXPECT_EQ(pool.cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
}

TEST(TenantsTest, SessionsBeyondTheLimitAreRefused) {
  Pool pool;
  pool.Change({{.name = "a", .max_sessions = 2}});
  const SessionId first = pool.Open("a");
  pool.Open("a");
  const SessionId refused = pool.Open("a"), other = pool.Open("b");
  ASSERT_TRUE(pool.cluster.ended().contains(refused));
  EXPECT_EQ(pool.cluster.ended().at(refused).message(),
            "connect: 2 sessions of tenant \"a\" are open, its sessions is 2");
  EXPECT_FALSE(pool.cluster.ended().contains(other));
  pool.cluster.Apply(SessionClosedEvent{first});
  EXPECT_FALSE(pool.cluster.ended().contains(pool.Open("a")));
}

TEST(TenantsTest, RecordsBeyondTheLimitFailByNameAndTheSessionGoesOn) {
  Pool pool;
  pool.Change({{.name = "a", .max_queued_records = 20}});
  const SessionId a = pool.Open("a");
  std::vector<Record> records;
  for (uint64_t i = 1; i <= 30; ++i) records.push_back(FullRecord(MeshOf(2), {8}, kEverywhere, i));
  pool.Submit(a, records);
  const auto failed = pool.cluster.EventsOf<FailedHandleEvent>(a);
  ASSERT_EQ(failed.size(), 30u);
  EXPECT_EQ(failed[0].status.message(),
            "full: tenant \"a\" has 0 records in its queues and sent 30 more; its queued is 20");
  EXPECT_EQ(pool.Make(a, 31, 1), "");
  EXPECT_FALSE(pool.cluster.ended().contains(a));
}

TEST(TenantsTest, WorkIsChargedByWhatTheSlowestWorkerMeasured) {
  Pool pool;
  pool.Change({{.name = "a", .weight = 2}});
  const SessionId a = pool.Open("a");
  const FairTurns& turns = pool.cluster.machine().turns();
  pool.cluster.Apply(BatchEvent{a, ++pool.batches[a], {FullRecord(MeshOf(2), {8}, kEverywhere, 1)}});
  const int64_t before = turns.VirtualTimeOf(0);
  const Ordinal ordinal = pool.cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal;
  for (const int64_t us : {1'000, 9'000}) {
    WorkerReportEvent report{WorkerIndex(us == 1'000 ? 0 : 1), us == 1'000 ? 1u : 2u, {}, {}};
    CompletionReport done;
    done.ordinal = ordinal;
    done.times = {1, 1 + us * 1'000, us * 1'000};
    report.completions.push_back(done);
    pool.cluster.Apply(report);
  }
  const int64_t charged_us = (turns.VirtualTimeOf(0) - before) / kTicksPerUs;
  EXPECT_NEAR(static_cast<double>(charged_us), 4'500, 5);
  EXPECT_EQ(pool.cluster.machine().tenants().at(0).device_ns, 10'000'000);
}

// A session loses its client, and its tenant has 8 KiB for sessions without one.
struct DetachedPool : Pool {
  DetachedPool() { Change({{.name = "a", .max_detached_bytes = 8 << 10}, {.name = "b"}}); }
  SessionId OpenWithLease(const std::string& tenant) {
    const SessionId session(++sessions);
    cluster.Apply(SessionOpenedEvent{session, 77, tenant, "test", /*lease_us=*/60'000'000});
    return session;
  }
  void Detach(SessionId session) {
    cluster.Apply(ConnectionLostEvent{session, cluster.machine().sessions().at(session).connection});
  }
};

TEST(TenantsTest, SessionsWithoutAClientHoldNoMoreThanDetached) {
  DetachedPool pool;
  const SessionId first = pool.OpenWithLease("a"), second = pool.OpenWithLease("a"), other = pool.OpenWithLease("b");
  EXPECT_EQ(pool.Make(first, 1, 5), "");
  EXPECT_EQ(pool.Make(second, 1, 4), "");
  EXPECT_EQ(pool.Make(other, 1, 20), "");
  pool.Detach(other);
  pool.Detach(first);
  EXPECT_TRUE(pool.cluster.ended().empty());
  pool.Detach(second);
  ASSERT_EQ(pool.cluster.ended().size(), 1u) << "the one that is without a client for longest";
  EXPECT_EQ(
      pool.cluster.ended().at(first).message(),
      "the session had no client, and the sessions of tenant \"a\" without one had 9216 bytes of each worker; its "
      "detached is 8192");
  EXPECT_EQ(pool.Used("a"), 4 << 10);
}

TEST(TenantsTest, ASessionWithoutAClientTakesNoMemoryBeyondDetached) {
  DetachedPool pool;
  const SessionId a = pool.OpenWithLease("a");
  EXPECT_EQ(pool.Make(a, 1, 5), "");
  pool.Detach(a);
  EXPECT_THAT(
      pool.Make(a, 2, 4),
      HasSubstr(
          "full: is above the tenant's detached: 4096 bytes wanted on each of 2 workers; sessions of tenant \"a\" "
          "without a client have 5120 bytes of each worker, its detached is 8192"));
  EXPECT_EQ(pool.Make(a, 3, 3), "");
  // A limit that is lowered takes nothing away from who is detached already.
  pool.Change({{.name = "a", .max_detached_bytes = 1 << 10}});
  EXPECT_TRUE(pool.cluster.ended().empty());
  pool.cluster.Apply(SessionResumedEvent{a});
  EXPECT_EQ(pool.Make(a, 4, 20), "") << "with its client it is limited no more";
}

TEST(TenantsTest, LanesOfATenantAreAsItsFileSays) {
  Pool pool;
  pool.Change({{.name = "a", .lanes = kLanesBatch}, {.name = "b", .lanes = kLanesInteractive}});
  const auto outstanding = [&](Lane lane) {
    return pool.cluster.machine().workers().at(WorkerIndex(0)).windows.of(lane).outstanding;
  };
  const SessionId a = pool.Open("a"), b = pool.Open("b");
  pool.cluster.Apply(BatchEvent{a, 1, {FullRecord(MeshOf(2), {8}, kEverywhere, 1)}});
  EXPECT_EQ(outstanding(Lane::kBatch), 1);
  EXPECT_EQ(outstanding(Lane::kLight), 0);
  pool.cluster.Apply(BatchEvent{b, 1, {FullRecord(MeshOf(2), {8}, kEverywhere, 1)}});
  EXPECT_EQ(outstanding(Lane::kBatch), 1);
  EXPECT_EQ(outstanding(Lane::kLight), 1);
}

}  // namespace
}  // namespace tessera
